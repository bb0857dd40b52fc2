"""`vitreous demo`: the main job on the embedded images, next to logistic regression on the same pixels."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import RunError
from vitreous.evaluation import logistic
from vitreous.evaluation.accuracy import wilson
from vitreous.images import open_data, splits
from vitreous.images.imageset import ImageSet
from vitreous.training.fit import Run, Tell, fit
from vitreous.training.recipe import Seconds, Steps
from vitreous.training.run import folder as runs
from vitreous.training.run.trained import Rival

DEMO_FOLDER = "runs/demo"
RECIPE = "small-hybrid"  # a plain ViT of 16 patches takes no less time and is right on 85.5 %, no more than the rival
DEMO_STEPS = 1200  # 20 epochs; about 40 s on two idle cores, and as good on a slow or busy machine
RIVAL_PENALTIES = (0.1, 0.03, 0.01, 0.003)  # of the rival; the best lies within
RIVAL_SLOPE = 1e-3  # at which the rival's search may stop; a tenth of it changes one answer in a thousand


@dataclass(frozen=True)
class Demo:
    """A run and its rival."""

    run: Run

    @property
    def rival(self) -> dict[str, Any] | None:
        """None if `vitreous fit` finished the run, which asks no rival."""
        return next(iter(self.run.metrics["rivals"]), None)

    @property
    def alarm(self) -> str | None:
        return self.run.alarm

    def to_json(self) -> dict[str, Any]:
        return self.run.to_json()

    def _repr_html_(self) -> str:
        return self.run._repr_html_()

    def __str__(self) -> str:
        judged, rival, path = self.run.metrics["judged"], self.rival, self.run.path
        ours = _share(judged["right"], judged["images"])
        next_steps = {
            f"vitreous serve {path}": "its page: see why, and try to break it",
            f"vitreous look {path}": "what happens inside, in figures",
            f"vitreous predict {path} IMAGE": "ask this model",
            "vitreous fit FOLDER": "train on your own images, a folder a class",
            "vitreous models": "every network of the papers",
        }
        wide = max(map(len, next_steps))
        return "\n".join(
            [
                *([] if self.alarm is None else [self.alarm, ""]),
                "Now try:",
                *(f"  {command:<{wide}}  {does}" for command, does in next_steps.items()),
                "",
                f"report: {Path(self.run.report).absolute().as_uri()}",
                f"On {judged['images']:,} images of clothes that it had not seen:",
                *([f"{_share(rival['right'], rival['seen'])}  a simple rival, {rival['name']}"] if rival else []),
                f"{ours}  this model, a hybrid of {self.run.metrics['parameters']:,} parameters",
            ]
        )

    __repr__ = __str__  # at a prompt


def demo(
    out: str | os.PathLike[str] | None = None,
    *,
    seconds: float | None = None,
    seed: int | None = None,
    resume: bool = False,
    force: bool = False,
    tell: Tell | None = None,
) -> Demo:
    """Train on the embedded Fashion-MNIST, about a minute on a CPU, and judge the model.

    out: the run's folder; the default is runs/demo, made anew each time.  seconds: train this long; the default is a
    number of steps, so a slow machine reaches the same accuracy.  resume: continue a demo that was stopped.
    """
    where = Path(DEMO_FOLDER if out is None else out)
    if resume and not runs.is_run(where):
        raise RunError(f"there is no demo in {where} to go on with; start one: vitreous demo")
    asked: dict[str, Any] = {} if seconds is None else {"length": Seconds(seconds)}
    asked |= {} if seed is None else {"seed": seed}
    if not resume:
        asked = {"length": Steps(DEMO_STEPS), "seed": 0, **asked}
        force = force or (out is None and where.is_dir())
    run = fit(
        open_data.open("fashion"),
        recipe=RECIPE,
        out=where,
        resume=resume,
        force=force,
        check=False,
        rival=logistic_rival,
        tell=tell,
        **asked,
    )
    shutil.rmtree(where / "state", ignore_errors=True)
    return Demo(run)


def logistic_rival(train: ImageSet, judged: ImageSet) -> Rival:
    """Multinomial logistic regression on the same pixels, standardised.

    Its penalty has the lowest loss on a tenth of the training images; a loss is less noisy than a count of right
    answers. With that penalty it learns from all training images.
    """
    mine, dev = splits.cut_dev(train)
    classes = len(train.classes)
    first = logistic.choose(
        _pixels(mine), mine.labels, _pixels(dev), dev.labels, classes, l2s=RIVAL_PENALTIES, by="loss", slope=RIVAL_SLOPE
    )
    probe = logistic.fit(_pixels(train), train.labels, classes, l2=first.l2, start=first, slope=RIVAL_SLOPE)
    return Rival("logistic regression on the same pixels", probe.right(_pixels(judged), judged.labels), len(judged))


def _pixels(data: ImageSet) -> NDArray[np.float32]:
    """N D, of 0 … 1."""
    pixels = np.stack([data.read(i) for i in range(len(data))]).reshape(len(data), -1)
    return pixels.astype(np.float32) / np.float32(255)


def _share(right: int, seen: int) -> str:
    low, high = wilson(right, seen)
    return f"{100 * right / seen:5.1f} % right ({100 * low:.1f} to {100 * high:.1f}, 95 % interval)"
