"""What the model would answer if it stopped early: its final norm and head on every block's output (the logit lens)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.measures.drawing import BLOCK_AXIS, banded, blocks_of, chance_of, lines_of
from vitreous.measures.measure import (
    Arrays,
    Averages,
    Drawn,
    Found,
    Measure,
    bands,
    caution_of_shares,
    number_of,
    plain,
)
from vitreous.measures.subject import Subject, needs_attention, needs_head
from vitreous.models.vit import ViT
from vitreous.report import charts
from vitreous.report.files import Panel
from vitreous.words import counted


def early_logits(model: ViT, z: Tensor) -> Tensor:
    """Final norm, pool and head on tokens of any depth.  B T D -> B K"""
    return model.head(model.representation(model.pool(model.norm(z))))


class _Lens(Averages):
    def __init__(self, subject: Subject, other: Subject | None = None):
        super().__init__(subject)
        self.early: dict[str, Tensor] = {}
        self.leader: str | None = None

    def see(self, tap: str, x: Tensor, side: int = 0) -> None:
        model: Any = self.subject.model
        if tap != "logits":
            self.early[tap] = early_logits(model, x).float()
            return
        final = x.float()
        last = final.argmax(-1)
        self.leader = self.subject.leader(last)
        places: np.ndarray = self.subject.of_batch["places"]
        truth = None if self.subject.truth is None else torch.from_numpy(self.subject.truth[places]).to(last.device)
        if truth is not None:
            self.gather("labelled", (truth >= 0).double())
        for name, early in self.early.items():
            answer = early.argmax(-1)
            self.gather(f"{name} same", (answer == last).double())
            self.gather(f"{name} chance", self.subject.chances(early).gather(1, last[:, None])[:, 0])
            if truth is not None:
                self.gather(f"{name} right", (answer == truth).double())
        self.early = {}

    def drop(self) -> None:
        super().drop()
        self.early = {}

    def finish(self) -> Found:
        names = [name.removesuffix(" same") for name in self.sums if name.endswith(" same")]
        labelled = self.mean("labelled").item() if "labelled" in self.sums else 0.0  # share of the images
        rows = [
            {
                "layer": number_of(name),
                "same_answer": plain(self.mean(f"{name} same").item()),
                "same_answer_error": plain(self.error(f"{name} same").item()),
                "chance_of_answer": plain(self.mean(f"{name} chance").item()),
                "accuracy": plain(self.mean(f"{name} right").item() / labelled) if labelled else None,
            }
            for name in names
        ]
        return {"images": self.images, "leader": self.leader if self.images == 1 else None, "rows": rows}


def _say(found: Found) -> str:
    early = [row["layer"] for row in found["rows"] if row["same_answer"] < 0.5]
    block = max(early, default=-1) + 2  # from 1: the block from which on at least half of the answers stay
    what = f"read early, {found['leader']} leads" if found["images"] == 1 else "half of the final answers stand"
    return f"{what} from block {block} on" if block < len(found["rows"]) else f"{what} only at the end"


def _why_not(subject: Subject, other: Subject | None = None) -> str | None:
    if needs_attention(subject) is not None:
        return f"{subject.name} is a ResNet: the layers below have other channels than its head reads"
    return needs_head(subject)


def _draw(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    rows = found["rows"]
    x = blocks_of(rows)
    named = {"chance given it": "chance_of_answer", "right": "accuracy"}
    series = [
        banded("same answer", rows, x, "same_answer", "same_answer_error", within=(0, 1)),
        *lines_of(rows, x, named),
    ]
    if found["images"] == 1:
        series = lines_of(rows, x, {chance_of(found): "chance_of_answer"}, has_points=True)
    chart = charts.lines(
        series, title="the final answer, read early", x_title=BLOCK_AXIS, x_is_whole=True, is_share=True,
        y_range=(0.0, 1.0),
    )  # fmt: skip
    return [Drawn([Panel(chart, "One image, read early" if found["images"] == 1 else "Share of images")])]


LENS = Measure(
    name="logit-lens",
    sentence="After which block the answer stands, if the head read every block's output.",
    figure="not in P1 or P2; beside P2 figure 13",
    saw="Not measured there.",
    start=_Lens,
    says=_say,
    taps={"vit": ("blocks.*.output", "logits")},
    why_not=_why_not,
    draw=_draw,
    caution=caution_of_shares,
    method=lambda found: (
        f"Final norm, pool and head on every block's output, over {counted(found['images'], 'image')}, against the "
        f"model's answer{bands(found)}."
    ),
    rank=9,
)
