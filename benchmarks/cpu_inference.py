"""Exported models on the CPU against transformers, as ratios from one run.

    python benchmarks/cpu_inference.py --weights deit-tiny --data imagenet-sample-1000.zip [--out FILE] [--toy]

DeiT-Ti (real weights) and B/16 (random ones), batch 1 and 8: our forward, ONNX Runtime (float32, int8) and OpenVINO
(float32, bfloat16, int8) against transformers' float32 with the same weights. Runtimes take turns within one process; a
ratio is transformers' time over theirs, the median over rounds with the 10th and 90th percentile; time is CPU time
of the process, or wall time with --wall. Each row also has, on the images of --data, the share of answers equal to
transformers' and the share that is right; int8 counts only if it passes the gate of `vitreous export`. Answers of
random weights say nothing about int8, so B/16 has speed alone.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from numpy.typing import NDArray

import vitreous
from vitreous.evaluation.inference import on_all_cores
from vitreous.exports import onnx, openvino
from vitreous.exports.graphs import ready_to_export
from vitreous.exports.parity import TOLERANCES
from vitreous.exports.target import make_parts, quietly
from vitreous.images.pixels import decode
from vitreous.images.pixels.preprocess import normalise
from vitreous.machine import record

BARS = {"float32": 1.15, "bfloat16": 1.5, "int8": 2.5}  # of issue 15, by the best runtime of a precision
BATCHES = (1, 8)

Array = NDArray[Any]
Run = Callable[[Array], Array]


def of_transformers(model: Any, folder: Path) -> Run:
    """The same weights under transformers' own code."""
    import transformers

    vitreous.save(model, folder / "transformers", format="huggingface")
    theirs = transformers.AutoModelForImageClassification.from_pretrained(folder / "transformers").eval()
    return lambda x: theirs(torch.from_numpy(x)).logits.numpy()


def of_vitreous(model: Any) -> Run:
    """As `predict` and `eval` run it."""
    answer = torch.inference_mode()(model.forward)
    return lambda x: on_all_cores(answer, torch.from_numpy(x), lambda parts: torch.cat(list(parts))).numpy()


def of_openvino(path: Path, precision: str, threads: int) -> Run:
    import openvino as ov

    hints = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads}
    compiled = ov.Core().compile_model(path, "CPU", hints)
    return lambda x: np.array(compiled([x])[0])


def runtimes(model: Any, calibration: Array, folder: Path, threads: int) -> dict[tuple[str, str], Run]:
    """(name, precision) and how to run it; all others are compared with the first."""
    import openvino as ov

    path = folder / "network.onnx"
    onnx.write_network(make_parts(ready_to_export(model)), path, 18)
    ov.save_model(
        openvino.quantise(ov.Core().read_model(path), calibration), folder / "int8.xml", compress_to_fp16=False
    )
    in_onnx = {"float32": onnx.open_file(path), "int8": onnx.open_file(onnx.quantise(path))}
    return {
        ("transformers", "float32"): of_transformers(model, folder),
        ("vitreous", "float32"): of_vitreous(model),
        **{("onnxruntime", name): (lambda x, run=run: run(x)[0]) for name, run in in_onnx.items()},
        ("openvino", "float32"): of_openvino(path, "f32", threads),
        ("openvino", "bfloat16"): of_openvino(path, "bf16", threads),
        ("openvino", "int8"): of_openvino(folder / "int8.xml", "f32", threads),
    }


def ratios(runs: dict[Any, Run], x: Array, rounds: int, clock: Callable[[], float]) -> dict[Any, dict[str, Any]]:
    """Each in turn, round after round; the base's time over each one's own."""
    seconds: dict[Any, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run(x)
    for _ in range(rounds):
        for name, run in runs.items():
            start = clock()
            run(x)
            seconds[name].append(clock() - start)
    base = seconds[next(iter(runs))]
    return {
        name: {
            "ratio_10_50_90": spread([b / own for b, own in zip(base, mine, strict=True)]),
            "milliseconds": round(1e3 * statistics.median(mine), 2),
        }
        for name, mine in seconds.items()
    }


def spread(values: list[float]) -> list[float]:
    """10th, 50th and 90th percentile."""
    if len(values) < 2:
        return [round(v, 3) for v in values * 3]
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return [round(v, 3) for v in (cuts[0], statistics.median(values), cuts[-1])]


def answers(runs: dict[Any, Run], x: Array, labels: Array) -> dict[Any, dict[str, Any]]:
    """Agreement with the base and right answers, and whether the gate of an export lets it pass."""
    said = {
        name: np.concatenate([run(x[i : i + 8]) for i in range(0, len(x), 8)]).argmax(1) for name, run in runs.items()
    }
    base = said[next(iter(runs))]
    right = {name: float((mine == labels).mean()) for name, mine in said.items()}
    found = {}
    for name, mine in said.items():
        same, limits = float((mine == base).mean()), TOLERANCES["int8" if name[1] == "int8" else "float16"]
        drop = right[next(iter(runs))] - right[name]
        passes = same >= limits.agreement and (limits.drop is None or drop <= limits.drop + 1e-9)
        found[name] = {"agreement": same, "right": right[name], "passes": passes}
    return found


def pictures(model: Any, data: Any, most: int) -> tuple[Array, Array]:
    count, rule = min(most, len(data)), model.preprocess
    x = np.stack([normalise(decode.finish(data.read(i), rule), rule).numpy() for i in range(count)])
    return x, data.labels[:count]


def random_base(depth: int) -> Any:
    model = vitreous.build("B/16", depth=depth, activation="gelu", seed=0).eval()
    torch.nn.init.normal_(model.head.weight, std=0.02)
    return model


def measure(name: str, model: Any, data: Any, asked: argparse.Namespace) -> dict[str, Any]:
    is_real = name == "DeiT-Ti"
    x, labels = pictures(model, data, asked.images if is_real else asked.calibration)
    clock = time.perf_counter if asked.wall else time.process_time
    out: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch, torch.inference_mode():
        with torch.inference_mode(False), quietly():
            runs = runtimes(model, x[:: max(len(x) // asked.calibration, 1)], Path(scratch), asked.threads)
        for batch in BATCHES:
            found = ratios(runs, np.resize(x, (batch, *x.shape[1:])), asked.rounds, clock)
            out[f"batch {batch}"] = {" ".join(key): row for key, row in found.items()}
            print(json.dumps({name: {f"batch {batch}": out[f"batch {batch}"]}}), file=sys.stderr, flush=True)
        judged = answers(runs, x, labels) if is_real else {}
    out["answers"] = {" ".join(key): row for key, row in judged.items()}
    return out | {"images": len(x), "bars": bars(out)}


def bars(out: dict[str, Any]) -> dict[str, Any]:
    """The best ratio of each precision over both batches, of runtimes that answer as they should."""
    found = {}
    for precision, bar in BARS.items():
        names = [name for name in out["batch 1"] if name.endswith(precision) and not name.startswith("transformers")]
        good = [name for name in names if out["answers"].get(name, {"passes": True})["passes"]]
        worst = {name: min(out[f"batch {batch}"][name]["ratio_10_50_90"][1] for batch in BATCHES) for name in good}
        best = max(worst, key=lambda name: worst[name], default=None)
        reached = best is not None and worst[best] >= bar
        found[precision] = {"bar": bar, "by": best, "ratio": best and worst[best], "reached": reached}
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--weights", required=True, help="the folder of DeiT-Ti's weights")
    arguments.add_argument("--data", required=True, help="imagenet-sample-1000.zip")
    arguments.add_argument("--out", type=Path)
    arguments.add_argument("--images", type=int, default=1000)
    arguments.add_argument("--calibration", type=int, default=300)
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--wall", action="store_true", help="time by the wall, for an idle machine")
    arguments.add_argument("--only", choices=["DeiT-Ti", "B/16"])
    arguments.add_argument("--toy", action="store_true", help="a rehearsal: few images, two blocks of B/16")
    asked = arguments.parse_args()
    if asked.toy:
        asked.images, asked.calibration, asked.rounds = 16, 8, 2
    openvino.avoid_broken_amx()
    torch.set_num_threads(asked.threads)
    data = vitreous.images.open(asked.data)
    models = {
        "DeiT-Ti": lambda: vitreous.load(asked.weights).eval(),
        "B/16": lambda: random_base(2 if asked.toy else 12),
    }
    found = {name: measure(name, make(), data, asked) for name, make in models.items() if asked.only in (None, name)}
    how = {key: getattr(asked, key) for key in ("images", "calibration", "rounds", "threads", "wall", "toy")}
    body = {
        "benchmark": "cpu_inference",
        "how": how | {"onednn_max_cpu_isa": os.environ.get("ONEDNN_MAX_CPU_ISA")},
        **found,
        **record(),
    }
    text = json.dumps(body, indent=2)
    if asked.out:
        asked.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
