"""How many classes, how many examples: frozen features in small tasks.   python benchmarks/ways_shots.py MODEL DATA

Test images only, nearest class mean by cosine; 600 episodes a cell, with the 95 % interval of their mean.
"""

import argparse
import json
from pathlib import Path

import vitreous
from vitreous.evaluation import episodes, extract
from vitreous.machine import record

WAYS, SHOTS = (2, 5, 10, 20), (1, 2, 5, 10, 20)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("model")
    arguments.add_argument("data")
    arguments.add_argument("--episodes", type=int, default=600)
    arguments.add_argument("--out", type=Path)
    asked = arguments.parse_args()
    data = vitreous.images.open(asked.data)
    found = extract(vitreous.load(asked.model), data.split("test"))
    rows = []
    for ways in WAYS:
        for shots in SHOTS:
            one = episodes(found.only, found.labels, ways=ways, shots=shots, count=asked.episodes, likening="cosine")
            rows.append({"ways": ways, "shots": shots, "accuracy": one.mean, "interval_95": list(one.interval)})
            print(json.dumps(rows[-1]), flush=True)
    names = {"model": Path(asked.model).name, "data": Path(asked.data).name, "images": len(found)}
    body = {"benchmark": "ways_shots", **names, "episodes": asked.episodes, "cells": rows, **record()}
    if asked.out:
        asked.out.write_text(json.dumps(body, indent=2) + "\n")


if __name__ == "__main__":
    main()
