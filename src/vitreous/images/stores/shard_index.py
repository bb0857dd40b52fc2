"""One small file beside tar shards with the offset of every image, so no rank reads all headers again.

    vitreous-index.jsonl    one line a shard: its name, size and time, and its samples' keys, places, labels

A line is valid while its shard has that size and time. An unfinished index is `vitreous-index.jsonl.part`, one synced
line per shard; a second call resumes after the last whole line.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from vitreous.errors import DataError
from vitreous.files import lock, write_bytes
from vitreous.images.health.scan import Progress
from vitreous.images.sources.paths import is_remote
from vitreous.journal import Journal

INDEX_FILE = "vitreous-index.jsonl"

ReadShard = Callable[[str], Any]  # a shard's path to a plain dataclass with `keys`, one a sample


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

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def known(files: Iterable[str], kind: type[Any]) -> dict[str, Any]:
    """The indexed samples of these shards, as values of `kind`; leaves out a shard that has changed."""
    found: dict[str, Any] = {}
    tables: dict[Path, dict[str, bytes]] = {}
    for file in files:
        folder = Path(file).parent
        if is_remote(file):
            continue
        if folder not in tables:
            tables[folder] = _lines(folder / INDEX_FILE)
        if (line := tables[folder].get(_mark(file))) is not None:
            found[file] = msgspec.convert(msgspec.json.decode(line)["samples"], kind)
    return found


def write(files: list[str], scan: ReadShard, *, force: bool = False, progress: Progress | None = None) -> ShardIndex:
    """Index these shards, one file per folder. With `force`, read every shard again.

    Lines of other shards in the folder stay while they are valid.
    """
    if far := [file for file in files if is_remote(file)]:
        raise DataError(f"{far[0]} lies far away, and an index is written beside its shards; index them where they lie")
    folders: dict[Path, list[str]] = {}
    for file in files:
        folders.setdefault(Path(file).parent, []).append(file)
    counts: dict[str, int] = {}
    scanned = 0

    def tell() -> None:
        if progress is not None:
            progress(len(counts), len(files))

    for folder, inside in folders.items():
        with lock(folder / f".{INDEX_FILE}.lock"):
            scanned += _write_folder(folder, inside, scan, force, counts, tell)
        (folder / f".{INDEX_FILE}.lock").unlink(missing_ok=True)
    return ShardIndex(tuple(str(folder / INDEX_FILE) for folder in folders), counts, scanned)


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
            line = msgspec.json.encode({"mark": mark, "count": len(samples.keys), "samples": samples})
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
