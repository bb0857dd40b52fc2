"""What a finished training comes to."""

import pytest
from small_runs import fitted, image_set

from vitreous.training import story


@pytest.mark.parametrize("options", [{}, {"folds": 2}])
def test_the_answers_that_judge_a_run_are_measured_once(options, tmp_path, monkeypatch):
    counted = []
    real = story.measure

    def measure(logits, labels, classes):
        counted.append(len(logits))
        return real(logits, labels, classes)

    monkeypatch.setattr(story, "measure", measure)
    run = fitted(image_set(48, test=16), tmp_path / "run", **options)
    assert counted == [run.metrics["judged"]["images"]]
    assert run.result.right == run.metrics["judged"]["right"]
