"""What a shift of the image by a few pixels changes: answers and features (Q11, M55 to M58)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.measures.drawing import banded, both_rows, chance_of, column, lines_of
from vitreous.measures.measure import Arrays, Drawn, Found, Measure, Reading, caution_of_shares, plain
from vitreous.measures.subject import Subject, in_chunks, needs_head
from vitreous.report import charts
from vitreous.report.files import Panel
from vitreous.words import counted

MAX_SHIFTS = 16
IMAGES_AT_ONCE = 32


def shifted(images: Tensor, pixels: int) -> Tensor:
    """Images moved to the right; the left edge is repeated.  B C H W"""
    if not 0 <= pixels < images.shape[-1]:
        raise ValueError(f"a shift of {pixels} pixels leaves nothing of {images.shape[-1]}; give a smaller one")
    width = images.shape[-1]
    columns = (torch.arange(width, device=images.device) - pixels).clamp(min=0)
    return images[..., columns]


def steps(subject: Subject) -> list[int]:
    """Up to MAX_SHIFTS shifts from 1 to P pixels; P is the patch size, or 16 for a ResNet."""
    width = subject.model.config.image_size[1]
    patch = min(round(subject.patch[1]) if "vit" in subject.families else 16, width - 1)
    step = max(1, -(-patch // MAX_SHIFTS))
    return sorted({*range(step, patch + 1, step), 1, patch} - {0})


class _Shift(Reading):
    @torch.inference_mode()
    def finish(self) -> Found:
        images = self.subject.first(self.subject.settings.few)
        base, answers, chances = self._run(images)
        has_head = needs_head(self.subject) is None
        rows = []
        for pixels in steps(self.subject):
            features, moved_answers, moved_chances = self._run(shifted(images, pixels))
            cosine = F.cosine_similarity(base, features, dim=-1)
            row = {"shift_px": pixels, "feature_cosine": plain(cosine.mean().item())}
            row["feature_cosine_error"] = _error(cosine)
            row["same_answer"] = plain((moved_answers == answers).double().mean().item()) if has_head else None
            row["chance_change"] = (
                plain((moved_chances - chances).abs().sum(-1).mean().item() / 2) if has_head else None
            )
            kept = moved_chances.gather(1, answers[:, None]).mean().item() if has_head else None
            rows.append(row | {"chance_of_answer": plain(kept)})
        return {"images": len(images), "leader": self.subject.leader(answers), "rows": rows}

    def _run(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features, answers and their chances."""
        model = self.subject.model

        def answer(part: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
            features = model.features(self.subject.normalised(part))
            logits = model.head(features).float()
            self.subject.tick(len(part))
            return features.float(), logits.argmax(-1), self.subject.chances(logits)

        features, answers, chances = zip(*in_chunks(images, IMAGES_AT_ONCE, answer), strict=True)
        return torch.cat(features), torch.cat(answers), torch.cat(chances)


def _error(values: Tensor) -> float | None:
    """Standard error of the mean; None for a single value."""
    return plain((values.std() / len(values) ** 0.5).item()) if len(values) > 1 else None


def _say(found: Found) -> str:
    worst = min(found["rows"], key=lambda row: row["feature_cosine"])
    text = f"features keep a cosine of {worst['feature_cosine']:.2f} under a shift of {worst['shift_px']} px"
    kept = [row["same_answer"] for row in found["rows"] if row["same_answer"] is not None]
    if not kept:
        return text
    if found["images"] == 1:
        lost, leader = sum(share < 1 for share in kept), found["leader"]
        return text + (
            f"; another class than {leader} leads at {lost} of {len(kept)} shifts"
            if lost
            else f"; {leader} still leads"
        )
    return f"{text}; at least {100 * min(kept):.0f} % of the answers stay"


def _draw(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    rows = found["rows"]
    x = column(rows, "shift_px")
    key, name = ("same_answer", "same answer") if found["leader"] is None else ("chance_of_answer", chance_of(found))
    series = [
        banded("cosine of features", rows, x, "feature_cosine", "feature_cosine_error"),
        *lines_of(rows, x, {name: key}),
    ]
    every = [row[each] for row in both_rows(found, beside) for each in ("feature_cosine", key)]
    least = min((v for v in every if v is not None), default=0.0)
    chart = charts.lines(
        series, title="what a shift changes", x_title="shift, pixels", x_is_whole=True,
        y_range=(math.floor(10 * max(least - 0.02, -1)) / 10, 1.02),
    )  # fmt: skip
    return [Drawn([Panel(chart, "What stays under a shift")])]


SHIFT = Measure(
    name="shift",
    sentence="How much answers and features change when the image moves by a few pixels.",
    figure="not in P1 or P2; their claims on translation",
    saw="Not measured there.",
    start=_Shift,
    says=_say,
    cost="up to 17 forwards, on 64 images",
    forwards=lambda subject: (len(steps(subject)) + 1) * min(subject.settings.few, len(subject.data)),
    draw=_draw,
    caution=caution_of_shares,
    method=lambda found: (
        f"{counted(found['images'], 'image')}, moved to the right, the left edge repeated; against the image as it was."
    ),
    rank=11,
)
