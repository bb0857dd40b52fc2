"""Files of torch.export, for PyTorch without vitreous."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitreous.exports.target import Array, ModelParts, Run, Target, WriteOptions, quietly


def write(parts: ModelParts, folder: Path, scratch: Path, options: WriteOptions) -> None:
    batch, sizes = {0: torch.export.Dim("batch")}, {0: torch.export.Dim("rows"), 1: torch.export.Dim("columns")}
    _export(parts.network, parts.images(2), folder / "tensor.pt2", batch)
    _export(parts.network, parts.images(1), folder / "fixed.pt2")
    _export(parts.whole, parts.image(), folder / "image.pt2", sizes)
    _export(parts.preprocessing, parts.image(), scratch / "preprocessing.pt2", sizes)


def _export(module: nn.Module, x: torch.Tensor, path: Path, shapes: dict[int, Any] | None = None) -> None:
    with quietly(), torch.no_grad():
        program = torch.export.export(module, (x,), dynamic_shapes=None if shapes is None else (shapes,), strict=False)
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # it holds paths of this machine
        torch.export.save(program, path)


def open_file(path: Path) -> Run:
    with quietly():
        module = torch.export.load(path).module()

    def run(x: Array) -> list[Array]:
        with torch.inference_mode():
            found = module(torch.from_numpy(x))
        return [y.numpy() for y in (found if isinstance(found, tuple) else (found,))]

    return run


def describe(path: Path) -> dict[str, Any]:
    with quietly():
        nodes = torch.export.load(path).graph.nodes
    operators = Counter(str(node.target) for node in nodes if node.op == "call_function")
    return {"torch": torch.__version__, "operators": dict(sorted(operators.items()))}


PT2 = Target(
    name="pt2",
    about="PyTorch, without vitreous",
    suffix=".pt2",
    write=write,
    open=open_file,
    describe=describe,
    precisions=("fp16",),
)
