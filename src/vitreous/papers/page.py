"""`vitreous paper report`: every claim with its verdict as a page, and as Markdown for the docs, from results alone."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitreous.errors import ConfigError
from vitreous.files import write_bytes
from vitreous.papers.claims import LedgerRow, RowState, States, answers, ledger, states
from vitreous.papers.experiment import POINTS, Claim, Experiment, ScaleName
from vitreous.papers.experiments import EXPERIMENTS
from vitreous.papers.outcome import (
    PaperOutcome,
    column_name,
    command,
    cost_line,
    interval_words,
    levels_words,
    mean_words,
    shown,
    spread,
)
from vitreous.papers.results import Results
from vitreous.papers.verdict import INCONCLUSIVE, NOT_RUN, NOT_TESTABLE, Judgement, Weighed
from vitreous.report.charts import IntervalRow, intervals
from vitreous.report.marks import Chart
from vitreous.report.page import Block, Code, Drawing, Drawings, Fold, Note, Page, Section, Table, Text, Tone, write
from vitreous.words import counted, sentence

FOLDER = "papers"
PAGE, MARKDOWN, QUESTIONS = "papers.html", "papers.md", "questions.md"
P2_FINDINGS = {  # the nine details of P2, as rows of the ledger
    "P2: layers are alike throughout a ViT": ("C30",),
    "P2: late layers learn what a ResNet does not": ("C31", "C32"),
    "P2: low layers look near and far": ("C33", "C34"),
    "P2: local heads see as low ResNet layers do": ("C35",),
    "P2: class token and patches use skips in opposite ways": ("C36", "C37"),
    "P2: skips make layers alike": ("C38",),
    "P2: tokens keep their place": ("C39", "C40", "C41", "C42", "C43"),
    "P2: class token and mean differ in late layers": ("C44",),
    "P2: little data teaches low layers alone": ("C45", "C46"),
}
TONES: Mapping[str, Tone] = {"SUPPORTED": "good", "EQUIVALENT": "good", "NOT WORSE": "good"}
TONES = {**TONES, "CONTRADICTED": "bad", "DIFFERENT": "bad", "WORSE": "bad"}
REFERENCE = re.compile(r"\[\[([^\]]+)\]\]")
FOUND = "found "  # before the rows that a reference sums up
UNDECIDED = (INCONCLUSIVE, NOT_TESTABLE)


@dataclass(frozen=True)
class Answered:
    """A claim with its verdict, and the outcome it comes from."""

    claim: Claim
    judged: Judgement
    outcome: PaperOutcome

    @property
    def where(self) -> str:
        return f"{self.outcome.experiment.name}, {self.outcome.scale}"

    @property
    def verdict(self) -> str:
        """`SUPPORTED: both effects for (positions, laptop)`."""
        return f"{self.judged.in_words} ({self.where})"

    @property
    def tested(self) -> str:
        """The sentence, and what its row says beside it."""
        return self.claim.words + (f" (not tested: {self.claim.untested})" if self.claim.untested else "")

    @property
    def decider(self) -> str:
        """The effect that decides, with its interval; of several, how many there are."""
        one, count = self.judged.deciding, len(self.judged.weighed)
        among = f"1 of {count}: " if count > 1 else ""
        return f"{among}{one.effect.name}: {mean_words(one.effect)} ({interval_words(one)})"


def report(out: str | os.PathLike[str] | None = None, results: Results | None = None) -> Path:
    """Write papers.html, papers.md and questions.md into a folder; returns the page."""
    folder, results = Path(FOLDER if out is None else out), results or Results()
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = all_outcomes(results)
    rows = states(results)
    write(page(outcomes, rows), folder / PAGE, force=True)
    write_bytes(folder / MARKDOWN, markdown(outcomes, rows).encode(), force=True)
    write_bytes(folder / QUESTIONS, questions(outcomes).encode(), force=True)
    return folder / PAGE


def all_outcomes(results: Results) -> list[PaperOutcome]:
    """Every experiment at every scale, run or not."""
    return [
        PaperOutcome(experiment, scale, experiment.placed(scale), results)
        for experiment in EXPERIMENTS.values()
        for scale in experiment.scales
    ]


def answered(outcomes: Iterable[PaperOutcome]) -> dict[str, list[Answered]]:
    """The claims by row of the ledger, starting with those that have run."""
    found: dict[str, list[Answered]] = {}
    for outcome in outcomes:
        for claim, judged in outcome.claims:
            one = Answered(claim, judged, outcome)
            for row in claim.rows:
                found.setdefault(row, []).append(one)
    return {row: sorted(each, key=lambda one: one.judged.verdict == NOT_RUN) for row, each in found.items()}


def _asked(found: Mapping[str, Sequence[Answered]]) -> list[Answered]:
    """Every claim that has run, once, in the ledger's order; a claim may answer several rows."""
    each = {id(one): one for row in ledger() for one in found.get(row, []) if one.judged.verdict != NOT_RUN}
    return list(each.values())


# The page ------------------------------------------------------------------------------------------------------------


def page(outcomes: Sequence[PaperOutcome], rows: States) -> Page:
    found = answered(outcomes)
    claims = {id(one): one for each in found.values() for one in each}.values()  # a claim may answer several rows
    ran = [one for one in claims if one.judged.verdict != NOT_RUN]
    decided = sum(one.judged.is_decided for one in ran)
    untestable = sum(one.judged.verdict == NOT_TESTABLE for one in ran)
    with_cells = [outcome for outcome in outcomes if outcome.records]
    return Page(
        title="The papers' claims",
        over="vitreous paper",
        answer=f"{counted(len(ran), 'claim')} asked, {decided} decided"
        + (f", {untestable} not testable at our scale" if untestable else ""),
        lead="Each verdict follows a written rule: Student's t over seeds, Holm over the claims of a family of "
        "experiments. Not every rule stood before every look: notes name a measure that a trial replaced, seeds that "
        "chose their number, and older measurements; a review mended others after runs (NOTES.md, 2026-11-18). "
        "Verdicts hold at our scale, far below the papers' own.",
        sections=[
            Section("All claims", [_claims_table(found), Fold("Every row of the ledger", [_ledger_table(rows)])]),
            Section("What P2 found, in nine panels", [_panels(found)]),
            *(_experiment(outcome) for outcome in with_cells),
            Section("Not run", [_not_run(outcomes)]),
        ],
        foot="vitreous paper run NAME computes what is missing; vitreous paper verify NAME derives a verdict again.",
        has_column=True,
        folds_contents=True,
    )


def _claims_table(found: Mapping[str, Sequence[Answered]]) -> Table:
    """A row for each claim at each scale."""
    body = [[one.claim.name, one.tested, one.verdict, one.decider, one.claim.published] for one in _asked(found)]
    return Table(["row", "claim", "verdict (experiment, scale)", "deciding effect", "published"], body, "lllll")


def _ledger_table(rows: Sequence[RowState]) -> Table:
    body = [[state.row.name, state.row.statement, "; ".join(state.parts)] for state in rows]
    return Table(["row", "statement", "state"], body, "lll")


def _panels(found: Mapping[str, Sequence[Answered]]) -> Block:
    panels = [_panel(title, rows, found) for title, rows in P2_FINDINGS.items()]
    return Drawings(panels)


def _panel(title: str, rows: Sequence[str], found: Mapping[str, Sequence[Answered]]) -> Drawing:
    """The effects of a finding at every scale that has run; without any, an empty panel says so."""
    ran = [one for row in rows for one in found.get(row, []) if one.judged.verdict != NOT_RUN]
    verdicts = "; ".join(f"{one.claim.name} {one.verdict}" for one in ran)
    drawn = [row for one in ran for row in _interval_rows(one.judged.weighed, one.claim.name)]
    if not drawn:
        return Drawing(Chart(title, (), 390, 20), f"{', '.join(rows)}: not run", title)
    chart = intervals(drawn, title=title, x_title="effect over its largest value")
    return Drawing(chart, verdicts, title)


def _interval_rows(weighed: Iterable[Weighed], name: str = "") -> Iterator[IntervalRow]:
    for one in weighed:
        effect, interval = one.effect, one.interval
        mean = statistics.mean(effect.numbers)
        ends = (None, None) if interval is None else interval
        size = max(abs(value) for value in (mean, *effect.numbers, *(end for end in ends if end is not None))) or 1.0
        size = size if name else 1.0
        low, high = (None if end is None else end / size for end in ends)
        title = f"{name}: {effect.name}" if name else effect.name
        yield IntervalRow(title, mean / size, low, high, mean_words(effect), [value / size for value in effect.numbers])


def _experiment(outcome: PaperOutcome) -> Section:
    experiment = outcome.experiment
    blocks: list[Block] = [Text(f"{outcome.setting}."), _arms_table(outcome)]
    for claim, judged in outcome.claims:
        blocks.append(Note(f"{claim.name} {judged.in_words}. {claim.words}", TONES.get(judged.verdict, "plain")))
        rule = claim.rule.words.format(m=_margin(claim, judged))
        about = f"Rule: {rule}" + (f", at {levels_words(judged)}." if judged.weighed else ".")
        about += f" Published: {claim.published}." if claim.published else ""
        about += f" Not tested: {claim.untested}." if claim.untested else ""
        about += f" {claim.note}" if claim.note else ""
        blocks.append(Text(about))
        if judged.effects:
            blocks.append(Drawing(effects_chart(claim, judged)))
    blocks += [Text(f"Note: {note}.") for note in outcome.notes]
    blocks += [Text(f"{cost_line(outcome)}. Arms share: {experiment.matched or 'see the grid'}.")]
    blocks += [Code(command(experiment, outcome.scale))]
    decided = sum(judged.is_decided for _, judged in outcome.claims)
    title = f"{experiment.title} At {outcome.scale} scale" if outcome.scale != "laptop" else experiment.title
    summary = f"{decided} of {len(outcome.claims)} decided"
    return Section(title, blocks, badge=experiment.family, summary=summary)


def _margin(claim: Claim, judged: Judgement) -> str:
    unit = judged.effects[0].unit if judged.effects else ""
    return shown(abs(claim.rule.margin), unit) + (f" {unit}" if unit else "")


def effects_chart(claim: Claim, judged: Judgement) -> Chart:
    """A claim's effects with their intervals, and the values that decide it."""
    margin, unit = claim.rule.margin, judged.effects[0].unit
    at = (-margin, margin) if claim.rule.is_two_sided else (margin,)
    rows = list(_interval_rows(judged.weighed))
    return intervals(rows, title=claim.words, x_title=unit or "effect", at=at, is_share=unit == POINTS)


def _arms_table(outcome: PaperOutcome) -> Table:
    head, rows = _arm_rows(outcome)
    return Table(head, rows, "l" + "r" * (len(head) - 1))


def _arm_rows(outcome: PaperOutcome) -> tuple[list[str], list[list[str]]]:
    """Columns that no arm has are left out."""
    table = outcome.table
    columns = [name for name in outcome.experiment.columns if any(table.values(arm, name) for arm in table.arms)]
    rows = [[arm, *(spread(name, table.values(arm, name).values()) for name in columns)] for arm in table.arms]
    return ["arm", *map(column_name, columns)], rows


def _not_run(outcomes: Sequence[PaperOutcome]) -> Table:
    rows = [
        [outcome.experiment.name, outcome.scale, " ".join(outcome.experiment.rows), command(*_at(outcome))]
        for outcome in outcomes
        if len(outcome.records) < outcome.cells
    ]
    return Table(["experiment", "scale", "rows", "command"], rows, "llll")


def _at(outcome: PaperOutcome) -> tuple[Experiment, ScaleName]:
    return outcome.experiment, outcome.scale


# For the docs --------------------------------------------------------------------------------------------------------


CLAIM_COLUMNS = ("row", "claim", "verdict", "experiment, scale", "deciding effect", "published")


def markdown(outcomes: Sequence[PaperOutcome], rows: States) -> str:
    """docs/evidence/papers.md."""
    found = answered(outcomes)
    lines = ["# The papers' claims, tested", ""]
    lines += ["`vitreous paper report` makes this page from the committed cells. Verdicts hold at our scale.", ""]
    lines += [_piped(CLAIM_COLUMNS), "|---" * len(CLAIM_COLUMNS) + "|"]
    lines += [_markdown_row(one) for one in _asked(found)]
    for outcome in (outcome for outcome in outcomes if outcome.records):
        lines += ["", f"## {outcome.experiment.title} ({outcome.experiment.family}, {outcome.scale} scale)", ""]
        head, body = _arm_rows(outcome)
        lines += [f"{outcome.setting}.", ""]
        lines += [_piped(head), _piped(["---"] * len(head)), *(_piped(row) for row in body), ""]
        lines += [f"- {note}" for note in outcome.notes]
        lines += [f"- {cost_line(outcome)}; arms share: {outcome.experiment.matched or 'see the grid'}", ""]
        lines += ["```sh", command(*_at(outcome)), "```"]
    lines += ["", "## Not run", "", "| experiment | scale | command |", "|---|---|---|"]
    lines += [_piped([row[0], row[1], f"`{row[3]}`"]) for row in _not_run(outcomes).rows if isinstance(row[3], str)]
    return "\n".join(lines) + "\n"


def _markdown_row(one: Answered) -> str:
    claim = one.claim
    return _piped([claim.name, one.tested, one.judged.in_words, one.where, one.decider, claim.published])


def _piped(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def questions(outcomes: Sequence[PaperOutcome]) -> str:
    """docs/evidence/questions.md: the written answers, with the verdicts and numbers they rest on."""
    found = answered(outcomes)
    lines = ["# Questions, answered", ""]
    lines += ["What readers of the papers ask. `vitreous paper report` puts measured numbers into written answers.", ""]
    for name, answer in answers().items():
        row = ledger()[name]
        lines += [f"## {name}: {row.statement}", "", filled(answer["answer"].strip(), found, outcomes), ""]
        if tests := answer.get("tests"):
            lines += [f"Tests: {', '.join(f'`{test}`' for test in tests)}.", ""]
    return "\n".join(lines)


def filled(text: str, found: Mapping[str, Sequence[Answered]], outcomes: Sequence[PaperOutcome]) -> str:
    """[[C18]] becomes its verdicts; [[found C18]] what they say; [[positions laptop | none | accuracy]] a mean."""
    return REFERENCE.sub(lambda match: _reference(match[1], found, outcomes), text)


def _reference(text: str, found: Mapping[str, Sequence[Answered]], outcomes: Sequence[PaperOutcome]) -> str:
    parts = [part.strip() for part in text.split("|")]
    if text.startswith(FOUND):
        return _found(text.removeprefix(FOUND).split(), found)
    if len(parts) == 1:
        return _verdicts(parts[0], found)
    name, _, scale = parts[0].partition(" ")
    for outcome in outcomes:
        if (outcome.experiment.name, outcome.scale) == (name, scale):
            return spread(parts[2], outcome.table.values(parts[1], parts[2]).values())
    raise ConfigError(f"an answer refers to {parts[0]!r}, which is not an experiment and a scale; mend answers.toml")


def _verdicts(row: str, found: Mapping[str, Sequence[Answered]]) -> str:
    ran = _ran(row, found)
    return "; ".join(f"{one.claim.name} {one.verdict}" for one in ran) if ran else f"{row}: not run yet"


def _ran(row: str, found: Mapping[str, Sequence[Answered]]) -> list[Answered]:
    if row not in ledger():
        raise ConfigError(f"an answer refers to the row {row!r}, which the ledger lacks; mend answers.toml")
    return [one for one in found.get(row, []) if one.judged.verdict != NOT_RUN]


def _found(rows: Sequence[str], found: Mapping[str, Sequence[Answered]]) -> str:
    """What the tests of some rows say: how many are decided, the sentences of these, and the names of the others."""
    by_row = {row: _ran(row, found) for row in rows}
    ran = list({id(one): one for each in by_row.values() for one in each}.values())
    decided = [one for one in ran if one.judged.is_decided]
    are = "is" if len(decided) == 1 else "are"
    lines = [f"What we find: {len(decided)} of {counted(len(ran), 'test')} {are} decided"]
    lines = lines if decided else ["We could not tell: no test is decided"] if ran else []
    lines += _grouped(decided, lambda one: f"{one.judged.verdict.capitalize()}: {one.claim.words}", _about)
    for verdict in UNDECIDED:
        others = [one for one in ran if one.judged.verdict == verdict]
        names = _grouped(
            others, lambda one: one.claim.name, lambda one: f"{one.outcome.experiment.name}, {one.outcome.scale}"
        )
        lines += [f"{verdict.capitalize()}: {', '.join(names)}"] if names else []
    missing = [row for row, each in by_row.items() if not each]
    lines += [f"{NOT_RUN.capitalize()}: {', '.join(missing)}"] if missing else []
    return " ".join(map(sentence, lines))


def _about(one: Answered) -> str:
    """`C36b, skips at released scale: 1 of 4 effects against, 3 for`."""
    is_mixed = len({each.side for each in one.judged.weighed}) > 1
    where = f"{one.claim.name}, {one.outcome.experiment.name} at {one.outcome.scale} scale"
    return where + (f": {one.judged.tally}" if is_mixed else "")


def _grouped(some: Iterable[Answered], by: Callable[[Answered], str], about: Callable[[Answered], str]) -> list[str]:
    """`C39a (laptop, released)`: each once, with what there is to say about it."""
    groups: dict[str, list[str]] = {}
    for one in some:
        groups.setdefault(by(one), []).append(about(one))
    return [f"{name} ({'; '.join(dict.fromkeys(each))})" for name, each in groups.items()]


def rows_without_home() -> list[LedgerRow]:
    """G rows that no experiment answers, and D rows without a written answer."""
    asked = {row for experiment in EXPERIMENTS.values() for row in experiment.rows}
    homeless = [row for row in ledger().values() if "G" in row.tags and row.name not in asked]
    return homeless + [row for row in ledger().values() if "D" in row.tags and row.name not in answers()]
