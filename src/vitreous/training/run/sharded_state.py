"""States that all ranks write together with torch.distributed.checkpoint: each rank its own rows, in a thread.

A folder holds one file of each rank, torch's `.metadata` and, written last, our sealed manifest: without it the folder
does not count. Any number of ranks can read it, each only the rows that it needs.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from vitreous.errors import CheckpointError, RoomError, RunError
from vitreous.files import DISK_FULL, atomic_write, digest, sealed, unsealed
from vitreous.ranks import LONGEST_WAIT, Ranks, agreed, patient_group
from vitreous.training.run.folder import (
    MANIFEST,
    SHARDS,
    STATE_KEY,
    RunFolder,
    check_state,
)
from vitreous.training.run.sharding import RankRows
from vitreous.weights.own_format import tensor_digest
from vitreous.weights.tensor_files import each_safetensor, write_safetensors
from vitreous.words import one_line

_METADATA = "torch.distributed.checkpoint.metadata"
DESCRIPTIONS = {  # the classes in torch's list of the tensors of a state
    *((_METADATA, name) for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties")),
    *((_METADATA, name) for name in ("TensorStorageMetadata", "ChunkStorageMetadata", "_MEM_FORMAT_ENCODING")),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    *(("pathlib", name) for name in ("PosixPath", "WindowsPath")),
}


class ShardedStates:
    """The states of a run whose ranks each keep rows. Every method is called by all ranks."""

    def __init__(self, folder: RunFolder | None, ranks: Ranks):
        self.folder, self.ranks, self.rows = folder, ranks, RankRows(ranks)
        self.mesh = init_device_mesh("cpu", (ranks.world,))
        self.group = torch.distributed.new_group(backend="gloo", timeout=LONGEST_WAIT)  # for the saving thread alone
        self._saver = ThreadPoolExecutor(1, "save-shards")
        self._saving: Future[Any] | None = None

    def save(
        self, own: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], about: Mapping[str, Any], *, wait: bool
    ) -> None:
        """Save this rank's tensors (on the host, unchanged until written).  shapes: whole, of those kept as rows."""
        self.wait()
        path = agreed(self.ranks, lambda: self.folder and self.folder.new_shards(about))
        tensors = {name: self._as_rows(tensor, shapes.get(name)) for name, tensor in own.items()}
        write = partial(_write, path, tensors, self.group, self.ranks)
        if self.folder is not None:
            self.folder.save_shards(path, about, write)
        else:
            self._saving = self._saver.submit(write)
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until no state is being written; raise what went wrong with it on any rank."""
        agreed(self.ranks, self.folder.wait if self.folder is not None else lambda: None)
        if self._saving is not None:
            saving, self._saving = self._saving, None
            saving.result()

    def close(self) -> None:
        self._saver.shutdown()

    def fill(self, path: Path, own: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Read this rank's rows of a state of either kind, in place."""
        if path.suffix == SHARDS:
            _load({name: self._as_rows(tensor, shapes.get(name)) for name, tensor in own.items()}, _Reader(path))
            return
        missing = dict(own)
        for name, whole in each_safetensor(path):
            if name in missing:
                place = missing.pop(name)
                found = self.rows.own(whole) if name in shapes else whole
                if found.shape != place.shape:
                    break
                place.copy_(found)
        if missing:
            raise RunError(f"the saved state does not fit this model and recipe at {next(iter(missing))}; start afresh")

    def shapes_in(self, path: Path) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors of a state of either kind."""
        if path.suffix == SHARDS:
            return {name: tuple(about.shape) for name, about in _about(path).items()}
        return {name: tuple(tensor.shape) for name, tensor in each_safetensor(path)}

    def _as_rows(self, tensor: Tensor, shape: tuple[int, ...] | None) -> Tensor:
        """Rows of a whole tensor, as torch's checkpoint takes them."""
        if not shape:
            return tensor
        stride = torch.empty(shape, device="meta").stride()
        own = tensor.contiguous()
        return DTensor.from_local(own, self.mesh, [Shard(0)], run_check=False, shape=torch.Size(shape), stride=stride)


def _write(path: Path, tensors: dict[str, Tensor], group: Any, ranks: Ranks) -> dict[str, str]:
    """Write this rank's file and wait for the others'; the digests of all files, on rank 0."""
    try:
        dcp.save(tensors, storage_writer=dcp.FileSystemWriter(path, sync_files=True), process_group=group)
    except CheckpointException as error:
        rank, (fault, _) = min(error.failures.items())
        raise _of_rank(rank, fault, path) from None
    mine = sorted(path.glob(f"__{ranks.rank}_*.distcp"))
    files = {file.name: digest(file) for file in [*mine, *([path / ".metadata"] if ranks.is_first else [])]}
    found: list[Any] = [None] * ranks.world
    torch.distributed.all_gather_object(found, files, group=group)
    return {name: value for part in found for name, value in part.items()}


def _of_rank(rank: int, fault: BaseException, path: Path) -> RunError | RoomError:
    """One line that names the rank; torch's file writer reports a full disk only as a failed write."""
    is_full = isinstance(fault, OSError) and fault.errno in DISK_FULL
    if is_full or "failed writing" in str(fault) or "write failed" in str(fault):
        why = getattr(fault, "strerror", None) or "the write failed"
        return RoomError(
            f"no room on rank {rank} for {path} ({why}); free some and go on with --resume: "
            "what was saved before is whole"
        )
    return RunError(f"rank {rank} cannot write {path} ({one_line(fault)}); go on with --resume")


# ------------------------------------------------------------------------------------------------------ a whole again


class _Reader(dcp.FileSystemReader):
    """Reads torch's metadata once, and only descriptions of tensors from it, since it is a pickle."""

    @cached_property
    def _kept(self) -> Metadata:
        file = Path(self.path) / ".metadata"
        try:
            found = _Descriptions(io.BytesIO(file.read_bytes())).load()
            assert isinstance(found, Metadata)
            found.storage_meta = StorageMeta(load_id=self.load_id)
        except Exception as error:
            raise CheckpointError(f"{file} is no list of tensors ({one_line(error)}); take another state") from None
        return found

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._kept


class _Descriptions(pickle.Unpickler):
    """Knows shapes, kinds and places of tensors. A file that names anything else runs nothing and is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in DESCRIPTIONS or (
            module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        ):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _load(tensors: dict[str, Tensor], reader: _Reader) -> None:
    """Fill the tensors, whole or rows, in place; called by all ranks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # a single process is intended
        dcp.load(tensors, storage_reader=reader, process_group=patient_group())


def _about(path: Path) -> dict[str, Tensor]:
    """Every tensor of a state in shards, without values."""
    found = _Reader(path).read_metadata().state_dict_metadata
    return {
        name: torch.empty(about.size, dtype=about.properties.dtype, device="meta")
        for name, about in found.items()
        if isinstance(about, TensorStorageMetadata)
    }


def read_whole(path: Path) -> dict[str, Tensor]:
    """All tensors of a state in shards, whole, in memory."""
    tensors = {name: torch.empty_like(about, device="cpu") for name, about in _about(path).items()}
    _load(tensors, _Reader(path))
    return tensors


def join_shards(path: Path, out: Path) -> None:
    """Write a state in shards as one file, tensor by tensor: memory holds one at a time."""
    check_state(path)
    about, reader = _about(path), _Reader(path)

    def read(name: str) -> Tensor:
        one = {name: torch.empty_like(about[name], device="cpu")}
        _load(one, reader)
        return one[name]

    manifest = unsealed((path / MANIFEST).read_text())
    if manifest is None:
        raise CheckpointError(f"the manifest of {path} is damaged; take another state")
    del manifest["files"]
    digests = {name: tensor_digest(read(name)) for name in about}
    metadata = {STATE_KEY: sealed({**manifest, "tensors": digests})}
    atomic_write(out, lambda file: write_safetensors(file, about, metadata, read))
