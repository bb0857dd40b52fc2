"""Read tensors from untrusted files: no code in a file runs, and the file's size bounds the memory."""

from __future__ import annotations

import argparse
import json
import math
import os
import pickle
import pickletools
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any, BinaryIO

import msgspec
import numpy as np
import torch
from torch import Tensor

from vitreous.errors import CheckpointError, FormatError
from vitreous.words import one_line

MAX_HEADER_BYTES = 16 * 2**20  # of a safetensors file
MAX_JSON_BYTES = 16 * 2**20
MAX_TENSORS = 20_000  # the largest model of the papers has 1,200
MAX_AXES = 16
MAX_EXPANSION = 20  # an npz may unpack to this many times its size; weights hardly compress
ALWAYS_ALLOWED_BYTES = 256 * 2**20  # an npz of any size may unpack to this

SAFETENSORS_TYPES = {  # of a safetensors file
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class Tensors(dict[str, Tensor]):
    """Tensors by name; a missing one raises an error that names it."""

    def __init__(self, tensors: Mapping[str, Tensor], path: str):
        super().__init__(tensors)
        self.path = path

    def __missing__(self, name: str) -> Tensor:
        raise CheckpointError(f"{self.path} has no tensor {name}; is the file whole, and of this format?")

    def shape(self, name: str, dims: int) -> tuple[int, ...]:
        """The shape of a tensor, which must have `dims` axes."""
        shape = tuple(self[name].shape)
        if len(shape) != dims or 0 in shape:
            raise CheckpointError(
                f"tensor {name} of {self.path} has shape {by(shape)}; expected {dims} axes, none of them empty"
            )
        return shape

    def depth(self, pattern: str) -> int:
        """The number of blocks, from the largest number in place of {} in the names."""
        front, _, end = pattern.partition("{}")
        blocks = re.compile(re.escape(front) + r"(\d{1,6})" + re.escape(end))
        depth = 1 + max((int(found[1]) for name in self if (found := blocks.match(name))), default=-1)
        if not 0 < depth <= len(self):
            raise CheckpointError(f"{self.path} has {depth or 'no'} blocks ({pattern.format(0)}…); is the file whole?")
        return depth

    def units(self, pattern: str, first: int) -> tuple[int, ...]:
        """The number of units in each ResNet stage.  pattern: a regex of stage and unit, both numbered from `first`."""
        places = [(int(found[1]), int(found[2])) for name in self if (found := re.match(pattern, name))]
        stages = range(first, 1 + max((stage for stage, _ in places), default=first - 1))
        counts = tuple(1 - first + max((unit for s, unit in places if s == stage), default=-1) for stage in stages)
        if sum(counts) > len(self) or len(stages) > 8 or min(counts, default=1) < 1:
            raise CheckpointError(f"{self.path} has stages of {counts[:9]} units; is the file whole?")
        return counts

    def renamed(self, rename: Callable[[str], str]) -> Tensors:
        """Rename the tensors; no two may get the same name."""
        new = Tensors({}, self.path)
        before: dict[str, str] = {}
        for name, tensor in self.items():
            to = rename(name)
            if to in new:
                raise CheckpointError(f"{self.path} has both {before[to]} and {name}, which are one part of the model")
            new[to], before[to] = tensor, name
        return new

    def only(self, keep: Callable[[str], bool]) -> Tensors:
        return Tensors({name: tensor for name, tensor in self.items() if keep(name)}, self.path)


@dataclass(frozen=True)
class RawCheckpoint:
    """A checkpoint as read from disk: tensors, and the JSON files beside them."""

    path: str  # as the user wrote it
    tensors: Tensors
    metadata: dict[str, str] = field(default_factory=dict)  # of a safetensors file
    config: dict[str, Any] = field(default_factory=dict)  # config.json
    preprocessor: dict[str, Any] = field(default_factory=dict)  # preprocessor_config.json
    sidecar: dict[str, Any] = field(default_factory=dict)  # written by us, for what the format cannot hold
    file: Path | None = None  # the file of the tensors


WEIGHT_FILES = (  # the hub's names; a config.json belongs to these
    "model.safetensors",
    "pytorch_model.bin",
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
)
FOLDER_SIDECAR = "vitreous.json"


def read(path: Path) -> RawCheckpoint:
    """Open a file or a folder of weights, whatever wrote it."""
    if path.is_dir():
        return _read_file(_weights_in(path), str(path))
    if not path.is_file():
        raise CheckpointError(
            f"{path} is not there; give a file or folder of weights, a catalog name, or hf:OWNER/NAME"
        )
    return _read_file(path, str(path))


def _weights_in(folder: Path) -> Path:
    """The one file of weights in a folder."""
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return folder / name
    if (folder / "export.json").is_file():
        raise CheckpointError(
            f"{folder} is an exported folder, which answers by `vitreous serve {folder}` or its own run.py; for all "
            f"else name the model that it was made of"
        )
    only = sorted(p for p in folder.iterdir() if ending(p) in READERS and p.is_file())
    if len(only) != 1:
        several = f"{len(only)} files of weights ({', '.join(p.name for p in only[:3])}, …)"
        if not only and (folder / "config.json").is_file() and (folder / "events.jsonl").is_file():
            raise CheckpointError(
                f"{folder} is a run that has not ended; go on with it: vitreous fit {folder} --resume"
            )
        found = f"{several}; name the file" if only else "no weights; name a file of weights, or a finished run"
        raise CheckpointError(f"{folder} holds {found}")
    return only[0]


def _read_file(path: Path, written: str) -> RawCheckpoint:
    """Read a file and the JSON beside it.  written: the path as the user wrote it."""
    tensors, metadata = _read_shards(path) if path.name.endswith(".index.json") else read_tensors(path)

    def beside(name: str) -> dict[str, Any]:
        return read_json(path.with_name(name)) if path.name in WEIGHT_FILES else {}

    config, preprocessor = beside("config.json"), beside("preprocessor_config.json")
    sidecar = read_json(path.with_name(path.name + ".json")) or beside(FOLDER_SIDECAR)
    return RawCheckpoint(written, unwrapped(Tensors(tensors, str(path))), metadata, config, preprocessor, sidecar, path)


def unwrapped(tensors: Tensors) -> Tensors:
    """Strip the prefixes that DataParallel and torch.compile add to names."""
    plain = tensors.renamed(lambda name: name.replace("_orig_mod.", ""))
    while plain and all(name.startswith("module.") for name in plain):
        plain = plain.renamed(lambda name: name.removeprefix("module."))
    return plain


def _read_shards(index: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read weights from the several files that an index lists."""
    where: Any = read_json(index).get("weight_map")
    files = list(where.values()) if isinstance(where, dict) else []
    if not files or not all(isinstance(file, str) and is_plain_name(file) for file in files):
        raise CheckpointError(f"{index} has no usable weight_map; each tensor must name a file beside it")
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(files)):
        if not (index.parent / file).is_file():
            raise CheckpointError(f"{index} names {file}, which is not there; fetch it")
        shard = read_tensors(index.parent / file)[0]
        for name in (name for name, place in where.items() if place == file):
            if name not in shard:
                raise CheckpointError(f"{index.parent / file} has no tensor {name}, which its index names; fetch it")
            tensors[name] = shard[name]
    return tensors, {}


def is_plain_name(file: str) -> bool:
    """True if an untrusted file name stays inside its folder."""
    return file.isprintable() and not set(file) & set("/\\:") and file not in ("", ".", "..")


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of one file, and a safetensors file's metadata."""
    if ending(path) not in READERS:
        raise FormatError(f"{path} does not end in {', '.join(READERS)}; give a file of weights")
    if path.stat().st_size == 0:
        raise CheckpointError(f"{path} is empty; fetch or write it again")
    tensors, metadata = READERS[ending(path)](path)
    check_names(tensors, path)
    return tensors, metadata


def check_names(names: Iterable[str], path: Path) -> None:
    """Refuse names that are not one line, and more tensors than any model has."""
    names = list(names)
    if len(names) > MAX_TENSORS:
        raise CheckpointError(f"{path} has {len(names)} tensors, more than any model; do not trust this file")
    for name in names:
        if not name.isprintable() or len(name) > 300:
            raise CheckpointError(f"{path} has a tensor with an invalid name: {name[:40]!r}; do not trust this file")


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Copy each tensor into memory: if a mapped file is overwritten, the model would change."""
    return dict(each_safetensor(path)), check_safetensors(path)


def each_safetensor(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor, one after the other, each a copy."""
    with path.open("rb") as file:
        for name, entry in _read_header(file, path)[0].items():
            begin, end = entry.data_offsets
            try:
                tensor = torch.empty(entry.shape, dtype=SAFETENSORS_TYPES[entry.dtype])
            except RuntimeError:  # torch is out of memory
                raise CheckpointError(
                    f"tensor {name} of {path} takes {(end - begin) / 2**30:,.1f} GiB, more than the memory here has"
                ) from None
            if end > begin and file.readinto(bytes_of(tensor)) != end - begin:
                raise CheckpointError(f"{path} became shorter while it was read; fetch or write it again")
            yield name, tensor


def write_safetensors(
    file: BinaryIO,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    read: Callable[[str], Tensor] | None = None,
) -> None:
    """Write tensors one after the other; the library's `save` would hold all of them a second time.

    read: gives each tensor by its name when its turn comes; `tensors` then has only their types and shapes.
    """
    type_names = {dtype: name for name, dtype in SAFETENSORS_TYPES.items()}
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": type_names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    file.write(len(raw).to_bytes(8, "little") + raw)
    for name, tensor in tensors.items():
        if tensor.numel():
            file.write(bytes_of((tensor if read is None else read(name)).contiguous()))


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous, non-empty tensor."""
    return tensor.flatten().view(torch.uint8).numpy().data


Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class HeaderEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor in the header of a safetensors file."""

    dtype: str
    shape: Annotated[list[Whole], msgspec.Meta(max_length=MAX_AXES)]
    data_offsets: tuple[Whole, Whole]  # begin and end, counted from the header's end


def check_safetensors(path: Path) -> dict[str, str]:
    """Refuse a header whose tensors do not fill the file exactly; returns its metadata."""
    with path.open("rb") as file:
        return _read_header(file, path)[1]


def _read_header(file: BinaryIO, path: Path) -> tuple[dict[str, HeaderEntry], dict[str, str]]:
    """Entries in file order, and metadata; leaves the file at the first tensor."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        raise CheckpointError(
            f"{path} is cut short: {size} bytes, and its header alone says {length}; fetch or write it again"
        )
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"the header of {path} is {length} bytes, more than any model needs; do not trust this file"
        )
    header = _header(file.read(length), path)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"the metadata of {path} is damaged; fetch or write it again")
    check_names(header, path)
    end_before = 0
    read = {name: _entry(name, entry, path) for name, entry in header.items()}
    entries = dict(sorted(read.items(), key=lambda named: named[1].data_offsets))
    for name, entry in entries.items():
        begin, end = entry.data_offsets
        if entry.dtype not in SAFETENSORS_TYPES:
            raise CheckpointError(
                f"tensor {name} of {path} has type {entry.dtype[:20]!r}, which no model here uses; convert it to F32"
            )
        if math.prod(entry.shape) * SAFETENSORS_TYPES[entry.dtype].itemsize != end - begin:
            raise CheckpointError(
                f"tensor {name} of {path} claims shape {by(entry.shape)} but {end - begin} bytes; "
                f"do not trust this file"
            )
        if begin != end_before:
            what = "overlaps the tensor before it" if begin < end_before else "leaves a gap before it"
            raise CheckpointError(f"tensor {name} of {path} {what}; do not trust this file")
        end_before = end
    if end_before != size - 8 - length:
        what = "cut short" if end_before > size - 8 - length else "followed by bytes that belong to no tensor"
        raise CheckpointError(
            f"{path} is {what}: {size - 8 - length} bytes of tensors, {end_before} expected; fetch or write it again"
        )
    return entries, metadata


def _header(raw: bytes, path: Path) -> dict[str, Any]:
    """Parse a header: one JSON object, padded with spaces, no name twice."""
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_no_name_twice)
        if isinstance(header, dict) and raw.rstrip(b" ").endswith(b"}"):
            return header
        why = "it is not a JSON object"
    except (ValueError, RecursionError) as error:
        why = one_line(error)
    raise CheckpointError(f"the header of {path} is damaged ({why}); fetch or write it again")


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name[:40]!r} stands there twice")
        found[name] = value
    return found


def _entry(name: str, entry: Any, path: Path) -> HeaderEntry:
    try:
        return msgspec.convert(entry, HeaderEntry)
    except msgspec.ValidationError:
        raise CheckpointError(f"the header of {path} is damaged (at {name}); fetch or write it again") from None


def read_npz(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read arrays by name, without pickle; raw two-byte items are bfloat16."""
    limit = max(ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * path.stat().st_size)
    tensors: dict[str, Tensor] = {}
    try:
        with zipfile.ZipFile(path) as file:
            total = sum(entry.file_size for entry in file.infolist())
            if total > limit:
                raise CheckpointError(f"{path} would grow to {total} bytes when unpacked; do not trust this file")
            check_names((entry.filename for entry in file.infolist()), path)
            for entry in file.infolist():
                name = entry.filename.removesuffix(".npy")
                if name in tensors:
                    raise CheckpointError(f"{path} holds the array {name} twice; do not trust this file")
                if name != entry.filename:
                    with file.open(entry) as stream:
                        tensors[name] = _read_array(stream, entry.file_size, f"array {name} of {path}")
    except CheckpointError:
        raise
    except Exception as error:  # a damaged zip raises many kinds of error
        raise CheckpointError(f"{path} is damaged, or not an npz: {one_line(error)}; fetch or write it again") from None
    return tensors, {}


def _read_array(stream: IO[bytes], size: int, what: str) -> Tensor:
    shape, in_columns, dtype = _array_header(stream, what)
    is_half = dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None and dtype.subdtype is None  # bfloat16
    if not (is_half or (dtype.kind in "fib" and dtype.itemsize <= 8) or dtype == np.uint8):
        raise CheckpointError(f"{what} holds {one_line(dtype)}, not numbers of a model; do not trust this file")
    bytes_wanted = math.prod(shape) * dtype.itemsize
    if bytes_wanted > size or any(n < 0 for n in shape) or len(shape) > MAX_AXES:
        raise CheckpointError(f"{what} claims shape {by(shape)} but has {size} bytes; do not trust this file")
    raw = bytearray(stream.read(bytes_wanted))
    if len(raw) != bytes_wanted or stream.read(1):  # reading to the end also checks the zip's checksum
        raise CheckpointError(f"{what} is not {bytes_wanted} bytes long; fetch or write it again")
    plain = np.frombuffer(raw, np.dtype(np.uint16) if is_half else dtype)
    array = plain.reshape(shape[::-1]).T if in_columns else plain.reshape(shape)
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(shape)  # a scalar stays one
    if is_half:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _array_header(stream: IO[bytes], what: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(stream)
    reader = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if reader is None:
        raise CheckpointError(f"{what} has an unknown version {version}; write it again with numpy")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a file from Python 2 is fine
            return reader(stream, max_header_size=4096)
    except Exception:  # Python's own parser raises many kinds of error
        raise CheckpointError(f"the header of {what} is damaged; fetch or write it again") from None


def read_pickled(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a torch file, tensors only (`weights_only=True`): code inside it is refused, not run."""
    size = path.stat().st_size
    try:
        is_zip = zipfile.is_zipfile(path)
        check_pickle(path, is_zip=is_zip)
        # In a mapped file a tensor cannot reach beyond the end, whatever length it claims.
        with torch.serialization.safe_globals([argparse.Namespace]):  # a script's arguments: words and numbers
            content = torch.load(str(path), map_location="cpu", weights_only=True, mmap=is_zip)
    except CheckpointError:
        raise
    except pickle.UnpicklingError:
        raise _not_only_tensors(path) from None
    except Exception as error:  # torch raises many kinds of error on a damaged file
        raise CheckpointError(f"{path} is damaged: {one_line(error)}; fetch or write it again") from None
    tensors, about = _state_dict(content)
    if not tensors:
        raise CheckpointError(f"{path} holds no state_dict; save model.state_dict()")
    total = 0
    for name, tensor in tensors.items():
        is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
        total += tensor.numel() * tensor.element_size() if is_plain else 0
        if not is_plain or total > 4 * size:  # a few tensors may share memory
            raise CheckpointError(
                f"tensor {name!r} of {path} claims shape {by(tensor.shape)}, more than the file holds; do not trust it"
            )
    return {name: tensor.clone() for name, tensor in tensors.items()}, about


def _not_only_tensors(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} holds more than tensors, or is damaged; re-save its state_dict with safetensors where you trust it"
    )


ALLOWED_PICKLE_CALLS = {  # all that a pickle of tensors needs; torch allows others, which can claim any memory
    "collections OrderedDict",
    "torch Size",
    "torch device",
    "torch.nn.parameter Parameter",
    "torch.serialization _get_layout",
    "torch._tensor _rebuild_from_type_v2",
    "_codecs encode",
    "argparse Namespace",
    "builtins set",
    "__builtin__ set",
}


def check_pickle(path: Path, *, is_zip: bool) -> None:
    """Refuse a torch file whose pickle calls more than tensors need, or whose data are damaged."""
    if not is_zip:
        with path.open("rb") as file:
            for _ in range(4):  # the form of torch before 1.6: magic number, version, machine, tensors
                _check_calls(file, path)
        return
    with zipfile.ZipFile(path) as file:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in file.infolist()):
            raise CheckpointError(f"{path} is packed as torch never packs; save it again with torch.save")
        if damaged := file.testzip():
            raise CheckpointError(f"{path} is damaged at {damaged!r}; fetch or write it again")
        for name in file.namelist():
            if name.endswith("data.pkl"):
                with file.open(name) as stream:
                    _check_calls(stream, path)


def _check_calls(stream: IO[bytes], path: Path) -> None:
    for opcode, argument, _ in pickletools.genops(stream):
        if opcode.name == "GLOBAL":
            home, _, name = str(argument).partition(" ")
            is_storage = home in ("torch", "torch.storage") and name.endswith("Storage")
            is_type = home == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
            makes_tensor = home == "torch._utils" and name.startswith(("_rebuild_tensor", "_rebuild_parameter"))
            if not (is_storage or is_type or makes_tensor or argument in ALLOWED_PICKLE_CALLS):
                raise _not_only_tensors(path)
        elif opcode.name in ("STACK_GLOBAL", "INST", "OBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"):
            raise _not_only_tensors(path)


WRAPPERS = (  # the first one present wins
    "state_dict", "model", "model_state_dict", "model_ema", "state_dict_ema", "ema", "teacher", "student", "net",
)  # fmt: skip


def _state_dict(content: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The state dict inside the wrappers that training scripts add; the innermost wrapper, and networks beside it."""
    about: dict[str, str] = {}
    for _ in range(4):
        if not isinstance(content, Mapping):
            return {}, about
        found = [word for word in WRAPPERS if isinstance(content.get(word), Mapping)]
        if not found:
            break
        content, about = content[found[0]], {"wrapper": found[0], "beside": ",".join(found[1:])}
    return {str(name): tensor.detach() for name, tensor in content.items() if isinstance(tensor, Tensor)}, about


READERS = {
    ".safetensors": read_safetensors,
    ".npz": read_npz,
    ".pth": read_pickled,
    ".pt": read_pickled,
    ".bin": read_pickled,
}


def ending(path: Path) -> str:
    """The kind of file, by its name; MoCo v3 and others write NAME.pth.tar, which is not an archive."""
    return ".pth" if path.name.endswith(".pth.tar") else path.suffix


def read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    if path.stat().st_size > MAX_JSON_BYTES:
        raise CheckpointError(f"{path} is larger than any config; do not trust it")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {one_line(error)}; fetch or write it again") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} holds no JSON object; fetch or write it again")
    return data


def by(shape: Iterable[int]) -> str:
    """A shape for people: 3x4."""
    sizes = [str(n) if abs(n) < 10**15 else "huge" for n in shape]
    return "x".join(sizes[:MAX_AXES]) + ("x…" if len(sizes) > MAX_AXES else "") or "scalar"
