"""A log that survives a kill: records are only appended, and one that was cut short or damaged is noticed.

Records are lines, or rows of one size that end in a checksum. What a record promises is on disk before the record is.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import takewhile
from pathlib import Path
from typing import IO, Any, Generic, TypeVar, cast

import vitreous.files as files

Record = TypeVar("Record")


class Journal(Generic[Record]):
    """The log at `path`: `header`, then records. One process writes, and calls `repair` or `cut` before it appends.

    read: turns bytes into a record; raises, or returns None, for a damaged one.  header: first bytes; a file with
    others is another version's and counts as empty.  row: bytes per record, with its CRC-32; 0: records are lines.
    """

    def __init__(
        self, path: str | os.PathLike[str], read: Callable[[bytes], Record | None], *, header: bytes = b"", row: int = 0
    ):
        self.path, self._header, self._row = Path(path), header, row
        self._decode = read
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Journal[Record]:
        """Hold the file open between appends."""
        self._file = self._open()
        return self

    def __exit__(self, *error: object) -> None:
        assert self._file is not None
        self._file.close()
        self._file = None

    def records(self) -> Iterator[Record | None]:
        """Every finished record, in order; None stands for a damaged one."""
        return map(self._read, self._frames())

    def whole(self) -> list[Record]:
        """The records before the first damaged one; empty if the file cannot be read."""
        try:
            return cast(list[Record], list(takewhile(lambda record: record is not None, self.records())))
        except OSError:
            return []

    def repair(self) -> int:
        """Cut off an unfinished record and damaged ones at the end; returns the number of records left."""
        frames = self._frames() if self.path.exists() else []
        while frames and self._read(frames[-1]) is None:  # zeros, after a power cut
            frames.pop()
        self._keep(frames)
        return len(frames)

    def cut(self, count: int) -> None:
        """Keep the first `count` records."""
        self._keep(self._frames()[:count] if self.path.exists() else [])

    def append(self, *records: bytes | dict[str, Any], after: Iterable[IO[bytes]] = (), sync: bool = True) -> None:
        """Write all of these records or none. A dict becomes a line of JSON.

        after: files that reach the disk before the records do.  sync: wait until the records have reached it too.
        """
        for file in after:
            file.flush()
            files.fsync(file)
        raw = b"".join(self._framed(record) for record in records)
        with nullcontext(self._file) if self._file else self._open() as log:
            size, rest = os.fstat(log.fileno()).st_size, memoryview(raw)
            try:
                while rest:
                    rest = rest[log.write(rest) :]
            except OSError:
                log.truncate(size)
                raise
            if sync:
                files.fsync(log)

    def _open(self) -> IO[bytes]:
        return self.path.open("ab", buffering=0)

    def _framed(self, record: bytes | dict[str, Any]) -> bytes:
        body = record if isinstance(record, bytes) else json.dumps(record, allow_nan=False).encode()
        return body + (zlib.crc32(body).to_bytes(4, "little") if self._row else b"\n")

    def _frames(self) -> list[bytes]:
        """The raw bytes of every finished record, without line ends."""
        raw = self.path.read_bytes()
        if not raw.startswith(self._header):
            return []
        begin, row = len(self._header), self._row
        if row:
            return [raw[at : at + row] for at in range(begin, len(raw) - row + 1, row)]
        return raw[begin:].split(b"\n")[:-1]

    def _read(self, frame: bytes) -> Record | None:
        if self._row and zlib.crc32(frame[:-4]).to_bytes(4, "little") != frame[-4:]:
            return None
        try:
            return self._decode(frame)
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def _keep(self, frames: Sequence[bytes]) -> None:
        """Make the file hold only its header and these first records."""
        size = len(self._header) + sum(map(len, frames)) + (0 if self._row else len(frames))
        with self.path.open("r+b" if self.path.exists() else "w+b") as file:
            if file.read(len(self._header)) != self._header:
                file.seek(0)
                file.truncate()
                file.write(self._header)
            elif os.fstat(file.fileno()).st_size > size:
                file.truncate(size)
            file.flush()
            files.fsync(file)


def json_object(line: bytes) -> dict[str, Any]:
    """A line of JSON that is an object; ValueError for anything else."""
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found
