"""The work `shift`: the share of a trained model's answers that survive a shift of the image by a few pixels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vitreous.evaluation.inference import make_batches, ready
from vitreous.images.imageset import TEST
from vitreous.machine import choose_device
from vitreous.measures.shift import shifted
from vitreous.papers.experiment import Cell
from vitreous.papers.works.bench import Bench, Readings, Work
from vitreous.papers.works.look import dealt
from vitreous.ranks import here


def shift(trained: Cell, data: str, pixels: Sequence[int], *, seen: int = 512) -> Cell:
    """pixels: of each shift, the same for every network that is compared.  seen: test images."""
    return Cell("shift", {"data": data, "pixels": list(pixels), "seen": seen}, (trained,), SHIFT_WORK.version)


def run_shift(cell: Cell, bench: Bench) -> Readings:
    """same_answer: the mean over shifts; same_answer_by_shift: a share for each."""
    options = cell.options
    model, place = bench.model(cell.needs[0]), choose_device(bench.device)
    shown = dealt(bench.sets.open(options["data"]).split(TEST), options["seen"])
    kept, images = torch.zeros(len(options["pixels"])), 0
    with ready(model, place) as answer:
        for part in make_batches(model, shown, place, None, bench.workers, False, here()):
            still = answer(part.images)[:, :-1].argmax(-1)
            moved = [answer(shifted(part.images, by))[:, :-1].argmax(-1) for by in options["pixels"]]
            kept += torch.stack([(one == still).sum() for one in moved]).cpu()
            images += len(part)
    shares = [float(share) for share in kept / images]
    return {"same_answer": sum(shares) / len(shares), "same_answer_by_shift": shares}


SHIFT_WORK = Work(run_shift)
