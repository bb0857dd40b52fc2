"""Smaller weights in an ONNX file: fewer bytes to fetch. The network computes in float32 all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST_NUMBERS = 1024  # smaller tensors, such as biases, stay as they are
MAX_FLOAT16 = 65504.0


def halve_weights(path: Path) -> None:
    """Store weights in float16; the runtime casts them once, when it opens the file."""
    from onnx import TensorProto, helper, numpy_helper

    def stored(name: str, values: NDArray[np.float32]) -> tuple[list[Any], Any] | None:
        if np.abs(values).max(initial=0) > MAX_FLOAT16:
            return None
        half = numpy_helper.from_array(values.astype(np.float16), f"{name}/half")
        return [half], helper.make_node("Cast", [half.name], [name], to=TensorProto.FLOAT)

    _replace(path, stored)


def quantise_weights(path: Path) -> None:
    """Store weights in int8 with one scale for each output channel."""
    from onnx import helper, numpy_helper

    def stored(name: str, values: NDArray[np.float32]) -> tuple[list[Any], Any] | None:
        axis = 1 if values.ndim == 2 else 0  # a matrix has its outputs in columns, a convolution in rows
        others = tuple(i for i in range(values.ndim) if i != axis)
        if values.ndim not in (2, 4):
            return None
        scale = np.abs(values).max(others).astype(np.float32) / 127
        scale = np.where(scale > 0, scale, 1).astype(np.float32)
        shape = [-1 if i == axis else 1 for i in range(values.ndim)]
        whole = np.clip(np.round(values / scale.reshape(shape)), -127, 127).astype(np.int8)
        parts = [numpy_helper.from_array(whole, f"{name}/int8"), numpy_helper.from_array(scale, f"{name}/scale")]
        return parts, helper.make_node("DequantizeLinear", [part.name for part in parts], [name], axis=axis)

    _replace(path, stored)


def _replace(path: Path, stored: Any) -> None:
    """Put a stored form and the node that restores it in the place of each large float32 tensor."""
    import onnx
    from onnx import TensorProto, numpy_helper

    model = onnx.load(path)
    kept: list[Any] = []
    nodes: list[Any] = []
    for tensor in model.graph.initializer:
        is_large = tensor.data_type == TensorProto.FLOAT and np.prod(tensor.dims, dtype=np.int64) >= LEAST_NUMBERS
        found = stored(tensor.name, numpy_helper.to_array(tensor)) if is_large else None
        kept += [tensor] if found is None else found[0]
        nodes += [] if found is None else [found[1]]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    rest = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *rest])
    onnx.checker.check_model(model)
    onnx.save(model, path)
