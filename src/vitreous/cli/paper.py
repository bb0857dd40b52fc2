"""vitreous paper"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, cast

import typer

from vitreous.cli.show import Json, progress, say_line, show
from vitreous.errors import ConfigError

EXAMPLE = "vitreous paper run positions"
ACTIONS = "list|run|verify|report"


def run(
    action: Annotated[str, typer.Argument(metavar=ACTIONS, help="What to do.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Experiments, rows of the ledger such as C18, or families: E-POS."),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="laptop|gpu|full|released",
            help="How large: laptop takes minutes on two cores; released looks into others' weights.",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Where the sets lie that are not in the package.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(metavar="N", help="Trainings of each kind; the experiment says.")] = None,
    cell: Annotated[
        str | None, typer.Option(metavar="K", help="Run this cell again, beside its committed value.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(metavar="N", help="Cells at once.")] = None,
    device: Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Where to compute; a GPU if any.")] = None,
    seconds: Annotated[
        float | None,
        typer.Option(metavar="N", help="Begin no cell that would end after N; the same command goes on."),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Results that run writes (papers/results), that list and verify read (ours).",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Test a claim of the papers: run its experiment, and read the verdict.

    list: every claim and where it stands. run: compute what is missing; a stopped run goes on. verify: derive the
    verdict again from finished cells. report: one page of all claims.
    """
    from vitreous import papers

    if action not in ACTIONS.split("|"):
        raise ConfigError(f"paper cannot {action!r}; give {', '.join(ACTIONS.split('|'))}")
    if scale not in (None, "laptop", "gpu", "full", "released"):
        raise ConfigError(f"--scale {scale} is unknown; give laptop, gpu, full or released")
    name = names[0] if names else None
    if names and action == "report":
        raise ConfigError("the report is of all claims; name none: vitreous paper report")
    if cell is not None and len(names or ()) > 1:
        raise ConfigError(f"--cell is of one experiment; name one: vitreous paper run {name} --cell {cell}")
    which = cast(Literal["laptop", "gpu", "full", "released"] | None, scale)
    if action == "list":
        show("paper", papers.states(_results(out), names or ()), json=json)
    elif action == "report":
        say_line(f"page: {papers.report(out)}")
    elif name is None:
        raise ConfigError(f"name an experiment or a row: vitreous paper {action} positions (all: vitreous paper list)")
    elif action == "verify":
        results = _results(out)
        asked = {each.name: each for one in names or () for each in papers.find(one)}
        _show_all([each for one in asked for each in papers.verify(one, scale=which, results=results)], json=json)
    elif cell is not None:
        where: dict[str, Any] = {"data": data, "seeds": seeds, "device": device}
        show("paper", papers.rerun(papers.find(name)[0], cell, scale=which or "laptop", **where), json=json)
    else:
        try:
            how: dict[str, Any] = {"data": data, "seeds": seeds, "jobs": jobs, "device": device, "seconds": seconds}
            found = _run(names or [], which or "laptop", out, how)
        except KeyboardInterrupt:
            kept = f"finished cells are kept in {out or papers.OUT}"
            say_line(f"vitreous: stopped; {kept}; the same command goes on", file=sys.stderr)
            raise typer.Exit(130) from None
        _show_all(found, json=json)
        if any(outcome.failures for outcome in found):
            raise typer.Exit(1)


def _results(out: str | None) -> Any:
    """A user's own cells, or ours; never both."""
    from vitreous import papers

    return papers.Results() if out is None else papers.Results(out, committed=None)


def _run(
    names: list[str], scale: Literal["laptop", "gpu", "full", "released"], out: str | None, how: dict[str, Any]
) -> list[Any]:
    from vitreous import papers

    def tell(line: str) -> None:
        say_line(line, file=sys.stderr)

    experiments = papers.find_all(names, scale)
    title = experiments[0].name if len(experiments) == 1 else f"{len(experiments)} experiments"
    with _steps(f"{title}: cells", tell) as step:
        return papers.run_all(experiments, scale=scale, out=out or papers.OUT, tell=tell, step=step, **how)


@contextmanager
def _steps(doing: str, tell: Callable[[str], None]) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; elsewhere a line for each tenth of the cells."""
    if sys.stderr.isatty():
        with progress(doing) as step:
            yield step
    else:
        yield tenths(doing, tell)


def tenths(doing: str, tell: Callable[[str], None]) -> Callable[[int, int], None]:
    """Tells each tenth of the work with the time left, as if the rest took as long as what is done."""
    from vitreous.words import duration

    began = time.monotonic()

    def step(done: int, total: int) -> None:
        if done < total and 10 * done // total > 10 * (done - 1) // total:
            left = (time.monotonic() - began) * (total - done) / done
            tell(f"{doing} {done:,}/{total:,}, about {duration(left)} left")

    return step


def _show_all(outcomes: list[Any], *, json: bool) -> None:
    if json:
        show("paper", {"outcomes": [outcome.to_json() for outcome in outcomes]}, json=True)
        return
    for outcome in outcomes:
        show("paper", outcome, json=False)
    if not outcomes:
        say_line("no cell of it has run; run it: vitreous paper run NAME")
