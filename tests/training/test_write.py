"""What a training comes to is judged by numbers that it had no say in."""

from dataclasses import replace

import numpy as np
import pytest
from small_runs import fitted, image_set
from tiny_models import VIT, awake

from vitreous.training.run.trained import Outcome, Trained
from vitreous.training.tell import summary
from vitreous.training.tell.summary import judged_probabilities


def test_a_folds_temperature_is_fitted_on_the_other_folds():
    """Its own labels change nothing of what its own images are told; those of the others do."""
    draw = np.random.default_rng(0)
    data, model, part = image_set(40), awake(VIT, classes=4), np.arange(40) % 4
    outcome = Outcome({}, step=1, steps=1, seconds=0.0, images_per_second=0.0)
    logits = (draw.normal(size=(40, 4)) + 3 * np.eye(4)[data.labels]).astype(np.float32)

    def told(labels):
        judged = replace(data, labels=labels)
        common = {"model": model, "outcome": outcome, "logits": logits, "judged_by": "cross-validation"}
        return judged_probabilities(Trained(**common, judged=judged, used={}, seconds=0.0, part=part))

    here = part == 0
    swapped = np.where(here, (data.labels + 1) % 4, data.labels)
    before, after = told(data.labels), told(swapped)
    np.testing.assert_allclose(after[here], before[here], rtol=1e-9)
    assert (np.abs(after[~here] - before[~here]).max(1) > 1e-3).any()


@pytest.mark.parametrize("options", [{}, {"folds": 2}])
def test_the_answers_that_judge_a_run_are_measured_once(options, tmp_path, monkeypatch):
    counted = []
    real = summary.measure

    def measure(logits, labels, classes):
        counted.append(len(logits))
        return real(logits, labels, classes)

    monkeypatch.setattr(summary, "measure", measure)
    run = fitted(image_set(48, test=16), tmp_path / "run", **options)
    assert counted == [run.metrics["judged"]["images"]]
    assert run.result.right == run.metrics["judged"]["right"]
