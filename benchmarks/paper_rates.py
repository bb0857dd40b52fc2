"""Each network of the gpu scale gets the rate that dev prefers.   python benchmarks/paper_rates.py --pilots FOLDER

Reads FOLDER/pilots.json, which `paper_runner.py --scale gpu --keep FOLDER` wrote, and writes
src/vitreous/papers/experiments/rates.json: for each network and optimizer the rate whose pilot was right most often on
dev, and the pilots' numbers. A network without all of its pilots is left out, and keeps the middle rate.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from vitreous.papers.experiment import walk
from vitreous.papers.experiments import EXPERIMENTS
from vitreous.papers.experiments.gpu_scale import PILOT_RECIPE, PILOT_SEED, RATES_FILE, pilots
from vitreous.papers.results import read


def chosen(file: Path) -> dict[str, Any]:
    """What rates.json says."""
    known = {record.key: record for record in read(file)}
    grids = [one.placed("gpu", 2) for one in EXPERIMENTS.values() if "gpu" in one.scales]
    rates, right = {}, {}
    for network, by_rate in sorted(pilots(walk(one.cell for grid in grids for one in grid)).items()):
        found = {rate: known[cell.key].readings["dev_accuracy"] for rate, cell in by_rate.items() if cell.key in known}
        right[network] = {f"{rate:g}": round(value, 6) for rate, value in found.items()}
        if len(found) == len(by_rate):
            rates[network] = max(found, key=lambda rate: (found[rate], -rate))
    how = f"{PILOT_RECIPE['length']} of {PILOT_RECIPE['batch']} images, seed {PILOT_SEED}"
    about = f"right on dev after {how}, by rate; the best is taken"
    environment = next(iter(known.values())).environment
    return {"about": about, "rates": rates, "pilots": right, "environment": dict(environment)}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--pilots", type=Path, required=True)
    arguments.add_argument("--out", type=Path, default=RATES_FILE)
    asked = arguments.parse_args()
    body = chosen(asked.pilots / "pilots.json")
    asked.out.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n")
    for network, rate in body["rates"].items():
        print(f"{rate:g}  {network}  {body['pilots'][network]}")


if __name__ == "__main__":
    main()
