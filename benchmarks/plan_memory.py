"""What `vitreous plan` says beside what one GPU does: memory and time.   python benchmarks/plan_memory.py [--toy]

Memory: the most that torch holds over 5 training steps of `fit` (torch.cuda.max_memory_allocated), each case in a
process of its own, uncompiled as the plan models it and then compiled; ratio is predicted / measured. Goal: within 10 %
for B/16, L/16, H/14 and BiT-R50x1, with and without checkpointing.
FSDP2 on one device: seconds of a step over those of a plain one, compiled block by block, round by round. Goal: below
1.03. H/14: timm's bare step over ours, as benchmarks/train_speed.py does it.
--toy rehearses all of it on a CPU, tiny: memory is not measured there.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from train_speed import spread, their_step

from vitreous.machine import record
from vitreous.models.catalog import parse
from vitreous.models.config import Config
from vitreous.ranks import group
from vitreous.training.plan import memory
from vitreous.training.plan.trial import make_work, measure, seconds_each
from vitreous.training.recipe import Recipe

CASES = [("B/16", 256), ("L/16", 128), ("H/14", 64), ("BiT-R50x1", 256)]  # network, images of a step
TOY = [("Ti/16 depth=2 width=32 heads=2 mlp=64 image_size=32 classes=10", 8)]
SHARDED, TIMM = ("L/16", 64), ("H/14", "vit_huge_patch14_224", 64)
MODES = ("none", "whole")  # what is compiled


def one_case(model: str, batch: int, checkpointing: bool, compiled: str, device: torch.device) -> dict[str, Any]:
    """In a process of its own, so that nothing else is held."""
    config, is_gpu = parse(model), device.type == "cuda"
    precision = "bfloat16" if is_gpu else "float32"
    said = memory.memory(config, batch, "adamw", precision, checkpointing=checkpointing)
    kind = compiled if is_gpu else "none"
    timed = measure(
        config, Recipe(batch=batch), device, steps=5, checkpointing=checkpointing, compiled=kind, captured=False
    )
    return {
        "model": model,
        "batch": batch,
        "checkpointing": checkpointing,
        "compiled": kind,
        "precision": precision,
        "predicted": said.to_json(),
        "measured": timed.memory,
        "ratio": None if timed.memory is None else round(said.total / timed.memory, 4),
        "seconds_a_step": timed.seconds,
    }


def alone(words: list[str]) -> dict[str, Any]:
    """One case, in a process of its own; a case that fails says why and stops no other."""
    done = subprocess.run([sys.executable, __file__, "--one", *words], capture_output=True, text=True)
    if done.returncode:
        return {"case": words, "error": done.stderr.strip().splitlines()[-1:]}
    return json.loads(done.stdout.splitlines()[-1])


def pairs(ours: Callable[[], None], other: Callable[[], None], device: torch.device, rounds: int) -> list[float]:
    """Seconds of `other` over seconds of `ours`, round by round."""
    for work in (ours, other):
        for _ in range(4):
            work()
    steps = max(1, round(0.5 / seconds_each(ours, 2, device)))
    found = [(seconds_each(ours, steps, device), seconds_each(other, steps, device)) for _ in range(rounds)]
    return [theirs / own for own, theirs in found]


def sharded(model: str, batch: int, device: torch.device, rounds: int) -> dict[str, Any]:
    """FSDP2 on one device over a plain step: both compiled block by block, neither captured; and over `fit`'s own."""
    try:
        from vitreous.training.plan.parallel import Strategy
    except ImportError:
        return {"error": "this vitreous has no FSDP"}
    config, recipe, is_gpu = parse(model), Recipe(batch=batch), device.type == "cuda"
    kind = "blocks" if is_gpu else "none"
    with group(device, even_alone=True):
        shards = make_work(config, recipe, device, compiled=kind, captured=False, strategy=Strategy("fsdp"))
        plain = make_work(config, recipe, device, compiled=kind, captured=False)
        alike = pairs(plain, shards, device, rounds)
        whole = pairs(make_work(config, recipe, device), shards, device, rounds)
    return {
        "model": model,
        "batch": batch,
        "fsdp_over_plain_10_50_90": spread(alike),
        "fsdp_over_fit_10_50_90": spread(whole),
        "bar": 1.03,
        "rounds": rounds,
    }


def beside_timm(model: str, theirs: str, batch: int, device: torch.device, rounds: int) -> dict[str, Any]:
    config: Config = parse(model)
    ours = make_work(config, Recipe(batch=batch), device)
    peer = their_step(theirs, config.image_size[0], config.readout.classes, batch, device)
    ratios = pairs(ours, peer, device, rounds)
    seconds = statistics.median(seconds_each(ours, 2, device) for _ in range(3))
    return {
        "model": model,
        "peer": theirs,
        "batch": batch,
        "timm_over_ours_10_50_90": spread(ratios),
        "our_images_per_second": round(batch / seconds),
        "rounds": rounds,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--toy", action="store_true")
    arguments.add_argument("--one", nargs=5, help="MODEL BATCH CHECKPOINTING COMPILED DEVICE")
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--out", type=Path)
    asked = arguments.parse_args()
    if asked.one:
        model, batch, again, compiled, device = asked.one
        print(json.dumps(one_case(model, int(batch), again == "True", compiled, torch.device(device))))
        return
    device = torch.device("cpu" if asked.toy else "cuda")
    cases = TOY if asked.toy else CASES
    words = [
        [model, str(batch), str(again), compiled, device.type]
        for model, batch in cases
        for again in (False, True)
        for compiled in (MODES[:1] if asked.toy else MODES)
    ]
    body: dict[str, Any] = {"benchmark": "plan_memory", "memory": []}
    for case in words:
        body["memory"].append(alone(case))
        print(json.dumps(body["memory"][-1]), file=sys.stderr, flush=True)
    body["fsdp"] = sharded(*(TOY[0] if asked.toy else SHARDED), device, asked.rounds)
    body["timm"] = beside_timm(*((TOY[0][0], "", TOY[0][1]) if asked.toy else TIMM), device, asked.rounds)
    body |= record()
    print(json.dumps(body, indent=2))
    if asked.out:
        asked.out.write_text(json.dumps(body, indent=2) + "\n")


if __name__ == "__main__":
    main()
