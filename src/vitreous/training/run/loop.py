"""The training loop: steps from wherever the run stands, looks at dev, states on disk, and every way a run can end.

A run is (task, recipe, images); where it stands is (step, batches consumed). Killed at any moment it goes on from the
last state, and on a CPU ends with the very weights of a run that nobody killed.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import ConfigError, Interrupted, NotFiniteError, RunError
from vitreous.evaluation import accuracy, predict
from vitreous.images.batches.batches import Batch, Batches
from vitreous.images.imageset import ImageSet
from vitreous.models.config import ViTConfig
from vitreous.models.cost import training_flops
from vitreous.models.model import Model
from vitreous.models.preprocess import Preprocess
from vitreous.ranks import Ranks
from vitreous.training.recipe import Recipe, Seconds
from vitreous.training.run import schedule
from vitreous.training.run.core_parallel import has_dropout, how_many
from vitreous.training.run.folder import RunFolder, read_state
from vitreous.training.run.progress import Stages
from vitreous.training.run.step import Compiled, Step, averaged
from vitreous.training.run.tasks.classify import Task
from vitreous.training.run.trained import Outcome

__all__ = ["Loop"]

SAVE_SECONDS = 30.0  # between states, and so that saving takes no more than a twentieth of the time
SAVE_SHARE = 20
ASKED = 10  # steps between two questions to the other ranks whether to stop
LOGS = 200  # lines of loss that a long run leaves
LOOKS = 50  # at dev, at most
FOR_ONE_THREAD = 4e9  # FLOP of a step on a CPU: of 2e9, two threads beside the one that draws were 0.6 times as fast
LONG, SHORT = 90.0, 12.0  # seconds it would train uncompiled, from which a GPU's step is: whole; by blocks (a guess)
EAGER = 1.2e14  # FLOP/s of a step that is captured but not compiled; seen on an H200
TRIAL_SECONDS = 2.0  # how long steps are timed to turn a budget into their number
TRIAL_STEPS = 10
MOST_SKIPPED = 10  # bad batches that rollback passes over

Tell = Callable[[dict[str, Any]], None]


@dataclass
class Loop:
    """One stage of a run."""

    task: Task
    model: Model  # whose answers dev is judged by
    recipe: Recipe
    train: ImageSet
    rule: Preprocess
    device: torch.device
    dev: ImageSet | None = None
    ranks: Ranks = field(default_factory=Ranks)
    folder: RunFolder | None = None  # of the first rank
    stage: str = "fit"
    on_nan: str = "stop"
    workers: int | None = None
    tell: Tell = lambda event: None
    compiled: Compiled | None = None
    captured: bool | None = None
    save_seconds: float = SAVE_SECONDS
    stages: Stages = field(default_factory=Stages)  # this one among those of the run

    def __post_init__(self) -> None:
        self.per_epoch = len(self.train) // self.recipe.batch
        if not self.per_epoch:
            raise ConfigError(
                f"a batch of {self.recipe.batch} is more than the {len(self.train)} training images; "
                f"give --set batch={len(self.train) // 2 * 2}"
            )
        self.at = 0  # the next step
        self.consumed = 0  # batches
        self.best: dict[str, Any] | None = None  # the state that is kept
        self.top: list[float] | None = None  # highest accuracy on dev, and minus its loss
        self.best_state: dict[str, Tensor] = {}
        self.without_gain = 0
        self.skipped: list[int] = []
        self.seconds, self.is_over = 0.0, False
        self.save_took, self.told_replaced, self.saved_at = 0.0, 0, 0
        self._reading: Iterator[Batch] | None = None
        self.steps = schedule.total_steps(self.recipe, self.per_epoch) or 0

    # --------------------------------------------------------------------------------------------------- the whole job

    def run(self) -> Outcome:
        """From the newest state, or from the beginning, to the end."""
        self.lanes = self._lane_count()
        try:
            with _threads(self._thread_count()):
                return self._run()
        finally:
            self._stop_reading()

    def _lane_count(self) -> int:
        """A CPU's cores that take a part of the batch each; a compiled step has all of them."""
        is_compiled = self.compiled not in (None, "none")
        if self.device.type != "cpu" or is_compiled or self.ranks.world > 1 or has_dropout(self.task.network):
            return 1
        return how_many(
            self.recipe.batch,
            self.recipe.accumulation,
            torch.get_num_threads(),
            parameters=sum(p.numel() for p in self.task.network.parameters() if p.requires_grad),
            in_pairs=self.recipe.augment.mixes,
        )

    def _thread_count(self) -> int:
        """One in each lane; one, too, where a step is so little work that threads would mostly wait for each other."""
        if self.lanes > 1:
            return 1
        work = training_flops(self.model.config) * self.recipe.batch / self.ranks.world
        return 1 if self.device.type == "cpu" and work < FOR_ONE_THREAD else torch.get_num_threads()

    def _run(self) -> Outcome:
        self.network = self.task.network
        self.step = self._make_step()
        self.began = self.saved = self.logged = time.monotonic()
        is_new = not self._restore()
        if not self.steps:
            self._fix_steps()
        self.rates = schedule.rates(self.recipe, self.steps, self.per_epoch)
        self.log_every = max(1, min(self.per_epoch, -(-self.steps // LOGS)))
        self.look_every = max(1, round(self.recipe.evaluate_every * self.per_epoch), -(-self.steps // LOOKS))
        if is_new:
            self.began = time.monotonic()
            self._save()  # so that what came before this stage is never done again
        with _signals() as caught:
            self._go(caught)
            if caught:  # while the last step was taken or saved: the next stage must not begin
                raise Interrupted(caught[0], self.at)
        return self._outcome()

    def _go(self, caught: list[int]) -> None:
        self.began = self.saved = self.logged = time.monotonic()
        if self.is_over:
            return
        if self.recipe.first_head == "solved" and self.dev is not None and self.top is None:
            self._look()  # what dev calls worse than the head it began with is not kept
        self.network.train()
        batches = self._from_here()
        while self.at < self.steps:
            batch = next(batches)
            self._take(batch)
            self.at += 1
            self.consumed += 1
            is_last = self.at == self.steps
            is_look = self.dev is not None and (self.at % self.look_every == 0 or is_last)
            is_due = self.at % self.log_every == 0 or is_last or is_look or self.at == 1
            if is_due and (bad := self._log()) is not None:
                self._after_bad(bad)
                batches = self._from_here()
                continue
            if (is_last or is_look) and not _are_finite(self._weights()):
                self._stop_spoiled()
            if is_look and self._look():
                break
            if self._someone_says(bool(caught)):
                self._save(wait=True)
                raise Interrupted(caught[0] if caught else signal.SIGTERM, self.at)
            rest = max(self.save_seconds, SAVE_SHARE * self.save_took)
            if self.at < self.steps and time.monotonic() - self.saved > rest:
                self._save()
        self.is_over = True
        self._save(wait=True)

    def _take(self, batch: Batch) -> None:
        """One step; where the memory is too small, the batch in more parts, the first time."""
        factor = float(self.rates[self.at] / self.recipe.peak_lr)
        while True:
            try:
                return self.step(batch, self.at, factor)
            except torch.OutOfMemoryError:
                parts = self.step.parts
                if self.ranks.world > 1 or not self.step.split_further():
                    do = "split it (--set accumulation=…), or take " if self.ranks.world > 1 else "take "
                    raise RunError(
                        f"a batch of {self.recipe.batch} in {parts} parts does not fit into the memory of "
                        f"{self.device}; {do}a smaller model or fewer pixels (--set image_size=…)"
                    ) from None
            self._event("memory", parts=self.step.parts, micro_batch=self.recipe.batch // self.step.parts)

    # ------------------------------------------------------------------------------------------------------- its parts

    @property
    def _compiling(self) -> Compiled:
        """Compiling takes up to a minute, which a short run does not give back; one block for all is less."""
        if self.compiled is not None or self.device.type != "cuda":
            return self.compiled or "none"
        if isinstance(self.recipe.length, Seconds):
            expected = self.recipe.length.count
        else:
            each = training_flops(self.model.config) / EAGER
            expected = each * self.recipe.batch * self.steps / self.ranks.world
        has_blocks = isinstance(self.model.config, ViTConfig)
        return "whole" if expected > LONG else "blocks" if expected > SHORT and has_blocks else "none"

    def _make_step(self) -> Step:
        return Step(
            self.task,
            self.recipe,
            steps=max(self.steps, 1),
            rule=self.rule,
            classes=max(self.model.config.readout.classes, 1),
            device=self.device,
            ranks=self.ranks,
            compiled=self._compiling,
            captured=self.captured,
            lanes=self.lanes,
        )

    @cached_property
    def _batches(self) -> Batches:
        """Made once: what lies on the device stays there, wherever the run goes on from."""
        return Batches(
            self.train,
            batch=self.recipe.batch,
            preprocess=self.rule,
            augment=self.recipe.augment,
            seed=self.recipe.seed,
            epochs=2**31,
            reads=(self.steps or 10**9) * self.recipe.batch,
            repeats=self.recipe.repeats,
            on_unreadable="replace",
            rank=self.ranks.rank,
            world=self.ranks.world,
            workers=self.workers,
            device=self.device,
        )

    def _from_here(self) -> Iterator[Batch]:
        """From the next batch on; the place in the data is what was consumed, nothing else."""
        self._stop_reading()
        epoch, place = divmod(self.consumed, self.per_epoch)
        self._batches.seek(epoch, place * self.recipe.batch)
        self._reading = iter(self._batches)
        return self._reading

    def _stop_reading(self) -> None:
        """Here, and not when a collector comes by: readers have processes and memory to give back."""
        if isinstance(self._reading, Generator):
            self._reading.close()

    @cached_property
    def _dev_batches(self) -> Batches:
        """Made once: what lies on the device stays there from look to look."""
        assert self.dev is not None
        world = self.ranks.world
        batch = -(-predict.choose_batch(self.rule.size, self.device) // world) * world
        return Batches(
            self.dev,
            batch=batch,
            preprocess=self.rule,
            device=self.device,
            workers=self.workers,
            rank=self.ranks.rank,
            world=world,
            skip_unreadable=True,
        )

    def _fix_steps(self) -> None:
        """A budget in seconds becomes a number of steps: a few are timed, and leave no trace."""
        assert isinstance(self.recipe.length, Seconds)
        before = self.step.state()
        self.rates = np.full(1, self.recipe.peak_lr * 1e-3)  # small, and the step is always number 0
        self.network.train()
        batches = self._from_here()
        for _ in range(3):  # compile, capture, fill the queues
            self._take(next(batches))
        self._wait()
        begin, count = time.monotonic(), 0
        alone = self.ranks.world == 1  # else all ranks must take as many
        while count < TRIAL_STEPS or (alone and time.monotonic() - begin < TRIAL_SECONDS):
            self._take(next(batches))
            count += 1
            if count % TRIAL_STEPS == 0:
                self._wait()
        self._wait()
        each = (time.monotonic() - begin) / count
        steps = max(1, int(self.recipe.length.count / each))
        if self.ranks.world > 1:
            shared = torch.tensor(steps, device=self.device)
            torch.distributed.broadcast(shared, 0)
            steps = int(shared)
        self.steps = steps
        self.step.load(before)
        self.step.average.steps = steps
        self._event("steps", steps=steps, seconds_each=each, budget=self.recipe.length.count)

    def _restore(self) -> bool:
        """Whether there was a state of this stage to go on from."""
        found = None
        if self.folder is not None:
            found = self.folder.latest_state(self.stage, say=lambda line: self.tell({"kind": "note", "text": line}))
        if self.ranks.world > 1:  # every rank reads the file for itself
            box: list[Any] = [None if found is None else found.path]
            torch.distributed.broadcast_object_list(box, 0)
            found = read_state(box[0]) if box[0] is not None and found is None else found
        if found is None:
            return False
        about = found.about
        self.at, self.consumed, self.steps = about["step"], about["consumed"], about["steps"]
        self.saved_at = self.at
        self.best, self.without_gain, self.skipped = about["best"], about["without_gain"], about["skipped"]
        self.top = about.get("top")  # a run begun before this was kept has none
        self.seconds, self.is_over, self.step.parts = about["seconds"], about["is_over"], about["parts"]
        self.best_state = {n.removeprefix("best."): t for n, t in found.tensors.items() if n.startswith("best.")}
        self._keep_to(about.get("lanes", 1))
        self.step.average.steps = self.steps
        self.step.load({name: tensor for name, tensor in found.tensors.items() if not name.startswith("best.")})
        if not self.is_over and self.at:
            self.tell({"kind": "say", "text": f"{self.stage} goes on from step {self.at:,}"})
        return True

    def _keep_to(self, lanes: int) -> None:
        """A run goes on as it began, whatever machine it is on now: lanes decide how sums are rounded."""
        if lanes != self.lanes:
            self.lanes = lanes
            torch.set_num_threads(self._thread_count())
            parts, self.step = self.step.parts, self._make_step()
            self.step.parts = parts

    def _save(self, *, wait: bool = False) -> None:
        """A state to go on from, which weights that are not finite are none."""
        if self.at and not _are_finite(self._weights()):
            return
        begin = time.monotonic()
        self._wait()
        tensors = self.step.state() if self.folder is not None else {}
        self._clock()
        if self.folder is not None:
            tensors |= {f"best.{name}": tensor for name, tensor in self.best_state.items()}
            about = {
                "stage": self.stage,
                "step": self.at,
                "steps": self.steps,
                "consumed": self.consumed,
                "best": self.best,
                "top": self.top,
                "without_gain": self.without_gain,
                "skipped": self.skipped,
                "seconds": self.seconds,
                "is_over": self.is_over,
                "parts": self.step.parts,
                "lanes": self.lanes,
            }
            self.folder.save_state(tensors, about, wait=wait)
        self.saved, self.saved_at = time.monotonic(), self.at
        self.save_took = self.saved - begin

    def _log(self) -> int | None:
        """One line of events; the number of a bad step where there was one."""
        done = self.step.done
        meters = self.step.read()
        now = time.monotonic()
        rate = done * self.recipe.batch / max(now - self.logged, 1e-9)
        self.logged = now
        if meters.bad_at is not None:
            return meters.bad_at
        for name, why in self._batches.replaced[self.told_replaced :]:
            self.tell({"kind": "note", "text": f"{name} cannot be read ({why}); another picture is shown in its place"})
        self.told_replaced = len(self._batches.replaced)
        self._event(
            "step",
            step=self.at,
            steps=self.steps,
            epoch=self.consumed / self.per_epoch,
            loss=meters.loss,
            accuracy=meters.accuracy,
            lr=float(self.rates[self.at - 1]),
            norm=meters.norm,
            images_per_second=rate,
            seconds_left=(self.steps - self.at) * self.recipe.batch / max(rate, 1e-9),
            memory=torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None,
            **self.stages.after(self.stage, self.at, self.steps),
        )
        return None

    def _look(self) -> bool:
        """Judge on dev with the averaged weights; whether patience has run out.

        The latest state within a standard error of the highest accuracy is kept: of a hundred images the highest is
        chance, and the early state it falls on, before the rate came down, is worse on all others.
        """
        assert self.dev is not None
        with averaged(self.step):
            found = predict.logits(self.model, self._dev_batches, device=self.device)
            if self.at and not np.isfinite(found.values).all():
                self._stop_spoiled()
            result = accuracy.measure(found.values, found.labels, self.train.classes)
            loss, right = float(result.loss), float(result.top1)
            is_best = self.top is None or (right, -loss) > tuple(self.top)
            self.top = [right, -loss] if is_best or self.top is None else self.top
            count = len(found.labels)
            top = (self.top[0] * count + 1) / (count + 2)  # all right of a few is not certain
            is_kept = right >= self.top[0] - math.sqrt(top * (1 - top) / max(count, 1))
            if is_kept:
                self.best = {"step": self.at, "accuracy": right, "loss": loss}
                state = self.model.state_dict()
                self.best_state = {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}
        self.network.train()
        self.without_gain = 0 if is_best else self.without_gain + 1
        words = {"accuracy": right, "loss": loss, "best": is_best, "kept": is_kept}
        self._event("dev", step=self.at, epoch=self.consumed / self.per_epoch, **words)
        self.logged = time.monotonic()
        out = self.recipe.patience is not None and self.without_gain >= self.recipe.patience
        if out:
            self._event("patience", step=self.at, looks=self.without_gain)
        return out

    def _after_bad(self, bad: int) -> None:
        """A loss or gradient was not finite: the weights are those before step `bad`. Stop there, or pass over it."""
        back = self.at - bad  # steps that changed nothing
        self.at, self.consumed = bad, self.consumed - back
        place = self._keep_batch(bad)
        self.step.forgive()
        self._event("nan", step=bad, what="loss or gradient", batch=Path(place).name if place else None)
        if self.on_nan == "rollback" and len(self.skipped) < MOST_SKIPPED:
            self.skipped.append(self.consumed)
            self.consumed += 1
            return
        self._save(wait=True)
        tried = f" after passing over {len(self.skipped)} others" if self.skipped else ""
        rescue = "start again at a lower rate (--set peak_lr=…)"
        rescue += "" if tried else ", or go on past it with --resume --on-nan rollback"
        kept = f", the batch in {place}" if place else ""
        raise NotFiniteError(
            f"the loss or gradient of step {bad} is not finite{tried}; the weights before it are saved{kept}; {rescue}"
        )

    def _stop_spoiled(self) -> NoReturn:
        """Every loss and gradient was finite, and the last of the steps still left weights that are no use."""
        self.at, self.consumed = self.at - 1, self.consumed - 1
        place = self._keep_batch(self.at)
        weight = self._spoiled()
        what = "weights" if weight else "answers on dev"
        self._event("nan", step=self.at, what=what, weight=weight, batch=Path(place).name if place else None)
        first = f" ({weight} first)" if weight else ""
        kept = f", the batch in {place}" if place else ""
        raise NotFiniteError(
            f"the {what} after step {self.at} are not finite, or too large to compute with{first}; the weights before "
            f"step {self.saved_at} are saved{kept}; start again at a lower rate (--set peak_lr=…)"
        )

    def _spoiled(self) -> str | None:
        """The first tensor of the network, or of its average, that is of no use; by its name."""
        tensors = self.network.state_dict()
        tensors |= {f"the average of {name}": tensor for name, tensor in self.step.average.state.items()}
        floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
        return next((name for name, tensor in floats.items() if not _are_finite([tensor])), None)

    def _weights(self) -> list[Tensor]:
        """Of the network and their average: what an outcome is made of."""
        return [*self.step.network.state_dict().values(), *self.step.average.state.values()]

    def _keep_batch(self, step: int) -> str | None:
        """The pictures that did it, as they were before augmentation."""
        batch = next(self._from_here())
        if self.folder is None:
            return None
        names = [self.train.source.name(int(i)) for i in batch.ids]
        tensors = {"images": batch.images.cpu(), "labels": batch.labels.cpu(), "ids": torch.from_numpy(batch.ids)}
        return self.folder.keep_batch(step, tensors, names)

    def _outcome(self) -> Outcome:
        if self.best is not None:
            state, at = self.best_state, int(self.best["step"])
        else:
            with averaged(self.step):
                state = {name: t.detach().to("cpu", copy=True) for name, t in self.model.state_dict().items()}
            at = self.at
        rate = self.at * self.recipe.batch / max(self.seconds, 1e-9)
        return Outcome(state, at, self.steps, self.seconds, rate, self.best, tuple(self.skipped))

    # ------------------------------------------------------------------------------------------------------- small ones

    def _event(self, kind: str, **fields: Any) -> None:
        event = {"kind": kind, "stage": self.stage, **fields}
        if self.ranks.is_first:
            if self.folder is not None:
                self.folder.event(**event)
            self.tell(event)

    def _clock(self) -> None:
        now = time.monotonic()
        self.seconds += now - self.began
        self.began = now

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _someone_says(self, stop: bool) -> bool:
        """Whether any rank was told to stop; asked now and then, since asking is a message."""
        if self.ranks.world == 1:
            return stop
        if self.at % ASKED:
            return False
        told = torch.tensor(float(stop), device=self.device)
        torch.distributed.all_reduce(told)
        return bool(told > 0)


def _are_finite(tensors: list[Tensor]) -> bool:
    """Whether every norm is: a weight above 1e19 counts as none, as any sum of its squares does."""
    norms = torch._foreach_norm([tensor.detach() for tensor in tensors if tensor.is_floating_point()])
    return bool(torch.stack([norm.float() for norm in norms]).isfinite().all())


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM are written down, to be obeyed between two steps; the second one is obeyed at once."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def catch(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        if len(caught) > 1:
            os._exit(128 + number) if number == signal.SIGTERM else signal.default_int_handler(number, frame)

    for number in before:
        signal.signal(number, catch)
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
