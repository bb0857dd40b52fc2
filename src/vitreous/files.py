"""Files that are whole or absent: written beside their place, synced, then renamed into it. Also digests and a lock."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from vitreous.errors import BusyError, ExistsError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["atomic_folder", "atomic_write", "digest", "lock"]


def atomic_write(path: str | os.PathLike[str], write: Callable[[BinaryIO], object], *, force: bool = False) -> None:
    """Make the file `path` hold what `write(file)` writes, at once.

    Killed at any moment, `path` holds the old content or the new. Of two processes that write one path without
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
        part.unlink(missing_ok=True)
    fsync_folder(path.parent)


@contextmanager
def atomic_folder(path: str | os.PathLike[str], *, force: bool = False) -> Iterator[Path]:
    """Yield an empty folder; when the body ends well it becomes `path`, all files at once.

    An empty folder counts as free. With `force` an older folder is replaced, unless it holds files that the new
    one has not: those are somebody's. Between the two renames of a replacement the old folder lies beside, hidden.
    """
    path = Path(path)
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
    finally:
        shutil.rmtree(part, ignore_errors=True)
    fsync_folder(path.parent)


def digest(source: bytes | bytearray | memoryview | str | os.PathLike[str]) -> str:
    """SHA-256, in hex, of bytes or of the file at a path."""
    if isinstance(source, bytes | bytearray | memoryview):
        return hashlib.sha256(source).hexdigest()
    with Path(source).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


# Each step that changes a name on the disk, or waits for the disk, is one of these: tests record their order, or stop
# between two of them.


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
    """Rename a file, over an older one too."""
    os.replace(part, path)


def rename(part: Path, path: Path) -> None:
    """Rename a folder to a place that is free."""
    os.rename(part, path)


def link(part: Path, path: Path) -> None:
    """Give a file a second name; unlike a rename, it fails where `path` is taken."""
    os.link(part, path)


def remove(folder: Path) -> None:
    """Delete a folder and all in it."""
    shutil.rmtree(folder)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


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
            path.rmdir()  # only an empty one goes
        rename(part, path)
    except OSError:
        if _is_taken(path):
            raise _exists(path) from None
        raise


def _replace_folder(part: Path, path: Path) -> None:
    if not path.is_dir() or path.is_symlink():
        raise ExistsError(f"{path} is no folder; choose another place")
    if others := set(_files(path)) - set(_files(part)):
        raise ExistsError(f"{path} also holds {min(others)}, which --force will not delete; choose another place")
    old = _beside(path)
    rename(path, old)
    try:
        rename(part, path)
    except OSError:
        rename(old, path)
        raise
    remove(old)
