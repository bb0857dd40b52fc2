"""Where a run happens: device, processes, workers, listeners. It changes no number beyond rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from vitreous.evaluation import inference
from vitreous.images.imageset import ImageSet
from vitreous.models.model import Model
from vitreous.ranks import Ranks
from vitreous.training.run.events import Event, ProgressMade, Said
from vitreous.training.run.folder import RunFolder
from vitreous.training.run.progress import Stages
from vitreous.training.run.step import Compiled
from vitreous.training.run.trackers import Writers
from vitreous.training.run.trained import Rival

__all__ = ["FindRival", "Runtime", "Tell"]

Tell = Callable[[Event], None]
FindRival = Callable[[ImageSet, ImageSet], Rival]  # of training images and judged images


@dataclass
class Runtime:
    """Device, ranks, workers and listeners, handed from step to step of `fit`."""

    device: torch.device
    ranks: Ranks = field(default_factory=Ranks)
    workers: int | None = None
    on_nan: str = "stop"
    log: Sequence[str] = ()
    compiled: Compiled | None = None
    rival: FindRival | None = None
    tell: Tell = lambda event: None
    writers: Writers | None = None
    stages: Stages = field(default_factory=Stages)  # of the run in progress

    @property
    def device_name(self) -> str:
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return f"CPU ({torch.get_num_threads()} threads)" if self.device.type == "cpu" else self.device.type

    def say(self, line: str) -> None:
        """Tell one line, on rank 0."""
        if self.ranks.is_first:
            self.tell(Said(line))

    def progress(self, kind: type[ProgressMade], done: int, total: int) -> None:
        if self.ranks.is_first:
            self.tell(kind(done, total))

    def record(self, folder: RunFolder | None, event: Event) -> None:
        """Write an event into the run's log and tell it, on rank 0."""
        if folder is not None:
            folder.event(**event)
        if self.ranks.is_first:
            self.event(event)

    def event(self, event: Event) -> None:
        self.tell(event)
        if self.writers is not None:
            self.writers(event.to_json())

    @contextmanager
    def logging(self, where: Path) -> Iterator[None]:
        """Send events to the trackers within the block."""
        if not self.log or not self.ranks.is_first:
            yield
            return
        self.writers = Writers(self.log, where, self.say)
        try:
            yield
        finally:
            self.writers.close()

    def answers(self, model: Model, data: ImageSet, *, alone: bool = False) -> inference.Logits:
        """The model's answers to the images that can be read.  alone: only rank 0 asks; no other shares the work."""
        ranks = Ranks() if alone else None
        return inference.logits(
            model, data, device=self.device, workers=self.workers, skip_unreadable=True, ranks=ranks
        )
