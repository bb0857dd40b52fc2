"""What moves when weights are transferred.   python benchmarks/transfer_study.py policies --data DIR --out FILE

pretrain     a ViT, a hybrid and a BiT ResNet on tiny-imagenet100-64, each for --seconds or --length, into --models
policies     {all, 300} images x {imagenette: like ImageNet, fashion: not} x policies, with and without augmentation
resolution   imagenette at 64, 96, 128 pixels from 64: positions resized in two dimensions, in one, or drawn anew
amounts      from scratch against transferred with 100 … 10,000 images
cost         every model on every set that is there: right answers, seconds and steps of fine-tuning
solved       the cases of policies with the head alone, solved on frozen features: a reference for its 400 steps
all          these five, one seed after the other

Few-shot tables are `vitreous eval --suite`. Each run is one line of --out (JSON lines), kept: a second call computes
what is missing, and --part K --of N shares the runs among processes on one device. `table` sums --out up.
--toy rehearses on a CPU with few images and steps.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitreous
from vitreous.evaluation.few_shot import mean_interval
from vitreous.evaluation.learning_curve import nested_rows
from vitreous.images.imageset import TRAIN, ImageSet
from vitreous.machine import record
from vitreous.models.positions import resize_line
from vitreous.training.recipe import Seconds
from vitreous.training.run import folder as runs

ARMS = {
    "ViT": "S/8 width=256 depth=8 heads=4 mlp=1024 pool=gap",
    "hybrid": "S/8 stem=convolutions width=256 depth=7 heads=4 mlp=1024 pool=gap",
    "BiT": "BiT-R50x1",
}
FOR_BIT: dict[str, Any] = {"optimizer": "adamw", "peak_lr": 1e-3, "weight_decay": 0.05, "clip": 1.0}
POLICIES = ("head", "last-3", "all", "layer-decay", "full")
PLAIN = {"crop": "none", "flip": 0.0, "mixup": 0.0, "cutmix": 0.0}
EXPERIMENTS = ("policies", "resolution", "amounts", "cost", "solved")
COSTED = (("pets", None), ("imagenette", None), ("cifar10", 1000), ("cifar10", None))
PLACES = {"imagenette": "imagenette-128-*.zip", "pets": "oxford-pets-160-*.zip", "cifar10": "cifar10.npz"}
AMOUNTS = (100, 300, 1000, 3000, 10_000)

Cell = dict[str, Any]


def cells(experiment: str, asked: argparse.Namespace) -> Iterator[Cell]:
    """Every run of the experiment, as the settings that identify it."""
    if experiment == "policies":
        for name in ("imagenette", "fashion"):
            for images in (None, 300):
                for policy in POLICIES:
                    for augmented in (True, False) if images else (True,):
                        for seed in asked.seeds:
                            yield {
                                "data": name,
                                "train": images,
                                "policy": policy,
                                "augmented": augmented,
                                "seed": seed,
                            }
    elif experiment == "resolution":
        for pixels in (64, 96, 128):
            for positions in ("two", "one", "new") if pixels > 64 else ("two",):
                for seed in asked.seeds:
                    yield {"data": "imagenette", "pixels": pixels, "positions": positions, "seed": seed}
    elif experiment == "amounts":
        for images in AMOUNTS:
            for begun in ("weights", "scratch"):
                for seed in asked.seeds:
                    yield {"data": asked.set, "train": images, "begun": begun, "seed": seed}
    elif experiment == "cost":
        for name, images in ((name, images) for name, images in COSTED if has(name, asked)):
            for model in sorted(path.name for path in asked.models.iterdir()):
                for seed in asked.seeds:
                    yield {"data": name, "train": images, "model": model, "seed": seed}
    elif experiment == "solved":
        for name in ("imagenette", "fashion"):
            for images in (None, 300):
                for by in ("ridge", "logistic"):
                    yield {"data": name, "train": images, "by": by, "seed": 0}


def run(experiment: str, cell: Cell, asked: argparse.Namespace, folder: Path) -> Cell:
    data = opened(cell["data"], cell.get("train"), asked)
    if experiment == "solved":
        return solved(data, cell["by"], asked)
    length = "2 steps" if asked.toy else f"{asked.steps} steps"
    common: dict[str, Any] = {"length": length, "seed": cell["seed"], "dev": 0.0, "batch": 16 if asked.toy else 64}
    weights: Path | None = asked.weights
    if experiment == "policies":
        common |= {"policy": cell["policy"]} | ({} if cell["augmented"] else PLAIN)
        if cell["policy"] == "head" and not cell["augmented"]:
            common["optimizer"] = "adamw"  # steps, as the others take; not the closed form
    elif experiment == "resolution":
        weights = positioned(asked.weights, cell["pixels"], cell["positions"], folder / "begin.safetensors")
    elif experiment == "amounts" and cell["begun"] == "scratch":
        weights = None
    elif experiment == "cost":
        weights = asked.models / cell["model"]
    if weights is None:
        network = vitreous.load(asked.weights).config.change(classes=len(data.classes))
        vitreous.save(vitreous.build(network, seed=cell["seed"]), folder / "begin.safetensors")
        weights = folder / "begin.safetensors"
        common |= {"optimizer": "muon", "muon_lr": 0.02, "peak_lr": 1e-3, "weight_decay": 0.1, "policy": "full"}
    done = vitreous.fit(
        data,
        weights=weights,
        recipe="fine-tune",
        out=folder / "run",
        check=False,
        folds=0,
        device=asked.device,
        compiled=asked.compiled,
        **common,
    )
    m = done.metrics
    found = {"right": m["judged"]["right"], "images": m["judged"]["images"], "accuracy": m["judged"]["top1"]}
    last = [event for event in runs.read(folder / "run") if event["kind"] == "step"][-1:]
    return found | {
        "steps": m["steps"],
        "seconds": m["seconds"],
        "train_accuracy": last[0]["accuracy"] if last else None,
    }


def solved(data: ImageSet, by: Any, asked: argparse.Namespace) -> Cell:
    """Neither steps nor augmentation: a linear map of the features, fitted once."""
    began = time.perf_counter()
    found = vitreous.evaluation.probe(vitreous.load(asked.weights), data, ["features"], by=by, device=asked.device)
    row, seconds = found["features"], time.perf_counter() - began
    return {"right": row.right, "images": row.images, "accuracy": row.accuracy, "steps": 0, "seconds": seconds}


def has(name: str, asked: argparse.Namespace) -> bool:
    """True if the set is there; others are left out."""
    return place(name, asked).exists() or any(asked.data.glob(PLACES[name]))


def place(name: str, asked: argparse.Namespace) -> Path:
    """A pack beside the set serves in its place: it is decoded once."""
    pack = asked.data / f"{name}.pack"
    return pack if pack.exists() else asked.data / PLACES[name]


def opened(name: str, train: int | None, asked: argparse.Namespace) -> ImageSet:
    """A set by name under --data, with `train` of its training images; smaller choices are nested."""
    data = vitreous.images.open("fashion" if name == "fashion" else str(place(name, asked)))
    if asked.toy:
        train = min(train or 40, 40)
        data = data.take(
            np.concatenate([np.flatnonzero(data.splits == TRAIN), np.flatnonzero(data.splits != TRAIN)[::200]])
        )
    if train is None:
        return data
    rows = np.flatnonzero(data.splits == TRAIN)
    chosen = rows[nested_rows(data.labels[rows], 0)[:train]]
    return data.take(np.sort(np.concatenate([chosen, np.flatnonzero(data.splits != TRAIN)])))


def positioned(weights: Path, pixels: int, how: str, into: Path) -> Path:
    """The weights at another size, their positions moved as `how` says."""
    model, old = vitreous.load(weights, image_size=pixels), vitreous.load(weights)
    if how != "two":
        table, before = model.embedding.positions.table, old.embedding.positions.table
        front = model.config.covered
        with torch.no_grad():
            if how == "one":  # as a line of tokens, whatever the rows
                table[front:] = resize_line(before[front:], len(table) - front)
            else:
                table[front:].normal_(0, 0.02, generator=torch.Generator().manual_seed(0))
    vitreous.save(model, into, force=True)
    return into


def pretrain(asked: argparse.Namespace, folder: Path) -> None:
    from make_starter import open_set

    data = open_set(asked.data, folder, 8 if asked.toy else None)
    for name, model in ARMS.items():
        if (asked.models / f"{name}.safetensors").exists() or (asked.only and name not in asked.only):
            continue
        if asked.toy and name == "BiT":
            continue
        changes = FOR_BIT if name == "BiT" else {}
        length = Seconds(3.0) if asked.toy else asked.length or Seconds(asked.seconds)
        done = vitreous.fit(
            data,
            model=f"{model} depth=1" if asked.toy else model,
            recipe="small-data",
            length=length,
            out=folder / name,
            check=False,
            folds=0,
            device=asked.device,
            dev=0.02,
            crop="inception",
            area=(0.35, 1.0),
            compiled=asked.compiled,
            **changes,
        )
        vitreous.save(done.load(), asked.models / f"{name}.safetensors")
        print(
            json.dumps({"model": name, "accuracy": done.metrics["judged"]["top1"], "steps": done.metrics["steps"]}),
            flush=True,
        )


def table(asked: argparse.Namespace) -> None:
    """Mean and interval over seeds of every kind of run in --out, the best of each set marked."""
    kinds: dict[str, list[Cell]] = {}
    for line in asked.out.read_text().splitlines():
        one = json.loads(line)
        kind = {"experiment": one["experiment"]} | {k: v for k, v in one["cell"].items() if k != "seed"}
        kinds.setdefault(json.dumps(kind), []).append(one)
    for kind, found in kinds.items():
        right = [one["accuracy"] for one in found]
        low, high = mean_interval(np.array(right)) if len(right) > 1 else (float("nan"),) * 2
        seconds = statistics.median(one["seconds"] for one in found)
        print(f"{statistics.mean(right):.4f} ({low:.4f} to {high:.4f})  {seconds:6.1f} s  {kind}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("experiment", choices=["pretrain", *EXPERIMENTS, "all", "table"])
    arguments.add_argument("--data", type=Path, default=Path("data"))
    arguments.add_argument("--weights", type=Path, help="what is transferred")
    arguments.add_argument("--models", type=Path, default=Path("models"))
    arguments.add_argument("--only", nargs="*", help="of the networks to pre-train")
    arguments.add_argument("--set", default="cifar10", help="of amounts")
    arguments.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    arguments.add_argument("--steps", type=int, default=600)
    arguments.add_argument("--seconds", type=float, default=90.0, help="of pre-training")
    arguments.add_argument("--length", help="of pre-training, such as '9 epochs', instead")
    arguments.add_argument("--compiled", choices=["whole", "blocks", "none"], help="as fit chooses, if not said")
    arguments.add_argument("--part", type=int, default=0)
    arguments.add_argument("--of", type=int, default=1)
    arguments.add_argument("--device")
    arguments.add_argument("--toy", action="store_true")
    arguments.add_argument("--most", type=int, help="runs, of a rehearsal")
    arguments.add_argument("--out", type=Path)
    asked = arguments.parse_args()
    if asked.experiment == "table":
        table(asked)
        return
    with tempfile.TemporaryDirectory() as scratch:
        if asked.experiment == "pretrain":
            pretrain(asked, Path(scratch))
            return
        known = asked.out.read_text().splitlines() if asked.out.exists() else []
        names = EXPERIMENTS if asked.experiment == "all" else (asked.experiment,)
        work = [{"experiment": name, "cell": cell} for name in names for cell in cells(name, asked)]
        work.sort(key=lambda one: one["cell"]["seed"])  # what time cuts off is seeds, not cells
        done = [{name: json.loads(line)[name] for name in ("experiment", "cell")} for line in known]
        mine = [one for one in work[asked.part :: asked.of] if one not in done]
        for number, one in enumerate(mine):
            if number == asked.most:
                break
            folder = Path(scratch) / str(number)
            folder.mkdir()
            line = {**one, **run(one["experiment"], one["cell"], asked, folder)}
            if not number:
                line |= {"steps_asked": asked.steps, **record()}
            with asked.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line)[:300], flush=True)


if __name__ == "__main__":
    main()
