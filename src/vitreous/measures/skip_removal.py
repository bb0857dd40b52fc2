"""What a skip connection is worth: the trained model without it (beside figure 8 of arXiv 2108.08810).

P2 trains networks without a skip; here a trained network loses the skips of one block at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitreous.measures.drawing import chance_of, layer_name, lines_of
from vitreous.measures.measure import Arrays, Drawn, Found, Measure, Reading, caution_of_shares, plain
from vitreous.measures.similarity import ENOUGH_IMAGES, MIN_BATCH, Likeness, cka, known_mean
from vitreous.measures.subject import Subject, in_chunks, needs_head
from vitreous.models.taps import taps
from vitreous.report import charts
from vitreous.report.files import Panel
from vitreous.words import counted

IMAGES_AT_ONCE = 32


def cut_contrast(matrix: list[list[float | None]], cut: int) -> float | None:
    """Mean CKA across a cut minus mean CKA within its sides.

    matrix: L L, of CKA.  cut: the first layer of the upper side.
    """
    count = len(matrix)
    pairs = [(i, j) for i in range(count) for j in range(i)]
    across = known_mean([matrix[i][j] for i, j in pairs if (i < cut) != (j < cut)])
    within = known_mean([matrix[i][j] for i, j in pairs if (i < cut) == (j < cut)])
    return None if across is None or within is None else across - within


def places(subject: Subject) -> dict[str, list[str]]:
    """Blocks and units, and the skips of each."""
    found: dict[str, list[str]] = {}
    for name, _ in subject.model.named_modules():
        place, _, part = name.rpartition(".")
        if part in ("skip1", "skip2", "skip"):
            found.setdefault(place, []).append(name)
    return found


class _Removal(Reading):
    def finish(self) -> Found:
        subject = self.subject
        blocks = places(subject)
        outputs = [f"{place}.output" for place in blocks]
        intact, logits, likeness = self._run([], outputs)
        answers = logits.argmax(-1)
        leader = subject.leader(answers)
        truth = None
        if subject.truth is not None and subject.sample_places is not None:
            truth = torch.from_numpy(subject.truth[subject.sample_places[: len(answers)]])
        rows = []
        for cut, (place, skips) in enumerate(blocks.items()):
            features, cut_logits, changed = self._run(skips, outputs)
            cut_answers = cut_logits.argmax(-1)
            row: dict[str, Any] = {"block": place, "features_cka": None, "same_answer": None, "accuracy_change": None}
            if len(features) >= MIN_BATCH:
                row["features_cka"] = plain(cka(intact, features))
            if needs_head(subject) is None:
                row["same_answer"] = plain((cut_answers == answers).double().mean().item())
            if truth is not None:
                known = truth >= 0
                right, was = ((each == truth)[known].double().mean().item() for each in (cut_answers, answers))
                row["accuracy_change"] = plain(right - was)
            before, after = (None if each is None else cut_contrast(each.matrix(), cut) for each in (likeness, changed))
            row["chance_of_answer"] = None if leader is None else self._chance(cut_logits, answers)
            rows.append(row | {"contrast_intact": plain(before), "contrast_without": plain(after)})
        chance = None if leader is None else self._chance(logits, answers)
        return {"images": len(intact), "leader": leader, "chance_of_answer": chance, "rows": rows}

    def _chance(self, logits: Tensor, answers: Tensor) -> float:
        """What the first image's answer without a cut is given."""
        return float(plain(self.subject.chances(logits)[0, answers[0]].item()))

    @torch.inference_mode()
    def _run(self, skips: list[str], outputs: list[str]) -> tuple[Tensor, Tensor, Likeness | None]:
        """Features, logits, and likeness of the blocks' outputs, with these skips cut."""
        likeness, model = Likeness(), self.subject.model

        def answer(part: Tensor, first: int) -> tuple[Tensor, Tensor]:
            with taps(model, outputs, edit=dict.fromkeys(skips, torch.zeros_like)) as seen:
                features = model.features(self.subject.normalised(part))
            if len(part) >= MIN_BATCH:
                likeness.add(seen)
            self.subject.tick(len(part))
            return features.float().cpu(), model.head(features).float().cpu()

        images = self.subject.first(self.subject.settings.few)
        features, logits = zip(*in_chunks(images, IMAGES_AT_ONCE, answer), strict=True)
        return torch.cat(features), torch.cat(logits), likeness if likeness.batches else None


def _say(found: Found) -> str:
    known = [row for row in found["rows"] if row["same_answer"] is not None]
    if not known:
        worst = min(found["rows"], key=lambda row: 1 if row["features_cka"] is None else row["features_cka"])
        likeness = "unknown" if worst["features_cka"] is None else f"{worst['features_cka']:.2f}"
        return f"without the skips of {layer_name(worst['block'])} the features change most (likeness {likeness})"
    if found["images"] == 1:
        lost = sum(row["same_answer"] < 1 for row in known)
        return (
            f"without one block's skips another class than {found['leader']} leads in {lost or 'none'} of "
            f"{counted(len(known), 'case')}"
        )
    low, high = (f"{100 * pick(row['same_answer'] for row in known):.0f}" for pick in (min, max))
    share = low if low == high else f"{low} to {high}"
    return f"without the skips of any one {_parts(found)}, {share} % of the answers stay"


def _parts(found: Found) -> str:
    """What loses its skips: blocks of a ViT, units of a ResNet, or both in a hybrid."""
    return " or ".join(sorted({"block" if row["block"].startswith("blocks.") else "unit" for row in found["rows"]}))


def _draw(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    rows = found["rows"]
    named, level = {"same answer": "same_answer"}, None
    if found["images"] >= ENOUGH_IMAGES:
        named["likeness of features"] = "features_cka"
    if found["leader"] is not None:
        named, level = {chance_of(found): "chance_of_answer"}, (found["chance_of_answer"], "with all skips")
    chart = charts.lines(
        lines_of(rows, range(1, len(rows) + 1), named, has_points=True),
        title="what is left without the skips of one block", is_share=True, x_is_whole=True,
        x_title=f"{_parts(found)} that lost its skips", y_range=(0.0, 1.0),
        level=level,
    )  # fmt: skip
    return [Drawn([Panel(chart, "What is left without its skips")])]


REMOVAL = Measure(
    name="skip-removal",
    sentence="What is left of the answers when one block loses its skip connections.",
    figure="beside P2 figure 8, which trains without them",
    saw="Without the skips of a block, layers below and above it become unlike.",
    start=_Removal,
    says=_say,
    cost="a forward for each block, on 64 images",
    forwards=lambda subject: (len(places(subject)) + 1) * min(subject.settings.few, len(subject.data)),
    why_not=lambda subject, other: None if places(subject) else f"{subject.name} has no skip connections",
    draw=_draw,
    caution=caution_of_shares,
    method=lambda found: (
        "One block at a time loses its skip connections, the model otherwise as it is; "
        f"{counted(found['images'], 'image')}."
    ),
    rank=12,
)
