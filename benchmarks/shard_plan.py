"""The order of a huge set of shards, planned without reading an image.   python benchmarks/shard_plan.py

Makes 4,000 empty shards of 10,000 samples with an index beside them (about 3 GB of disk while it runs), opens them as
`vitreous fit` does, and plans steps as single ranks of 1 to 2,000 would. Each number comes from a process of its own;
seconds are its CPU time, since reading depends on the disk.

    open_first     reads the index and writes the table that all processes of a machine share
    open_again     maps the table
    plan           the first 50 steps of one rank, and 50 in the middle of the epoch, a batch of 4,000
    whole_epoch    every window of the order: each sample once
    resume         the rest of an epoch at another number of ranks
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np

from vitreous import images
from vitreous.images.batches.batches import Batches, Loading, Order
from vitreous.images.stores.shard_index import INDEX_FILE
from vitreous.images.stores.shard_table import Index
from vitreous.machine import record
from vitreous.models.preprocess import Preprocess
from vitreous.ranks import Ranks

BATCH = 4_000
STEPS = 50
WORLDS = (1, 8, 80, 500, 2_000)


def make_shards(folder: Path, shards: int, each: int) -> None:
    """Shards that take no room, and the index that lists what would lie in them."""
    size = 110 * 1024
    starts = [512 + (size + 2048) * i for i in range(each)]
    with (folder / INDEX_FILE).open("wb") as file:
        for n in range(shards):
            path = folder / f"train-{n:05d}.tar"
            with path.open("wb") as tar:
                tar.truncate((size + 2048) * each + 10240)
            keys = [f"{n:05d}{i:05d}.jpg" for i in range(each)]
            label = ((np.arange(each) * 7919 + n) % 1000).tolist()
            samples = Index(keys, starts, [size] * each, label).packed()
            state = path.stat()
            mark = f"{path.name} {state.st_size} {state.st_mtime_ns}"
            file.write(msgspec.json.encode({"mark": mark, "count": each, "samples": samples}) + b"\n")


def memory() -> dict[str, float]:
    """MB of this process: at its peak, and what it shares with no other."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    private = sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"peak_mb": round(peak / 1024), "private_mb": round(private / 1024)}


def batches(folder: Path, rank: int, world: int) -> Batches:
    train = images.open(folder, split="train")
    order = Order(batch=BATCH, seed=1, epochs=2, shuffle=True, ranks=Ranks(rank, world))
    return Batches(train, order, Loading(preprocess=Preprocess(size=(8, 8)), workers=0))


def plan(folder: Path, rank: int, world: int) -> dict[str, float]:
    """What one rank does before and while it reads."""
    begin = time.process_time()
    mine = batches(folder, rank, world)
    opened = time.process_time() - begin
    begin = time.process_time()
    middle = len(mine.data) // BATCH // 2 * BATCH
    for place in (0, middle):
        steps = mine._steps(0, place)
        shares = [len(next(steps).members) for _ in range(STEPS)]
        assert set(shares) == {BATCH // world}
    each = (time.process_time() - begin) / (2 * STEPS)
    begin = time.process_time()
    mine.state()
    state = time.process_time() - begin
    return {"open_s": round(opened, 2), "step_ms": round(1e3 * each, 3), "state_s": round(state, 2), **memory()}


def whole_epoch(folder: Path) -> dict[str, float]:
    """All windows of one epoch: every sample once."""
    mine = batches(folder, 0, 1)
    n, seen = len(mine.data), np.zeros(len(mine.data), np.uint8)
    begin = time.process_time()
    for at in range(0, n, 100_000):
        np.add.at(seen, mine._places.members(0, np.arange(at, min(at + 100_000, n))), 1)
    assert (seen == 1).all()
    return {"samples": n, "seconds": round(time.process_time() - begin, 1), **memory()}


def resume(folder: Path) -> dict[str, int]:
    """Three steps at 2,000 ranks, then the next two at 500: the global batches of one rank that never stopped."""
    whole = batches(folder, 0, 1)
    straight = whole._steps(0, 0)
    wanted = [next(straight).members for _ in range(5)]
    for world, steps in ((2_000, range(3)), (500, range(3, 5))):
        for step in steps:
            parts = []
            for rank in range(world):
                whole.ranks = Ranks(rank, world)
                parts.append(next(whole._steps(0, step * BATCH)).members)
            assert np.array_equal(np.concatenate(parts), wanted[step])
    return {"ranks_before": 2_000, "ranks_after": 500, "steps_compared": 5}


def child(*words: object, cache: str) -> dict[str, float]:
    """One measurement in a process of its own."""
    environment = os.environ | {"VITREOUS_CACHE": cache, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, __file__, *map(str, words)], capture_output=True, text=True, env=environment, check=True
    )
    return json.loads(ran.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=4_000)
    parser.add_argument("--each", type=int, default=10_000)
    parser.add_argument("--as-rank", nargs=2, type=int, metavar=("RANK", "WORLD"))
    parser.add_argument("--task")
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if args.task:
        tasks = {"plan": lambda folder: plan(folder, *args.as_rank), "whole": whole_epoch, "resume": resume}
        print(json.dumps(tasks[args.task](args.folder)))
        return
    folder = Path(tempfile.mkdtemp(prefix="vitreous-shards-"))
    cache = str(folder / "cache")
    try:
        data = folder / "set"
        data.mkdir()
        make_shards(data, args.shards, args.each)
        first = child("--task", "plan", "--as-rank", 0, 1, "--folder", data, cache=cache)
        found = {
            "samples": args.shards * args.each,
            "shards": args.shards,
            "index_mb": round((data / INDEX_FILE).stat().st_size / 2**20),
            "table_mb": round(sum(f.stat().st_size for f in Path(cache).rglob("*.bin")) / 2**20),
            "open_first": first,
            "ranks": {
                str(world): child("--task", "plan", "--as-rank", world - 1, world, "--folder", data, cache=cache)
                for world in WORLDS
            },
            "whole_epoch": child("--task", "whole", "--folder", data, cache=cache),
            "resume": child("--task", "resume", "--folder", data, cache=cache),
            "machine": record(),
        }
    finally:
        shutil.rmtree(folder)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
