"""Where a run happens: device, processes, workers, listeners. It changes no number beyond rounding."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.nn import functional as F

from vitreous.evaluation import inference
from vitreous.images.imageset import ImageSet
from vitreous.models.model import Model
from vitreous.ranks import Ranks
from vitreous.training.plan.parallel import Strategy
from vitreous.training.run.events import Event, Noted, ProgressMade, Said
from vitreous.training.run.folder import RunFolder
from vitreous.training.run.plain_lines import PlainLines
from vitreous.training.run.stage import Stages
from vitreous.training.run.step import Compiled
from vitreous.training.run.trackers import Writers
from vitreous.training.run.trained import Rival

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
    began: float = field(default_factory=time.monotonic)  # when the user began to wait
    stages: Stages = field(default_factory=Stages)  # of the run in progress
    parallel: str = "auto"  # how several devices share a training, as asked
    strategy: Strategy = field(default_factory=Strategy)  # and as chosen

    @property
    def device_name(self) -> str:
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return f"CPU ({torch.get_num_threads()} threads)" if self.device.type == "cpu" else self.device.type

    def say(self, what: str | Event) -> None:
        """Tell a detail, or any event, on rank 0."""
        if self.ranks.is_first:
            self.tell(Said(what) if isinstance(what, str) else what)

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
        self.writers = Writers(self.log, where, lambda line: self.say(Noted(line)))
        try:
            yield
        finally:
            self.writers.close()

    def answers(self, model: Model, data: ImageSet, *, alone: bool = False) -> inference.Logits:
        """The model's answers to the images that can be read.  alone: only rank 0 asks, and no rank shares the work."""
        ranks = Ranks() if alone else None
        return inference.logits(
            model, data, device=self.device, workers=self.workers, skip_unreadable=True, ranks=ranks
        )


def listener() -> Tell:
    """A live cell if a notebook runs us, lines on a terminal, else silence."""
    if "IPython" in sys.modules:
        from vitreous.training.run import live_cell

        if live_cell.notebook_shell() is not None:
            return live_cell.LiveCell()
    return PlainLines() if sys.stderr.isatty() else lambda event: None


@contextmanager
def preload_kernels(device: torch.device) -> Iterator[None]:
    """Within it, a thread runs a tiny step on the GPU, so that torch loads its kernels while the images are checked.

    On one H200's host loading took 9 s of a run's 75. It ends before any step is captured.
    """
    thread = threading.Thread(target=_tiny_step, args=(device,), name="vitreous-preload_kernels")
    if device.type == "cuda":
        thread.start()
    yield  # an error is raised at once, and the thread ends by itself
    if device.type == "cuda":
        thread.join()


def _tiny_step(device: torch.device) -> None:
    """An error here happens again in training, and is reported there."""
    with suppress(Exception):
        import torch._dynamo  # a compiled step wants it, and its import takes seconds

        x = torch.zeros(4, 3, 32, 64, device=device, requires_grad=True)
        w = torch.zeros(64, 64, device=device, requires_grad=True)
        b = torch.zeros(64, device=device, requires_grad=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=torch.cuda.is_bf16_supported()):
            y = F.gelu(F.linear(F.layer_norm(x, (64,), b, b), w, b))
            y = F.scaled_dot_product_attention(y, y, y).float().mean((1, 2))
        torch.autograd.grad(F.cross_entropy(y, torch.zeros(4, dtype=torch.int64, device=device)), (x, w, b))
        torch.cuda.synchronize(device)
