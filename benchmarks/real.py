"""What `fit` reaches on real images, seed by seed.   python benchmarks/real.py cifar10 --data cifar10.npz --out FILE

cifar10      a plain ViT from scratch, the whole training set, judged on test; with a board of seconds to 90, 92, 94 %
imagenette   from scratch in one time: ViT, hybrid and BiT side by side
pets         fine-tuned from a given DeiT-Ti (--weights), the clock running from the start of the command to its end
masked       masked patches, then fine-tuning, against from scratch at the same cost in all

Prints a line for each run and writes one JSON object: command, seeds, accuracies, their mean and spread, seconds,
machine. --toy rehearses on a CPU in seconds, with few images.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitreous
from vitreous.images.imageset import ImageSet
from vitreous.machine import record
from vitreous.training import recipes
from vitreous.training.plan import plan as plans
from vitreous.training.plan.request import Request
from vitreous.training.recipe import Seconds
from vitreous.training.run.events import Event
from vitreous.training.run.loop import Loop
from vitreous.training.run.network import start_model
from vitreous.training.run.runtime import Runtime
from vitreous.training.run.stage import TrainingStage
from vitreous.training.run.tasks.classify import Classify

BOARD = (0.90, 0.92, 0.94)


def cifar10(data: ImageSet, seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    """The recipe small-data on every training image; test is looked at now and then, and decides nothing."""
    begin = time.monotonic()
    device = torch.device("cpu" if asked.toy else "cuda")
    train, test = data.split("train"), data.split("test")
    recipe = recipes.get(asked.recipe, images=len(train), classes=10, image_size=32, model=asked.model)
    is_bit = (asked.model or "").startswith("BiT")
    recipe = recipe.change(length=part(asked), seed=seed, **(FOR_BIT if is_bit else {}))
    recipe = recipe.change(**asked.changes)
    changes = {"dev": 0.0, "evaluate_every": asked.every}
    job = plans.make(Request(data=data, recipe=recipe, check=False, folds=0, changes=changes), Runtime(device))
    model = start_model(job, device)
    looks: list[tuple[float, float]] = []

    def tell(event: Event) -> None:
        if event["kind"] == "dev":
            looks.append((time.monotonic() - begin, event["accuracy"]))
            print(f"seed {seed}: {event['accuracy']:.4f} after {looks[-1][0]:.0f} s", file=sys.stderr, flush=True)

    stage = TrainingStage(Classify(model, job.recipe), model, job.recipe, train, job.preprocess, test)
    outcome = Loop(stage, Runtime(device, compiled=asked.compiled, tell=tell)).run()
    return {
        "accuracy": looks[-1][1],  # of the last state, not of the best
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": outcome.steps,
        "epochs": outcome.steps * job.recipe.batch / len(train),
        "images_per_second": outcome.images_per_second,
        "training_seconds": outcome.seconds,
        "wall_seconds": time.monotonic() - begin,
        "seconds_to": {f"{bar:.0%}": next((t for t, right in looks if right >= bar), None) for bar in BOARD},
        "curve": [(round(t, 1), round(right, 4)) for t, right in looks],
        "recipe": job.recipe.to_json(),
    }


ARMS = {
    "ViT": "S/16 depth=8 pool=gap",
    "hybrid": "S/16 stem=convolutions depth=8 pool=gap",
    "BiT": "BiT-R50x1",
}
# of SGD at 0.1 and 0.03, with and without clipping, and AdamW, the best after 60 steps (NOTES.md)
FOR_BIT: dict[str, Any] = {"optimizer": "adamw", "peak_lr": 1e-3, "weight_decay": 0.05, "clip": 1.0}


def imagenette(data: ImageSet, seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    """One arm after the other, each for the same time."""
    found = {}
    for arm, model in ARMS.items():
        if asked.arms and arm not in asked.arms:
            continue
        found[arm] = fitted(data, seed, asked, model=model, **(FOR_BIT if arm == "BiT" else {}))
    return found


def masked(data: ImageSet, seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Two thirds of the time (or of --epochs) without labels and one third with, against all of it with labels."""
    model = asked.model or "S/8 depth=9 pool=gap"
    lengths = [part(asked, share) for share in (2 / 3, 1 / 3)]
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        first = vitreous.fit(
            data,
            model=f"{model} mask_token=true",
            recipe="masked-patches",
            out=Path(folder) / "first",
            check=False,
            length=lengths[0],
            seed=seed,
            compiled=asked.compiled,
        )
        second = vitreous.fit(
            data,
            weights=first.model,
            recipe="small-data",
            out=Path(folder) / "second",
            check=False,
            folds=0,
            dev=0.02,
            length=lengths[1],
            seed=seed,
            compiled=asked.compiled,
            **asked.changes,
        )
        both = brief(second, time.monotonic() - begin) | {"colours_right": first.metrics["accuracy"]}
    return {"masked, then labels": both, "labels alone": fitted(data, seed, asked, model=model)}


def part(asked: argparse.Namespace, share: float = 1.0) -> Any:
    """This share of the length asked for, in seconds or, if several runs share one device, in epochs."""
    return f"{share * asked.epochs:g} epochs" if asked.epochs else Seconds(share * asked.seconds)


def fitted(data: ImageSet, seed: int, asked: argparse.Namespace, **options: Any) -> dict[str, Any]:
    """One `fit` by small-data, judged on test."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        settings = {"dev": 0.05, "length": part(asked), **asked.changes, **options}
        run = vitreous.fit(
            data,
            recipe="small-data",
            out=Path(folder) / "run",
            check=False,
            folds=0,
            seed=seed,
            compiled=asked.compiled,
            **settings,
        )
        return brief(run, time.monotonic() - begin)


def brief(run: Any, wall: float) -> dict[str, Any]:
    m = run.metrics
    names = ("parameters", "steps", "seconds", "images_per_second", "temperature")
    return {"accuracy": m["judged"]["top1"], "wall_seconds": wall, **{name: m[name] for name in names}}


def pets(data: str, seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    """The command itself, from its start to its end."""
    with tempfile.TemporaryDirectory() as folder:
        words = [word for name, value in asked.changes.items() for word in ("--set", f"{name}={value}")]
        line = ["fit", data, "--weights", asked.weights, "--out", f"{folder}/run", "--seed", str(seed), *words]
        begin = time.monotonic()
        cold = os.environ | {"VITREOUS_CACHE": f"{folder}/cache"}  # nothing is kept from the seed before
        done = subprocess.run([sys.executable, "-m", "vitreous", *line], capture_output=True, text=True, env=cold)
        wall = time.monotonic() - begin
        if done.returncode:
            raise SystemExit(done.stderr)
        metrics = json.loads((Path(folder) / "run" / "metrics.json").read_text())
        if asked.report:
            shutil.copy(Path(folder) / "run" / "report.html", asked.report)
        return {
            "accuracy": metrics["judged"]["top1"],
            "wall_seconds": wall,
            "training_seconds": metrics["seconds"],
            "images_per_second": metrics["images_per_second"],
            "steps": metrics["steps"],
            "command": ["vitreous", *(Path(word).name if "/" in word else word for word in line)],
        }


EXPERIMENTS = {"cifar10": cifar10, "imagenette": imagenette, "masked": masked, "pets": pets}


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation of the accuracies, arm by arm; for two arms, the paired difference too."""
    if "accuracy" in results[0]:
        return {"accuracy": spread([r["accuracy"] for r in results])}
    arms = {arm: [r[arm]["accuracy"] for r in results] for arm in results[0] if isinstance(results[0][arm], dict)}
    found: dict[str, Any] = {arm: spread(values) for arm, values in arms.items()}
    if len(arms) == 2 and len(results) > 1:
        one, other = (np.array(values) for values in arms.values())
        gain = one - other
        half = _student(len(gain)) * gain.std(ddof=1) / len(gain) ** 0.5
        found["difference"] = {"mean": gain.mean(), "interval_95": [gain.mean() - half, gain.mean() + half]}
    return found


def spread(values: list[float]) -> dict[str, Any]:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.mean(values), "deviation": deviation, "each": values}


def _student(n: int) -> float:
    """The 97.5 % point of Student's t with n − 1 degrees."""
    return {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}.get(n, 2.262)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("experiment", choices=EXPERIMENTS)
    arguments.add_argument("--data", required=True)
    arguments.add_argument("--weights")
    arguments.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    arguments.add_argument("--seconds", type=float, default=180.0)
    arguments.add_argument("--epochs", type=float, help="instead of --seconds (imagenette, masked, cifar10)")
    arguments.add_argument("--every", type=float, default=10.0, help="epochs between looks at test (cifar10)")
    arguments.add_argument("--recipe", default="small-data")
    arguments.add_argument("--model")
    arguments.add_argument("--arms", nargs="*", help="of imagenette")
    arguments.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="fields of the recipe")
    arguments.add_argument("--compiled", choices=["whole", "blocks", "none"], help="as fit chooses, if not said")
    arguments.add_argument("--report", type=Path, help="keep the last run's page (pets)")
    arguments.add_argument("--toy", action="store_true")
    arguments.add_argument("--out", type=Path)
    asked = arguments.parse_args()
    asked.changes = dict(pair.split("=", 1) for pair in asked.set)
    data: Any = asked.data
    if asked.experiment != "pets":
        data = vitreous.images.open(asked.data, limit=240 if asked.toy else None)
    results = []
    for seed in asked.seeds:
        results.append(EXPERIMENTS[asked.experiment](data, seed, asked))
        print(json.dumps({"seed": seed, **results[-1]}), flush=True)
        body = {
            "benchmark": f"real {asked.experiment}",
            "seeds": asked.seeds[: len(results)],
            **({"epochs": asked.epochs} if asked.epochs else {"seconds_allowed": asked.seconds}),
            "summary": summary(results),
            "runs": results,
            **record(),
        }
        if asked.out:
            asked.out.write_text(json.dumps(body, indent=2) + "\n")


if __name__ == "__main__":
    main()
