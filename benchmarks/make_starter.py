"""Makes the starter: `fit` on tiny-imagenet100-64, weights packed into few bits, a card beside them.

    python benchmarks/make_starter.py --data FOLDER --out FOLDER --seconds 400
    python benchmarks/make_starter.py --data FOLDER --out FOLDER --only-probe --probe 60      # which network?

probe    each --model for the same time; the best on dev is taken, and test is not looked at
train    --seconds at 64 pixels, then --larger-seconds at --larger pixels, by the recipe small-data
pack     as finely as fits 3.9 MB, or by --fineness; right answers on the official val split, before and after
write    starter.safetensors and starter.json, the card; after each stage trained.safetensors, for --begin to start from

FOLDER: the three zips of the set, and imagenet_class_names.tsv. --toy rehearses on a CPU, with 8 classes, in a minute.
"""

import argparse
import io
import json
import os
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from PIL import Image, features

import vitreous
from vitreous.files import digest
from vitreous.images.imageset import ImageSet
from vitreous.machine import record
from vitreous.models.model import state_of
from vitreous.training.recipe import Seconds
from vitreous.training.run.events import Event
from vitreous.weights import starter
from vitreous.weights.quantised import finest, write_quantised

SET = "tiny-imagenet100-64"
TILE = 64  # pixels of a picture in a sheet
MANIFEST = 40_000  # bytes that the file has besides its packed tensors
FINENESS = (16.0, 8.0, 6.0, 5.0, 4.0, 3.0, 2.0)  # of the card's table
MODELS = (
    "S/8 stem=convolutions width=256 depth=7 heads=4 mlp=1024 pool=gap",
    "S/8 width=256 depth=8 heads=4 mlp=1024 pool=gap",
    "S/8 stem=convolutions width=320 depth=5 heads=5 mlp=1280 pool=gap",
    "Ti/8 stem=convolutions depth=12 pool=gap",
)
TOY_MODELS = (
    "Ti/16 width=64 depth=2 heads=2 mlp=128 pool=gap",
    "Ti/16 stem=convolutions width=128 depth=2 heads=2 mlp=512 pool=gap",
)
CROP = {"crop": "inception", "area": (0.35, 1.0)}  # other sets' objects come in all sizes; small-data only shifts
LARGER = {"muon_lr": 0.005, "peak_lr": 2.5e-4, "warmup": 0.05}  # the second stage continues, more slowly
TERMS = (
    "Pictures of 100 classes of Tiny-ImageNet, which are ImageNet's: for non-commercial research and education. "
    "The weights hold none of the pictures; whether those terms reach weights is for their user to judge."
)


# Pictures ----------------------------------------------------------------------------------------------------------


def open_set(folder: Path, at: Path, most: int | None) -> ImageSet:
    """The sheets of the zips, cut, as one .npz that `images.open` knows.  most: classes, of a rehearsal."""
    if not features.check("avif"):
        raise SystemExit("this Pillow reads no AVIF, which the sheets are in; use Pillow 11.3 or later")
    sheets: dict[str, dict[str, bytes]] = {"train": {}, "val": {}}
    for path in sorted(folder.glob(f"{SET}*.zip")):
        with zipfile.ZipFile(path) as archive:
            for entry in archive.namelist():
                sheets[Path(entry).parent.name][Path(entry).stem] = archive.read(entry)
    ids = sorted(sheets["train"])[:most]
    if not ids:
        raise SystemExit(f"there is no {SET}*.zip in {folder}; give --data the folder of the three")
    arrays: dict[str, np.ndarray] = {"class_names": np.array(names_of(ids, folder))}
    for split, found in sheets.items():
        cut = [tiles(found[name]) for name in ids]
        arrays[f"{split}_x"] = np.concatenate(cut)
        arrays[f"{split}_y"] = np.repeat(np.arange(len(ids)), [len(part) for part in cut])
    np.savez(at / f"{SET}.npz", **arrays)
    return vitreous.images.open(at / f"{SET}.npz")


def tiles(sheet: bytes) -> np.ndarray:
    """N 64 64 3, in raster order."""
    pixels = np.asarray(Image.open(io.BytesIO(sheet)).convert("RGB"))
    rows, columns = (n // TILE for n in pixels.shape[:2])
    return pixels.reshape(rows, TILE, columns, TILE, 3).swapaxes(1, 2).reshape(-1, TILE, TILE, 3)


def names_of(ids: list[str], folder: Path) -> list[str]:
    """The first English name of each WordNet id; the id itself where that would not tell two apart."""
    lines = (folder / "imagenet_class_names.tsv").read_text(encoding="utf-8").splitlines()[1:]
    english = {line.split("\t")[1]: line.split("\t")[2].split(",")[0] for line in lines}
    names = [english[wordnet] for wordnet in ids]
    return [name if names.count(name) == 1 else wordnet for name, wordnet in zip(names, ids, strict=True)]


# Training ----------------------------------------------------------------------------------------------------------


def fitted(data: ImageSet, asked: argparse.Namespace, folder: Path, seconds: float, **options: Any) -> Any:
    """One `fit` by small-data, its events in a few lines."""

    def tell(event: Event) -> None:
        if event["kind"] in ("say", "dev"):
            print(json.dumps({"at": round(time.monotonic() - BEGAN), **event}), flush=True)

    settings = {"dev": asked.dev, "length": Seconds(seconds), "seed": asked.seed, **CROP, **options, **asked.changes}
    return vitreous.fit(
        data,
        recipe="small-data",
        out=folder,
        check=False,
        folds=0,
        device=asked.device,
        compiled=asked.compiled,
        tell=tell,
        **settings,
    )


def brief(run: Any) -> dict[str, Any]:
    names = ("parameters", "steps", "seconds", "images_per_second", "dev")
    return {"right_on_test": run.metrics["judged"]["top1"], **{name: run.metrics[name] for name in names}}


def probe(data: ImageSet, asked: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Each network for the same time, best on dev first; the pictures of val are left out of it."""
    train = data.take(data.splits == "train")
    found = []
    for number, model in enumerate(asked.model):
        run = fitted(train, asked, folder / f"probe-{number}", asked.probe, model=model)
        found.append({"model": model, **{k: v for k, v in brief(run).items() if k != "right_on_test"}})
        print(json.dumps(found[-1]), flush=True)
    return sorted(found, key=lambda one: -one["dev"]["accuracy"])


def train(data: ImageSet, asked: argparse.Namespace, folder: Path, model: str) -> tuple[str, list[dict[str, Any]]]:
    """The file of the trained model, and the results of each stage."""
    stages, weights = [], asked.begin and in_float32(asked.begin, folder)
    if asked.seconds:
        begin = {"weights": weights} if weights else {"model": model}
        run = fitted(data, asked, folder / "small", asked.seconds, **begin)
        stages.append({"pixels": TILE, **brief(run), "recipe": recipe_of(run)})
        weights = kept(run, asked)
    if asked.larger_seconds:
        more = {"image_size": asked.larger, **LARGER}
        run = fitted(data, asked, folder / "larger", asked.larger_seconds, weights=weights, **more)
        stages.append({"pixels": asked.larger, **brief(run), "recipe": recipe_of(run)})
        weights = kept(run, asked)
    if weights is None:
        raise SystemExit("nothing to pack: give --seconds, or --begin a trained model")
    return weights, stages


def kept(run: Any, asked: argparse.Namespace) -> str:
    """The run's model; a half-precision copy goes to --out, in case time runs out before the end."""
    print(json.dumps({"at": round(time.monotonic() - BEGAN), **brief(run)}), flush=True)
    vitreous.save(run.load().half(), asked.out / "trained.safetensors", force=True)
    return run.model


def in_float32(weights: str, folder: Path) -> str:
    """Half-precision weights in float32, as they are trained."""
    return str(vitreous.save(vitreous.load(weights).float(), folder / "begin.safetensors")[0])


def card_beside(weights: str | None) -> Any:
    """How the model was made from which this one starts."""
    if weights is None:
        return None
    card = Path(weights).with_name("starter.json")
    return json.loads(card.read_text()) if card.is_file() else Path(weights).name


def recipe_of(run: Any) -> Any:
    return json.loads((Path(run.path) / "config.json").read_text())["recipe"]


# Packing -----------------------------------------------------------------------------------------------------------


def packings(
    model: Any, data: ImageSet, asked: argparse.Namespace, folder: Path, chosen: float
) -> list[dict[str, Any]]:
    """Bytes and right answers of several packings, the finest first."""
    found = []
    for fineness in sorted({*FINENESS, chosen}, reverse=True):
        path = folder / "packed.safetensors"
        size = write_quantised(model, path, fineness=fineness, force=True)
        result = vitreous.evaluate(vitreous.load(path), data, device=asked.device)
        found.append({"fineness": fineness, "bytes": size, "right": result.right, "images": result.images})
        print(json.dumps(found[-1]), flush=True)
    return found


def write(model: Any, data: ImageSet, asked: argparse.Namespace, folder: Path, made: dict[str, Any]) -> dict[str, Any]:
    """File and card; the card says what packing cost."""
    before = vitreous.evaluate(model, data, device=asked.device)
    fineness = asked.fineness or finest(state_of(model), starter.MAX_STARTER_BYTES - MANIFEST)
    tried = packings(model, data, asked, folder, fineness)
    chosen = next(one for one in tried if one["fineness"] == fineness)
    assert chosen["bytes"] <= starter.MAX_STARTER_BYTES, (
        f"{chosen['bytes']:,} bytes do not fit {starter.MAX_STARTER_BYTES:,}"
    )
    card = {
        "schema": "vitreous.starter/1",
        "made_by": "benchmarks/make_starter.py",
        "network": model.config.to_json(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "data": {
            "name": SET,
            "terms": TERMS,
            "zips": {path.name: digest(path) for path in sorted(asked.data.glob(f"{SET}*.zip"))},
            "images": {split: int((data.splits == split).sum()) for split in ("train", "test")},
            "classes": len(data.classes),
        },
        "seed": asked.seed,
        "packed": {**chosen, "right_before_packing": before.right, "interval_before_packing": list(before.interval)},
        "packings": tried,
        "is_rehearsal": asked.toy,
        **made,
        **record(),
    }
    source = asked.out / "starter.safetensors"
    right = chosen["right"] / chosen["images"]
    write_quantised(model, source, fineness=fineness, force=True, metrics={"right_on_val": right})
    card["packed"]["sha256"] = digest(source)
    (asked.out / "starter.json").write_text(json.dumps(card, indent=2) + "\n")
    return card


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path, required=True)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--model", nargs="*", help="candidates; of several, --probe chooses")
    arguments.add_argument("--probe", type=float, default=0.0, help="seconds for each; 0: the first is taken")
    arguments.add_argument("--only-probe", action="store_true")
    arguments.add_argument("--seconds", type=float, default=400.0, help="at 64 pixels; 0: go on from --begin")
    arguments.add_argument("--larger", type=int, default=96, help="pixels of the second stage")
    arguments.add_argument("--larger-seconds", type=float, default=0.0, help="0: no second stage")
    arguments.add_argument("--begin", help="a trained model to go on from")
    arguments.add_argument("--fineness", type=float, help="of the packing; the finest that fits, if not said")
    arguments.add_argument("--dev", type=float, default=0.02)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="fields of the recipe")
    arguments.add_argument("--compiled", choices=["whole", "blocks", "none"])
    arguments.add_argument("--toy", action="store_true")
    asked = arguments.parse_args()
    asked.changes = dict(pair.split("=", 1) for pair in asked.set)
    asked.device = torch.device("cpu" if asked.toy else "cuda")
    if asked.toy:
        asked.seconds, asked.probe = min(asked.seconds, 4.0), min(asked.probe, 2.0)
        asked.larger_seconds, asked.dev = min(asked.larger_seconds, 3.0), 0.1
    asked.model = asked.model or list(TOY_MODELS if asked.toy else MODELS)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        data = open_set(asked.data, folder, 8 if asked.toy else None)
        print(data, flush=True)
        tried = probe(data, asked, folder) if asked.probe else []
        asked.out.mkdir(parents=True, exist_ok=True)
        if tried:
            found = {"seconds": asked.probe, "tried": tried, **record()}
            (asked.out / "starter_probe.json").write_text(json.dumps(found, indent=2) + "\n")
        if asked.only_probe:
            return
        name = tried[0]["model"] if tried else asked.model[0]
        print(json.dumps({"at": round(time.monotonic() - BEGAN), "model": name}), flush=True)
        weights, stages = train(data, asked, folder, name)
        before = card_beside(asked.begin)
        name = before["model"] if isinstance(before, dict) else name
        made = {"model": name, "before": before, "stages": stages, "probe": tried}
        card = write(vitreous.load(weights), data, asked, folder, made)
        print(json.dumps({"packed": card["packed"], "seconds": round(time.monotonic() - BEGAN)}), flush=True)


BEGAN = time.monotonic()

if __name__ == "__main__":
    main()
