"""A page for any browser: the model in ONNX, the page of `vitreous serve`, and onnxruntime-web to run it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitreous.errors import ConfigError
from vitreous.exports import onnx
from vitreous.exports.graphs import PageNetwork
from vitreous.exports.target import ModelParts, OpenedForms, Run, Target, WriteOptions
from vitreous.exports.web import page_folder
from vitreous.exports.web.chromium import NoBrowserError, PageInBrowser, find_chromium
from vitreous.exports.web.onnx_weights import halve_weights, quantise_weights
from vitreous.exports.web.runtime_files import find_runtime, missing_runtime
from vitreous.models.model import Model
from vitreous.models.pooling import find_pool
from vitreous.models.vit import ViT
from vitreous.weights.tensor_files import read_json
from vitreous.words import one_line

MAX_ATTENTION_BYTES = 256_000_000  # of one image's attention in a page's memory
HOST_DOMAINS = ("", "ai.onnx", "com.microsoft")  # of operators that the runtime has


def check(model: Model, options: WriteOptions) -> None:
    """Refuse what a browser cannot hold, and find the runtime, before any work."""
    size = sum(p.numel() * 4 for p in model.parameters())
    if size > onnx.MAX_WEIGHTS_IN_GRAPH:
        raise ConfigError(
            f"the model has {size / 1e9:.1f} GB of weights, more than a page can load; choose a smaller one"
        )
    find_runtime(options.page.runtime)


def write(parts: ModelParts, folder: Path, scratch: Path, options: WriteOptions) -> None:
    model, page = parts.network.model, options.page
    why_closed = _why_closed(model)
    network = PageNetwork(model) if not why_closed and isinstance(model, ViT) else parts.network
    file = scratch / "tensor.onnx"
    onnx.write_network(replace(parts, network=network.eval()), file, options.opset)
    if options.calibration is not None:
        quantise_weights(file)
    elif options.fp16:
        halve_weights(file)
    check_operators(file)
    file.replace(folder / "tensor.onnx")
    runtime = find_runtime(page.runtime)
    has_webgpu = runtime.has_webgpu and not page.wasm_only
    names = page_folder.write_page(folder, model, page.name)
    examples = page_folder.write_examples(folder, list(options.examples))
    about = runtime.copy(folder, webgpu=has_webgpu)
    page_folder.write_facts(folder, model, page.name, about, examples, why_closed, learned=options.learned)
    page_folder.write_service_worker(folder, names)


def _why_closed(model: Model) -> str:
    """Why a Transformer's attention is not on the page; empty if it is, or if there is none."""
    if not isinstance(model, ViT):
        return ""
    if silence := find_pool(model)[0].silence:
        return f"{silence}, so where the answer came from cannot be shown"
    encoder, (rows, columns) = model.config.encoder, model.grid
    size = encoder.depth * encoder.heads * (model.config.prefix + rows * columns) ** 2 * 4
    if size > MAX_ATTENTION_BYTES:
        return f"the attention of one image has {size / 1e6:,.0f} MB, too much for a page; see it with vitreous serve"
    return ""


def check_operators(file: Path) -> None:
    """Name operators that onnxruntime-web does not have."""
    import onnx as format_

    model = format_.load(file, load_external_data=False)
    foreign = sorted({f"{node.domain}.{node.op_type}" for node in model.graph.node if node.domain not in HOST_DOMAINS})
    if foreign:
        raise ConfigError(
            f"the model needs {', '.join(foreign)}, which onnxruntime-web does not have; write that part of the "
            f"model with PyTorch's own operators"
        )


# Running ------------------------------------------------------------------------------------------------------------


@contextmanager
def open_all(model: Model, folder: Path, scratch: Path) -> Iterator[OpenedForms]:
    """The model in ONNX Runtime here, and the page in Chromium if there is one."""
    found = OpenedForms({"tensor": _open(folder / "tensor.onnx")}, None)
    facts = read_json(folder / "model.json")
    runtime = facts["runtime"]
    size = sum(file.stat().st_size for file in (folder / "runtime").iterdir())
    found.notes.append(
        f"the runtime is {runtime['name']} {runtime['version']} (MIT), from {runtime['origin']}: {size / 1e6:.1f} MB"
    )
    own = {"answers": model.answers, "temperature": model.temperature, "threshold": model.threshold}
    page, chromium = PageInBrowser(folder, own, model.preprocess), find_chromium()
    with ExitStack() as stack:
        if chromium is None:
            found.notes.append("the page was not tried: there is no Chromium here")
        else:
            try:
                stack.enter_context(page.at_work(chromium))
                found.forms["page"], found.prepare = page.run, page.prepare
            except NoBrowserError as error:
                found.notes.append(f"the page was not tried: {str(error).partition(';')[0]}")
        yield found
        if "page" in found.forms:
            found.notes.append(page.in_words)


def _open(path: Path) -> Run:
    try:
        return onnx.open_file(path)
    except Exception as error:  # ONNX Runtime has its own exceptions; the browser's has the same operators
        raise ConfigError(
            f"ONNX Runtime cannot run this model: {one_line(error)[:200]}; write that part with other operators"
        ) from None


def describe(path: Path) -> dict[str, Any]:
    return onnx.describe(path) if path.suffix == ".onnx" else {"operators": {}}


WEB = Target(
    name="web",
    about="any browser: a folder for a web host",
    suffix=".onnx",
    forms=("tensor", "page"),
    file_names={"page": "index.html"},
    write=write,
    open=onnx.open_file,
    open_all=open_all,
    describe=describe,
    check=check,
    missing=lambda page: missing_runtime(page.runtime),
    packages=(*onnx.ONNX_WRITERS, onnx.ONNX_RUNTIME),
    precisions=("int8", "fp16"),
    halves_itself=True,
    opsets=onnx.OPSETS,
    is_page=True,
)
