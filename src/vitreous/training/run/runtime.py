"""Where and how a run runs, which decides none of its numbers but their rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vitreous.evaluation import predict
from vitreous.images.imageset import ImageSet
from vitreous.models.model import Model
from vitreous.ranks import Ranks
from vitreous.training.run.folder import RunFolder
from vitreous.training.run.progress import Stages
from vitreous.training.run.step import Compiled
from vitreous.training.run.trackers import Writers
from vitreous.training.tell.summary import Rival

__all__ = ["Around", "Tell"]

Tell = Callable[[dict[str, Any]], None]


@dataclass
class Around:
    """Device, processes, readers and whoever is told; handed from step to step of the job."""

    device: torch.device
    ranks: Ranks
    workers: int | None
    on_nan: str
    log: tuple[str, ...]
    compiled: Compiled | None
    rival: Callable[[ImageSet, ImageSet], Rival] | None
    tell: Tell
    writers: Writers | None = None
    stages: Stages = field(default_factory=Stages)  # of the run that is under way

    def say(self, line: str) -> None:
        if self.ranks.is_first:
            self.tell({"kind": "say", "text": line})

    def progress(self, what: str, done: int, total: int) -> None:
        """what: checking, or features."""
        if self.ranks.is_first:
            self.tell({"kind": what, "done": done, "total": total})

    def happened(self, folder: RunFolder | None, event: dict[str, Any]) -> None:
        """Something that belongs into the run's events; told by the first rank."""
        if folder is not None:
            folder.event(**event)
        if self.ranks.is_first:
            self.event(event)

    def event(self, event: dict[str, Any]) -> None:
        self.tell(event)
        if self.writers is not None:
            self.writers(event)

    @contextmanager
    def logging(self, where: Path) -> Iterator[None]:
        if not self.log or not self.ranks.is_first:
            yield
            return
        self.writers = Writers(self.log, where, self.say)
        try:
            yield
        finally:
            self.writers.close()

    def answers(self, model: Model, data: ImageSet, *, alone: bool = False) -> predict.Logits:
        """alone: the first rank asks, and the others are not there to share the work."""
        ranks = Ranks() if alone else None
        return predict.logits(model, data, device=self.device, workers=self.workers, skip_unreadable=True, ranks=ranks)
