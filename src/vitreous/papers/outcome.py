"""What an experiment found: its table, its intervals and its verdicts, derived from finished cells alone."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from vitreous.machine import doctor
from vitreous.papers.experiment import POINTS, RELEASED, ArmTable, Claim, Experiment, GridCell, ScaleName
from vitreous.papers.experiments import EXPERIMENTS
from vitreous.papers.results import DIVERGED, Record, Results, stale
from vitreous.papers.sets import is_other_copy, named_sets, plain_name
from vitreous.papers.setting import setting
from vitreous.papers.verdict import NOT_RUN, Effect, Judgement, Weighed, judge
from vitreous.words import aligned, counted, duration

NO_SPREAD = "–"
SHARES = re.compile(r"accuracy|_shot|share|same_answer|_kept|survive")  # readings that are shares


@dataclass(frozen=True)
class PaperOutcome:
    """An experiment at one scale, as far as its cells are finished."""

    experiment: Experiment
    scale: ScaleName
    placed: list[GridCell]
    results: Results
    failures: dict[str, str] = field(default_factory=dict)  # arm and seed: why the cell could not be computed

    @cached_property
    def table(self) -> ArmTable:
        return self.results.table(self.placed)

    @cached_property
    def claims(self) -> list[tuple[Claim, Judgement]]:
        """The claims, judged together with all claims of the family at this scale.

        One that cannot be tested here counts among those of the family, and gets no verdict.
        """
        asked = [(claim, _effects(claim, self.table), self._seeds) for claim in self.experiment.claims_at(self.scale)]
        others = [one for other in self.relatives for one in _asked(other, self.scale, self.results)]
        judged = judge([(c.rule, e) for c, e, _ in asked + others], [least for _, _, least in asked + others])
        return [(claim, _judged(claim, self.scale, found)) for (claim, _, _), found in zip(asked, judged, strict=False)]

    @property
    def setting(self) -> str:
        """What this scale is here: networks, images, steps, seeds."""
        return setting(self.scale, self.placed, self.results)

    @property
    def relatives(self) -> list[Experiment]:
        """The other experiments of its family."""
        mine = self.experiment
        return [
            one
            for one in EXPERIMENTS.values()
            if one.family == mine.family and one.name != mine.name and self.scale in one.scales
        ]

    @property
    def _seeds(self) -> int:
        return len({one.seed for one in self.placed})

    @property
    def records(self) -> list[Record]:
        """The finished cells of the grid, each once."""
        found = {one.cell.key: self.results.get(one.cell) for one in self.placed}
        return [record for record in found.values() if record is not None]

    @property
    def cells(self) -> int:
        return len({one.cell.key for one in self.placed})

    @property
    def seconds(self) -> float:
        """Seconds that the finished cells took in sequence: CPU time, or wall-clock time on a GPU."""
        return sum(record.seconds for record in self.records)

    @property
    def notes(self) -> list[str]:
        return list(_notes(self))

    def to_json(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment.name,
            "scale": self.scale,
            "setting": self.setting,
            "cells": {"finished": len(self.records), "of": self.cells, "seconds": round(self.seconds, 1)},
            "table": {arm: {seed: dict(row) for seed, row in rows.items()} for arm, rows in self.table.rows.items()},
            "claims": [_claim_json(claim, found) for claim, found in self.claims],
            "notes": self.notes,
            "failures": dict(self.failures),
        }

    def __str__(self) -> str:
        lines = [f"{self.experiment.title} ({self.experiment.family})", f"{self.scale} scale: {self.setting}"]
        lines += [f"arms share: {self.experiment.matched}"] if self.experiment.matched else []
        lines.append("")
        lines += [*readings_lines(self), ""]
        for claim, found in self.claims:
            asked = "tested" if found.is_judged else "asked"
            lines += [f"{claim.name}  {found.in_words}", f"    {asked}: {claim.words}", *effect_lines(found)]
            about = {"published": claim.published, "not tested": claim.untested, "note": claim.note}
            lines += [f"    {what}: {text}" for what, text in about.items() if text]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"failed: {where}: {why}" for where, why in self.failures.items()]
        return "\n".join(lines)


@cache
def _version() -> str:
    return doctor().vitreous


def _asked(experiment: Experiment, scale: ScaleName, results: Results) -> list[tuple[Claim, list[Effect], int]]:
    """The claims of an experiment with their effects and planned seeds; kept with the results for other callers."""
    key = f"{experiment.name} {scale} {len(results.records)}"
    if key not in results.derived:
        placed = experiment.placed(scale)
        table, seeds = results.table(placed), len({one.seed for one in placed})
        results.derived[key] = [(claim, _effects(claim, table), seeds) for claim in experiment.claims_at(scale)]
    return list(results.derived[key])


def _effects(claim: Claim, table: ArmTable) -> list[Effect]:
    """A claim's effects; none while one of them has no value, since a claim needs them all."""
    effects = list(claim.effects(table))
    return effects if all(effect.numbers for effect in effects) else []


def _judged(claim: Claim, scale: ScaleName, found: Judgement) -> Judgement:
    """Without a verdict where the scale cannot meet the claim's condition."""
    why = claim.untestable.get(scale, "")
    return found.untestable(f"at {scale} scale {why}") if why and found.verdict != NOT_RUN else found


def _notes(outcome: PaperOutcome) -> Iterable[str]:
    experiment, records = outcome.experiment, outcome.records
    if outcome.scale == RELEASED:
        yield "one set of weights each: intervals are over groups of images or places, not over trainings"
    if pilots := experiment.pilots.get(outcome.scale, 0):
        yield f"the {counted(pilots, 'seed')} before these chose their number and decide nothing"
    if (missing := outcome.cells - len(records)) > 0:
        yield f"{counted(missing, 'cell')} of {outcome.cells} not run: {command(experiment, outcome.scale)}"
    diverged = [record for record in records if record.status == DIVERGED]
    if scored := sum("accuracy" in record.readings for record in diverged):
        yield f"{counted(scored, 'training')} diverged; each is scored at chance"
    if without := len(diverged) - scored:
        yield f"{counted(without, 'cell')} would read a model that diverged; its seed stays open"
    older = Counter(record.origin for record in records if record.origin)
    for origin, count in older.items():
        yield f"{counted(count, 'cell')} of an older measurement, known when the claims were written here: {origin}"
    this = _version()
    others = Counter(record.vitreous for record in records if record.vitreous not in (this, "not installed"))
    for version, count in others.items():
        yield f"{counted(count, 'cell')} of vitreous {version}, this is {this}"
    if old := stale(experiment, outcome.scale, outcome.results):
        yield f"{counted(len(old), 'cell')} of an older definition kept and not used"
    for name in sorted(
        {name for record in records for name, copy in record.copies.items() if is_other_copy(name, copy)}
    ):
        yield f"{name} is another copy than that of the committed cells, so numbers may differ"
    used = {plain_name(str(record.options["data"])) for record in records if "data" in record.options}
    for name in sorted(used & set(named_sets())):
        if not named_sets()[name].is_rebuildable:
            yield f"{name}: a stranger can rebuild the set, but not the same bytes"


def command(experiment: Experiment, scale: ScaleName) -> str:
    return f"vitreous paper run {experiment.name} --scale {scale}" + ("" if scale == "laptop" else " --data FOLDER")


# For people --------------------------------------------------------------------------------------------------------

COLUMN_NAMES = {"cut_accuracy_mean": "accuracy lost by a cut", "skip_mean": "ln of skip over branch"}


def shown(value: float, unit: str = "", *, is_signed: bool = False) -> str:
    """`+1.3` points, or three digits."""
    sign = "+" if is_signed else ""
    text = f"{100 * value:{sign}.1f}" if unit == POINTS else f"{value:{sign}.3g}"
    return text.replace("-", "−")


def column_name(reading: str) -> str:
    """The head of a column."""
    return COLUMN_NAMES.get(reading, reading.replace("_", " "))


def readings_lines(outcome: PaperOutcome) -> list[str]:
    """A row for each arm: mean and deviation over seeds of the readings that the experiment shows, if it has any."""
    table = outcome.table
    shown_columns = [name for name in outcome.experiment.columns if any(table.values(arm, name) for arm in table.arms)]
    rows = [["", *map(column_name, shown_columns), "seeds"]]
    for arm in table.arms:
        columns = {name: table.values(arm, name) for name in shown_columns}
        shares = [spread(name, column.values()) for name, column in columns.items()]
        rows.append([arm, *shares, str(max(map(len, columns.values()), default=0))])
    return aligned(rows, "l" + "r" * (len(rows[0]) - 1))


def spread(name: str, values: Iterable[Any]) -> str:
    """Mean and deviation of a reading: shares as percent, other numbers with three digits, a count as it is."""
    known = [value for value in values if isinstance(value, int | float)]
    numbers = [float(value) for value in known]
    if not numbers:
        return NO_SPREAD
    if isinstance(known[0], int) and len(set(known)) == 1:
        return f"{known[0]:,}"
    write = _percent if SHARES.search(name) else "{:.3g}".format
    deviation = f" ± {write(statistics.stdev(numbers))}" if len(numbers) > 1 else ""
    return write(statistics.mean(numbers)) + deviation


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def effect_lines(found: Judgement) -> list[str]:
    """A row for each effect; of several, which side each is on."""
    rows = []
    for one in found.weighed:
        side = one.side if found.is_judged and len(found.weighed) > 1 else ""
        rows.append([f"    {one.effect.name}", mean_words(one.effect), f"({interval_words(one)})", side])
    lines = aligned(rows, "llll") if rows else []
    return [f"    intervals of {levels_words(found)}:", *lines] if lines else []


def levels_words(found: Judgement) -> str:
    """`98.3 %`; an effect on the other side of several has a stricter one."""
    levels = {one.level: "" for one in found.weighed if one.is_claimed_side}
    levels |= {one.level: "" if not levels else " against" for one in found.weighed if not one.is_claimed_side}
    return ", ".join(f"{100 * level:.1f} %{side}" for level, side in levels.items())


def mean_words(effect: Effect) -> str:
    unit = f" {effect.unit}" if effect.unit else ""
    return shown(statistics.mean(effect.numbers), effect.unit, is_signed=True) + unit


def interval_words(one: Weighed) -> str:
    """`+1.3 to +4.5`, at the level that decides."""
    interval, count = one.interval, len(one.effect.numbers)
    if interval is None:
        return "? to ?"
    if not one.effect.has_spread:
        return f"all {count} alike"
    return " to ".join(shown(end, one.effect.unit, is_signed=True) for end in interval)


def _claim_json(claim: Claim, found: Judgement) -> dict[str, Any]:
    return {
        "row": claim.row,
        "part": claim.part,
        "claim": claim.words,
        "rule": claim.rule.words.format(m=abs(claim.rule.margin)),
        "verdict": found.verdict,
        "in_words": found.in_words,
        "not_tested": claim.untested,
        "p": found.p,
        "level": found.level,
        "published": claim.published,
        "effects": [
            {
                "name": one.effect.name,
                "unit": one.effect.unit,
                "mean": statistics.mean(one.effect.numbers),
                "side": one.side,
                "level": one.level,
                "interval": one.interval,
                "by_seed": {str(seed): value for seed, value in one.effect.values.items() if math.isfinite(value)},
            }
            for one in found.weighed
        ],
    }


def cost_line(outcome: PaperOutcome) -> str:
    return f"{counted(len(outcome.records), 'cell')}, {duration(outcome.seconds)} one after the other"
