"""`vitreous convert`, end to end: exit codes, one line, one JSON object, nothing overwritten."""

import json

import commands
import golden_cases as golden
import pytest
import torch
from tiny_models import answer, assert_same_model, awake
from torch.testing import assert_close

import vitreous
from vitreous.weights import formats

GOOGLE = golden.source("gvit_cls")


def test_a_shell_sees_0_and_2(tmp_path):
    done = commands.run("convert", GOOGLE, tmp_path / "m", "--to", "vitreous")
    assert (done.code, done.stderr) == (0, "")
    first, *rest = done.stdout.splitlines()
    assert first == f"wrote {tmp_path / 'm.safetensors'}"
    assert rest == [f"note: {note}" for note in golden.load("gvit_cls").source["assumed"]]
    model = vitreous.load(tmp_path / "m.safetensors")
    assert_close(answer(model, golden.images("gvit_cls")), golden.logits("gvit_cls"), atol=2e-5, rtol=0)
    assert "exists already" in commands.run("convert", GOOGLE, tmp_path / "m", "--to", "vitreous").line


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """All calls at once: name -> what came of it."""
    out = tmp_path_factory.mktemp("out")
    (mine,) = vitreous.save(awake(), out / "mine")
    (out / "text.npz").write_text("hello")
    said = ["--to", "google"]
    calls = {
        "json": ["convert", GOOGLE, out / "a", "--to", "big_vision", "--json"],
        "again": ["convert", GOOGLE, out / "a", "--to", "big_vision", "--json"],
        "force": ["convert", GOOGLE, out / "a", "--to", "big_vision", "--json", "--force"],
        "differently": ["convert", mine, out / "b", "--to", "torchvision"],
        "anyway": ["convert", mine, out / "b", "--to", "torchvision", "--anyway", "--json"],
        "size": ["convert", mine, out / "c", *said, "--image-size", "8x24", "--classes", "3", "--json"],
        "square": ["convert", mine, out / "d", *said, "--image-size", "32", "--activation", "gelu-tanh", "--json"],
        "headless": ["convert", mine, out / "e", *said, "--classes", "0", "--json"],
        "resized": ["convert", mine, out / "f", *said, "--image-size", "32", "--position-resize", "timm", "--json"],
        "no rule": ["convert", mine, out / "x", *said, "--image-size", "32", "--position-resize", "magic"],
        "timm's page": ["convert", mine, "timm:x", "--to", "timm", "--yes", "--anyway"],
        "no size": ["convert", mine, out / "x", *said, "--image-size", "large"],
        "uncut": ["convert", mine, out / "x", *said, "--image-size", "17"],
        "no format": ["convert", mine, out / "x", "--to", "keras"],
        "nothing there": ["convert", out / "none.npz", out / "x", *said],
        "no npz": ["convert", out / "text.npz", out / "x", *said],
        "no heads": ["convert", mine, out / "x", *said, "--heads", "3"],
        "no number": ["convert", mine, out / "x", *said, "--classes", "few"],
        "no to": ["convert", mine, out / "x"],
        "wrong ending": ["convert", mine, out / "x.pth", *said],
    }
    done = commands.run_all(calls.values())
    return out, dict(zip(calls, done, strict=True))


def test_json_is_one_object_with_its_schema(results):
    out, done = results
    assert (done["json"].code, done["json"].stderr) == (0, "")
    body = json.loads(done["json"].stdout)
    assert next(iter(body.items())) == ("schema", "vitreous.convert/1")
    assert body["files"] == [str(out / "a.npz"), str(out / "a.npz.json")]
    assert body["pushed"] is None
    assert any(note.startswith("activation gelu-tanh") for note in body["notes"])
    assert set(body) == {"schema", "files", "notes", "pushed"}


def test_force_overwrites_and_nothing_else_does(results):
    _, done = results
    assert "a.npz exists already" in done["again"].line
    assert "--force" in done["again"].line
    assert done["force"].code == 0


def test_a_library_that_would_run_it_differently(results):
    out, done = results
    assert "torchvision would run this model differently: activation=gelu-tanh" in done["differently"].line
    assert "--anyway" in done["differently"].line
    assert done["anyway"].code == 0
    assert_same_model(vitreous.load(out / "b.safetensors"), awake())


def test_size_and_head_are_changed_on_the_way(results):
    out, done = results
    assert done["size"].code == done["square"].code == done["headless"].code == 0
    changed = vitreous.load(out / "c.npz")
    assert (changed.config.image_size, changed.config.readout.classes) == ((8, 24), 3)
    assert vitreous.load(out / "d.npz").config.image_size == (32, 32)
    assert vitreous.load(out / "e.npz").config.readout.classes == 0
    want = vitreous.load(out / "mine.safetensors", image_size=32, position_resize="timm")
    assert done["resized"].code == 0
    assert_same_model(vitreous.load(out / "f.npz"), want)
    assert not torch.equal(answer(vitreous.load(out / "f.npz")), answer(vitreous.load(out / "d.npz")))


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("no size", ["large", "384x512"]),
        ("no rule", ["magic", "timm"]),
        ("timm's page", ["timm:x", "hf:OWNER/NAME"]),
        ("uncut", ["17", "P=4"]),
        ("no format", ["keras", *formats.names()]),
        ("nothing there", ["none.npz", "not there"]),
        ("no npz", ["text.npz", "not an npz"]),
        ("no heads", ["16", "heads 3"]),
        ("no number", ["--classes", "--help"]),
        ("no to", ["--to", "--help"]),
        ("wrong ending", ["x.pth", ".npz"]),
    ],
)
def test_what_cannot_be_is_one_line(results, case, words):
    out, done = results
    for word in words:
        assert word in done[case].line
    assert not list(out.glob("x*"))


# Notes


def notes(source, path, **said) -> str:
    return " | ".join(vitreous.convert(source, path, **said).notes)


def test_a_catalog_name_is_said_to_be_untrained(tmp_path):
    assert "first values, not trained" in notes("Ti/16 depth=1", tmp_path / "a", to="vitreous")
    assert "not trained" not in notes(tmp_path / "a.safetensors", tmp_path / "b", to="google")


def test_preprocessing_that_a_format_has_no_word_for_is_named(tmp_path):
    """Exactly the fields that differ: a squash has no centre, and where nothing differs nothing is said."""
    said = notes(GOOGLE, tmp_path / "hf", to="huggingface", anyway=True)
    assert "huggingface would preprocess differently: antialias=False (its own: True)" in said
    assert "centre" not in said
    assert "preprocess differently" not in notes(GOOGLE, tmp_path / "g", to="google")
    assert "preprocess differently" not in notes(GOOGLE, tmp_path / "v", to="vitreous")
    assert "fit=squash (its own: crop)" in notes(GOOGLE, tmp_path / "tv", to="torchvision", anyway=True)


def test_what_else_a_format_cannot_say_is_named(tmp_path):
    model = awake().double()
    model.labels, model.temperature, model.threshold = tuple("abcde"), 0.5, 1.0
    (mine,) = vitreous.save(model, tmp_path / "mine")
    said = notes(mine, tmp_path / "g", to="google")
    assert "google has no word for labels and temperature and threshold" in said
    assert "written as float32; the model's are float64" in said
    assert "float32" not in notes(mine, tmp_path / "v", to="vitreous")
    anyway = notes(mine, tmp_path / "tv", to="torchvision", anyway=True)
    assert "torchvision would run this model differently: activation=gelu-tanh" in anyway
