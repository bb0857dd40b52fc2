"""`vitreous demo` seed by seed, beside its rival.   python benchmarks/demo.py --out benchmarks/results/demo.json"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vitreous.machine import record


def one(seed: int) -> dict:
    """The command itself, from its start to its end."""
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "vitreous", "demo", "--seed", str(seed), "--out", f"{folder}/run", "--json"]
        begin = time.monotonic()
        found = json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
        wall = time.monotonic() - begin
    judged = found["judged"]
    return {
        "seed": seed,
        "right": judged["right"],
        "images": judged["images"],
        "accuracy": judged["top1"],
        "interval_95": judged["interval"],
        "rival": found["rivals"][0],
        "steps": found["steps"],
        "training_seconds": found["seconds"],
        "images_per_second": found["images_per_second"],
        "wall_seconds": wall,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    arguments.add_argument("--out", type=Path)
    asked = arguments.parse_args()
    runs = [one(seed) for seed in asked.seeds]
    body = {"benchmark": "demo", "runs": runs, "mean": sum(run["accuracy"] for run in runs) / len(runs), **record()}
    print(json.dumps(body, indent=2))
    if asked.out:
        asked.out.write_text(json.dumps(body, indent=2) + "\n")


if __name__ == "__main__":
    main()
