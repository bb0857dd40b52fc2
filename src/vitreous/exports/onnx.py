"""ONNX files by torch's own exporter, run by ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from vitreous.errors import ConfigError
from vitreous.exports.target import ModelParts, Package, Run, Runner, Target, WriteOptions, quietly
from vitreous.models.model import Model
from vitreous.models.preprocess import Preprocess
from vitreous.models.vit import ViT

OPSETS = range(18, 24)  # that torch's exporter can write
MAX_WEIGHTS_IN_GRAPH = 1_500_000_000  # bytes; larger weights lie beside the graph, whose file is limited to 2 GiB
ONNX_WRITERS = Package("onnx", "export"), Package("onnxscript", "export")
ONNX_RUNTIME = Package("onnxruntime", "export")
_preprocessing: dict[tuple[Preprocess, int], bytes] = {}


def write(parts: ModelParts, folder: Path, scratch: Path, options: WriteOptions) -> None:
    import onnx

    network, fixed = scratch / "tensor.onnx", scratch / "fixed.onnx"
    write_network(parts, network, options.opset)
    write_network(parts, fixed, options.opset, is_fixed=True)
    if options.calibration is not None:
        network, fixed = quantise(network), quantise(fixed)
    preprocessing = write_preprocessing(parts, scratch, options.opset)
    answer = write_answer(parts, scratch, options.opset)
    _move(network, folder / "tensor.onnx")
    _move(fixed, folder / "fixed.onnx")
    onnx.save(join(preprocessing, folder / "tensor.onnx", answer), folder / "image.onnx")
    onnx.checker.check_model(folder / "image.onnx")


def write_network(parts: ModelParts, path: Path, opset: int, *, is_fixed: bool = False) -> None:
    """Write the tensor form; `is_fixed`: for one image, without a dynamic axis."""
    shapes = None if is_fixed else ({0: torch.export.Dim("batch")},)
    images = parts.images(1 if is_fixed else 2)
    _export(parts.network, (images,), path, opset, ["images"], parts.network.outputs, shapes)


def write_preprocessing(parts: ModelParts, scratch: Path, opset: int) -> Path:
    path = scratch / "preprocessing.onnx"
    key = parts.preprocessing.rule, opset
    if key not in _preprocessing:  # takes seconds and does not depend on the network
        shapes = ({0: torch.export.Dim("rows"), 1: torch.export.Dim("columns")},)
        _export(parts.preprocessing, (parts.image(),), path, opset, ["image"], ["pixels"], shapes)
        _preprocessing[key] = path.read_bytes()
    path.write_bytes(_preprocessing[key])
    return path


def write_answer(parts: ModelParts, scratch: Path, opset: int) -> Path:
    path = scratch / "answer.onnx"
    with torch.no_grad():
        inputs = parts.network(parts.images(1))
    _export(parts.answer, inputs, path, opset, parts.network.outputs, parts.image_outputs)
    return path


def _export(
    module: nn.Module,
    inputs: tuple[torch.Tensor, ...],
    path: Path,
    opset: int,
    names: list[str],
    outputs: list[str],
    shapes: Any = None,
) -> None:
    import onnx

    size = sum(p.numel() * p.element_size() for p in module.parameters())
    torch._dynamo.reset()  # earlier compilations in this process count against limits of the trace
    with quietly(), torch.no_grad():
        torch.onnx.export(
            module,
            inputs,
            path,
            dynamo=True,
            verbose=False,
            opset_version=opset,
            input_names=names,
            output_names=outputs,
            dynamic_shapes=shapes,
            external_data=size > MAX_WEIGHTS_IN_GRAPH,
        )
    model = onnx.load(path, load_external_data=False)
    _strip(model)
    onnx.save(model, path)
    got = next(each.version for each in model.opset_import if not each.domain)
    if got != opset:
        raise ConfigError(f"torch wrote opset {got} instead of {opset}; choose --opset {got}, or leave it out")


def _strip(model: Any) -> None:
    """Remove torch's own notes: module names, and lines of code with the paths of this machine."""
    graph = model.graph
    nodes = list(_nodes(graph))
    for each in [model, graph, *nodes, *graph.input, *graph.output, *graph.value_info, *graph.initializer]:
        del each.metadata_props[:]
    for node in nodes:
        node.doc_string = ""


def _nodes(graph: Any) -> Iterator[Any]:
    """All nodes, including those inside branches."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


# Joining ----------------------------------------------------------------------------------------------------------


def join(first: Path, second: Path, third: Path) -> Any:
    """One model from three: the outputs of each are the inputs of the next, in order."""
    import onnx
    from onnx import compose, helper

    models = [onnx.load(path, load_external_data=False) for path in (first, second, third)]
    graph = models[0].graph
    for model, prefix in zip(models[1:], ("network/", "answer/"), strict=True):
        rest = compose.add_prefix_graph(model.graph, prefix)
        pairs = [(a.name, b.name) for a, b in zip(graph.output, rest.input, strict=True)]
        graph = compose.merge_graphs(graph, rest, pairs)
    for output, own in zip(graph.output, models[2].graph.output, strict=True):
        _rename(graph, output.name, own.name)
    opsets = {each.domain: each for model in models for each in model.opset_import}
    return helper.make_model(graph, opset_imports=list(opsets.values()), ir_version=models[0].ir_version)


def _rename(graph: Any, old: str, new: str) -> None:
    """Rename an output wherever it appears."""
    for node in graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                if name == old:
                    names[i] = new
    for value in [*graph.output, *graph.value_info]:
        if value.name == old:
            value.name = new


def _move(path: Path, to: Path) -> None:
    """Give a file its final name; weights beside it keep the name that the graph has for them."""
    path.replace(to)
    beside = path.with_name(path.name + ".data")
    if beside.exists():
        beside.replace(to.with_name(beside.name))


# int8 ---------------------------------------------------------------------------------------------------------------


def quantise(path: Path) -> Path:
    """Weights in int8 by output channel; activations in int8 by the range of each image.

    On 1,000 photographs (DeiT-Ti), 97.9 % of the answers stayed those of float32; ranges fixed by calibration kept
    93.7 %, and were slower in ONNX Runtime. So the user's images judge the file but do not calibrate it.
    """
    import onnx
    from onnxruntime import quantization

    out = path.with_suffix(".int8.onnx")
    model = onnx.load(path)
    del model.graph.value_info[:]  # it contradicts the weights of the head, which are transposed
    with quietly():
        quantization.quantize_dynamic(
            model,
            out,
            per_channel=True,
            weight_type=quantization.QuantType.QInt8,
            op_types_to_quantize=["MatMul"],
            use_external_data_format=path.with_name(path.name + ".data").exists(),
            extra_options={"MatMulConstBOnly": True},
        )
    return out


def _refuses_int8(model: Model) -> str | None:
    return None if isinstance(model, ViT) else "int8 for onnx is of matrix products, and a BiT has convolutions"


# Running ------------------------------------------------------------------------------------------------------------


def open_file(path: Path) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it wastes the cores of a busy machine
    given = _given_weights(path, options)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    del given
    name = session.get_inputs()[0].name
    return lambda x: [np.asarray(y) for y in session.run(None, {name: x})]


def load(path: str) -> Any:
    """A function from an image to all outputs of the image form."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda image: session.run(None, {"image": image})


def _given_weights(path: Path, options: Any) -> list[Any]:
    """Copy weights that lie beside the graph into the session; returns what must live until the session exists.

    By itself ONNX Runtime keeps their file mapped: overwriting it changes the answers or ends the process. Older
    versions offer no other way.
    """
    give = getattr(options, "add_external_initializers_from_files_in_memory", None)
    files = sorted(path.parent.glob(f"{path.stem}.*.data"))
    if give is None or not files:
        return []
    mapped = [np.memmap(file, np.uint8, "r") for file in files]
    give([file.name for file in files], mapped, [each.nbytes for each in mapped])
    return mapped


def describe(path: Path) -> dict[str, Any]:
    import onnx

    model = onnx.load(path, load_external_data=False)
    opsets = {each.domain or "ai.onnx": each.version for each in model.opset_import}
    operators = Counter(node.op_type for node in _nodes(model.graph))
    return {"opset": opsets, "operators": dict(sorted(operators.items()))}


ONNX = Target(
    name="onnx",
    about="ONNX Runtime, and most other runtimes",
    suffix=".onnx",
    write=write,
    open=open_file,
    describe=describe,
    packages=(*ONNX_WRITERS, ONNX_RUNTIME),
    precisions=("int8", "fp16"),
    refuses_int8=_refuses_int8,
    opsets=OPSETS,
    runner=Runner(ONNX_RUNTIME, load),
)
