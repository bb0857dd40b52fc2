"""Files at fsspec addresses: listed, measured and read by ranges. A store that fails is asked again, a few times."""

from __future__ import annotations

import io
import logging
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from vitreous.errors import DataError, MissingExtraError, ShardError, without_secrets
from vitreous.words import one_line

ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|[a-z0-9]+::")
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "http": "data", "https": "data"}
ATTEMPTS = 5
FIRST_WAIT = 0.5  # seconds before the second attempt; each later wait is twice as long
REQUESTS_AT_ONCE = 32  # of one process
LIST_FROM = 8  # files of one folder; fewer are asked for one by one
MERGE_GAP = 64 * 1024  # bytes; two ranges this near become one request
BUFFER_BYTES = 4 << 20  # read at once when walking through a whole shard
SECONDS_BETWEEN_LINES = 60  # that report a failing store
NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError")

log = logging.getLogger("vitreous.data")
Value = TypeVar("Value")
Range = tuple[str, int, int]  # file, start, size


@dataclass(frozen=True)
class Stamp:
    """What a store reports about a file: it changes when the file does."""

    size: int
    version: str = ""


def is_remote(file: str) -> bool:
    return bool(ADDRESS.match(file)) and not Path(file).exists()


def is_in_this_process(file: str) -> bool:
    """True for fsspec's memory: another process would find nothing there."""
    return file.startswith("memory://")


def filesystem(address: str) -> tuple[Any, str]:
    """The fsspec file system of an address, and the path on it; one for all threads, which share its connections."""
    root = "/".join(address.split("/")[:3])
    if (system := _systems.get(root)) is not None:
        return system, str(system._strip_protocol(address))
    try:
        import fsspec
    except ImportError:
        raise MissingExtraError("data", f"reading {without_secrets(address)}") from None
    try:
        system, path = fsspec.core.url_to_fs(address)
    except ImportError as error:
        protocol = address.partition("://")[0].rpartition("::")[2]
        if protocol in EXTRAS:
            raise MissingExtraError(EXTRAS[protocol], f"reading {without_secrets(address)}") from None
        raise DataError(f"{address} cannot be reached: {one_line(error)}") from None
    except ValueError as error:
        raise DataError(f"{address} cannot be reached: {one_line(error)}") from None
    if "::" not in address:
        _systems[root] = system
    return system, str(path)


_systems: dict[str, Any] = {}  # by protocol and host or bucket


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(REQUESTS_AT_ONCE, "vitreous-requests")


# ------------------------------------------------------------------------------------------------------------- reading


def read_far_range(file: str, start: int, size: int) -> bytes:
    """`size` bytes from `start`, fewer where the file ends."""
    system, path = filesystem(file)
    return retried(file, lambda: _ranged(file, bytes(system.cat_file(path, start=start, end=start + size)), size))


def read_ranges(wanted: Sequence[Range]) -> list[bytes | DataError]:
    """Many ranges, several at once; ranges that lie together in one file are one request."""
    found: list[bytes | DataError | None] = [None] * len(wanted)
    merged = _merged(wanted)
    for (start, members), raw in zip(merged, _pool().map(lambda one: _read(wanted, *one), merged), strict=True):
        for k in members:
            _, first, size = wanted[k]
            found[k] = raw if isinstance(raw, DataError) else raw[first - start : first - start + size]
    return [part for part in found if part is not None]


def _merged(wanted: Sequence[Range]) -> list[tuple[int, list[int]]]:
    """(start, places in `wanted`) of each request."""
    merged: list[tuple[int, list[int]]] = []
    file, end = "", 0
    for k in sorted(range(len(wanted)), key=lambda k: wanted[k]):
        name, start, size = wanted[k]
        if merged and name == file and start <= end + MERGE_GAP:
            merged[-1][1].append(k)
            end = max(end, start + size)
        else:
            merged.append((start, [k]))
            file, end = name, start + size
    return merged


def _read(wanted: Sequence[Range], start: int, members: list[int]) -> bytes | DataError:
    end = max(wanted[k][1] + wanted[k][2] for k in members)
    try:
        return read_far_range(wanted[members[0]][0], start, end - start)
    except DataError as error:
        return error


def _ranged(file: str, raw: bytes, size: int) -> bytes:
    if len(raw) > size:
        raise ShardError(
            f"the server of {file} sends whole files where a range is asked for; "
            "use one that serves ranges, or copy the shards to a disk"
        )
    return raw


class FarFile(io.RawIOBase):
    """A file at an address for random reads, each a range; nothing stays open."""

    def __init__(self, file: str):
        self.file, self.length, self.place = file, stamp(file).size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.place = max(offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.place, io.SEEK_END: self.length}[whence], 0)
        return self.place

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), self.length - self.place)
        if size <= 0:
            return 0
        raw = read_far_range(self.file, self.place, size)
        buffer[: len(raw)] = raw
        self.place += len(raw)
        return len(raw)


def open_far(file: str) -> io.BufferedReader:
    return io.BufferedReader(FarFile(file), BUFFER_BYTES)


# ------------------------------------------------------------------------------------------------- sizes and listings


def stamp(file: str) -> Stamp:
    """The size of a file, and what else its store reports."""
    system, path = filesystem(file)
    found = retried(file, lambda: _stamp_of(system.info(path)))
    if found is None:
        raise ShardError(f"the store of {file} does not tell its size; copy the shards to a disk")
    return found


def stamps(files: Sequence[str]) -> dict[str, Stamp | DataError]:
    """Stamps of many files: by one listing for each folder where the store can list, else file by file."""
    found: dict[str, Stamp | DataError] = {}
    folders: dict[str, list[str]] = {}
    for file in files:
        folders.setdefault(file.rpartition("/")[0], []).append(file)
    for folder, inside in folders.items():
        listed = _listed(folder) if len(inside) > LIST_FROM else {}
        found |= {file: listed[file] for file in inside if file in listed}
    left = [file for file in files if file not in found]
    return found | dict(zip(left, _pool().map(_stamp_or_fault, left), strict=True))


def _stamp_or_fault(file: str) -> Stamp | DataError:
    try:
        return stamp(file)
    except DataError as error:
        return error


def _listed(folder: str) -> dict[str, Stamp]:
    """Stamps of the files of a folder by address; empty if the store cannot list."""
    try:
        system, path = filesystem(folder)
        entries = system.ls(path, detail=True)
    except Exception:  # many kinds; each file is asked for instead
        return {}
    told = {f"{folder}/{str(e['name']).rstrip('/').rpartition('/')[2]}": _stamp_of(e) for e in entries}
    return {file: found for file, found in told.items() if found is not None}


def _stamp_of(entry: dict[str, Any]) -> Stamp | None:
    if entry.get("size") is None:
        return None
    version = next((str(entry[name]) for name in ("ETag", "etag", "LastModified", "created") if entry.get(name)), "")
    return Stamp(int(entry["size"]), version)


# ------------------------------------------------------------------------------------------------------ asked again


def retried(file: str, ask: Callable[[], Value]) -> Value:
    """`ask()`, repeated after growing waits if the store fails briefly; a ShardError names the file."""
    for attempt in range(ATTEMPTS):
        try:
            return ask()
        except DataError:
            raise
        except Exception as error:  # each file system has its own kinds
            if (final := _final(file, error)) is not None:
                raise final from None
            why = _why(error)
        if attempt + 1 < ATTEMPTS:
            wait = FIRST_WAIT * 2**attempt
            _tell(file, f"{file} failed ({why}); asking again, up to {ATTEMPTS - 1} times")
            time.sleep(wait)
    raise ShardError(f"{file} cannot be read, asked {ATTEMPTS} times ({why}); try again when its store answers")


def _final(file: str, error: Exception) -> DataError | None:
    """The error, if asking again is useless."""
    status = _status(error)
    if isinstance(error, PermissionError) or status in (401, 403) or type(error).__name__ in NO_CREDENTIALS:
        return ShardError(f"{file} may not be read ({_why(error)}); check your credentials")
    if (isinstance(error, FileNotFoundError) and status is None) or status == 404:
        return ShardError(f"{file} is not there; check the address")
    is_refused = status is not None and 400 <= status < 500 and status not in (408, 429)
    if is_refused or isinstance(error, NotImplementedError | IsADirectoryError):
        return ShardError(f"{file} cannot be read ({_why(error)})")
    return None


def _status(error: BaseException | None) -> int | None:
    """The HTTP status of an error, or of the error behind it."""
    while error is not None:
        if isinstance(status := getattr(error, "status", None), int):
            return status
        error = error.__cause__
    return None


def _why(error: Exception) -> str:
    if (status := _status(error)) is not None:
        return f"HTTP {status}"
    name = type(error).__name__
    return without_secrets(one_line(f"{name}: {error}" if str(error) else name))[:200]


_told: dict[str, float] = {}  # when a line last reported each store


def _tell(file: str, line: str) -> None:
    store = "/".join(file.split("/")[:3])
    now = time.monotonic()
    if now - _told.get(store, -SECONDS_BETWEEN_LINES) >= SECONDS_BETWEEN_LINES:
        _told[store] = now
        log.warning("%s", without_secrets(line))
