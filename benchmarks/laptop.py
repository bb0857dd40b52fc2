"""How long a laptop waits before anything is computed, part by part.   python benchmarks/laptop.py --against FOLDER

--against: another checkout, measured in turn with this one; every run is a process of its own, and the order changes
with each round. `--photos` (a folder of images in folders) adds a whole `fit` of them. The model is a Ti/16 with random
weights, the image a JPEG of 640 x 480. Seconds, wall and CPU (user and system): least, median, most. Prints one JSON
object.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image

import vitreous
from vitreous.machine import record

OURS = Path(__file__).resolve().parents[1]
CLOCK = """
import resource, sys, time
marks = []
def mark(name):
    used = resource.getrusage(resource.RUSAGE_SELF)
    marks.append((name, time.perf_counter(), used.ru_utime + used.ru_stime))
mark("begin")
"""
LOAD = """
import vitreous
import gc; gc.disable(); import torch; gc.enable(); mark("import torch, no collection")
vitreous.load; mark("import what load needs")
model = vitreous.load(sys.argv[1]); mark("read the weights")
vitreous.predict; mark("import what predict needs")
from vitreous.images.sources import image_file
pixels = image_file.decode(open(sys.argv[2], "rb").read(), sys.argv[2]); mark("decode the image")
next(vitreous.predict(model, sys.argv[2])); mark("first answer")
next(vitreous.predict(model, sys.argv[2])); mark("second answer")
"""
CALL = """
import vitreous
vitreous.load(sys.argv[1]); mark("import vitreous, load")
"""
END = """
import json
print(json.dumps({name: [w - marks[i][1], c - marks[i][2]] for i, (name, w, c) in enumerate(marks[1:])}))
"""


def jobs(model: str, image: str, photos: str | None, folder: str) -> dict[str, list[str]]:
    """Name and arguments of Python; `-c` programs print their own parts."""
    ours = ["-m", "vitreous"]
    found = {
        "vitreous --help": [*ours, "--help"],
        "vitreous predict": [*ours, "predict", model, image, "--untrained"],
        "load": ["-c", CLOCK + CALL + END, model],
        "parts": ["-c", CLOCK + LOAD + END, model, image],
        "vitreous models": [*ours, "models"],
    }
    if photos is not None:
        found["vitreous fit"] = [*ours, "fit", photos, "--out", f"{folder}/run", "--force"]
    return found


def run(checkout: Path, arguments: list[str], cache: str) -> dict[str, list[float]]:
    """Wall and CPU seconds of the process, and of its parts if it reports them."""
    env = os.environ | {"PYTHONPATH": str(checkout / "src"), "VITREOUS_CACHE": cache}
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True, env=env)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(done.stdout) if arguments[0] == "-c" else {"whole": [wall, used]}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--against", type=Path, help="another checkout: before")
    arguments.add_argument("--rounds", type=int, default=9)
    arguments.add_argument("--photos", help="a folder of images; `fit` of them takes two rounds")
    arguments.add_argument("--out", type=Path)
    chosen = arguments.parse_args()
    sides = {"now": OURS} | ({} if chosen.against is None else {"before": chosen.against.resolve()})
    times: dict[str, dict[str, list[list[float]]]] = {side: {} for side in sides}
    with tempfile.TemporaryDirectory() as folder:
        model, image = f"{folder}/model.safetensors", f"{folder}/photograph.jpg"
        vitreous.save(vitreous.build("Ti/16", seed=0), model)
        Image.effect_mandelbrot((640, 480), (-2, -1, 1, 1), 100).convert("RGB").save(image)
        for name, job in jobs(model, image, chosen.photos, folder).items():
            for k in range(min(chosen.rounds, 2) if name == "vitreous fit" else chosen.rounds):
                for side in list(sides) if k % 2 else list(sides)[::-1]:
                    with tempfile.TemporaryDirectory() as cache:
                        found = run(sides[side], job, cache)
                    for part, seconds in found.items():
                        times[side].setdefault(name if part == "whole" else f"{name}: {part}", []).append(seconds)
    body: dict[str, Any] = {"benchmark": "laptop", "rounds": chosen.rounds}
    body |= {side: {name: _spread(rows) for name, rows in found.items()} for side, found in times.items()}
    text = json.dumps(body | record(), indent=1)
    print(text)
    if chosen.out is not None:
        chosen.out.write_text(text + "\n")


def _spread(rows: list[list[float]]) -> dict[str, list[float]]:
    """Least, median, most."""
    columns = zip(("wall", "cpu"), zip(*rows, strict=True), strict=True)
    return {kind: [round(f(column), 3) for f in (min, statistics.median, max)] for kind, column in columns}


if __name__ == "__main__":
    main()
