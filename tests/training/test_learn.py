"""`learn` trains as `fit` does, and leaves out what only the reader of a report wants."""

import pytest
from small_runs import MODEL, SIDE, assert_equal_states, image_set

import vitreous
from vitreous.errors import ConfigError
from vitreous.training.learn import learn
from vitreous.training.recipe import Recipe

SMALL = Recipe(name="small", batch=8, weight_decay=0.05).change(length="6 steps", image_size=SIDE, dev=0.2)


@pytest.fixture(scope="module")
def data():
    return image_set(80, test=20)


@pytest.mark.parametrize("rates", [(), (1e-3, 1e-2)])
def test_it_ends_with_the_weights_and_the_numbers_of_fit(data, tmp_path, rates):
    how = {"model": MODEL, "recipe": SMALL, "device": "cpu", "workers": 0, "seed": 3}
    run = vitreous.fit(data, out=tmp_path / "run", check=False, folds=0, sweep=rates or False, **how)
    learned = learn(data, scratch=tmp_path, rates=rates, **how)
    assert_equal_states(learned.model.state_dict(), run.load().state_dict())
    assert learned.judged.right == run.metrics["judged"]["right"]
    assert learned.outcome.dev == run.metrics["dev"]
    assert [trial.to_json() for trial in learned.trials] == run.metrics["sweep"]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]  # no folder of its own


def test_what_is_not_judged_on_test_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is judged by dev, not on a test split; use fit"):
        learn(image_set(80), scratch=tmp_path, model=MODEL, recipe=SMALL, device="cpu", workers=0)
