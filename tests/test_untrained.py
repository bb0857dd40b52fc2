"""Random weights are named wherever they are looked at, and answer nothing unless asked to."""

import json

import pytest
import torch
from commands import run

import vitreous
from vitreous.errors import ConfigError
from vitreous.models.model import is_untrained

SMALL = "Ti/8 width=16 depth=2 heads=2 mlp=24 image_size=16 classes=3"


def small(seed=0):
    return vitreous.build("Ti/8", width=16, depth=2, heads=2, mlp=24, image_size=16, classes=3, seed=seed)


def test_a_new_model_is_untrained_until_its_head_learns():
    model = small()
    assert is_untrained(model)
    with torch.no_grad():
        model.head.weight.fill_(0.1)
    assert not is_untrained(model)


def test_a_model_without_a_head_is_untrained_by_its_source(tmp_path):
    model = vitreous.build("Ti/8", width=16, depth=2, heads=2, mlp=24, image_size=16, classes=0)
    vitreous.save(model, tmp_path / "new.safetensors")
    assert is_untrained(vitreous.load(tmp_path / "new.safetensors"))
    model.source = {}
    assert not is_untrained(model)


def test_predict_refuses_a_name_and_takes_a_path(tmp_path):
    image = torch.zeros(16, 16, 3, dtype=torch.uint8).numpy()
    with pytest.raises(ConfigError, match=r"has random weights, so its answers mean nothing; train it: vitreous fit"):
        vitreous.predict(SMALL, image)
    assert len(list(vitreous.predict(SMALL, image, untrained=True))) == 1
    model = small()
    torch.nn.init.normal_(model.head.weight)
    vitreous.save(model, tmp_path / "known.safetensors")
    assert len(list(vitreous.predict(tmp_path / "known.safetensors", image))) == 1


@pytest.mark.parametrize("words", [["predict", SMALL, "fashion"], ["serve", SMALL, "--port", "0"]], ids=lambda w: w[0])
def test_commands_refuse_random_weights_in_one_line(words):
    line = run(*words).line
    assert "has random weights" in line
    assert "--untrained" in line


@pytest.fixture(scope="module")
def looked(tmp_path_factory):
    """A trained-looking model against a new one."""
    root = tmp_path_factory.mktemp("looked")
    model, lines = small(), []
    torch.nn.init.normal_(model.head.weight)
    vitreous.look(model, "fashion", against=SMALL, only=["attention-distance"], images=8, out=root, tell=lines.append)
    return root, lines


def test_look_says_random_weights_in_terminal_title_and_captions(looked):
    root, lines = looked
    mark = f"{SMALL} (random weights)"
    assert f"{mark}: untrained, so its numbers say nothing about what a network learns" in lines
    page = (root / "look.html").read_text()
    assert f"against {mark}</h1>" in page or f"against {mark}" in page.partition("<title>")[2].partition("</title>")[0]
    assert f"{mark} · " in page  # the caption of its drawings
    assert json.loads((root / "inspection.json").read_text())["against"]["is_untrained"]


def test_a_page_of_random_weights_makes_no_claim_about_them(tmp_path):
    vitreous.look(SMALL, "fashion", only=["attention-distance"], images=8, out=tmp_path)
    page = (tmp_path / "look.html").read_text()
    assert "What this model does" not in page
    assert "untrained. Numbers and figures of it say nothing about learning." in page


def test_a_trained_page_says_no_such_thing(looked, tmp_path):
    model = small()
    torch.nn.init.normal_(model.head.weight)
    vitreous.look(model, "fashion", only=["attention-distance"], images=8, out=tmp_path)
    page = (tmp_path / "look.html").read_text()
    assert "What this model does" in page
    assert "random weights" not in page


def test_a_comparison_with_random_weights_is_no_line_about_the_model(tmp_path):
    trained = small()
    with torch.no_grad():
        trained.head.weight.normal_()
    trained.source = {}
    pair = {"only": ["similarity-across", "skip-ratio"], "images": 8}
    page = vitreous.look(trained, "fashion", against=small(1), out=tmp_path / "random", **pair)
    text = (tmp_path / "random" / "look.html").read_text(encoding="utf-8")
    assert "similarity-across" in page.found
    assert "find a match of" not in text.split('id="short"')[1].split("<section")[0]
