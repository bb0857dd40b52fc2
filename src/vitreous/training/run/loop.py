"""The training loop: batch, step, log, look at dev, save; and every way a stage can end.

A `Standing` is where a stage stands. A stage killed at any moment resumes from the last state; on a CPU it ends with
exactly the weights of a run that nobody killed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import Interrupted, NotFiniteError, RunError
from vitreous.evaluation import accuracy, inference
from vitreous.images.batches.batches import Batch, Batches, Loading, Order
from vitreous.ranks import agreed, gather, naming_the_missing
from vitreous.training.recipe import Seconds
from vitreous.training.run import events, schedule
from vitreous.training.run.core_parallel import choose_lanes, choose_threads
from vitreous.training.run.folder import RunFolder, read_state
from vitreous.training.run.runtime import Runtime
from vitreous.training.run.stage import Standing, TrainingStage
from vitreous.training.run.step import SUMS, Step, choose_compiling
from vitreous.training.run.trained import Outcome

if TYPE_CHECKING:
    from vitreous.training.run.sharded_state import ShardedStates

SAVE_SECONDS = 30.0  # between states
SAVE_SHARE = 20  # saving takes at most a twentieth of the time
QUESTION_SECONDS = 1.0  # between questions to the other ranks whether to stop or save
QUESTION_STEPS = 100  # at most
MAX_LOGS = 200  # lines of loss in a long run
MAX_LOOKS = 50  # at dev
TRIAL_SECONDS = 2.0  # steps are timed this long to turn seconds into a number of steps
TRIAL_STEPS = 10
MAX_SKIPPED = 10  # bad batches that rollback skips


@dataclass
class _Stopwatch:
    """When things happened last."""

    began: float = field(default_factory=time.monotonic)  # start of the seconds that are not yet counted
    saved: float = field(default_factory=time.monotonic)
    logged: float = field(default_factory=time.monotonic)
    save_took: float = 0.0
    saved_at: int = 0  # step
    noted: int = 0  # replaced images that were reported
    asked: float = field(default_factory=time.monotonic)
    asked_at: int = 0  # step
    next_question: int = 0  # step

    def restart(self) -> None:
        self.began = self.saved = self.logged = self.asked = time.monotonic()


class Loop:
    """Trains one stage."""

    def __init__(
        self,
        stage: TrainingStage,
        runtime: Runtime,
        folder: RunFolder | None = None,  # on rank 0
        *,
        captured: bool | None = None,
        save_seconds: float = SAVE_SECONDS,
    ):
        self.stage, self.runtime, self.folder = stage, runtime, folder
        self.captured, self.save_seconds = captured, save_seconds
        self.at = Standing(stage.steps)
        self.best_state: dict[str, Tensor] = {}
        self.clock = _Stopwatch()
        self._reading: Iterator[Batch] | None = None
        self._shards: ShardedStates | None = None  # of a network in shards

    def run(self) -> Outcome:
        """Train from the newest state, or from the beginning, to the end."""
        lanes = choose_lanes(self.stage, self.runtime)
        try:
            with (
                _threads(choose_threads(self.stage, self.runtime, lanes)),
                naming_the_missing(self.runtime.ranks),
            ):
                return self._run(lanes)
        finally:
            self._stop_reading()
            if self._shards is not None:
                self._shards.close()

    def _run(self, lanes: int) -> Outcome:
        self.step = self._make_step(lanes)
        if self.step.shards is not None:
            from vitreous.training.run.sharded_state import ShardedStates  # importing torch's part takes a second

            self._shards = ShardedStates(self.folder, self.runtime.ranks)
        self.clock.restart()
        is_new = not self._restore()
        if not self.at.steps:
            self._fix_steps()
        self.rates = schedule.rates(self.stage.recipe, self.at.steps, self.stage.per_epoch)
        if is_new:
            self.clock.began = time.monotonic()
            self._save()  # what came before this stage is never done again
        with _catch_signals() as caught:
            self._go(caught)
            if any(gather(bool(caught))):  # a signal during the last step or save: the next stage must not begin
                raise Interrupted(caught[0] if caught else signal.SIGTERM, self.at.step)
        self.step.stop_checkpointing()
        return self._outcome()

    def _go(self, caught: list[int]) -> None:
        """Batch, step, log, look, save, until the last step."""
        stage, steps = self.stage, self.at.steps
        self.clock.restart()
        if self.at.is_over:
            return
        if stage.recipe.first_head == "solved" and stage.dev is not None and self.at.top is None:
            self._look()  # training must beat the head it began with
        self.step.network.train()
        log_every = max(1, min(stage.per_epoch, -(-steps // MAX_LOGS)))
        look_every = max(1, round(stage.recipe.evaluate_every * stage.per_epoch), -(-steps // MAX_LOOKS))
        batches = self._from_here()
        while self.at.step < steps:
            self._take(next(batches))
            self.at = self.at.after_step()
            at = self.at.step
            is_last = at == steps
            is_look = stage.dev is not None and (at % look_every == 0 or is_last)
            is_due = at % log_every == 0 or is_last or is_look or at == 1
            if is_due and (bad := self._log()) is not None:
                self._after_bad(bad)
                batches = self._from_here()
                continue
            if (is_last or is_look) and not self._is_finite():
                self._stop_spoiled()
            if is_look and self._look():
                break
            must_stop, must_save = self._ask(bool(caught))
            if must_stop:
                self._save(wait=True)
                raise Interrupted(caught[0] if caught else signal.SIGTERM, at)
            if at < steps and must_save:
                self._save()
        self.at = replace(self.at, is_over=True)
        self._save(wait=True)

    # --------------------------------------------------------------------------------------------------------- a step

    def _take(self, batch: Batch) -> None:
        """One step. If memory is too small, recompute blocks, then take the batch in more parts."""
        recipe, ranks = self.stage.recipe, self.runtime.ranks
        factor = float(self.rates[self.at.step] / recipe.peak_lr)
        while True:
            try:
                return self.step(batch, self.at.step, factor)
            except torch.OutOfMemoryError:
                parts = self.step.parts
                if ranks.world == 1 and recipe.checkpointing is None and self.step.checkpoint():
                    self.runtime.say("memory is too small for this batch: blocks are recomputed in the backward pass")
                    continue
                if ranks.world > 1 or not self.step.split_further():
                    do = "split it (--set accumulation=…), or take " if ranks.world > 1 else "take "
                    raise RunError(
                        f"a batch of {recipe.batch} in {parts} parts does not fit into the memory of "
                        f"{self.runtime.device}; {do}a smaller model or fewer pixels (--set image_size=…)"
                    ) from None
            self._record(events.MemorySplit(self.stage.name, self.step.parts, recipe.batch // self.step.parts))

    def _make_step(self, lanes: int) -> Step:
        stage, runtime = self.stage, self.runtime
        return Step(
            stage.task,
            stage.recipe,
            steps=max(self.at.steps, 1),
            rule=stage.preprocess,
            classes=max(stage.model.config.readout.classes, 1),
            device=runtime.device,
            ranks=runtime.ranks,
            compiled=choose_compiling(stage, runtime),
            captured=self.captured,
            lanes=lanes,
            strategy=runtime.strategy,
        )

    def _fix_steps(self) -> None:
        """Turn seconds into a number of steps: time a few, then undo them."""
        length = self.stage.recipe.length
        assert isinstance(length, Seconds)
        before = self.step.state()
        self.rates = np.full(1, self.stage.recipe.peak_lr * 1e-3)  # small, and each timed step is step 0
        self.step.network.train()
        batches = self._from_here()
        for _ in range(3):  # compile, capture, fill the queues
            self._take(next(batches))
        self._wait()
        begin, count = time.monotonic(), 0
        alone = self.runtime.ranks.world == 1  # else all ranks must take the same number
        while count < TRIAL_STEPS or (alone and time.monotonic() - begin < TRIAL_SECONDS):
            self._take(next(batches))
            count += 1
            if count % TRIAL_STEPS == 0:
                self._wait()
        self._wait()
        each = (time.monotonic() - begin) / count
        steps = max(1, int(length.count / each))
        if not alone:
            shared = torch.tensor(steps, device=self.runtime.device)
            torch.distributed.broadcast(shared, 0)
            steps = int(shared)
        self.at = replace(self.at, steps=steps)
        self.step.load(before)
        self.step.average.steps = steps
        self._record(events.StepsFixed(self.stage.name, steps, each, length.count))

    # --------------------------------------------------------------------------------------------------------- batches

    @cached_property
    def _batches(self) -> Batches:
        """Made once: what lies on the device stays there."""
        stage, runtime = self.stage, self.runtime
        recipe = stage.recipe
        loading = Loading(
            preprocess=stage.preprocess,
            augment=recipe.augment,
            device=runtime.device,
            workers=runtime.workers,
            reads=(self.at.steps or 10**9) * recipe.batch,
            on_unreadable="replace",
        )
        order = Order(batch=recipe.batch, seed=recipe.seed, epochs=2**31, repeats=recipe.repeats, ranks=runtime.ranks)
        return Batches(stage.train, order, loading)

    @cached_property
    def _dev_batches(self) -> Batches:
        """Made once: what lies on the device stays there from look to look."""
        stage, runtime = self.stage, self.runtime
        assert stage.dev is not None
        world = runtime.ranks.world
        batch = -(-inference.choose_batch(stage.preprocess.size, runtime.device) // world) * world
        return Batches(
            stage.dev,
            Order(batch=batch, ranks=runtime.ranks),
            Loading(
                preprocess=stage.preprocess,
                device=runtime.device,
                workers=runtime.workers,
                on_unreadable="skip",
            ),
        )

    def _from_here(self) -> Iterator[Batch]:
        """Batches from the next one on; only the number of consumed batches decides their place."""
        self._stop_reading()
        epoch, place = divmod(self.at.consumed, self.stage.per_epoch)
        self._batches.seek(epoch, place * self.stage.recipe.batch)
        self._reading = iter(self._batches)
        return self._reading

    def _stop_reading(self) -> None:
        """Close the readers now, not when the garbage collector comes: they hold processes and memory."""
        if isinstance(self._reading, Generator):
            self._reading.close()

    # ------------------------------------------------------------------------------------------------- log, look, save

    def _log(self) -> int | None:
        """Write one line of loss; return the number of a bad step."""
        recipe, clock, at = self.stage.recipe, self.clock, self.at
        done = self.step.done
        meters = self.step.read()
        now = time.monotonic()
        rate = done * recipe.batch / max(now - clock.logged, 1e-9)
        clock.logged = now
        if meters.bad_at is not None:
            return meters.bad_at
        for line in events.about_replaced(self._batches.replaced[clock.noted :], len(self._batches.replaced)):
            self.runtime.event(events.Noted(line))
        clock.noted = len(self._batches.replaced)
        device = self.runtime.device
        place = self.runtime.stages.after(self.stage.name, at.step, at.steps)
        kind = events.StepOfSeveral if place else events.StepLogged
        event = kind(
            stage=self.stage.name,
            step=at.step,
            steps=at.steps,
            epoch=at.consumed / self.stage.per_epoch,
            loss=meters.loss,
            accuracy=meters.accuracy,
            lr=float(self.rates[at.step - 1]),
            norm=meters.norm,
            images_per_second=rate,
            seconds_left=(at.steps - at.step) * recipe.batch / max(rate, 1e-9),
            memory=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
            **place,
        )
        self._record(event)
        return None

    def _look(self) -> bool:
        """Judge the averaged weights on dev and keep the state by `Standing.after_look`; True if patience ran out."""
        stage = self.stage
        with self.step.averaged():
            found = inference.logits(stage.model, self._dev_batches, device=self.runtime.device)
            if self.at.step and not np.isfinite(found.values).all():
                self._stop_spoiled()
            result = accuracy.measure(found.values, found.labels, stage.train.classes)
            loss, right = float(result.loss), float(result.top1)
            self.at, is_best, is_kept = self.at.after_look(right, loss, len(found.labels))
            if is_kept:
                self.best_state = self._kept(stage.model.state_dict())
        self.step.network.train()
        epoch = self.at.consumed / stage.per_epoch
        self._record(events.DevLooked(stage.name, self.at.step, epoch, right, loss, is_best, is_kept))
        self.clock.logged = time.monotonic()
        out = stage.recipe.patience is not None and self.at.without_gain >= stage.recipe.patience
        if out:
            self._record(events.PatienceEnded(stage.name, self.at.step, self.at.without_gain))
        return out

    def _save(self, *, wait: bool = False) -> None:
        """Save a state, unless a weight is not finite."""
        if self.at.step and not self._is_finite():
            return
        begin = time.monotonic()
        self._wait()
        tensors = self.step.state()
        self._count_seconds()
        tensors |= {f"best.{name}": tensor for name, tensor in self.best_state.items()}
        about = {"stage": self.stage.name, **self.at.to_json()}
        about |= {"parts": self.step.parts, "lanes": self.step.lane_count}
        if self._shards is not None:
            self._shards.save(tensors, self._shapes(), about, wait=wait)
        elif self.folder is not None:
            self.folder.save_state(tensors, about, wait=wait)
        self.clock.saved, self.clock.saved_at = time.monotonic(), self.at.step
        self.clock.save_took = self.clock.saved - begin

    def _restore(self) -> bool:
        """Resume from the newest state of this stage; False if the stage has no state."""
        ranks, found = self.runtime.ranks, None
        if self.folder is not None:

            def say(line: str) -> None:
                self.runtime.event(events.Noted(line))

            found = self.folder.latest_state(self.stage.name, say=say, in_memory=ranks.world == 1 and not self._shards)
        if ranks.world > 1:
            found = agreed(ranks, lambda: found)  # without tensors: each rank reads them itself
        if found is None:
            return False
        self.at = Standing.from_json(found.about)
        self.clock.saved_at = self.at.step
        if self._shards is not None:
            found = replace(found, tensors=self._read_rows(self._shards, found.path))
        elif ranks.world > 1:
            found = read_state(found.path)
        self.best_state = {n.removeprefix("best."): t for n, t in found.tensors.items() if n.startswith("best.")}
        self._keep_lanes(found.about.get("lanes", 1))
        self.step.keep_parts(found.about["parts"])
        self.step.average.steps = self.at.steps
        self.step.load({name: tensor for name, tensor in found.tensors.items() if not name.startswith("best.")})
        if not self.at.is_over and self.at.step:
            self.runtime.event(events.Said(f"{self.stage.name} goes on from step {self.at.step:,}"))
        return True

    def _read_rows(self, states: ShardedStates, path: Path) -> dict[str, Tensor]:
        """This rank's rows of a state."""
        saved, shapes = states.shapes_in(path), self._shapes()
        own = {name: tensor for name, tensor in self.step.state().items() if name in saved}
        own[SUMS] = torch.zeros(saved[SUMS], dtype=own[SUMS].dtype)
        if self.at.best is not None:
            own |= {f"best.{name}": tensor for name, tensor in self._kept(self.stage.model.state_dict()).items()}
        states.fill(path, own, shapes)
        return own

    def _kept(self, state: dict[str, Any]) -> dict[str, Tensor]:
        """A copy on the host; of a network in shards, this rank's rows."""
        if self.step.shards is None:
            return _copied(state)
        return _copied({name: self.step.shards.rows.own(tensor) for name, tensor in state.items()})

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Whole shapes of what a state has in rows."""
        best = self.stage.model.state_dict().items() if self.step.shards is not None else ()
        return self.step.shapes() | {f"best.{name}": tuple(tensor.shape) for name, tensor in best}

    def _keep_lanes(self, lanes: int) -> None:
        """Keep the lanes the run began with, on any machine: they decide how sums are rounded."""
        is_alone = self.runtime.ranks.world == 1 and self.step.shards is None
        if lanes != self.step.lane_count and is_alone:
            torch.set_num_threads(choose_threads(self.stage, self.runtime, lanes))
            self.step = self._make_step(lanes)

    # -------------------------------------------------------------------------------------------------- not finite

    def _after_bad(self, bad: int) -> None:
        """A loss or gradient was not finite, and the weights are those before step `bad`: stop, or skip the batch."""
        self.at = self.at.back_to(bad)
        place = self._keep_batch(bad)
        self.step.forgive()
        broken = events.NotFinite(self.stage.name, bad, batch=Path(place).name if place else None)
        self._record(broken)
        if self.runtime.on_nan == "rollback" and len(self.at.skipped) < MAX_SKIPPED:
            self.at = self.at.past_batch()
            return
        self._save(wait=True)
        tried = f" after passing over {len(self.at.skipped)} others" if self.at.skipped else ""
        rescue = "start again at a lower rate (--set peak_lr=…)"
        rescue += "" if tried else ", or go on past it with --resume --on-nan rollback"
        kept = f", the batch in {place}" if place else ""
        raise NotFiniteError(f"{broken}{tried}; the weights before it are saved{kept}; {rescue}")

    def _stop_spoiled(self) -> NoReturn:
        """Every loss and gradient was finite, but the last step spoiled the weights."""
        self.at = self.at.back_to(self.at.step - 1)
        at = self.at.step
        place = self._keep_batch(at)
        own = next((name for name, tensor in self._weights().items() if not _are_finite([tensor])), None)
        weight = next((name for name in gather(own) if name is not None), None)
        what = "weights" if weight else "answers on dev"
        broken = events.NotFinite(self.stage.name, at, what, weight, Path(place).name if place else None)
        self._record(broken)
        kept = f", the batch in {place}" if place else ""
        raise NotFiniteError(
            f"{broken}; the weights before step {self.clock.saved_at} are saved{kept}; "
            "start again at a lower rate (--set peak_lr=…)"
        )

    def _weights(self) -> dict[str, Tensor]:
        """The weights of the network and of its average, which an outcome is made of."""
        averages = {f"the average of {name}": tensor for name, tensor in self.step.average.state.items()}
        found = self.step.weights() | averages
        return {name: tensor for name, tensor in found.items() if tensor.is_floating_point()}

    def _is_finite(self) -> bool:
        """Whether every weight is finite, on all ranks."""
        own = _are_finite(self._weights().values())
        return own if self.step.shards is None else all(gather(own))

    def _keep_batch(self, step: int) -> str | None:
        """Write the images that broke the step, as they were before augmentation."""
        batch = next(self._from_here())
        if self.folder is None:
            return None
        names = [self.stage.train.source.name(int(i)) for i in batch.ids]
        tensors = {"images": batch.images.cpu(), "labels": batch.labels.cpu(), "ids": torch.from_numpy(batch.ids)}
        return self.folder.keep_batch(step, tensors, names)

    # ---------------------------------------------------------------------------------------------------- the outcome

    def _outcome(self) -> Outcome:
        at = self.at
        if at.best is not None:
            state, step = self._whole(self.best_state), int(at.best["step"])
        else:
            with self.step.averaged():
                state = _copied(self.stage.model.state_dict())
            step = at.step
        rate = at.step * self.stage.recipe.batch / max(at.seconds, 1e-9)
        return Outcome(state, step, at.steps, at.seconds, rate, at.best, at.skipped)

    def _whole(self, kept: dict[str, Tensor]) -> dict[str, Tensor]:
        """What `_kept` gave, whole again."""
        if self.step.shards is None:
            return kept
        rows, whole = self.step.shards.rows, self.stage.model.state_dict()
        return {name: rows.whole(tensor, tuple(whole[name].shape)) for name, tensor in kept.items()}

    def _record(self, event: events.StageEvent) -> None:
        self.runtime.record(self.folder, event)

    def _count_seconds(self) -> None:
        now = time.monotonic()
        self.at = replace(self.at, seconds=self.at.seconds + now - self.clock.began)
        self.clock.began = now

    def _wait(self) -> None:
        if self.runtime.device.type == "cuda":
            torch.cuda.synchronize(self.runtime.device)

    def _ask(self, stop: bool) -> tuple[bool, bool]:
        """Whether to stop, because any rank caught a signal; and whether to save, by the clock of rank 0.

        Ranks ask each other about once a second: asking is a message.
        """
        clock, ranks, at, now = self.clock, self.runtime.ranks, self.at.step, time.monotonic()
        save = now - clock.saved > max(self.save_seconds, SAVE_SHARE * clock.save_took)
        if ranks.world == 1:
            return stop, save
        if at < clock.next_question:
            return False, False
        each = (now - clock.asked) / max(at - clock.asked_at, 1)
        told = torch.tensor([float(stop), float(save and ranks.is_first), each], device=self.runtime.device)
        torch.distributed.all_reduce(told)
        stops, saves, seconds = told.tolist()
        clock.asked, clock.asked_at = now, at
        pause = int(QUESTION_SECONDS * ranks.world / max(seconds, 1e-9))
        clock.next_question = at + min(max(pause, 1), QUESTION_STEPS)
        return stops > 0, saves > 0


def _copied(state: dict[str, Any]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}


def _are_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether every norm is finite. A weight above 1e19 does not count as finite: its square overflows."""
    norms = torch._foreach_norm([tensor.detach() for tensor in tensors])
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
def _catch_signals() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM, caught so that the loop obeys them between two steps; a second one is obeyed at once."""
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
