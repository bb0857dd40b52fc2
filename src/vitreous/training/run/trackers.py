"""Events shown elsewhere: thin writers for TensorBoard and Trackio. Losing one never stops a run.

To add a writer: a class with `write` and `close`, and a line in WRITERS.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

from vitreous.errors import ConfigError, MissingExtraError
from vitreous.training.run.folder import BOOKKEEPING
from vitreous.words import one_line

PLACES = {"kind", "stage", "stage_number", "stages", "step", "time"}  # where and when; other numbers are curves


class Writer(Protocol):
    """Takes the numbers of one event: curves by name, at a step of a stage."""

    def __init__(self, folder: Path): ...

    def write(self, stage: str, step: int, numbers: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """FOLDER/tensorboard/STAGE: each stage counts its own steps. See it with `tensorboard --logdir FOLDER`."""

    def __init__(self, folder: Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("track", "--log tensorboard") from None
        self.folder, self.make = folder / "tensorboard", SummaryWriter
        self.stages: dict[str, Any] = {}

    def write(self, stage: str, step: int, numbers: Mapping[str, float]) -> None:
        if stage not in self.stages:  # what an earlier process drew from here on is superseded
            self.stages[stage] = self.make(str(self.folder / stage), purge_step=step, flush_secs=10)
        for name, value in numbers.items():
            self.stages[stage].add_scalar(name, value, step)

    def close(self) -> None:
        for writer in self.stages.values():
            writer.close()


class Trackio:
    """Writes only into Trackio's own folder on this machine. See it with `trackio show --project vitreous`.

    It cannot take points back: steps that a restored run repeats are drawn twice.
    """

    def __init__(self, folder: Path):
        with _local():
            try:
                self.trackio = import_module("trackio")
            except ImportError:
                raise MissingExtraError("track", "--log trackio") from None
            self.run = self.trackio.init(
                project="vitreous",
                name=folder.absolute().name,
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def write(self, stage: str, step: int, numbers: Mapping[str, float]) -> None:
        self.run.log({f"{stage}/{name}": value for name, value in numbers.items()}, step=step)

    def close(self) -> None:
        with _local():
            self.trackio.finish()


WRITERS: dict[str, type[Writer]] = {"tensorboard": TensorBoard, "trackio": Trackio}


def check(names: Iterable[str]) -> None:
    """Refuse an unknown log, or one that lacks its package, before a run begins."""
    for name in names:
        if name not in WRITERS:
            raise ConfigError(f"there is no log {name!r}; take one of {', '.join(WRITERS)}")
        if find_spec(name) is None:
            raise MissingExtraError("track", f"--log {name}")


class Writers:
    """Called with every event; hands its numbers to the writers of these names."""

    def __init__(self, names: Iterable[str], folder: Path, say: Callable[[str], object] = lambda line: None):
        self.say = say
        self.writers: dict[str, Writer] = {}
        for name in names:
            if name not in WRITERS:
                raise ConfigError(f"there is no log {name!r}; take one of {', '.join(WRITERS)}")
            with self._survived(name, (MissingExtraError,)):
                self.writers[name] = WRITERS[name](folder)

    def __call__(self, event: Mapping[str, Any]) -> None:
        kind, stage, step = event.get("kind"), event.get("stage"), event.get("step")
        if kind in BOOKKEEPING or not isinstance(stage, str) or not isinstance(step, int):
            return
        numbers = {
            f"{kind}/{name}": float(value)
            for name, value in event.items()
            if name not in PLACES and isinstance(value, int | float)
        }
        for name, writer in list(self.writers.items()):
            with self._survived(name):
                writer.write(stage, step, numbers)

    def close(self) -> None:
        for name, writer in list(self.writers.items()):
            with self._survived(name):
                writer.close()
        self.writers.clear()

    @contextmanager
    def _survived(self, name: str, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        try:
            yield
        except but:
            raise
        except Exception as error:  # whatever it is, the run survives it
            self.writers.pop(name, None)
            self.say(f"the log {name} is lost ({one_line(error)}); the run goes on without it")


@contextmanager
def _local() -> Iterator[None]:
    """Within it, Trackio cannot reach the network, and prints nothing on stdout: a command's JSON goes there."""
    ways = ["TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_WEBHOOK_URL", "TRACKIO_DATASET_ID", "TRACKIO_BUCKET_ID"]
    before = {name: os.environ.pop(name, None) for name in ways}
    before["HF_HUB_OFFLINE"] = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        with redirect_stdout(StringIO()):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
