"""What the live bar of a training shows after some events."""

import io

from rich.console import Console

from vitreous.cli.training_display import _Live
from vitreous.training.run.events import from_json


def step(at, stage="fit", **more):
    return {
        "kind": "step",
        "stage": stage,
        "step": at,
        "steps": 12_000,
        "epoch": 3.25,
        "loss": 1.2345,
        "accuracy": 0.5,
        "lr": 1e-3,
        "images_per_second": 1234.0,
        "seconds_left": 83.0,
        "memory": 3 * 2**30,
        **more,
    }


def drawn(width, *events):
    """The lines of bars after these events, given as lines of a run's journal."""
    live = _Live(Console(width=width, height=20, force_terminal=True, file=io.StringIO()))
    try:
        for event in events:
            live(from_json(event))
        shown = Console(width=width, file=io.StringIO())
        shown.print(live.bars.get_renderable())
        return [line.rstrip() for line in shown.file.getvalue().splitlines() if line.strip()]
    finally:
        live.close()
