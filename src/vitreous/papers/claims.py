"""The ledger: a row for each claim of the papers or question of their readers, and where it stands."""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vitreous.errors import ConfigError, nearest
from vitreous.papers.experiment import SCALES, Experiment, ScaleName
from vitreous.papers.experiments import EXPERIMENTS
from vitreous.papers.outcome import PaperOutcome
from vitreous.papers.results import Results
from vitreous.papers.verdict import NOT_RUN
from vitreous.words import counted

LEDGER_FILE = Path(__file__).parent / "claims.toml"
ANSWERS_FILE = Path(__file__).parent / "answers.toml"
TESTED, WRITTEN, NOT_YET = "tested", "written", "not yet"
HOW_TO_READ = (
    "tested: a test of ours shows it. written: answered in words, in docs/evidence/questions.md.",
    "A verdict names its experiment and its scale; under it stands the sentence that was tested.",
    "CONTRADICTED: one effect against the sentence is enough. INCONCLUSIVE: an interval holds both answers.",
    "NOT TESTABLE: the scale cannot meet the claim's condition. Numbers: vitreous paper verify NAME",
)


@dataclass(frozen=True)
class LedgerRow:
    """A row of the ledger. tags: U has a unit test, G an experiment, D a written answer."""

    name: str
    section: str
    tags: tuple[str, ...]
    statement: str


@cache
def ledger() -> Mapping[str, LedgerRow]:
    sections: dict[str, Any] = tomllib.loads(LEDGER_FILE.read_text())["claims"]
    rows = [(title, name, row) for title, section in sections.items() for name, row in section.items()]
    return {name: LedgerRow(name, title, tuple(row["tags"]), row["statement"]) for title, name, row in rows}


@cache
def answers() -> Mapping[str, Any]:
    """The written answers of D rows."""
    return tomllib.loads(ANSWERS_FILE.read_text()) if ANSWERS_FILE.is_file() else {}


@dataclass(frozen=True)
class Asked:
    """A sentence that experiments test for a row, with the verdicts so far."""

    name: str  # of the claim: C03a
    words: str
    untested: str  # what the row says beside it
    verdicts: tuple[str, ...]  # each with its experiment and scale

    def lines(self) -> list[str]:
        rest = f". Not tested: {self.untested}" if self.untested else ""
        return [*(f"{self.name} {verdict}" for verdict in self.verdicts), f"  {self.words}{rest}"]


@dataclass(frozen=True)
class RowState:
    """Where a row of the ledger stands."""

    row: LedgerRow
    parts: tuple[str, ...]  # by tag: tested, a verdict with its experiment and scale, written, or not yet
    asked: tuple[Asked, ...] = ()

    def to_json(self) -> dict[str, Any]:
        said = {"row": self.row.name, "statement": self.row.statement, "tags": list(self.row.tags)}
        return said | {"state": list(self.parts), "asked": [vars(one) for one in self.asked]}

    def lines(self) -> list[str]:
        """What is shown of it: tested or written, then each sentence under its verdicts."""
        plain = [part for part in self.parts if part in (TESTED, WRITTEN, NOT_YET)]
        return ["; ".join(plain)] * bool(plain) + [line for one in self.asked for line in one.lines()]


class States(list[RowState]):
    """Rows with their states. As text, each statement is followed by where it stands."""

    def to_json(self) -> dict[str, Any]:
        return {"rows": [state.to_json() for state in self]}

    def __str__(self) -> str:
        return self.text()

    def text(self, columns: int = 80) -> str:
        """As text, in lines of at most this many columns."""
        lines = []
        for state in self:
            text = f"{state.row.name:<5}{state.row.statement}"
            lines += textwrap.wrap(text, columns, subsequent_indent=" " * 5)
            for line in state.lines():
                space = " " * (7 + len(line) - len(line.lstrip()))
                lines += textwrap.wrap(line.lstrip(), columns, initial_indent=space, subsequent_indent=space)
        open_rows = sum(NOT_YET in state.parts for state in self)
        have = "has" if open_rows == 1 else "have"
        count = f"{counted(len(self), 'row')}; {open_rows} {have} a part that is not yet shown"
        return "\n".join([*lines, "", count, *HOW_TO_READ])


def names() -> list[str]:
    """The experiments."""
    return list(EXPERIMENTS)


def find(name: str) -> list[Experiment]:
    """The experiments of that name, family, or row of the ledger."""
    if name in EXPERIMENTS:
        return [EXPERIMENTS[name]]
    word = name.upper() if name.upper() in ledger() else name.upper().rstrip("ABC")  # C03a is a part of C03
    if found := [one for one in EXPERIMENTS.values() if word == one.family or word in map(str.upper, one.rows)]:
        return found
    rows = {row.upper(): row for row in ledger()}
    if word in rows:
        row = ledger()[rows[word]]
        shown = "a unit test shows it" if "U" in row.tags else "its answer: docs/evidence/questions.md"
        raise ConfigError(f"{row.name} has no experiment; {shown} (all rows: vitreous paper list)")
    near = nearest(name, [*EXPERIMENTS, *ledger()], 3)
    hint = f"near: {', '.join(near)}" if near else f"there are: {', '.join(EXPERIMENTS)}"
    raise ConfigError(f"there is no experiment or row {name!r}; {hint} (all: vitreous paper list)")


def find_all(names: Iterable[str], scale: ScaleName) -> list[Experiment]:
    """The experiments of these names, each once. A family or row gives only those with this scale, if any has it."""
    found: dict[str, Experiment] = {}
    for name in names:
        some = find(name)
        found |= {one.name: one for one in some if scale in one.scales or len(some) == 1}
    return list(found.values()) or [one for name in names for one in find(name)]


def verify(name: str, *, scale: ScaleName | None = None, results: Results | None = None) -> list[PaperOutcome]:
    """Derive tables and verdicts again, from finished cells alone. scale: None is every scale that has cells."""
    results = results or Results()
    outcomes = []
    for experiment in find(name):
        for each in [scale] if scale else experiment.scales:
            outcome = PaperOutcome(experiment, each, experiment.placed(each), results)
            if outcome.records or scale:
                outcomes.append(outcome)
    return outcomes


def states(results: Results | None = None, names: Sequence[str] = ()) -> States:
    """Every row of the ledger with its state.  names: only the rows of these experiments, families and rows."""
    asked = _asked(results or Results())
    wanted = dict.fromkeys(row for name in names for row in _rows_of(name)) if names else ledger()
    return States(_state(ledger()[row], asked.get(row, ())) for row in wanted)


def _rows_of(name: str) -> list[str]:
    """The ledger row of this name, or the rows that the experiments of this name answer."""
    if name.upper() in ledger():
        return [name.upper()]
    rows = dict.fromkeys(row for experiment in find(name) for row in experiment.rows)
    return [row for row in rows if row in ledger()]


def _state(row: LedgerRow, asked: Sequence[Asked]) -> RowState:
    verdicts = ", ".join(f"{one.name} {verdict}" for one in asked for verdict in one.verdicts)
    parts = {"U": TESTED, "D": WRITTEN if row.name in answers() else NOT_YET, "G": verdicts or NOT_YET}
    return RowState(row, tuple(parts[tag] for tag in row.tags), tuple(asked))


def _asked(results: Results) -> dict[str, list[Asked]]:
    """By row, each sentence that has run: `SUPPORTED (positions, laptop)`."""
    found: dict[str, dict[tuple[str, str], Asked]] = {}
    for experiment in EXPERIMENTS.values():
        for scale in (each for each in SCALES if each in experiment.scales):
            for claim, judged in PaperOutcome(experiment, scale, experiment.placed(scale), results).claims:
                for row in claim.rows if judged.verdict != NOT_RUN else ():
                    verdict = f"{judged.in_words} ({experiment.name}, {scale})"
                    of_row, key = found.setdefault(row, {}), (claim.name, claim.words)
                    before = of_row[key].verdicts if key in of_row else ()
                    of_row[key] = Asked(*key, claim.untested, (*before, verdict))
    return {row: list(each.values()) for row, each in found.items()}
