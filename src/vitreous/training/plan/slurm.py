"""A launch file for Slurm: torchrun on every node of a planned run, saved and queued again when its time is over."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from vitreous.errors import ConfigError
from vitreous.training.plan.forecast import Forecast
from vitreous.weights.load_model import is_new

TEMPLATE = Path(__file__).with_name("slurm.sh.jinja")
CORES_PER_DEVICE = 8  # that read images
TIME_FACTOR = 1.25  # of the planned time
HOURS_AT_MOST = 48  # of one job; it is queued again
RESTARTS = 3  # of workers, by torchrun


def script(plan: Forecast) -> str:
    """The launch file of a planned run."""
    import jinja2  # only when a file is made

    per_node = min(plan.devices, plan.device.per_node)
    if plan.devices % per_node:
        full = plan.devices // per_node * per_node
        raise ConfigError(f"{plan.devices} devices do not fill nodes of {per_node}; give --devices {full}")
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)  # noqa: S701
    return environment.from_string(TEMPLATE.read_text("utf-8")).render(
        headline=_headline(plan),
        name=f"vitreous-{re.sub(r'[^A-Za-z0-9.+]+', '-', plan.model.split()[0]).strip('-')}",
        nodes=plan.devices // per_node,
        gpus=not plan.device.is_cpu,
        per_node=per_node,
        cores=CORES_PER_DEVICE * per_node,
        time=_time(plan.seconds),
        restarts=RESTARTS,
        fit=shlex.join(_fit_words(plan)),
    )


def _headline(plan: Forecast) -> str:
    memory = f"{plan.memory.total / 2**30:.1f} GiB on each"
    length = "" if plan.seconds is None else f"about {plan.seconds / 3600:.1f} h, "
    return f"{plan.model.split()[0]} on {plan.devices} x {plan.device.name}: {length}{memory} (modelled)"


def _time(seconds: float | None) -> str:
    hours = HOURS_AT_MOST if seconds is None else min(HOURS_AT_MOST, -(-int(TIME_FACTOR * seconds) // 3600))
    return f"{max(hours, 1):02d}:00:00"


def _fit_words(plan: Forecast) -> list[str]:
    """Options of `vitreous fit` for this run."""
    begins_new = is_new(plan.model)
    words = ["--model" if begins_new else "--weights", plan.model]
    words += ["--recipe", plan.recipe.name] if plan.recipe.name != "custom" else []
    words += ["--steps", str(plan.steps)] if plan.steps is not None else []
    words += ["--set", f"batch={plan.batch}", "--set", f"optimizer={plan.recipe.optimizer}"]
    rows, columns = plan.config.image_size
    words += ["--set", f"image_size={rows}" if rows == columns else f"image_size={rows}x{columns}"]
    words += ["--set", f"accumulation={plan.parts}"] if plan.parts > 1 else []
    words += ["--parallel", plan.parallel] if plan.parallel != "alone" else []
    words += ["--set", f"checkpointing={str(plan.checkpointing).lower()}"]
    words += ["--set", f"precision={plan.precision}", "--folds", "0"]
    return [*words, "--device", "cpu"] if plan.device.is_cpu else words
