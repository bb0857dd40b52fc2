"""The pages of docs/gallery: `vitreous look` at real weights while they see the embedded images; and P2's findings.

    python benchmarks/gallery.py --out docs/gallery --results benchmarks/results/gallery.json
    python benchmarks/gallery.py --own FOLDER --out docs/gallery --results benchmarks/results/gallery_own.json

The first makes the pages of the weights that others trained. FOLDER holds our own, which are not in the repository:
`vit.trained.safetensors`, the trained.safetensors of `make_starter.py` for a ViT, and `BiT.safetensors`, of
`transfer_study.py pretrain --only BiT`; our hybrid is the starter. The second makes their pages, and
measures in all five models what P2 (arXiv 2108.08810) found: on the embedded images, and on photographs of
imagenette-128, of which only numbers are kept.

Each page is kept small (attention maps in coarser steps, of fewer images), since it lies in the repository. Prints one
JSON object: for each page its bytes and what every measure says; for each set of images, what was found in each model.
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitreous
from vitreous.evaluation.inference import at_work, make_batches
from vitreous.machine import record
from vitreous.measures.filters_and_positions import rank_correlation
from vitreous.measures.page import write_page
from vitreous.measures.similarity import uniformity
from vitreous.models.model import Model
from vitreous.models.taps import taps
from vitreous.ranks import Ranks

SHARED = Path(os.environ.get("VITREOUS_SHARED", Path(__file__).resolve().parents[2] / "shared"))
OWN = {"our ViT": "vit.trained.safetensors", "our BiT": "BiT.safetensors"}  # under --own
RESNET = "our BiT"
MODELS = ("deit-tiny", "vit-tiny-augreg", "our ViT", "starter", RESNET)
PAGES = {  # file -> the model, what it is compared with, bytes of maps
    "deit-tiny": ("deit-tiny", None, 700_000),
    "deit-tiny-against-vit-tiny": ("deit-tiny", "vit-tiny-augreg", 900_000),
    "our-vit": ("our ViT", None, 400_000),
    "our-hybrid": ("starter", None, 400_000),
    "our-bit": (RESNET, None, 400_000),
    "our-vit-against-our-bit": ("our ViT", RESNET, 300_000),
}
SETS = {"photographs": SHARED / "data" / "imagenette-128-*.zip", "embedded": None}
ALONE = (
    "attention-distance", "similarity", "skip-ratio", "localisation", "probes", "token-probes", "receptive-field",
    "skip-removal",
)  # fmt: skip
BESIDE = ("similarity-across", "heads-against-layers")
LOCAL = 0.5  # a head is local below this share of the distance of uniform attention

Found = dict[str, Any]


def opened(name: str, own: Path | None) -> Model:
    """A model in single precision, which its pages call by this name, not by its path on this machine."""
    if name in OWN:
        assert own is not None
        model = vitreous.load(own / OWN[name])
    else:
        model = vitreous.load("starter" if name == "starter" else SHARED / "weights" / name)
    model.source["path"] = name
    return model.float()


def tell(about: str) -> Any:
    return lambda line: print(f"{about}: {line}", file=sys.stderr)


# Pages ---------------------------------------------------------------------------------------------------------------


def corners(arrays: dict[str, Any]) -> float:
    """What the class token gives the four corners in the last block, mean over heads and the images kept."""
    weights = arrays["maps"][:, -1, :, 0] / 255 * arrays["peaks"][:, -1, :, 0, None].astype(np.float64)  # B H K
    side = round(weights.shape[-1] ** 0.5)
    return float(weights[..., [0, side - 1, -side, -1]].sum(-1).mean())


def make(page: str, own: Path | None, out: Path, kept: Path, images: int) -> Found:
    name, other, limit = PAGES[page]
    found = vitreous.look(
        opened(name, own),
        against=None if other is None else opened(other, own),
        images=images,
        out=kept / page,
        tell=tell(page),
    )
    write_page(found, out / f"{page}.html", limit=limit)
    told: Found = {"bytes": (out / f"{page}.html").stat().st_size, "images": images}
    told["says"] = {each: found.measures[each].says(numbers) for each, numbers in found.found.items()}
    told["says_against"] = {each: found.measures[each].says(numbers) for each, numbers in found.found_against.items()}
    told["not_measured"] = found.skipped
    if page == "deit-tiny-against-vit-tiny":
        told["class_token_to_corners"] = {key: corners(arrays) for key, arrays in found.arrays.items()}
        told["blocks_of_the_same_number"] = found.found["similarity-across"]["same_name"]
    return told


# What P2 found -------------------------------------------------------------------------------------------------------


def findings(own: Path, data: Path | None, kept: Path, images: int) -> dict[str, Found]:
    """For each model, the numbers that show whether P2's findings hold in it."""
    models = {name: opened(name, own) for name in MODELS}
    out: dict[str, Found] = {}
    for name, model in models.items():
        common: Found = {"data": data, "images": images, "tell": tell(f"{kept.name}, {name}")}
        only = [each for each in ALONE if name != RESNET or each != "attention-distance"]
        out[name] = alone(vitreous.look(model, only=only, out=kept / name / "alone", **common).found)
        if name != RESNET:
            beside = vitreous.look(model, against=models[RESNET], only=BESIDE, out=kept / name / "beside", **common)
            out[name] |= beside_resnet(beside.found)
    pair = vitreous.look(
        models["deit-tiny"],
        data,
        against=models["vit-tiny-augreg"],
        only=["similarity-across"],
        images=images,
        out=kept / "pair",
        tell=tell(f"{kept.name}, pair"),
    )
    for name in ("deit-tiny", "vit-tiny-augreg"):
        out[name]["same_block_other_data"] = same_block(pair.found["similarity-across"])
        out[name]["loudest_channel"] = loudest_channel(models[name], data)
    return out


def same_block(found: Found) -> dict[str, list[float]]:
    """CKA of blocks of the same number, by what they read (after their norm) and by what they give."""
    rows, columns = found["rows_of_matrix"], found["columns_of_matrix"]
    at = {kind: [name for name in rows if name.endswith(f".{kind}")] for kind in ("norm1", "output")}
    at["output"] = [name for name in at["output"] if name.count(".") == 2]  # not that of attention
    return {kind: [found["cka"][rows.index(n)][columns.index(n)] for n in names] for kind, names in at.items()}


@torch.inference_mode()
def loudest_channel(model: Model, data: Path | None) -> list[float]:
    """The largest share that one channel has of the variance over 64 images, after each block."""
    whole, device = vitreous.images.open("fashion" if data is None else data), torch.device("cpu")
    some = whole.take(range(0, len(whole), len(whole) // 64)).take(range(64))
    feed = make_batches(model, some, device, 64, 1, False, Ranks(0, 1))
    with at_work(model, device, "float32") as (normalised, _), taps(model, ["blocks.*.output"]) as seen:
        model.features(normalised(next(iter(feed)).images))
    by_channel = [(x - x.mean(0)).square().sum((0, 1)) for x in seen.values()]  # each D
    return [float(each.max() / each.sum()) for each in by_channel]


def alone(found: Found) -> Found:
    """What one model shows by itself."""
    skips, cuts, place = found["skip-ratio"]["rows"], found["skip-removal"]["rows"], found["localisation"]
    out: Found = {
        "likeness": {key: found["similarity"][key] for key in ("low_high", "uniformity", "of_blocks")},
        "likeness_of_what_blocks_read": of_norms(found["similarity"]),
        "field": field(found["receptive-field"]),
        "skip": math.exp(statistics.mean(math.log(row["patches_ratio"]) for row in skips)),
        "patches_skip_by_half": halves([row["patches_ratio"] for row in skips]),
        "cut": {
            key: statistics.mean(row[key] for row in cuts if row[key] is not None)
            for key in ("contrast_intact", "contrast_without", "same_answer")
        },
        "place": {key: place["rows"][0][key] for key in ("hit", "percentile", "margin")} | {"grid": place["grid"]},
        "probes": probes(found),
    }
    if skips[0]["class_ratio"] is not None:
        out["class_skip_by_half"] = halves([row["class_ratio"] for row in skips])
    if "attention-distance" in found:
        out["heads"] = heads(found["attention-distance"])
    return out


def of_norms(found: Found) -> float | None:
    """CKA of the first third of blocks with the last third, after their first norm, where no channel is loud."""
    at = [i for i, name in enumerate(found["rows_of_matrix"]) if name.endswith(".norm1")]
    return uniformity([[found["cka"][i][j] for j in at] for i in at])["low_high"] if at else None


def heads(found: Found) -> Found:
    """Distances of the heads, as shares of the distance of uniform attention."""
    far = [(row["layer"], row["distance_px"] / found["uniform_px"]) for row in found["rows"]]
    last = max(layer for layer, _ in far)
    by = {layer: sorted(share for each, share in far if each == layer) for layer in (0, 1, last)}
    lowest = by[0] + by[1]
    return {
        "uniform_px": found["uniform_px"],
        "first_block": by[0],
        "second_block": by[1],
        "last_block": by[last],
        "local_share_of_two_lowest": sum(share < LOCAL for share in lowest) / len(lowest),
    }


def field(found: Found) -> Found:
    """Radius of the receptive field after a quarter, a half and all of the blocks; an even field over the image has 1.

    For the first block also the radius of its branch alone, before the skip is added.
    """
    rows = [row for row in found["rows"] if row["when"] == "after"]
    whole = found["whole_image_radius_px"]
    branch = next(row for row in found["rows"] if row["when"] == "before")
    at = {"first": 0, "quarter": at_depth(len(rows), 1 / 4), "half": at_depth(len(rows), 1 / 2), "end": len(rows) - 1}
    return {key: rows[i]["radius_px"] / whole for key, i in at.items()} | {
        "error_at_quarter": rows[at["quarter"]]["error_px"] / whole,
        "first_branch": branch["radius_px"] / whole,
    }


def at_depth(count: int, share: float) -> int:
    """The block after which that share of the depth is done."""
    return max(round(count * share) - 1, 0)


def halves(values: list[float]) -> list[float]:
    half = len(values) // 2
    return [statistics.mean(values[:half]), statistics.mean(values[half:])]


def probes(found: Found) -> Found:
    """What 10 shots read from the mean of patches, by depth; at the end also from class token and one place."""
    rows, last = found["probes"]["rows"], found["token-probes"]["layers"][-1]
    pooled = [row["ten_shot"] for row in rows if row["tokens"] == "gap"]
    own = [row["ten_shot"] for row in rows if row["tokens"] == "cls"]
    return {
        "first": pooled[0],
        "middle": pooled[at_depth(len(pooled), 1 / 2)],
        "last": pooled[-1],
        "class_token": own[-1] if own else None,
        "one_place": last["mean"],
        "places": last["asked"][0] * last["asked"][1],
        "images": found["probes"]["images"],
    }


def beside_resnet(found: Found) -> Found:
    """What a ViT (rows) shows beside the ResNet (columns)."""
    cka = np.array(found["similarity-across"]["cka"], dtype=float)  # V R
    best = np.nanmax(cka, 1)
    upper = len(cka) - len(cka) // 3
    deep_vit, deep_resnet = (np.linspace(0, 1, count) for count in cka.shape)
    low = deep_resnet <= 0.5
    matched = deep_vit[np.nanargmax(cka[:, low], 0)]
    table = found["heads-against-layers"]["rows"]
    far = sorted({(row["distance_px"], row["heads"]) for row in table})
    alike = [statistics.mean(row["cka"] for row in table if row["heads"] == name) for _, name in far]
    return {
        "matches": {
            "slope": float((matched * deep_resnet[low]).sum() / np.square(deep_resnet[low]).sum()),
            "layers": list(cka.shape),
            "best_below": float(best[:upper].mean()),
            "best_of_last_third": float(best[upper:].mean()),
        },
        "heads_beside": {
            "rank_correlation": rank_correlation([distance for distance, _ in far], alike),
            "most_local": alike[0],
            "most_global": alike[-1],
            "heads": len(far),
        },
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, help="Folder for the pages; by default a temporary one.")
    arguments.add_argument("--own", type=Path, help="Folder of our own models.")
    arguments.add_argument("--kept", type=Path, help="Folder of whole looks, taken up again if they are there.")
    arguments.add_argument("--results", type=Path, help="File for the JSON, beside stdout.")
    arguments.add_argument("--images", type=int, default=256, help="That a page is made from.")
    arguments.add_argument("--judged", type=int, default=1024, help="Images for the findings.")
    given = arguments.parse_args()
    own = given.own
    pages = [page for page in PAGES if page.startswith("our-") == bool(own)]
    with tempfile.TemporaryDirectory() as place:
        out, kept = given.out or Path(place) / "gallery", given.kept or Path(place)
        told: Found = {"pages": {page: make(page, own, out, kept, given.images) for page in pages}}
        if own:
            told["judged"] = given.judged
            told["findings"] = {name: findings(own, data, kept / name, given.judged) for name, data in SETS.items()}
    text = json.dumps({"benchmark": "gallery", **told, **record()}, indent=1, ensure_ascii=False)
    if given.results:
        given.results.write_text(text + "\n", "utf-8")
    print(text)


if __name__ == "__main__":
    main()
