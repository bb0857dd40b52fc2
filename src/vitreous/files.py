"""Files that are whole or absent: written beside their place, synced, then renamed into it. Also digests and a lock."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from vitreous.errors import BusyError, ExistsError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

AT_CWD, RENAME_EXCHANGE = -100, 2  # of Linux's renameat2
RENAME_SWAP = 2  # of macOS's renamex_np
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # a disk, quota or file cannot grow


def atomic_write(path: str | os.PathLike[str], write: Callable[[BinaryIO], object], *, force: bool = False) -> None:
    """Make the file `path` hold what `write(file)` writes, at once.

    After a kill at any moment, `path` holds the old content or the new. If two processes write one path without
    `force`, one wins and the other raises; with `force`, the last wins.
    """
    path = Path(path)
    if not force and os.path.lexists(path):
        raise _exists(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _beside(path)
    try:
        with part.open("xb") as file:
            write(file)
            file.flush()
            fsync(file)
        if force:
            replace(part, path)
        else:
            _rename_file_to_free_place(part, path)
    finally:
        unlink(part)
    fsync_folder(path.parent)


def delete_file(path: str | os.PathLike[str]) -> None:
    """Delete the file `path`, if it is there, and wait for the disk."""
    path = Path(path)
    unlink(path)
    fsync_folder(path.parent)


@contextmanager
def atomic_folder(path: str | os.PathLike[str], *, force: bool = False) -> Iterator[Path]:
    """Yield an empty folder; when the body ends well it becomes `path`, all files at once.

    An empty folder counts as free. With `force` an older folder is replaced, unless it holds files that the new
    one lacks: those belong to somebody. After a kill at any moment, `path` is the old folder or the new, whole; on a
    system that cannot exchange two folders in one call, this holds only after `restore_folder`.
    """
    path = Path(path)
    restore_folder(path)
    if not force and _is_taken(path):
        raise _exists(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _beside(path)
    part.mkdir()
    try:
        yield part
        for file in _files(part):
            with (part / file).open("rb") as handle:
                fsync(handle)
        for folder in [part, *(p for p in part.rglob("*") if p.is_dir())]:
            fsync_folder(folder)
        if force and _is_taken(path):
            _replace_folder(part, path)
        else:
            _rename_folder_to_free_place(part, path)
        fsync_folder(path.parent)
    finally:
        remove(part)


def restore_folder(path: str | os.PathLike[str]) -> None:
    """Restore a folder's name after a kill between the two renames of a replacement."""
    path = Path(path)
    with suppress(OSError):  # an impossible name; another process was faster; a read-only folder
        if path.name and not os.path.lexists(path) and _kept(path).is_dir():
            rename(_kept(path), path)


def digest(source: bytes | bytearray | memoryview | str | os.PathLike[str]) -> str:
    """SHA-256, in hex, of bytes or of the file at a path."""
    if isinstance(source, bytes | bytearray | memoryview):
        return hashlib.sha256(source).hexdigest()
    with Path(source).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_folder() -> Path:
    """$VITREOUS_CACHE, else `vitreous` in this system's cache folder."""
    if place := os.environ.get("VITREOUS_CACHE"):
        return Path(place)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", "~")).expanduser() / "vitreous" / "cache"
    if sys.platform == "darwin":
        return Path("~/Library/Caches/vitreous").expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vitreous"


def sealed(record: Mapping[str, Any], **beside: Any) -> str:
    """A record as JSON text, together with its digest.  beside: what a reader needs before the record."""
    text = json.dumps(record, sort_keys=True)
    return json.dumps({"digest": digest(text.encode()), "manifest": text, **beside})


def unsealed(text: str) -> dict[str, Any] | None:
    """The record of a sealed text; None if it is damaged."""
    try:
        seal = json.loads(text)
        inside = seal["manifest"]
        record = json.loads(inside) if digest(inside.encode()) == seal["digest"] else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def claim(path: str | os.PathLike[str] | None, *, force: bool, is_folder: bool = False) -> None:
    """Refuse a place that is taken, before any work is done for it. A folder may take an empty folder's place."""
    if path is not None and not force and (_is_taken(Path(path)) if is_folder else os.path.lexists(path)):
        raise _exists(Path(path))


def write_bytes(path: str | os.PathLike[str], content: bytes, *, force: bool = False) -> None:
    """Make the file `path` hold these bytes, as `atomic_write` does."""
    atomic_write(path, lambda file: file.write(content), force=force)


def write_json(
    path: str | os.PathLike[str],
    value: Any,
    *,
    force: bool = False,
    indent: int | None = 2,
    allow_nan: bool = False,
    ensure_ascii: bool = True,
) -> None:
    """Make the file `path` hold a value as JSON with a final line feed, as `atomic_write` does."""
    text = json.dumps(value, indent=indent, allow_nan=allow_nan, ensure_ascii=ensure_ascii) + "\n"
    write_bytes(path, text.encode(), force=force)


@contextmanager
def lock(path: str | os.PathLike[str], *, seconds: float | None = None) -> Iterator[None]:
    """Hold the lock file `path` against other processes and threads; wait at most `seconds` (None: for ever).

    The system frees the lock when its holder ends, however it ends, so none is ever stale. The empty file stays.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = None if seconds is None else time.monotonic() + seconds
    with path.open("ab") as file:
        while not _try_lock(file):
            if deadline is not None and time.monotonic() >= deadline:
                raise BusyError(f"{path} is held by another process; wait until it ends, or end it")
            time.sleep(0.02)
        try:
            yield
        finally:
            _unlock(file)


if sys.platform == "win32":

    def _try_lock(file: IO[bytes]) -> bool:
        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(file: IO[bytes]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)


# Every step that changes a name on the disk, or waits for the disk, is one of these functions: tests record their
# order, or stop between two of them.


def fsync(file: IO[bytes]) -> None:
    """Wait until the disk has the content of a file. Windows syncs only files open for writing."""
    if sys.platform != "win32" or file.writable():
        os.fsync(file.fileno())


def fsync_folder(path: Path) -> None:
    """Wait until the disk has the names in a folder. Windows has no handle on a folder to sync."""
    if sys.platform != "win32":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def replace(part: Path, path: Path) -> None:
    """Rename a file, replacing any older one."""
    os.replace(part, path)


def rename(part: Path, path: Path) -> None:
    """Rename a folder to a place that is free."""
    os.rename(part, path)


def link(part: Path, path: Path) -> None:
    """Give a file a second name; unlike a rename, it fails if `path` exists."""
    os.link(part, path)


def exchange(one: Path, other: Path) -> bool:
    """Swap the names of two folders in one call; False if the system does not support it."""
    if sys.platform == "linux":
        call = getattr(ctypes.CDLL(None), "renameat2", None)
        words = (AT_CWD, os.fsencode(one), AT_CWD, os.fsencode(other), RENAME_EXCHANGE)
    elif sys.platform == "darwin":
        call = getattr(ctypes.CDLL(None), "renamex_np", None)
        words = (os.fsencode(one), os.fsencode(other), RENAME_SWAP)
    else:
        return False
    return call is not None and call(*words) == 0


def unlink(file: Path) -> None:
    """Delete a file, if it is there."""
    file.unlink(missing_ok=True)


def remove(folder: Path) -> None:
    """Delete a folder and all in it, if it is there."""
    shutil.rmtree(folder, ignore_errors=True)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def _kept(path: Path) -> Path:
    """The path of an older folder between the two renames of its replacement."""
    return path.with_name(f".{path.name}.replaced")


def _exists(path: Path) -> ExistsError:
    return ExistsError(f"{path} exists already; choose another place, or overwrite it with --force (force=True)")


def _is_taken(path: Path) -> bool:
    return os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir()))


def _files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())


def _rename_file_to_free_place(part: Path, path: Path) -> None:
    try:
        link(part, path)  # fails when somebody was faster
    except FileExistsError:
        raise _exists(path) from None
    except OSError:  # a file system without hard links
        if os.path.lexists(path):
            raise _exists(path) from None
        replace(part, path)


def _rename_folder_to_free_place(part: Path, path: Path) -> None:
    try:
        if path.is_dir():
            path.rmdir()  # removes only an empty one
        rename(part, path)
    except OSError:
        if _is_taken(path):
            raise _exists(path) from None
        raise


def _replace_folder(part: Path, path: Path) -> None:
    if not path.is_dir() or path.is_symlink():
        raise ExistsError(f"{path} is not a folder; choose another place")
    if others := set(_files(path)) - set(_files(part)):
        raise ExistsError(f"{path} also holds {min(others)}, which --force will not delete; choose another place")
    if exchange(part, path):
        return  # `part` is the older folder now
    kept = _kept(path)
    _discard(kept, path)  # left by a writer that was killed after its new folder was in place
    rename(path, kept)
    try:
        rename(part, path)
    except OSError:
        restore_folder(path)
        raise
    fsync_folder(path.parent)
    _discard(kept, path)


def _discard(kept: Path, path: Path) -> None:
    """Delete a kept folder, first renamed so that a half-deleted one is never restored."""
    if kept.is_dir():
        part = _beside(path)
        rename(kept, part)
        remove(part)
