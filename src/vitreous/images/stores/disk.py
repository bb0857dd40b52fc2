"""A set decoded once: one memory-mapped file of uint8 pixels beside one index of labels, sizes and checksums.

    OUT/pixels.u8            every image's rows, one after another
    OUT/index.safetensors    offset, label, id, size and checksum of each; the manifest is its metadata

The index also keeps the set's own splits and groups, so a dev split cut from the pack equals one cut from the set.
Training images keep a stated short side. Test images hold the finished pixels of one preprocess value or, without one,
all their pixels, so any preprocessing stays exact. An unfinished pack is the hidden folder `.OUT.packing`, with a
journal of what is safe on disk; a second call resumes from there. OUT is whole or absent.
"""

from __future__ import annotations

import html
import json
import os
import shutil
import time
import zlib
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as safetensors_bytes

from vitreous.errors import BusyError, DataError, ExistsError
from vitreous.files import DISK_FULL, atomic_folder, atomic_write, digest, lock
from vitreous.images import splits
from vitreous.images.batches import processes
from vitreous.images.health.scan import Progress
from vitreous.images.imageset import TEST, TRAIN, ImageSet
from vitreous.images.pixels import decode
from vitreous.images.sources import shards
from vitreous.images.sources.folders import PACK_INDEX_FILE
from vitreous.images.sources.paths import find_place
from vitreous.images.stores import shard_index
from vitreous.images.stores.memory import find_places
from vitreous.journal import Journal
from vitreous.machine import core_count
from vitreous.models import preprocess as rules
from vitreous.models.preprocess import Preprocess
from vitreous.printable import storable
from vitreous.words import count

PACK_VERSION = 2
PIXELS_FILE, JOURNAL_FILE = "pixels.u8", "journal.jsonl"
SPLIT_NAMES = ("", "train", "val", "test")  # splits that a set may have
IMAGES_PER_CHUNK = 128  # per call of a worker
PACK_IN_PARALLEL_FROM = 512  # images; fewer are packed before other processes start
SYNC_SECONDS = 2.0  # between syncs to disk
BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1, "bytes"))


@dataclass(frozen=True, eq=False)
class Pack(ImageSet):
    """A packed set: an ImageSet of decoded images in one mapped file.

    about["pack"]: short_side, preprocess (of the test images, or None), packed_from, content_id (of what was packed),
    left_out ([name, why] of every image that could not be read), bytes.
    """

    reused: bool = False

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Pack:
        """Open the pack at `path`; detects a damaged index and a truncated pixel file."""
        return _open(Path(path))

    @property
    def preprocess(self) -> Preprocess | None:
        """The preprocessing of the test images, if finished."""
        rule = self.about["pack"]["preprocess"]
        return None if rule is None else rules.from_json(rule)

    def verify(self) -> None:
        """Check every image's checksum now; otherwise each is checked when first read."""
        for i in range(len(self)):
            self.read(i)

    def to_json(self) -> dict[str, Any]:
        counts = {TRAIN: 0, TEST: 0} | self.split_counts
        head = {"path": self.path, "images": len(self), "splits": counts, "classes": len(self.classes)}
        return {**head, "content_id": self.content_id, "reused": self.reused, **self.about["pack"]}

    def __str__(self) -> str:
        about = self.about["pack"]
        parts = [f"{images:,} {split}" for split, images in self.split_counts.items()]
        size = count(about["bytes"], BYTE_UNITS)
        how = "reused, nothing has changed" if self.reused else "packed"
        lines = [f"{self.path}: {how}; {len(self):,} images ({', '.join(parts)}), {size}"]
        if TRAIN in self.split_counts:
            lines.append(f"train images: short side at most {about['short_side']}")
        if TEST in self.split_counts:
            rule = self.preprocess
            lines.append(f"test images: {'every pixel, for any rule' if rule is None else f'finished, {rule}'}")
        lines += [f"left out, unreadable: {why}" for _, why in about["left_out"][:10]]
        if (more := len(about["left_out"]) - 10) > 0:
            lines.append(f"left out, unreadable: {more:,} more; all of them with --json")
        return "\n".join(lines)

    __repr__ = __str__  # at a prompt

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


@dataclass(eq=False)
class PackedPixels:
    """The source of a pack: images by id; checks each checksum on first read.

    Mapped pages are private to a process and never written back, so torch may use them directly.
    """

    path: str
    ids: NDArray[np.int64]
    sizes: NDArray[np.int64]  # rows, columns of each
    starts: NDArray[np.int64]  # offset of each in the file
    checksums: NDArray[np.uint32]
    is_finished: NDArray[np.bool_]
    names: tuple[NDArray[np.uint8], NDArray[np.int64]]  # all names as UTF-8, and where each ends
    channels: int
    _pixels: NDArray[np.uint8] | None = field(default=None, init=False)
    _checked: NDArray[np.bool_] | None = field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.ids)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pixels": None, "_checked": None}  # a worker maps the file for itself

    def name(self, i: int) -> str:
        row = self.row(i)
        text, ends = self.names
        return bytes(text[ends[row - 1] if row else 0 : ends[row]]).decode("utf-8", "surrogateescape")

    def raw(self, i: int) -> None:
        return None

    def read(self, i: int) -> NDArray[np.uint8]:
        row = self.row(i)
        rows, columns = self.sizes[row]
        if self._pixels is None or self._checked is None:
            self._checked = np.zeros(len(self), bool)
            self._pixels = np.memmap(self.path, np.uint8, "c") if self.starts[-1] + self.sizes[-1].prod() else _EMPTY
        start = int(self.starts[row])
        flat = np.asarray(self._pixels)[start : start + int(rows * columns) * self.channels]
        if not self._checked[row]:
            if zlib.crc32(flat.data) != self.checksums[row]:
                folder = str(Path(self.path).parent)
                raise DataError(f"{folder} is damaged: the pixels of {self.name(i)} have changed; {_AGAIN}")
            self._checked[row] = True
        return flat.reshape(rows, columns, self.channels)

    def row(self, i: int) -> int:
        """The place of the image with id `i` in the pack."""
        if i < len(self.ids) and self.ids[i] == i:
            return i
        return int(self._order[np.searchsorted(self.ids, i, sorter=self._order)])

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return np.argsort(self.ids)


_KEYS_TOLD_ELSEWHERE = {"classes", "channels", "digest", "format", "notes", "split"}
_EMPTY = np.zeros(0, np.uint8)
_AGAIN = "pack it again with --force (force=True)"


@dataclass(frozen=True)
class _Settings:
    """What decides the pixels of a pack; part of its key."""

    short_side: int
    preprocess: Preprocess | None

    def key(self, data: ImageSet) -> str:
        arrays = [digest(np.ascontiguousarray(a).tobytes()) for a in (data.ids, data.labels)]
        arrays += [
            "" if a is None else digest("\n".join(map(str, a.tolist())).encode())
            for a in (data.own_splits, data.groups)
        ]
        parts = [PACK_VERSION, data.content_id, *arrays, digest("\n".join(data.splits.tolist()).encode())]
        parts += [list(data.classes), data.channels, self.short_side, _pixel_fields(self.preprocess)]
        return digest(json.dumps(parts).encode())


@dataclass(frozen=True)
class _Chunk:
    """A worker's result for some images. `sizes` are 0, 0 for an unreadable image."""

    number: int
    sizes: list[tuple[int, int]]
    checksums: list[int]
    failed: list[tuple[int, str]]  # place in the set, why
    bytes: int


def pack(
    data: ImageSet,
    path: str | os.PathLike[str],
    *,
    short_side: int = 256,
    preprocess: Preprocess | None = None,
    force: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Pack:
    """Decode a set once into the folder `path`; reuses a pack there with the same content and settings.

    preprocess: finish test images for this preprocessing.  workers: processes; None: one for each core.
    """
    path, settings = Path(path), _Settings(short_side, preprocess)
    if short_side < 1:
        raise DataError(f"a short side of {short_side} pixels holds no image; give 1 or more")
    if len(data) == 0:
        raise DataError(f"{data.path} has no images to pack; look at it with: vitreous check {data.path}")
    if len(np.unique(data.ids)) != len(data):
        raise DataError(f"{data.path} has been taken with some images twice; pack each once")
    _refuse_lost_pixels(data, settings)
    if force:
        _refuse_other_files(path)
    key = settings.key(data)
    if not force and (found := _reusable(path, data, settings, key)):
        return found
    work = path.with_name(f".{path.name}.packing")
    try:
        work.mkdir(parents=True, exist_ok=True)
        with lock(work / "lock", seconds=0):
            grouped = replace(data, groups=_groups(data, work / f"groups-{key[:16]}.npy", progress))
            chunks = _decode_all(data, settings, work, key, _workers(data, workers), progress)
            with atomic_folder(path, force=force) as folder:
                (folder / PACK_INDEX_FILE).write_bytes(_index(grouped, settings, key, chunks))
                os.replace(work / PIXELS_FILE, folder / PIXELS_FILE)
            shutil.rmtree(work, ignore_errors=True)
    except BusyError:
        raise BusyError(f"{path} is being packed by another process; wait until it ends, or end it") from None
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise DataError(
            f"no room for the pack {path} ({os.strerror(error.errno or 0)}); free some and run it again, "
            f"which goes on where it stopped, or delete {work}"
        ) from None
    return _open(path)


def index(
    path: str | os.PathLike[str], *, force: bool = False, progress: Progress | None = None
) -> shard_index.ShardIndex:
    """Write the index beside tar shards: a folder of them, a pattern, or one file."""
    place = find_place(path)
    if not (files := shards.shard_files(place)):
        raise DataError(f"{place.text} holds no tar shards; pack it: vitreous pack {place.text} OUT")
    return shard_index.write(files, shards.index_shard, force=force, progress=progress)


def is_pack(path: str | os.PathLike[str]) -> bool:
    """True for a pack, whole or damaged."""
    return (Path(path) / PACK_INDEX_FILE).is_file()


def same_pixels(a: Preprocess | None, b: Preprocess | None) -> bool:
    """True if two preprocessings differ only in normalisation."""
    return _pixel_fields(a) == _pixel_fields(b)


def _pixel_fields(rule: Preprocess | None) -> dict[str, Any] | None:
    return None if rule is None else {k: v for k, v in rule.to_json().items() if k not in ("mean", "std", "source")}


def _reusable(path: Path, data: ImageSet, settings: _Settings, key: str) -> Pack | None:
    """The pack at `path` if it has these images and settings; None if the path is free; else an error."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return None
    if not is_pack(path):
        raise ExistsError(f"{path} exists already and is not a pack; choose another place")
    found = _open(path)
    about = found.about["pack"]
    if about["key"] == key:
        return replace(found, reused=True)
    if about["content_id"] != data.content_id:
        raise DataError(f"{path} is stale: {data.path} has changed since it was packed; {_AGAIN}")
    if about["short_side"] != settings.short_side:
        why = f"has short side {about['short_side']}, not {settings.short_side}"
    elif not same_pixels(found.preprocess, settings.preprocess):
        why = f"holds test pixels for another rule ({found.preprocess or 'every pixel'})"
    else:
        why = "holds other images, labels or splits of it"
    raise ExistsError(f"{path} is a pack of {data.path} that {why}; choose another place, or {_AGAIN}")


def _refuse_lost_pixels(data: ImageSet, settings: _Settings) -> None:
    """Refuse to pack a pack into pixels that it no longer has."""
    if not isinstance(data.source, PackedPixels):
        return
    about = data.about["pack"]
    origin = f"pack the set it was packed from: {about['packed_from']}"
    is_train = data.splits == TRAIN
    is_finished = data.source.is_finished[find_places(data.source.ids, data.ids)]
    if about["preprocess"] is not None and is_finished.any():
        rule = rules.from_json(about["preprocess"])
        if not same_pixels(rule, settings.preprocess) or (is_finished & is_train).any():
            raise DataError(f"{data.path} holds test images only as finished by one rule ({rule}); {origin}")
    if is_train.any() and settings.short_side > about["short_side"]:
        raise DataError(
            f"{data.path} holds train images at short side {about['short_side']}, not {settings.short_side}; "
            f"ask for {about['short_side']} or less, or {origin}"
        )


def _refuse_other_files(path: Path) -> None:
    """Refuse what `force` may not replace: anything but an empty folder, or a pack with no file but its own."""
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir():
        raise ExistsError(f"{path} is not a folder; choose another place")
    if others := {entry.name for entry in path.iterdir()} - {PACK_INDEX_FILE, PIXELS_FILE}:
        what = "also holds" if is_pack(path) else "is not a pack: it holds"
        raise ExistsError(f"{path} {what} {storable(min(others))}, which --force will not delete; choose another place")


# Packing ---------------------------------------------------------------------------------------------------------


def _groups(data: ImageSet, kept: Path, progress: Progress | None) -> NDArray[np.int64] | None:
    """Groups to keep together in a dev split: found once in the set's own pixels, and kept for a second attempt."""
    if kept.is_file():
        return np.asarray(np.load(kept), np.int64)
    groups = splits.dev_groups(data, progress)
    if groups is not None and groups is not data.groups:
        atomic_write(kept, lambda file: np.save(file, groups))
    return groups


def _decode_all(
    data: ImageSet, settings: _Settings, work: Path, key: str, workers: int, progress: Progress | None
) -> list[_Chunk]:
    """Write every image's pixels to `work`, in order, resuming an earlier attempt."""
    header = json.dumps({"key": key}).encode() + b"\n"
    journal = Journal(work / JOURNAL_FILE, lambda line: msgspec.json.decode(line, type=_Chunk), header=header)
    done = _resume(work, journal)
    count = -(-len(data) // IMAGES_PER_CHUNK)
    tell = progress or (lambda *_: None)
    tell(min(len(done) * IMAGES_PER_CHUNK, len(data)), len(data))
    with (work / PIXELS_FILE).open("ab") as pixels:
        pending: list[_Chunk] = []
        synced = time.monotonic()
        for chunk in _chunks(data, settings, work, range(len(done), count), workers):
            part = work / f"part-{chunk.number}"
            with part.open("rb") as file:
                shutil.copyfileobj(file, pixels, 1 << 20)
            part.unlink()
            done.append(chunk)
            pending.append(chunk)
            if chunk.number == count - 1 or time.monotonic() - synced > SYNC_SECONDS:
                journal.append(*map(msgspec.json.encode, pending), after=[pixels])
                pending, synced = [], time.monotonic()
            tell(min(len(done) * IMAGES_PER_CHUNK, len(data)), len(data))
    return done


def _resume(work: Path, journal: Journal[_Chunk]) -> list[_Chunk]:
    """The safe chunks of an interrupted attempt at the same pack; clears anything else in `work`."""
    in_order = takewhile(lambda pair: pair[0] == pair[1].number, enumerate(journal.whole()))
    done = [chunk for _, chunk in in_order]
    length = sum(chunk.bytes for chunk in done)
    if not (work / PIXELS_FILE).is_file() or (work / PIXELS_FILE).stat().st_size < length:
        done, length = [], 0
    journal.cut(len(done))
    with (work / PIXELS_FILE).open("ab") as pixels:
        pixels.truncate(length)
    for part in work.glob("part-*"):
        part.unlink()
    return done


def _chunks(data: ImageSet, settings: _Settings, work: Path, numbers: range, workers: int) -> Iterator[_Chunk]:
    """Chunks in order; a few are made ahead."""
    if workers == 0:
        yield from (_pack_chunk(data, settings, work, number) for number in numbers)
        return
    with processes.start(workers, _start_worker, data, settings, work) as pool:
        try:
            yield from processes.in_order(pool, _work, numbers, 2 * workers + 1)
        except BrokenProcessPool:
            raise processes.died(f"packed {data.path}") from None
        finally:
            pool.shutdown(cancel_futures=True)


_WORKER: list[tuple[ImageSet, _Settings, Path]] = []  # set in a worker process


def _start_worker(data: ImageSet, settings: _Settings, work: Path) -> None:
    processes.one_thread()
    _WORKER[:] = [(data, settings, work)]


def _work(number: int) -> _Chunk:
    return _pack_chunk(*_WORKER[0], number)


def _pack_chunk(data: ImageSet, settings: _Settings, work: Path, number: int) -> _Chunk:
    """Write the pixels of one chunk to its own file."""
    sizes, checksums, failed, written = [], [], [], 0
    with (work / f"part-{number}").open("wb") as file:
        for place in range(number * IMAGES_PER_CHUNK, min((number + 1) * IMAGES_PER_CHUNK, len(data))):
            try:
                pixels = np.ascontiguousarray(_packed(data, place, settings))
            except DataError as error:
                failed.append((place, str(error)))
                pixels = np.zeros((0, 0, data.channels), np.uint8)
            file.write(pixels.data)
            sizes.append((pixels.shape[0], pixels.shape[1]))
            checksums.append(zlib.crc32(pixels.data))
            written += pixels.size
    return _Chunk(number, sizes, checksums, failed, written)


def _packed(data: ImageSet, place: int, settings: _Settings) -> NDArray[np.uint8]:
    pixels = data.read(place)
    if isinstance(data.source, PackedPixels) and data.source.is_finished[data.source.row(int(data.ids[place]))]:
        return pixels  # already by this preprocessing
    if data.splits[place] == TRAIN:
        return decode.shrink(pixels, settings.short_side)
    if settings.preprocess is None:
        return pixels
    return decode.with_channels(decode.finish(pixels, settings.preprocess), data.channels)


def _workers(data: ImageSet, workers: int | None) -> int:
    if workers is None and (len(data) < PACK_IN_PARALLEL_FROM or not data.is_encoded):
        return 0  # little to do, or nothing to decode and much to send
    wanted = core_count() if workers is None else workers
    return wanted if wanted > 1 else 0


# The index -------------------------------------------------------------------------------------------------------


def _index(data: ImageSet, settings: _Settings, key: str, chunks: list[_Chunk]) -> bytes:
    failed = [(place, why) for chunk in chunks for place, why in chunk.failed]
    kept = np.ones(len(data), bool)
    kept[[place for place, _ in failed]] = False
    if not kept.any():
        raise DataError(f"no image of {data.path} can be read; the first: {failed[0][1]}")
    sizes = np.array([size for chunk in chunks for size in chunk.sizes], np.int64).reshape(-1, 2)[kept]
    lengths = sizes.prod(1) * data.channels
    names = [data.name(int(i)).encode("utf-8", "surrogateescape") for i in np.flatnonzero(kept)]
    arrays = {
        "ids": data.ids[kept],
        "labels": data.labels[kept],
        "is_test": (data.splits[kept] == TEST).astype(np.uint8),
        "sizes": sizes,
        "starts": np.cumsum(lengths) - lengths,
        "checksums": np.array([c for chunk in chunks for c in chunk.checksums], np.uint32)[kept],
        "names": np.frombuffer(b"".join(names), np.uint8),
        "name_ends": np.cumsum([len(name) for name in names], dtype=np.int64),
    }
    if data.own_splits is not None:
        arrays["given"] = np.array([SPLIT_NAMES.index(name) for name in data.own_splits[kept].tolist()], np.uint8)
    if data.groups is not None:
        arrays["groups"] = data.groups[kept]
    manifest = {
        "format": PACK_VERSION,
        "key": key,
        "packed_from": data.path,
        "content_id": data.content_id,
        "classes": data.classes,
        "channels": data.channels,
        "short_side": settings.short_side,
        "preprocess": settings.preprocess and settings.preprocess.to_json(),
        "left_out": [[data.name(place), why] for place, why in failed],
        "bytes": int(lengths.sum()),
        "notes": data.notes,
        "split": data.about.get("split"),
        "digest": _digest(arrays),
    }
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return safetensors_bytes(arrays, {"vitreous.pack": json.dumps(manifest)})


def _open(path: Path) -> Pack:
    if not path.exists():
        raise DataError(f"there is no pack {path}; make it with: vitreous pack DATA {path}")
    if not is_pack(path):
        raise DataError(f"{path} is not a pack: it has no {PACK_INDEX_FILE}; make one with: vitreous pack DATA OUT")
    manifest, arrays = _read_index(path)
    pixels = path / PIXELS_FILE
    length = pixels.stat().st_size if pixels.is_file() else 0
    if length != (packed := manifest["bytes"]):
        raise DataError(f"{path} is damaged: {PIXELS_FILE} has {length:,} bytes, and {packed:,} were packed; {_AGAIN}")
    is_test = arrays["is_test"].astype(bool)
    source = PackedPixels(
        path=str(pixels.resolve()),
        ids=arrays["ids"],
        sizes=arrays["sizes"],
        starts=arrays["starts"],
        checksums=arrays["checksums"],
        is_finished=is_test & (manifest["preprocess"] is not None),
        names=(arrays["names"], arrays["name_ends"]),
        channels=manifest["channels"],
    )
    return Pack(
        source=source,
        ids=arrays["ids"],
        labels=arrays["labels"],
        classes=tuple(manifest["classes"]),
        splits=np.where(is_test, TEST, TRAIN),
        path=str(path),
        kind="pack",
        content_id=manifest["key"],
        channels=manifest["channels"],
        notes=tuple(manifest["notes"]),
        about={
            "split": manifest["split"],
            "pack": {k: v for k, v in manifest.items() if k not in _KEYS_TOLD_ELSEWHERE},
        },
        own_splits=np.array(SPLIT_NAMES)[arrays["given"]] if "given" in arrays else None,
        groups=arrays.get("groups"),
    )


def _read_index(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    try:
        with safe_open(path / PACK_INDEX_FILE, "numpy") as file:
            manifest = json.loads((file.metadata() or {})["vitreous.pack"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
            is_whole = manifest["digest"] == _digest(arrays)
    except (SafetensorError, KeyError, ValueError, TypeError):
        is_whole, manifest = False, {}
    if not is_whole:
        raise DataError(f"{path} is damaged: its {PACK_INDEX_FILE} does not hold what was written; {_AGAIN}")
    if manifest["format"] != PACK_VERSION:
        raise DataError(
            f"{path} is a pack of format {manifest['format']}, this vitreous reads {PACK_VERSION}; {_AGAIN}"
        )
    return manifest, arrays


def _digest(arrays: dict[str, NDArray[Any]]) -> str:
    parts = [f"{name} {a.dtype} {a.shape} {digest(np.ascontiguousarray(a).tobytes())}" for name, a in arrays.items()]
    return digest("\n".join(sorted(parts)).encode())
