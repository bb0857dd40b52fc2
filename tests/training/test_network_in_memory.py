"""`model=` and `weights=` a network in memory: what people pass to `fit` when they have built or loaded one."""

import json
from pathlib import Path

import pytest
import torch
from small_runs import SIDE, SMALL, Death, assert_equal_states, die_at, fitted, image_set, network
from tiny_models import line_of

import vitreous
from vitreous.errors import ConfigError

START = "start.safetensors"


@pytest.fixture(scope="module")
def pictures():
    return image_set(48, test=16)


def kept(network):
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def test_a_network_trains_from_its_present_weights_and_is_left_as_it_was(pictures, tmp_path):
    ours = network(seed=3)
    before = kept(ours)
    run = fitted(pictures, tmp_path / "run", model=ours)
    assert_equal_states(kept(ours), before)
    after = run.load().state_dict()
    apart = {name: (after[name] - before[name]).abs().max() for name in before if not name.startswith("head.")}
    assert max(apart.values()) > 0, "it trained"
    assert max(apart.values()) < 0.1, "and from there"
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["beginning"] == "from its present weights"
    assert config["model"] == "ViT of 2 blocks and width 16"
    assert "ViT of 2 blocks and width 16, from its present weights" in (tmp_path / "run" / "report.html").read_text()
    assert not (tmp_path / "run" / START).exists(), "a finished run does not need it"


def test_weights_in_memory_begin_like_those_of_their_file(pictures, tmp_path):
    ours = network(classes=7, seed=3)
    vitreous.save(ours, tmp_path / "file.safetensors")
    runs_ = [
        fitted(pictures, tmp_path / name, model=None, weights=given)
        for name, given in (("memory", ours), ("file", str(tmp_path / "file.safetensors")))
    ]
    assert_equal_states(*(run.load().state_dict() for run in runs_))
    assert runs_[0].metrics["judged"]["right"] == runs_[1].metrics["judged"]["right"]
    config = json.loads((tmp_path / "memory" / "config.json").read_text())
    assert (config["weights"], config["beginning"]) == (START, "from the weights given")


def test_auto_measures_weights_in_memory_and_trains_a_network_as_a_new_one(pictures, tmp_path):
    def told(word):
        lines = []

        def tell(event):
            lines.append(event.get("text", ""))
            die_at(1)(event)

        options = {"model": None, word: network(classes=7), "recipe": "auto", "length": "3 steps"}
        with pytest.raises(Death):
            fitted(pictures, tmp_path / word, **options, tell=tell)
        return " ".join(lines)

    assert "frozen features" in told("weights")
    line = told("model")
    assert "the network given trains from its present weights by small-hybrid, as a new one" in line
    assert f"{SIDE}x{SIDE} pixels" in line, "at its own size"


@pytest.mark.parametrize(("word", "step"), [("model", 3), ("weights", 1)])
def test_a_run_from_memory_that_dies_goes_on_bit_for_bit(word, step, pictures, tmp_path):
    """By its folder alone, from anywhere; or by the same call again."""
    given = {"model": None, word: network(seed=5)}
    whole = fitted(pictures, tmp_path / "whole", **given)
    for name in ("folder", "call"):
        with pytest.raises(Death):
            fitted(pictures, tmp_path / name, **given, tell=die_at(step))
        assert (tmp_path / name / START).is_file()
    (tmp_path / "folder").rename(tmp_path / "elsewhere")
    again = vitreous.fit(pictures, out=tmp_path / "elsewhere", resume=True, device="cpu", workers=0)
    assert_equal_states(again.load().state_dict(), whole.load().state_dict())
    again = fitted(pictures, tmp_path / "call", **given, resume=True)
    assert_equal_states(again.load().state_dict(), whole.load().state_dict())
    assert not (tmp_path / "call" / START).exists()


def test_a_run_does_not_go_on_with_another_network(pictures, tmp_path):
    with pytest.raises(Death):
        fitted(pictures, tmp_path / "run", model=network(seed=1), tell=die_at(1))
    with pytest.raises(ConfigError) as error:
        fitted(pictures, tmp_path / "run", model=network(seed=2), resume=True)
    line_of(error.value, "model: given ", "leave them out to go on")


def test_another_head_and_another_size_as_from_a_file(pictures, tmp_path):
    ours = network(classes=7)
    run = fitted(pictures, tmp_path / "run", model=ours, image_size=2 * SIDE)
    found = run.load()
    assert found.config.readout.classes == len(pictures.classes)
    assert found.config.image_size == (2 * SIDE, 2 * SIDE)
    assert ours.config.image_size == (SIDE, SIDE)


def test_what_two_runs_begin_with(pictures, tmp_path):
    """The second begins with the first's model, not with the network again."""
    run = fitted(pictures, tmp_path / "run", model=network(), then=pictures, then_recipe=SMALL)
    config = json.loads((Path(run.path) / "config.json").read_text())
    assert config["weights"].endswith("run-first/model.safetensors")
    assert not list(tmp_path.glob(f"**/{START}"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": 3}, ["model=3 is not a model", "vitreous.build"]),
        ({"model": None, "weights": ["a"]}, ["weights=['a'] is not a model", "vitreous.build"]),
        ({"model": torch.nn.Linear(2, 2)}, ["Linear is not one of our models", "vitreous.build"]),
    ],
)
def test_what_is_no_network_is_refused_in_one_line(options, words, pictures, tmp_path):
    with pytest.raises(ConfigError) as error:
        fitted(pictures, tmp_path / "run", **options)
    line_of(error.value, *words)
    assert not (tmp_path / "run").exists()


def test_two_networks_are_one_too_many(pictures, tmp_path):
    with pytest.raises(ConfigError, match="each say what network to begin with; give one"):
        fitted(pictures, tmp_path / "run", model=network(), weights=network())


def test_a_wrapped_network_is_taken_out_of_its_wrapper(pictures, tmp_path):
    ours = network()
    wrapped = torch.nn.DataParallel(ours)
    assert_equal_states(
        fitted(pictures, tmp_path / "one", model=wrapped).load().state_dict(),
        fitted(pictures, tmp_path / "two", model=ours).load().state_dict(),
    )
