"""OpenVINO's files, made from the ONNX graphs: the fastest on CPUs we measured, and the best int8."""

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
from vitreous.exports.target import Array, How, Parts, Run, Target, quietly

__all__ = ["OPENVINO", "avoid_broken_amx", "describe", "join", "open_file", "own_signal_stack", "quantise", "write"]

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}  # the default of some CPUs is bfloat16
BELOW_AVX512 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2")

AMX_TRIAL = """
import numpy as np, openvino as ov
from openvino import opset13 as o
x = o.parameter([64, 64], np.float32)
model = ov.Model([o.matmul(x, o.constant(np.ones((64, 64), np.float32)), False, False)], [x])
ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})([np.ones((64, 64), np.float32)])
"""


@cache
def avoid_broken_amx() -> None:
    """Some virtual machines name AMX among their instructions and end a process that uses it: a child tries it first.

    Must come before this process computes anything with OpenVINO. A choice of the user's stands.
    """
    says = Path("/proc/cpuinfo")
    if "ONEDNN_MAX_CPU_ISA" in os.environ or not says.exists() or "amx_tile" not in says.read_text():
        return
    if subprocess.run([sys.executable, "-c", AMX_TRIAL], capture_output=True).returncode < 0:  # a signal ended it
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"


@cache
def avoid_mixed_vectors() -> None:
    """On a CPU with AVX-512, convolutions of OpenVINO end the process where ONEDNN_MAX_CPU_ISA allows less.

    Call it before this process computes anything with OpenVINO. torch has its own copy of oneDNN, and its cap stays.
    """
    cpuinfo = Path("/proc/cpuinfo")
    is_capped = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in BELOW_AVX512
    if is_capped and cpuinfo.exists() and "avx512f" in cpuinfo.read_text():
        del os.environ["ONEDNN_MAX_CPU_ISA"]


def write(parts: Parts, folder: Path, scratch: Path, how: How) -> None:
    import openvino as ov

    onnx.write_network(parts, scratch / "tensor.onnx", how.opset)
    onnx.write_preprocessing(parts, scratch, how.opset)
    onnx.write_answer(parts, scratch, how.opset)
    core = ov.Core()
    network = core.read_model(scratch / "tensor.onnx")
    if how.calibration is not None:
        network = quantise(network, how.calibration)
    preprocessing = core.read_model(scratch / "preprocessing.onnx")
    _save(preprocessing, scratch / "preprocessing.xml", how)
    _save(network, folder / "tensor.xml", how)
    answer = core.read_model(scratch / "answer.onnx")
    _save(join(preprocessing, core.read_model(folder / "tensor.xml"), answer), folder / "image.xml", how)
    network.reshape(list(parts.images(1).shape))
    _save(network, folder / "fixed.xml", how)


def _save(model: Any, path: Path, how: How) -> None:
    """fp16 halves the weights in the file; what they are computed in is the runtime's choice."""
    import openvino as ov

    ov.save_model(model, path, compress_to_fp16=how.fp16 and path.stem != "preprocessing")


def join(first: Any, second: Any, third: Any) -> Any:
    """One model of three, the outputs of each being the inputs of the next in their order."""
    import openvino as ov

    for before, after in ((first, second), (second, third)):
        sources = [result.input_value(0) for result in before.get_results()]
        for source, parameter in zip(sources, after.get_parameters(), strict=True):
            for user in parameter.output(0).get_target_inputs():
                user.replace_source_output(source)
    return ov.Model(third.get_results(), first.get_parameters(), "image")


def quantise(network: Any, images: Array) -> Any:
    """int8 weights and activations, calibrated one image at a time (SmoothQuant and bias correction, by NNCF).

    Half of a channel's spread goes to the weights: with NNCF's own 95 % DeiT-Ti kept 94.0 % of its answers on 1,000
    photographs, with this 96.9 % (100 images to calibrate).
    """
    avoid_mixed_vectors()
    avoid_broken_amx()
    os.environ.setdefault("NNCF_CI", "1")  # nothing phones home
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
    threads = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "ENABLE_CPU_PINNING": False}  # else all on one core
    with own_signal_stack():
        model = ov.Core().compile_model(path, "CPU", EXACT | threads)

    def run(x: Array) -> list[Array]:
        found = model([x])
        return [np.array(found[output]) for output in model.outputs]

    return run


class _Stack(ctypes.Structure):
    """C's stack_t, as Linux has it."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def own_signal_stack() -> Iterator[None]:
    """Afterwards this thread takes signals where it took them before.

    OpenVINO gives it a stack for them. Where two networks end in another order than they began, it leaves one behind
    that is freed, and the next Ctrl-C or SIGTERM was the end of the process, with no word (seen with 2026.4).
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

    model = ov.Core().read_model(path)
    return {"openvino": ov.__version__, "operators": dict(sorted(Counter(_operators(model)).items()))}


def _operators(model: Any) -> list[str]:
    return [node.get_type_name() for node in model.get_ops()]


OPENVINO = Target(
    name="openvino",
    about="OpenVINO on Intel and AMD CPUs and Intel GPUs",
    suffix=".xml",
    extra="export,openvino",
    packages=("onnx", "onnxscript", "openvino"),
    can=("int8", "fp16"),
    write=write,
    open=open_file,
    describe=describe,
)
