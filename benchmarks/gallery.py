"""The pages of docs/gallery: `vitreous look` at real weights while they see the embedded images.

    python benchmarks/gallery.py --out docs/gallery --results benchmarks/results/gallery.json

Each page is kept small (attention maps in coarser steps, of fewer images), since it lies in the repository. Prints one
JSON object: for each page its bytes, seconds and what every measure says.
"""

import argparse
import json
import os
import sys
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np

import vitreous
from vitreous.machine import record
from vitreous.measures.page import write_page

SHARED = Path(os.environ.get("VITREOUS_SHARED", Path(__file__).resolve().parents[2] / "shared"))
PAGES = {  # name -> the model, what it is compared with, bytes of maps
    "deit-tiny": ("deit-tiny", None, 700_000),
    "deit-tiny-against-vit-tiny": ("deit-tiny", "vit-tiny-augreg", 900_000),
}


def findings(found: dict[str, Any]) -> dict[str, Any]:
    """The numbers by which P2's findings are seen in one ViT, or not."""
    heads = found["attention-distance"]["rows"]
    last = max(row["layer"] for row in heads)
    skips = found["skip-ratio"]["rows"]
    halves = skips[: len(skips) // 2], skips[len(skips) // 2 :]
    read = {row["tokens"]: row["linear"] for row in found["probes"]["rows"] if row["layer"] == f"blocks.{last}"}
    return {
        "likeness_of_blocks": found["similarity"]["of_blocks"],
        "first_block_px": sorted(row["distance_px"] for row in heads if row["layer"] == 0),
        "last_block_px": sorted(row["distance_px"] for row in heads if row["layer"] == last),
        "uniform_px": found["attention-distance"]["uniform_px"],
        "class_skip_by_half": [sum(row["class_ratio"] for row in half) / len(half) for half in halves],
        "patches_skip_by_half": [sum(row["patches_ratio"] for row in half) / len(half) for half in halves],
        "own_patch_most_alike": found["localisation"]["rows"][0]["hit"],
        "chance_of_that": 1 / (found["localisation"]["grid"][0] * found["localisation"]["grid"][1]),
        "linear_probe_of_last_block": read,
        "probe_images": found["probes"]["images"],
    }


def corners(arrays: dict[str, Any]) -> float:
    """What the class token gives the four corners in the last block, mean over heads and the images kept."""
    weights = arrays["maps"][:, -1, :, 0] / 255 * arrays["peaks"][:, -1, :, 0, None].astype(np.float64)  # B H K
    side = round(weights.shape[-1] ** 0.5)
    return float(weights[..., [0, side - 1, -side, -1]].sum(-1).mean())


def make(name: str, out: Path, kept: Path, images: int) -> dict[str, Any]:
    model, against, limit = PAGES[name]
    with chdir(SHARED / "weights"):  # a page names its models, not where they lay on this machine
        found = vitreous.look(
            model,
            against=against,
            images=images,
            out=kept / name,
            tell=lambda line: print(f"{name}: {line}", file=sys.stderr),
        )
    write_page(found, out / f"{name}.html", limit=limit)
    says = {each: found.measures[each].says(numbers) for each, numbers in found.found.items()}
    beside = {each: found.measures[each].says(numbers) for each, numbers in found.found_against.items()}
    size = (out / f"{name}.html").stat().st_size
    told = {"bytes": size, "images": images, "says": says, "says_against": beside, "not_measured": found.skipped}
    sides = [side for side in (found.found, found.found_against) if side]
    told["findings"] = [findings(side) for side in sides]
    told["class_token_to_corners"] = {key: corners(arrays) for key, arrays in found.arrays.items()}
    told["blocks_of_the_same_number"] = found.found.get("similarity-across", {}).get("same_name")
    return told


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, help="Folder for the pages; by default a temporary one.")
    arguments.add_argument("--kept", type=Path, help="Folder of whole looks, taken up again if they are there.")
    arguments.add_argument("--results", type=Path, help="File for the JSON, beside stdout.")
    arguments.add_argument("--images", type=int, default=256)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as place:
        out, kept = given.out or Path(place) / "gallery", given.kept or Path(place)
        pages = {name: make(name, out.resolve(), kept.resolve(), given.images) for name in PAGES}
    text = json.dumps({"benchmark": "gallery", "pages": pages, **record()}, indent=1, ensure_ascii=False)
    if given.results:
        given.results.write_text(text + "\n", "utf-8")
    print(text)


if __name__ == "__main__":
    main()
