"""OpenVINO files, made from the ONNX graphs: the fastest on the CPUs we measured, with the best int8."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous.exports import onnx
from vitreous.exports.target import Array, ModelParts, Package, Run, Runner, Target, WriteOptions, quietly

BELOW_AVX512 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2")

OPENVINO_RUNTIME = Package("openvino", "openvino")
IN_FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32"}  # the default of some CPUs is bfloat16
AMX_TRIAL = """
import numpy as np, openvino as ov
from openvino import opset13 as o
x = o.parameter([64, 64], np.float32)
model = ov.Model([o.matmul(x, o.constant(np.ones((64, 64), np.float32)), False, False)], [x])
ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})([np.ones((64, 64), np.float32)])
"""


@cache
def avoid_broken_amx() -> None:
    """Some virtual machines list AMX but kill a process that uses it: a child process tries it first.

    Call it before this process computes anything with OpenVINO. The user's own choice stands.
    """
    if "ONEDNN_MAX_CPU_ISA" not in os.environ and _cpu_has("amx_tile"):
        tried = subprocess.run([sys.executable, "-c", AMX_TRIAL], capture_output=True)
        if tried.returncode < 0:  # a signal ended it
            os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"


@cache
def avoid_mixed_vectors() -> None:
    """On a CPU with AVX-512, convolutions of OpenVINO end the process if ONEDNN_MAX_CPU_ISA allows less.

    Call it before this process computes anything with OpenVINO. torch has its own copy of oneDNN, and its cap stays.
    """
    is_capped = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in BELOW_AVX512
    if is_capped and _cpu_has("avx512f"):
        del os.environ["ONEDNN_MAX_CPU_ISA"]


def _cpu_has(flag: str) -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and flag in cpuinfo.read_text()


def write(parts: ModelParts, folder: Path, scratch: Path, options: WriteOptions) -> None:
    import openvino as ov

    onnx.write_network(parts, scratch / "tensor.onnx", options.opset)
    onnx.write_preprocessing(parts, scratch, options.opset)
    onnx.write_answer(parts, scratch, options.opset)
    core = ov.Core()
    network = core.read_model(scratch / "tensor.onnx")
    if options.calibration is not None:
        network = quantise(network, options.calibration)
    preprocessing = core.read_model(scratch / "preprocessing.onnx")
    _save(preprocessing, scratch / "preprocessing.xml", options)
    _save(network, folder / "tensor.xml", options)
    answer = core.read_model(scratch / "answer.onnx")
    _save(join(preprocessing, core.read_model(folder / "tensor.xml"), answer), folder / "image.xml", options)
    network.reshape(list(parts.images(1).shape))
    _save(network, folder / "fixed.xml", options)


def _save(model: Any, path: Path, options: WriteOptions) -> None:
    """fp16 halves the weights in the file; the runtime chooses the type it computes in."""
    import openvino as ov

    ov.save_model(model, path, compress_to_fp16=options.fp16 and path.stem != "preprocessing")


def join(first: Any, second: Any, third: Any) -> Any:
    """One model from three: the outputs of each are the inputs of the next, in order."""
    import openvino as ov

    for before, after in ((first, second), (second, third)):
        sources = [result.input_value(0) for result in before.get_results()]
        for source, parameter in zip(sources, after.get_parameters(), strict=True):
            for user in parameter.output(0).get_target_inputs():
                user.replace_source_output(source)
    return ov.Model(third.get_results(), first.get_parameters(), "image")


def quantise(network: Any, images: Array) -> Any:
    """int8 weights and activations, calibrated one image at a time (SmoothQuant and bias correction, by NNCF).

    SmoothQuant moves half of a channel's spread to the weights: DeiT-Ti then keeps 96.9 % of its answers on 1,000
    photographs (100 calibration images); with NNCF's own share of 95 % it keeps 94.0 %.
    """
    avoid_mixed_vectors()
    avoid_broken_amx()
    os.environ.setdefault("NNCF_CI", "1")  # no telemetry
    import nncf

    with quietly(), own_signal_stack():
        data = nncf.Dataset([images[i : i + 1] for i in range(len(images))])
        return nncf.quantize(
            network,
            data,
            model_type=nncf.ModelType.TRANSFORMER,
            preset=nncf.QuantizationPreset.MIXED,
            subset_size=len(images),
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                smooth_quant_alphas=nncf.AdvancedSmoothQuantParameters(matmul=0.5)
            ),
        )


def open_file(path: Path) -> Run:
    import openvino as ov

    avoid_mixed_vectors()
    avoid_broken_amx()
    threads = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "ENABLE_CPU_PINNING": False,  # pinned, all workers run on one core
        "ENABLE_MMAP": False,
    }
    with own_signal_stack():
        model = ov.Core().compile_model(path, "CPU", IN_FLOAT32 | threads)

    def run(x: Array) -> list[Array]:
        found = model([x])
        return [np.array(found[output]) for output in model.outputs]

    return run


def load(path: str) -> Any:
    """A function from an image to all outputs of the image form."""
    import openvino

    # bfloat16, the default of some processors, loses grey levels
    model = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda image: [model([image])[output] for output in model.outputs]


class _Stack(ctypes.Structure):
    """C's stack_t on Linux."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def own_signal_stack() -> Iterator[None]:
    """Restore this thread's signal stack afterwards.

    OpenVINO sets its own. When two networks are closed in another order than they were opened, a freed stack stays
    set, and the next Ctrl-C or SIGTERM kills the process without a word (seen with 2026.4).
    """
    if sys.platform != "linux":
        yield
        return
    libc, before = ctypes.CDLL(None), _Stack()
    libc.sigaltstack(None, ctypes.byref(before))
    try:
        yield
    finally:
        libc.sigaltstack(ctypes.byref(before), None)


def describe(path: Path) -> dict[str, Any]:
    import openvino as ov

    operators = Counter(node.get_type_name() for node in ov.Core().read_model(path).get_ops())
    return {"openvino": ov.__version__, "operators": dict(sorted(operators.items()))}


OPENVINO = Target(
    name="openvino",
    about="OpenVINO on Intel and AMD CPUs and Intel GPUs",
    suffix=".xml",
    write=write,
    open=open_file,
    describe=describe,
    packages=(*onnx.ONNX_WRITERS, OPENVINO_RUNTIME),
    precisions=("int8", "fp16"),
    int8_packages=(Package("nncf", "openvino"),),
    halves_itself=True,
    opsets=onnx.OPSETS,
    starts_with=b"<?xml",  # OpenVINO tries other files as all other formats, and prints about it
    runner=Runner(OPENVINO_RUNTIME, load),
)
