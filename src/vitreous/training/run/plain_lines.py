"""A run as lines on stderr, for logs and for Python on a terminal: facts, and now and then a step."""

from __future__ import annotations

import sys
import time

from vitreous.printable import printable
from vitreous.training.run import events

SILENCE = 10.0  # seconds between two lines about steps


class PlainLines:
    """Called with every event.  verbose: with details."""

    def __init__(self, *, verbose: bool = False) -> None:
        self.verbose = verbose
        self.last = 0.0
        self.plan = events.PlanMade()

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.PlanMade):
            self.plan = event
        elif isinstance(event, events.StepLogged):
            now = time.monotonic()
            if event.step == event.steps or now - self.last >= SILENCE:
                self.last = now
                _print(event.line(utilisation(event, self.plan)))
        elif (self.verbose or not event.is_detail) and (line := str(event)):
            _print(line)


def utilisation(event: events.StepLogged, plan: events.PlanMade) -> float | None:
    """The share of a GPU's arithmetic that training uses; None on a CPU or an unknown GPU."""
    from vitreous.training.run.utilisation import share_of_peak

    return share_of_peak(event.images_per_second * plan.flops, plan.device) if plan.device else None


def _print(lines: str) -> None:
    print(printable(lines), file=sys.stderr, flush=True)
