"""Weights in few bits: each row of a kernel as integer multiples of a step, Huffman-coded, in a safetensors file.

    w ≈ step · code        step = max(rms / fineness, max |w| / 127), the row's, in half precision

No weight is clipped, each is within half a step, and rare large codes cost nothing elsewhere: at 4.4 bits a weight
this moved DeiT-Ti's answers half as far as five plain bits at their best step (docs/evidence/starter.md). A weight
takes about 2 + log₂ fineness bits. Vectors and small tensors stay in half precision. Read back, the model is float32.
A Huffman code spends at least one bit per number, so unpacking grows a file at most 32 times.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import CheckpointError, ConfigError
from vitreous.files import digest, sealed, write_bytes
from vitreous.models.model import Model, state_of
from vitreous.weights.own_format import (
    MANIFEST_KEY,
    Opened,
    check_usage,
    manifest_of,
    open_manifest,
    read_manifest,
    tensor_digest,
)
from vitreous.weights.tensor_files import RawCheckpoint, by
from vitreous.words import one_line

QUANTISED_KEY = "quantised"  # a key beside the manifest; its value is PACKING_VERSION
PACKING_VERSION = 1
FINENESS = (16.0, 12.0, 10.0, 8.0, 7.0, 6.5, 6.0, 5.5, 5.0, 4.5, 4.0, 3.5, 3.0, 2.5, 2.0)  # tried in this order
STEP_SUFFIX = ".step"  # NAME.step holds the steps of kernel NAME's rows
HALF_PRECISION_BELOW = 2**12  # a tensor with fewer numbers stays in half precision
FINEST_BELOW = 2**16  # a kernel with fewer numbers uses the whole range of a byte
MAX_CODE = 127  # the largest code
ZERO_BYTE = 128  # the byte of code 0
SMALLEST_HALF = 2.0**-24  # the smallest half-precision number


# One tensor --------------------------------------------------------------------------------------------------------


def quantise(rows: Tensor, fineness: float) -> tuple[Tensor, Tensor]:
    """Codes (n d, int8) and steps (n, float16) of rows.  fineness: steps per root mean square of a row."""
    if not fineness > 0:
        raise ConfigError(f"fineness={fineness} is not positive; give a number of steps, such as 6")
    w = rows.double()
    step = torch.maximum(w.square().mean(1).sqrt() / fineness, w.abs().amax(1) / MAX_CODE)  # n
    if not bool((step <= torch.finfo(torch.float16).max).all()):
        raise CheckpointError("weights are not finite, or too large for half precision; pack a model that trained well")
    step = _upward(step)
    codes = torch.where(step > 0, w.mT / step.clamp(min=SMALLEST_HALF), 0.0).mT.round()
    return codes.clamp(-MAX_CODE, MAX_CODE).to(torch.int8), step.half()


def restore(codes: Tensor, steps: Tensor) -> Tensor:
    """n d, float32."""
    return codes.float() * steps.float()[:, None]


def _upward(step: Tensor) -> Tensor:
    """Round up to half precision, so the largest weight still has a code."""
    half = step.numpy().astype(np.float16)
    higher = np.nextafter(half, np.float16(np.inf))
    return torch.from_numpy(np.where(half < step.numpy(), higher, half)).double()


def as_rows(shape: torch.Size | tuple[int, ...]) -> tuple[int, int]:
    """Rows and their length: output channels of a kernel, places of a table of positions."""
    long = [n for n in shape if n > 1]
    return long[0], math.prod(long[1:])


def _coded(codes: Tensor) -> Tensor:
    """Codes as a Huffman-coded stream of bytes."""
    raw = (codes.to(torch.int16) + ZERO_BYTE).to(torch.uint8).numpy().tobytes()
    coder = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    return torch.frombuffer(bytearray(coder.compress(raw) + coder.flush()), dtype=torch.uint8)


def _decoded(stream: Tensor, count: int) -> Tensor:
    """Decode exactly `count` codes, and allocate no more."""
    if stream.dtype != torch.uint8:  # before numpy, which has no bfloat16
        raise ValueError(f"its stream is of {str(stream.dtype).removeprefix('torch.')}, not of bytes")
    raw = stream.numpy().tobytes()
    if count > 8 * len(raw):
        raise ValueError(f"{len(raw)} bytes cannot hold {count} numbers")
    decoder = zlib.decompressobj(-15)
    found = decoder.decompress(raw, count + 1)
    if len(found) != count or not decoder.eof or decoder.unused_data:
        raise ValueError(f"its stream does not hold {count} numbers")
    return torch.frombuffer(bytearray(found), dtype=torch.uint8).to(torch.int16) - ZERO_BYTE


# All tensors of a model -----------------------------------------------------------------------------------------------


def pack(state: Mapping[str, Tensor], fineness: float) -> dict[str, Tensor]:
    """The tensors to write: streams and steps of kernels, float16 for the rest; integers stay as they are."""
    packed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        value = tensor.detach().cpu().contiguous()
        if not value.is_floating_point():
            packed[name] = value
        elif value.ndim < 2 or value.numel() < HALF_PRECISION_BELOW:
            packed[name] = value.half()
            if not packed[name].isfinite().all():
                raise CheckpointError(f"{name} has numbers that half precision cannot hold; pack another model")
        else:
            codes, steps = quantise(
                value.reshape(as_rows(value.shape)), fineness if value.numel() >= FINEST_BELOW else MAX_CODE
            )
            packed[name], packed[name + STEP_SUFFIX] = _coded(codes), steps
    return packed


def finest(state: Mapping[str, Tensor], room: int) -> float:
    """The greatest fineness at which the packed tensors fit into `room` bytes."""
    for fineness in FINENESS:
        if sum(tensor.nbytes for tensor in pack(state, fineness).values()) <= room:
            return fineness
    raise ConfigError(f"no fineness packs these weights into {room:,} bytes; take a smaller network")


def unpack(packed: Mapping[str, Tensor], shapes: Mapping[str, torch.Size], path: str) -> dict[str, Tensor]:
    """Unpack the tensors with these names and shapes to float32; an error names the tensor."""
    state: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        if name not in packed:
            raise CheckpointError(f"{path} lacks the tensor {name}; fetch or write the file again")
        value, steps = packed[name], packed.get(name + STEP_SUFFIX)
        if steps is not None:
            try:
                rows, length = as_rows(shape)
                value = restore(_decoded(value, rows * length).view(rows, length), steps.view(rows)).view(shape)
            except (ValueError, TypeError, IndexError, RuntimeError, zlib.error) as error:
                raise CheckpointError(
                    f"tensor {name} of {path} is damaged: {one_line(error)}; fetch or write the file again"
                ) from None
        if value.shape != shape:
            raise CheckpointError(
                f"tensor {name} of {path} has shape {by(value.shape)}, its config asks for {by(shape)}; "
                f"write the file again"
            )
        state[name] = value.float() if value.is_floating_point() else value
    if extra := sorted(set(packed) - set(shapes) - {name + STEP_SUFFIX for name in shapes}):
        raise CheckpointError(f"{path} has a tensor {extra[0]} that its config does not know; write the file again")
    return state


# Files -------------------------------------------------------------------------------------------------------------


def write_quantised(
    model: Model, path: Path, *, fineness: float, force: bool = False, recipe: Any = None, metrics: Any = None
) -> int:
    """Write a model in few bits and return the size in bytes; the same model gives the same bytes."""
    from safetensors.torch import save

    check_usage(model)
    packed = pack(state_of(model), fineness)
    manifest = manifest_of(model, recipe, metrics, fineness=fineness, tensors=_digest(packed))
    text = sealed(manifest, **{QUANTISED_KEY: PACKING_VERSION})
    raw = save(packed, metadata={MANIFEST_KEY: text})  # a single key: the order of two would vary
    write_bytes(path, raw, force=force)
    return len(raw)


def is_quantised(found: RawCheckpoint) -> bool:
    return _version(found) is not None


def _version(found: RawCheckpoint) -> Any:
    """The version of the packing; None for a plain or damaged checkpoint, whose reader reports the damage."""
    try:
        return json.loads(found.metadata[MANIFEST_KEY]).get(QUANTISED_KEY)
    except (ValueError, KeyError, AttributeError, RecursionError):
        return None


def read_quantised(found: RawCheckpoint) -> Opened:
    """Config and float32 tensors of a packed file; checks the digest before unpacking."""
    if (version := _version(found)) != PACKING_VERSION:
        raise CheckpointError(
            f"{found.path} is packed in version {one_line(version)}, we read {PACKING_VERSION}; upgrade vitreous"
        )
    manifest = read_manifest(found)
    if manifest.get("tensors") != _digest(found.tensors):
        raise CheckpointError(f"{found.path} is damaged (its digest does not fit); fetch or write the file again")
    opened, wanted = open_manifest(manifest, found)
    opened.state = unpack(found.tensors, {name: tensor.shape for name, tensor in wanted.items()}, found.path)
    return opened


def _digest(tensors: Mapping[str, Tensor]) -> str:
    lines = [f"{name} {tensor_digest(tensor)}" for name, tensor in sorted(tensors.items())]
    return digest("\n".join(lines).encode())
