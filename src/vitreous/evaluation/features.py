"""Features of images, computed once and cached: any tap, any pool, several in one pass.

The cache has a folder per (model, images, preprocessing, precision); in it, for each pooled tap

    values.bin      rows in float32, or float16 if that is exact enough
    places.bin      the image of the set behind each row
    journal.jsonl   shape and dtype; then for each part that is safe on disk: rows, next place, checksums

After a kill at any moment, the next call resumes from the last part. Memory holds a few batches.

N images   T tokens   D numbers
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.errors import ConfigError, DataError
from vitreous.evaluation import inference
from vitreous.evaluation.inference import Precision, Progress, Underway
from vitreous.files import DISK_FULL, cache_folder, digest, lock, write_bytes
from vitreous.images import open_data
from vitreous.images.batches.batches import Batches
from vitreous.images.imageset import ImageSet
from vitreous.journal import Journal, json_object
from vitreous.machine import choose_device
from vitreous.models.config import ViTConfig
from vitreous.models.model import Model, state_of, unwrapped
from vitreous.models.taps import matching, tap_names
from vitreous.models.taps import taps as open_taps
from vitreous.ranks import Ranks
from vitreous.weights.load_model import load
from vitreous.words import counted, few

FEATURES_VERSION = 1
FEATURES = "features"  # what the head reads: `model.features`
TOKEN_POOLS = ("cls", "gap", "mean", "max", "tokens")  # or token-K
VECTOR_TAPS = ("representation", "logits", "pooled", "pool.norm")  # taps with one vector per image
SYNC_SECONDS = 2.0  # between syncs to disk
HALF_PRECISION_FROM = 2**26  # bytes of float32; saving half is worth it from here
MAX_ROUNDING_ERROR = 0.01  # of half precision, in standard deviations of a feature
VERIFY_BELOW = 2**30  # bytes; smaller caches have every checksum verified

ABOUT_WORDS = {"content_id": "set of images", "chosen": "choice of images", "format": "version"}  # others: as they are

Keep = Literal["auto", "float32", "float16"]
Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Features:
    """Features of a set's images, in its order; mapped from disk if cached."""

    values: dict[str, NDArray[Any]]  # reading -> N D, or N T D for all tokens
    labels: NDArray[np.int64]  # as the set numbers its classes; −1 for none
    ids: Places  # image numbers in the source
    places: Places  # image numbers in the set; unreadable images are missing
    classes: tuple[str, ...]
    skipped: tuple[str, ...]  # names of unreadable images
    model: str  # digest
    content_id: str
    is_kept: bool  # all rows came from the cache

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, reading: str) -> NDArray[Any]:
        if reading not in self.values:
            raise ConfigError(f"there is no reading {reading!r}; there are: {', '.join(list(self.values)[:12])}")
        return self.values[reading]

    @property
    def only(self) -> NDArray[Any]:
        """The rows of the only reading."""
        if len(self.values) != 1:
            first = next(iter(self.values))
            raise ConfigError(f"there are {len(self.values)} readings; choose one: features[{first!r}]")
        return next(iter(self.values.values()))

    def take(self, rows: NDArray[Any]) -> Features:
        """The rows at these places."""
        where = np.flatnonzero(rows) if np.asarray(rows).dtype == bool else np.asarray(rows, np.int64)
        parts = {name: value[where] for name, value in self.values.items()}
        return replace(self, values=parts, labels=self.labels[where], ids=self.ids[where], places=self.places[where])


@dataclass(frozen=True)
class PooledTap:
    """One tap with one pool."""

    tap: str
    pool: str | None  # None: the tap is already a vector

    @property
    def name(self) -> str:
        return self.tap if self.pool is None else f"{self.tap}:{self.pool}"


def extract(
    model: nn.Module | str | os.PathLike[str],
    data: str | os.PathLike[str] | ImageSet,
    taps: str | Iterable[str] = FEATURES,
    *,
    pool: str | Sequence[str] | None = None,
    keep: Keep = "auto",
    batch: int | None = None,
    device: torch.device | str | None = None,
    workers: int | None = None,
    precision: Precision = "auto",
    cache: bool | str | os.PathLike[str] = True,
    progress: Progress | None = None,
) -> Features:
    """Features of every image of a set; the model needs no head.

    model: a model, or a string for `load`.  taps: `features`, what the head reads; or patterns over `tap_names`, such
    as "blocks.*.output", each with its own pool if written "blocks.*.output:gap".  pool: cls, gap (the mean of the
    patches), mean (of all tokens), max, tokens (all of them), token-K; or several; None is the model's own.
    keep: auto is float16 for large features, if rounding stays below a hundredth of each feature's deviation.
    cache: True, False, or the folder of the cache.  `skipped` names unreadable images.
    """
    model = load(model) if isinstance(model, str | os.PathLike) else model
    inner = unwrapped(model)
    if keep not in ("auto", "float32", "float16"):
        raise ConfigError(f"keep={keep!r} is not a way to keep numbers; say auto, float32 or float16")
    images = open_data.open(data)
    if not len(images):
        raise DataError(f"{images.path} has no images to read features of; name another set or split")
    readings = choose_readings(inner, taps, pool)
    place = choose_device(device, near=inner)
    with_head = any(reading.tap == "logits" for reading in readings)
    about = _about(inner, images, place, precision, with_head=with_head)
    store = _store(cache, about)
    with nullcontext() if store is None else lock(store / "lock"):
        columns = [_InMemory(each, keep) if store is None else _OnDisk(each, keep, store) for each in readings]
        if missing := [column for column in columns if not column.is_whole]:
            batches = inference.make_batches(inner, images, place, batch, workers, True, Ranks(0, 1))
            try:
                _fill(inner, batches, missing, place, precision, progress)
            except OSError as error:
                if store is None or error.errno not in DISK_FULL:
                    raise
                raise DataError(
                    f"the disk of {store} is full; free some space and call again (it goes on), or say cache=False"
                ) from None
        seen = columns[0].places()
        values = {column.reading.name: column.values() for column in columns}
    skipped = np.setdiff1d(np.arange(len(images)), seen)
    return Features(
        values=values,
        labels=images.labels[seen],
        ids=images.ids[seen],
        places=seen,
        classes=images.classes,
        skipped=tuple(images.name(int(i)) for i in skipped),
        model=about["model"],
        content_id=images.content_id,
        is_kept=not missing,
    )


def unread_notes(*parts: Features) -> tuple[str, ...]:
    """A note on the images that could not be read."""
    names = [name for part in parts for name in part.skipped]
    return (f"left out: {counted(len(names), 'image')} that could not be read: {few(names)}",) if names else ()


# Which numbers -----------------------------------------------------------------------------------------------------


def choose_readings(
    model: Model, taps: str | Iterable[str], pool: str | Sequence[str] | None = None
) -> list[PooledTap]:
    """Expand patterns, with or without pools, into pooled taps in the order of the model."""
    patterns = [taps] if isinstance(taps, str) else list(taps)
    if not patterns:
        raise ConfigError("no tap was named; say features, or a pattern such as blocks.*.output")
    names = [FEATURES, *tap_names(model)]
    usual = [_own_pool(model)] if pool is None else [pool] if isinstance(pool, str) else list(pool)
    found: dict[tuple[int, int], PooledTap] = {}
    for pattern in patterns:
        glob, _, own = pattern.partition(":")
        pools = [own] if own else usual
        for tap in [FEATURES] if glob == FEATURES else matching(model, glob):
            chosen: Sequence[str | None] = [None] if tap in (FEATURES, *VECTOR_TAPS) else pools
            for one in chosen:
                _check_pool(model, tap, one)
                rank = TOKEN_POOLS.index(one) if one in TOKEN_POOLS else len(TOKEN_POOLS) + _token(one)
                found[names.index(tap), rank] = PooledTap(tap, one)
    return [found[key] for key in sorted(found)]


def _own_pool(model: Model) -> str:
    config = model.config
    return "cls" if isinstance(config, ViTConfig) and config.readout.pool.startswith("cls") else "gap"


def _prefix(model: Model, tap: str) -> int:
    """Tokens in front of the patches."""
    is_grid = tap == "embedding.patches" or tap.endswith("pool.weights") or tap.startswith("stem.")
    return model.config.prefix if isinstance(model.config, ViTConfig) and not is_grid else 0


def _check_pool(model: Model, tap: str, pool: str | None) -> None:
    if pool is None:
        return
    if pool not in TOKEN_POOLS and _token(pool) < 0:
        raise ConfigError(f"there is no pool {pool!r}; say {', '.join(TOKEN_POOLS)}, or token-0, token-1 …")
    has_class = _prefix(model, tap) and isinstance(model.config, ViTConfig) and model.config.embedding.class_token
    if pool == "cls" and not has_class:
        raise ConfigError(f"{tap} has no class token to read; say {tap}:gap, or :tokens for all of them")


def _token(pool: str | None) -> int:
    """K of token-K; −1 for other pools."""
    word, _, number = (pool or "").partition("-")
    return int(number) if word == "token" and number.isdecimal() else -1


def pooled(x: Tensor, reading: PooledTap, prefix: int) -> Tensor:
    """B D; B T D for all tokens.  x: a vector, tokens, per head, or a map."""
    if x.dim() == 2:
        return x.float()
    if x.dim() == 4:
        is_map = ".attention." not in reading.tap and not reading.tap.endswith("pool.weights")
        x = x.flatten(2).transpose(1, 2) if is_map else x.transpose(1, 2).flatten(2)  # B T D
    x = x.float()
    if (token := _token(reading.pool)) >= x.shape[1]:
        raise ConfigError(f"{reading.tap} has {x.shape[1]} tokens, so there is no token-{token}; count from 0")
    if token >= 0 or reading.pool == "cls":
        return x[:, max(token, 0)]
    whole = {"gap": lambda: x[:, prefix:].mean(1), "mean": lambda: x.mean(1), "max": lambda: x[:, prefix:].amax(1)}
    return whole[reading.pool]() if reading.pool in whole else x


# One pass ----------------------------------------------------------------------------------------------------------


def _fill(
    model: Model,
    batches: Batches,
    columns: list[_InMemory | _OnDisk],
    device: torch.device,
    precision: Precision,
    progress: Progress | None,
) -> None:
    """Complete all readings in one pass, from the first place that one of them lacks."""
    total, begin = len(batches.data), _common_place(columns)
    saved = time.monotonic()

    def save(place: int) -> None:
        for column in columns:
            column.save(place)

    def begun(read: Callable[[Tensor], list[Tensor]], end: int) -> Iterator[tuple[int, Places, list[Underway]]]:
        go = inference.on_all_cores if device.type == "cpu" and inference.may_split(model) else inference.in_parts
        for part in batches:
            end = min(end + batches.order.batch, total)
            if len(part):
                yield end, part.places, [Underway(values) for values in go(read, part.images, _joined)]
            if progress is not None:
                progress(end, total)

    if begin < total:
        batches.seek(0, begin)
        with _reader(model, [column.reading for column in columns], device, precision) as read:
            ahead = 0 if device.type == "cpu" else inference.BATCHES_IN_FLIGHT
            for end, places, parts in inference.in_flight(begun(read, begin), ahead):
                for column, part in zip(columns, parts, strict=True):
                    column.add(part.values(), places, total)
                if time.monotonic() - saved > SYNC_SECONDS:
                    save(end)
                    saved = time.monotonic()
        if not columns[0].rows:
            raise DataError(f"no image of {batches.data.path} could be read; see: vitreous check {batches.data.path}")
    save(total)
    for column in columns:
        column.finish()


@contextmanager
def _reader(
    model: Model, readings: list[PooledTap], device: torch.device, precision: Precision
) -> Iterator[Callable[[Tensor], list[Tensor]]]:
    """Yield a function from bytes B C H W to the rows of each reading, float32 on the device."""
    names = [reading.tap for reading in readings if reading.tap != FEATURES]
    kind = next(model.parameters()).dtype
    prefixes = [_prefix(model, reading.tap) for reading in readings]
    needs_head = "logits" in names
    opened: AbstractContextManager[dict[str, Tensor]] = open_taps(model, names) if names else nullcontext({})
    with inference.at_work(model, device, precision) as (normalised, cast), opened as seen:

        @torch.inference_mode()
        def read(images: Tensor) -> list[Tensor]:
            x = normalised(images).to(kind)
            with cast():
                features = model.features(x)
            if needs_head:
                model.logits(model.head(features.to(kind)))
            found = [features if reading.tap == FEATURES else seen[reading.tap] for reading in readings]
            rows = zip(found, readings, prefixes, strict=True)
            return [pooled(value, reading, prefix).contiguous() for value, reading, prefix in rows]

        yield read


def _joined(halves: Sequence[list[Tensor]]) -> list[Tensor]:
    return [torch.cat(parts) for parts in zip(*halves, strict=True)]


def _common_place(columns: list[_InMemory | _OnDisk]) -> int:
    """The furthest place that all readings have reached; cuts back those ahead."""
    while len(places := {column.place for column in columns}) > 1:
        for column in columns:
            column.cut(min(places))
    return places.pop()


# Where they are kept -----------------------------------------------------------------------------------------------


class _InMemory:
    """Rows in memory, without a cache."""

    is_whole = False
    place = 0

    def __init__(self, reading: PooledTap, keep: Keep):
        self.reading, self._keep = reading, keep
        self._values: list[NDArray[Any]] = []
        self._places: list[Places] = []

    @property
    def rows(self) -> int:
        return sum(map(len, self._places))

    def add(self, values: NDArray[np.float32], places: Places, total: int) -> None:
        kind = self._values[0].dtype if self._values else _kind(values, total, self._keep)
        self._values.append(values.astype(kind, copy=kind != values.dtype))
        self._places.append(places)

    def save(self, place: int) -> None: ...

    def cut(self, place: int) -> None: ...

    def finish(self) -> None:
        self._values, self._places = [np.concatenate(self._values)], [np.concatenate(self._places)]

    def values(self) -> NDArray[Any]:
        return self._values[0]

    def places(self) -> Places:
        return self._places[0]


class _OnDisk:
    """One reading in its cache folder."""

    def __init__(self, reading: PooledTap, keep: Keep, store: Path):
        self.reading, self._keep = reading, keep
        name = reading.name if keep == "auto" else f"{reading.name} {keep}"
        safe = "".join(c if c.isalnum() or c in ".-" else "-" for c in reading.name)[:80]
        self.folder = store / f"{safe}-{digest(name.encode())[:8]}"
        self._journal = Journal(self.folder / "journal.jsonl", json_object)
        self._shape: tuple[int, ...] = ()
        self._dtype = np.dtype(np.float32)
        self._parts: list[dict[str, Any]] = []  # parts that the journal marks as safe
        self.is_whole = False
        self._files: list[BinaryIO] = []
        self._sums = [0, 0]  # checksums of values and places added since the last save
        self._new_rows = 0
        self._read_journal()

    @property
    def place(self) -> int:
        """The place in the set to resume from."""
        return self._parts[-1]["place"] if self._parts else 0

    @property
    def rows(self) -> int:
        return sum(part["rows"] for part in self._parts) + self._new_rows

    def add(self, values: NDArray[np.float32], places: Places, total: int) -> None:
        if not self._shape:
            self._shape, self._dtype = values.shape[1:], _kind(values, total, self._keep)
        self._open()
        for i, rows in enumerate((values.astype(self._dtype), places)):
            raw = np.ascontiguousarray(rows).data
            self._files[i].write(raw)
            self._sums[i] = zlib.crc32(raw, self._sums[i])
        self._new_rows += len(places)

    def save(self, place: int) -> None:
        """Sync the new rows to disk, then record them in the journal."""
        if not self._shape or place == self.place:
            return
        part = {"rows": self._new_rows, "place": place, "values": self._sums[0], "places": self._sums[1]}
        self._journal.append(part, after=self._files)
        self._parts.append(part)
        self._sums, self._new_rows = [0, 0], 0

    def cut(self, place: int) -> None:
        """Drop all rows from this place on."""
        self._parts = [part for part in self._parts if part["place"] <= place]

    def finish(self) -> None:
        self._open()  # ends the journal in a whole line
        self._journal.append({"whole": True})
        for file in self._files:
            file.close()
        self._files = []
        self.is_whole = True

    def values(self) -> NDArray[Any]:
        return np.memmap(self.folder / "values.bin", self._dtype, "r", shape=(self.rows, *self._shape))

    def places(self) -> Places:
        return np.fromfile(self.folder / "places.bin", np.int64)

    def _open(self) -> None:
        """Open for appending, truncated to what is safe."""
        if self._files:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._journal.cut(1 + len(self._parts) if self._parts else 0)
        if not self._parts:
            self._journal.append({"format": FEATURES_VERSION, "shape": list(self._shape), "dtype": self._dtype.name})
        safe = sum(part["rows"] for part in self._parts)
        for name, row_bytes in (("values.bin", self._row_bytes), ("places.bin", 8)):
            file = (self.folder / name).open("ab")
            file.truncate(safe * row_bytes)
            file.seek(0, os.SEEK_END)
            self._files.append(file)

    @property
    def _row_bytes(self) -> int:
        return int(np.prod(self._shape, dtype=np.int64)) * self._dtype.itemsize

    def _read_journal(self) -> None:
        """Load the parts before the first torn or changed one."""
        lines = self._journal.whole()
        if not lines or lines[0].get("format") != FEATURES_VERSION:
            return
        self._shape, self._dtype = tuple(lines[0]["shape"]), np.dtype(lines[0]["dtype"])
        parts = [line for line in lines[1:] if "rows" in line]
        self._parts = list(self._sound(parts))
        self.is_whole = len(self._parts) == len(parts) > 0 and lines[-1].get("whole", False)

    def _sound(self, parts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        is_small = sum(part["rows"] for part in parts) * self._row_bytes <= VERIFY_BELOW
        try:
            with (self.folder / "values.bin").open("rb") as values, (self.folder / "places.bin").open("rb") as places:
                done = 0
                for part in parts:
                    done += part["rows"]
                    for file, size, checksum in ((values, self._row_bytes, "values"), (places, 8, "places")):
                        if os.fstat(file.fileno()).st_size < done * size:
                            return
                        if is_small and zlib.crc32(file.read(part["rows"] * size)) != part[checksum]:
                            return
                    yield part
        except OSError:
            return


def _kind(values: NDArray[np.float32], total: int, keep: Keep) -> np.dtype[Any]:
    """float16 if asked for, or if the first rows show that it saves much and costs little."""
    if keep != "auto":
        return np.dtype(keep)
    if values[0].size * total * 4 < HALF_PRECISION_FROM or len(values) < 2:
        return np.dtype(np.float32)
    rows = values.reshape(-1, values.shape[-1]).astype(np.float64)
    with np.errstate(over="ignore"):
        error = np.abs(rows.astype(np.float16).astype(np.float64) - rows)
    is_small = np.sqrt((error**2).mean(0)) <= MAX_ROUNDING_ERROR * rows.std(0)
    return np.dtype(np.float16 if np.isfinite(error).all() and is_small.all() else np.float32)


def _store(cache: bool | str | os.PathLike[str], about: dict[str, Any]) -> Path | None:
    """The cache folder of these features; None without a cache."""
    if cache is False:
        return None
    text = json.dumps(about, indent=1, sort_keys=True)
    place = cache_folder() / "features" / digest(text.encode())[:32] if cache is True else Path(cache)
    told = place / "about.json"
    try:
        place.mkdir(parents=True, exist_ok=True)
        if not told.exists():
            if cache is not True and any(place.iterdir()):
                raise DataError(f"{place} holds other things than features; name an empty folder, or leave cache out")
            write_bytes(told, text.encode(), force=True)
        before = json.loads(told.read_bytes())
    except ValueError:
        raise DataError(f"{told} is damaged; delete the folder {place}, or leave cache out") from None
    except OSError as error:
        if cache is True:
            return None  # an unwritable home only disables the cache
        raise DataError(f"{place} cannot be written: {error.strerror or error}; name another folder") from None
    now = json.loads(text)
    if before != now:
        which = next((name for name in now if before.get(name) != now[name]), "format")
        what = ABOUT_WORDS.get(which, which)
        raise DataError(f"{place} keeps features of another {what}; name another folder, or leave cache out")
    return place


def _about(
    model: Model, data: ImageSet, device: torch.device, precision: Precision, *, with_head: bool
) -> dict[str, Any]:
    return {
        "format": FEATURES_VERSION,
        "model": model_digest(model, with_head=with_head),
        "content_id": data.content_id,
        "chosen": digest(data.ids.tobytes())[:32],
        "preprocessing": model.preprocess.to_json(),
        "precision": "bfloat16" if inference.is_bfloat16(device, precision) else "float32",
    }


def model_digest(model: nn.Module, *, with_head: bool = True) -> str:
    """A digest of config and weights; without the head, it is the same for every head on one backbone."""
    inner = unwrapped(model)
    config = inner.config.to_json()
    if not with_head:
        config["readout"].pop("classes", None)
    found = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for name, tensor in sorted(state_of(inner).items()):
        if with_head or not name.startswith("head."):
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
