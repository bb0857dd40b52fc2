"""One small file beside tar shards with the offset of every image, so no rank reads all headers again.

    vitreous-index.jsonl    one line a shard: its name, size and time, and its samples' keys, places, labels as columns

A line is valid while its shard has that size and time (in a store, that size). An unfinished index is
`vitreous-index.jsonl.part`, one synced line per shard; a second call resumes after the last whole line. In a store the
index is written whole, at the end.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import msgspec

from vitreous.errors import DataError, without_secrets
from vitreous.files import lock, write_bytes
from vitreous.images.health.scan import Progress
from vitreous.images.sources.paths import file_name, file_stamps, read_range
from vitreous.images.sources.remote import Stamp, filesystem, is_remote, retried, stamp
from vitreous.images.stores.shard_table import PackedIndex
from vitreous.journal import Journal

INDEX_FILE = "vitreous-index.jsonl"

COPY_BYTES = 16 << 20  # copied at once from an index in a store

ReadShard = Callable[[str], PackedIndex]
_Place = tuple[Path, int, int, str]  # of a line: file, start, size, and its shard's mark


@dataclass(frozen=True)
class ShardIndex:
    """The index files written, and the number of samples in each shard."""

    files: tuple[str, ...]
    counts: dict[str, int]
    scanned: int  # shards read now; the others were known

    def to_json(self) -> dict[str, Any]:
        images = sum(self.counts.values())
        return {"files": list(self.files), "images": images, "scanned": self.scanned, "shards": self.counts}

    def __str__(self) -> str:
        images, shards = sum(self.counts.values()), len(self.counts)
        text = f"{images:,} images in {shards:,} shards; {self.scanned:,} were read now, the others were known"
        return "\n".join([text, *(f"index: {file}" for file in self.files)])

    __repr__ = __str__  # at a prompt

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


class WrittenIndex:
    """The lines of the indices beside some shards. Holds only their places; each line is read when asked for."""

    def __init__(self, files: Iterable[str]):
        self._copies = ExitStack()
        self._lines: dict[str, dict[str, _Place]] = {}  # by folder and shard's name
        for folder in dict.fromkeys(map(_folder, files)):
            path = self._here(folder)
            self._lines[folder] = {} if path is None else dict(_places(path))

    def __enter__(self) -> WrittenIndex:
        return self

    def __exit__(self, *error: object) -> None:
        self._copies.close()

    def get(self, file: str, now: Stamp | None) -> PackedIndex | None:
        """The indexed samples of a shard; None if no line is valid.  now: its stamp; None if the shard is gone."""
        found = self._lines[_folder(file)].get(file_name(file))
        if found is None:
            return None
        _, size, version = found[3].rsplit(" ", 2)
        if now is not None and (size != str(now.size) or (version != now.version and not is_remote(file))):
            return None
        try:
            samples = msgspec.json.decode(_read(found), type=_Line).samples
        except msgspec.MsgspecError:
            return None
        return samples if samples.is_whole else None

    def others(self, files: Iterable[str]) -> Iterator[bytes]:
        """The lines of other shards in the same folders."""
        mine = {(_folder(file), file_name(file)) for file in files}
        for folder, lines in self._lines.items():
            yield from (_read(line).rstrip(b"\n") for name, line in lines.items() if (folder, name) not in mine)

    def _here(self, folder: str) -> Path | None:
        """A folder's index on this machine: one from a store is copied, for as long as it is needed."""
        address = f"{folder}/{INDEX_FILE}"
        if not is_remote(address):
            path = Path(folder) / INDEX_FILE
            return path if path.is_file() else None
        try:
            size = stamp(address).size
        except DataError:
            return None
        copy = self._copies.enter_context(NamedTemporaryFile())  # noqa: SIM115  the stack closes it
        for begin in range(0, size, COPY_BYTES):
            copy.write(read_range(address, begin, min(COPY_BYTES, size - begin)))
        copy.flush()
        return Path(copy.name)


class _Line(msgspec.Struct):
    samples: PackedIndex


class _Mark(msgspec.Struct):
    mark: str


def _places(path: Path) -> Iterator[tuple[str, _Place]]:
    """Each shard's name, and where its line lies; skips damaged and unfinished lines."""
    end = 0
    with path.open("rb") as file:
        for line in file:
            end += len(line)
            try:
                mark = msgspec.json.decode(line, type=_Mark).mark if line.endswith(b"\n") else ""
            except (msgspec.MsgspecError, UnicodeDecodeError):
                mark = ""
            if mark.count(" ") > 1:
                yield _shard(mark), (path, end - len(line), len(line), mark)


def _read(line: _Place) -> bytes:
    path, start, size, _ = line
    return read_range(str(path), start, size)


def _folder(file: str) -> str:
    return file.partition("?")[0].rpartition("/")[0] if is_remote(file) else str(Path(file).parent)


def known(files: Sequence[str]) -> dict[str, PackedIndex]:
    """The indexed samples of these shards; leaves out a shard that has changed."""
    with WrittenIndex(files) as written:
        stamped = file_stamps(files)
        found = {file: written.get(file, now) for file, now in stamped.items() if isinstance(now, Stamp)}
        return {file: samples for file, samples in found.items() if samples is not None}


def write(files: list[str], scan: ReadShard, *, force: bool = False, progress: Progress | None = None) -> ShardIndex:
    """Index these shards, one file per folder. With `force`, read every shard again.

    Lines of other shards in the folder stay while they are valid.
    """
    folders: dict[str, list[str]] = {}
    for file in files:
        folders.setdefault(_folder(file), []).append(file)
    counts: dict[str, int] = {}
    scanned = 0

    def tell() -> None:
        if progress is not None:
            progress(len(counts), len(files))

    for folder, inside in folders.items():
        if is_remote(inside[0]):
            scanned += _write_far(folder, inside, scan, force, counts, tell)
            continue
        held = Path(folder) / f".{INDEX_FILE}.lock"
        with lock(held):
            scanned += _write_folder(Path(folder), inside, scan, force, counts, tell)
        held.unlink(missing_ok=True)
    return ShardIndex(tuple(without_secrets(f"{folder}/{INDEX_FILE}") for folder in folders), counts, scanned)


def _write_far(
    folder: str, files: list[str], scan: ReadShard, force: bool, counts: dict[str, int], tell: Callable[[], object]
) -> int:
    """Write the index of shards in a store, beside them."""
    scanned = 0
    with WrittenIndex(files) as written:
        lines = list(written.others(files))
        for file in files:
            now = stamp(file)
            samples = None if force else written.get(file, now)
            scanned += samples is None
            samples = scan(file) if samples is None else samples
            mark = f"{file_name(file)} {now.size} 0"
            lines.append(msgspec.json.encode({"mark": mark, "count": len(samples), "samples": samples}))
            counts[without_secrets(file)] = len(samples)
            tell()
    system, path = filesystem(f"{folder}/{INDEX_FILE}")
    try:
        retried(f"{folder}/{INDEX_FILE}", lambda: system.pipe_file(path, b"\n".join(lines) + b"\n"))
    except DataError as error:
        why = f"no index can be written beside {files[0]} ({error})"
        raise DataError(f"{why}; index the shards where they lie") from None
    return scanned


def _write_folder(
    folder: Path, files: list[str], scan: ReadShard, force: bool, counts: dict[str, int], tell: Callable[[], object]
) -> int:
    part = Journal(folder / f"{INDEX_FILE}.part", _marked)
    found = _lines(folder / INDEX_FILE) | dict(part.whole())
    mine = {Path(file).name for file in files}
    others = {mark: line for mark, line in found.items() if _shard(mark) not in mine and _holds(folder, mark)}
    believed = others if force else found
    scanned, lines = 0, list(others.values())
    write_bytes(part.path, b"".join(line + b"\n" for line in believed.values()), force=True)
    for file in files:
        mark = _mark(file)
        line = believed.get(mark)
        if line is None:
            samples = scan(file)
            line = msgspec.json.encode({"mark": mark, "count": len(samples), "samples": samples})
            scanned += 1
            part.append(line)
        lines.append(line)
        counts[file] = int(msgspec.json.decode(line)["count"])
        tell()
    write_bytes(folder / INDEX_FILE, b"\n".join(lines) + b"\n", force=True)
    part.path.unlink()
    return scanned


def _lines(path: Path) -> dict[str, bytes]:
    """The whole lines of an index, by their shard's mark."""
    return dict(Journal(path, _marked).whole())


def _marked(line: bytes) -> tuple[str, bytes]:
    return msgspec.json.decode(line)["mark"], line


def _mark(file: str) -> str:
    """A shard's name, size and time."""
    state = Path(file).stat()
    return f"{Path(file).name} {state.st_size} {state.st_mtime_ns}"


def _shard(mark: str) -> str:
    return mark.rsplit(" ", 2)[0]


def _holds(folder: Path, mark: str) -> bool:
    """True if the shard exists and is unchanged."""
    try:
        return _mark(str(folder / _shard(mark))) == mark
    except (OSError, ValueError):
        return False
