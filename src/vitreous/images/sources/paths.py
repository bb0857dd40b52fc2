"""What DATA names (`Place`): a folder, files, a pattern or an address; and how its files are listed and read."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from vitreous.errors import DataError, nearest
from vitreous.files import restore_folder
from vitreous.images.sources import image_file
from vitreous.images.sources.remote import (
    ADDRESS,
    Stamp,
    filesystem,
    is_remote,
    open_far,
    read_far_range,
    retried,
    stamp,
    stamps,
)
from vitreous.printable import storable
from vitreous.words import one_line

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif", ".heic"}
IMAGE_SUFFIXES |= {".heif", ".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".tga"}
JUNK_NAMES = {"__macosx", "thumbs.db", "desktop.ini", "@eadir", "$recycle.bin", "system volume information"}
JUNK_NAMES |= {"lost+found", "__pycache__", "ehthumbs.db", "icon\r"}
SPECIAL_FILES = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}
SPECIAL_FILES |= {stat.S_IFDIR: "a folder"}
MAX_COMPARED = 1_000  # names compared with one that is not there
HASH_WHOLE_BELOW = 1 << 30  # bytes; a larger set's content id comes from sizes, heads and tails, not from every byte


@dataclass(frozen=True)
class Place:
    """What DATA names: one folder, or one or more files (local paths or fsspec addresses)."""

    text: str  # as the user wrote it
    folder: Path | None = None
    files: tuple[str, ...] = ()
    skips_bad_shards: bool = False  # a shard that cannot be read is left out, with a note

    def ending(self, *suffixes: str) -> list[str]:
        """The named files if all have such a suffix; for a folder, the files directly inside that do."""
        if self.folder is None:
            is_all = self.files and all(file_name(f).lower().endswith(suffixes) for f in self.files)
            return list(self.files) if is_all else []
        return [
            str(self.folder / n) for n in self.names if n.lower().endswith(suffixes) and (self.folder / n).is_file()
        ]

    @cached_property
    def names(self) -> list[str]:
        """Sorted names directly in the folder, without hidden files and junk."""
        if self.folder is None:
            return []
        try:
            return sorted(path.name for path in self.folder.iterdir() if not is_junk(path.name))
        except OSError as error:
            raise cannot_read(self.folder, error) from None

    @cached_property
    def has_image_folders(self) -> bool:
        """True if a subfolder holds an image, at any depth."""
        if self.folder is None:
            return False
        folders = (self.folder / name for name in self.names if (self.folder / name).is_dir())
        return any(is_image_name(name) for folder in folders for _, files, _ in walk(folder) for name in files)


def find_place(path_or_address: str | os.PathLike[str]) -> Place:
    """A path | a pattern | an fsspec address, in that order: an existing path wins."""
    text = os.fspath(path_or_address)
    path = Path(text).expanduser()
    if not text:
        raise DataError("no data was named; name a folder, a file, a pattern, an address or fashion")
    restore_folder(path)
    if os.path.lexists(path) and not path.exists():
        raise DataError(f"{text} is a link to nothing, or to itself; name what it should point to")
    if path.is_dir():
        return Place(text, folder=path)
    if path.exists():
        return _files(text, [str(path)])
    if ADDRESS.match(text):
        return Place(text, files=_remote(text))
    wanted = expand_braces(str(path))
    found = [f for one in dict.fromkeys(wanted) for f in (_glob(one) if glob.has_magic(one) else [one])]
    found = sorted(set(found))
    missing = [f for f in found if not Path(f).exists()]
    if len(wanted) == 1 and missing:
        raise DataError(f"{text} is not there; {_meant(path)}")
    if missing:
        raise DataError(f"{text} names {len(found)} files, and {missing[0]} is not there ({len(missing)} missing)")
    if not found:
        raise DataError(f"no file matches {text}; check the pattern")
    if len(found) == 1 and Path(found[0]).is_dir():
        return Place(text, folder=Path(found[0]))
    if any(Path(f).is_dir() for f in found):
        raise DataError(f"{text} matches folders as well as files, or several folders; name the folder above them")
    return _files(text, found)


def _meant(path: Path) -> str:
    """What may have been meant: the nearest name beside it."""
    try:
        beside = [entry.name for entry in islice(path.parent.iterdir(), MAX_COMPARED) if not is_junk(entry.name)]
    except OSError:
        beside = []
    if near := nearest(path.name, beside, 1):
        return f"did you mean {storable(str(path.with_name(near[0])))}?"
    return "name a folder, a file, a pattern, an address or fashion"


def _files(text: str, files: list[str]) -> Place:
    """Named files. A file with a set must be regular; an image that is not gets its own error later."""
    for file in files:
        if not is_image_name(file):
            check_regular(Path(file).stat().st_mode, file)
    return Place(text, files=tuple(files))


def _glob(pattern: str) -> list[str]:
    return sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207  it takes absolute and relative ones alike


def expand_braces(text: str) -> list[str]:
    """`a-{000..002}.tar` is three names and `{a,b}.zip` two, as in a shell."""
    found = re.search(r"\{(\d+)\.\.(\d+)\}|\{([^{}]*,[^{}]*)\}", text)
    if not found:
        return [text]
    if found[3] is not None:
        parts = found[3].split(",")
    else:
        low, high = int(found[1]), int(found[2])
        if abs(high - low) >= 1_000_000:
            raise DataError(f"{text} names more than a million files; check the pattern")
        step = 1 if high >= low else -1
        parts = [str(n).zfill(len(found[1])) for n in range(low, high + step, step)]
    return [whole for part in parts for whole in expand_braces(text[: found.start()] + part + text[found.end() :])]


def _remote(text: str) -> tuple[str, ...]:
    """The files of an address. Of several names in braces, the reader finds those that are missing."""
    found: list[str] = []
    names = list(dict.fromkeys(expand_braces(text)))
    for one in names:
        found += [one] if len(names) > 1 and not _has_magic(one) else _listed(one)
    if not found:
        raise DataError(f"no file matches {text}; check the pattern")
    return tuple(sorted(set(found)))


def _listed(address: str) -> list[str]:
    """The files that one address names: itself, those in its folder, or those that match its pattern."""
    system, path = filesystem(address)

    def ask() -> list[str] | None:
        """The paths there; None for a file."""
        try:
            if _has_magic(address):
                return sorted(str(p) for p in system.glob(path))
            if system.isdir(path):
                return _of_one_kind(sorted(str(p) for p in system.find(path)))
        except FileNotFoundError:  # a server without listings
            return []
        if not system.exists(path):
            raise DataError(f"{address} is not there; check the address")
        return None

    inside = retried(address, ask)
    if inside is None:
        return [address]
    if not inside and address.startswith(("http://", "https://")):
        raise DataError(f"{address} lists no files; name them, such as train-{{0000..0123}}.tar")
    return [str(system.unstrip_protocol(p)) for p in inside]


def _has_magic(address: str) -> bool:
    """True for a pattern; an address's query is not one."""
    return glob.has_magic(address.partition("?")[0] if address.startswith(("http://", "https://")) else address)


def _of_one_kind(files: list[str]) -> list[str]:
    """Shards, Parquet files or zips in a remote folder, without other files."""
    files = [file for file in files if not is_junk(file_name(file))]
    for suffix in (".tar", ".parquet", ".zip"):
        if found := [file for file in files if file.lower().endswith(suffix)]:
            return found
    return files


def open_file(file: str) -> Any:
    """Open a file or an address for random reads."""
    if is_remote(file):
        return open_far(file)
    try:
        return open_regular(file)
    except OSError as error:
        raise cannot_read(file, error) from None


def open_regular(file: str | os.PathLike[str], *, buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading; a pipe would block, and a device may never end."""
    check_regular(os.stat(file).st_mode, file)  # noqa: PTH116  also before it is opened, which some devices notice
    handle = os.open(file, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        check_regular(os.fstat(handle).st_mode, file)
        return open(handle, "rb", buffering=buffering)  # noqa: PTH123  the caller closes it
    except BaseException:
        os.close(handle)
        raise


def check_regular(mode: int, file: str | os.PathLike[str]) -> None:
    """Refuse anything but a regular file."""
    if not stat.S_ISREG(mode):
        what = SPECIAL_FILES.get(stat.S_IFMT(mode), "something else")
        raise DataError(f"{storable(os.fspath(file))} is {what} and no file; move it away")


def read_image_file(file: str | os.PathLike[str]) -> bytes:
    """All bytes of an image file; refuses one that is far too large."""
    name = storable(os.fspath(file))
    try:
        with open_regular(file, buffering=0) as handle:
            image_file.check_bytes(os.fstat(handle.fileno()).st_size, name)
            return handle.read()
    except OSError as error:
        raise cannot_read(name, error) from None


def walk(folder: str | os.PathLike[str]) -> Iterator[tuple[str, list[str], OSError | None]]:
    """(folder, names of its files, why they cannot be listed) for a folder and all below it, however deep.

    Sorted, without hidden files and junk; does not follow links to folders.
    """
    waiting = [os.fspath(folder)]
    while waiting:
        here = waiting.pop()
        try:
            with os.scandir(here) as entries:
                found = sorted((e for e in entries if not is_junk(e.name)), key=lambda entry: entry.name)
        except OSError as error:
            yield here, [], error
            continue
        folders = {entry.name for entry in found if _is_folder(entry)}
        yield here, [entry.name for entry in found if entry.name not in folders], None
        waiting += [e.path for e in reversed(found) if e.name in folders and not e.is_symlink()]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def read_range(file: str, start: int, size: int) -> bytes:
    """Read `size` bytes from `start`. No file stays open, so forks, pickles and threads are safe."""
    if is_remote(file):
        return read_far_range(file, start, size)
    try:
        with open_regular(file, buffering=0) as handle:
            handle.seek(start)
            parts = []
            while size > 0 and (part := handle.read(size)):  # one read returns at most 2 GiB
                parts.append(part)
                size -= len(part)
    except OSError as error:
        raise cannot_read(file, error) from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def fingerprint(raw: bytes) -> str:
    """A digest of an image's bytes."""
    return hashlib.blake2b(raw, digest_size=12).hexdigest()


def file_size(file: str) -> int:
    return stamp(file).size if is_remote(file) else Path(file).stat().st_size


def file_stamps(files: Sequence[str]) -> dict[str, Stamp | DataError]:
    """Size and version of each file, near or far; the fault of one that cannot be reached."""
    found: dict[str, Stamp | DataError] = {}
    for file in files:
        if not is_remote(file):
            try:
                state = Path(file).stat()
                found[file] = Stamp(state.st_size, str(state.st_mtime_ns))
            except OSError as error:
                found[file] = cannot_read(file, error)
    return found | stamps([file for file in files if file not in found])


def file_name(file: str) -> str:
    """The last part of a path or an address, without an address's query."""
    file = file.partition("?")[0] if file.startswith(("http://", "https://")) else file
    return re.split(r"[/\\]", file.rstrip("/\\"))[-1]


def stem(file: str) -> str:
    return file_name(file).split(".")[0]


def is_junk(name: str) -> bool:
    """True for hidden files, and files that systems leave behind."""
    return name.startswith(".") or name.casefold() in JUNK_NAMES


def is_image_name(name: str) -> bool:
    return "." in name and "." + name.rsplit(".", 1)[1].lower() in IMAGE_SUFFIXES


def cannot_read(what: str | Path, error: OSError) -> DataError:
    if isinstance(error, PermissionError):
        return DataError(f"{what} cannot be read: permission denied; give yourself the right to read it")
    return DataError(f"{what} cannot be read: {error.strerror or one_line(error)}")
