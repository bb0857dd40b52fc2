"""vitreous eval and vitreous predict, as commands."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import run, run_all
from picture_files import class_folders, encoded
from tiny_models import awake

import vitreous
from vitreous.cli import eval as cli_eval
from vitreous.models.track_record import TrackRecord


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model of three classes, a set of them, and among its pictures one that is broken."""
    root = tmp_path_factory.mktemp("place")
    model = awake(classes=3)
    model.labels, model.temperature = ("ant", "bee", "cat"), 1.5
    vitreous.save(model, root / "model")
    class_folders(root / "set", {f"{s}/{c}": 4 for s in ("train", "test") for c in ("cat", "bee", "ant")})
    (root / "set/test/ant/9.png").write_bytes(encoded(99)[:50])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITREOUS_CACHE", str(root / "cache"))
        yield root


@pytest.fixture(scope="module")
def done(place):
    """All calls in one process."""
    model, data = place / "model.safetensors", place / "set"
    labels = place / "labels.json"
    names = [f"test/{c}/{i}.png" for c in ("ant", "bee", "cat") for i in (0, 1, 2, 3, 9) if c == "ant" or i < 9]
    labels.write_text(json.dumps({name: ["ant", "bee", "cat"] for name in names}))
    larger = class_folders(place / "larger", {f"{s}/{c}": 16 for s in ("train", "test") for c in ("cat", "bee", "ant")})
    tasks = '[[tasks]]\nkind = "few-shot"\nshots = [1, 3]\n'
    named = f'[models]\nm = "{model}"\ngone = "{place}/gone.safetensors"\n[data]\nset = "{data}"\n'
    (place / "suite.toml").write_text(named + tasks)
    (place / "wrong.toml").write_text(named + tasks.replace("shots", "shot"))
    calls = {
        "eval": ["eval", model, data],
        "eval all": ["eval", model, data, "--split", "all", "--json"],
        "eval labels": ["eval", model, data, "--labels", labels, "--csv", place / "rows.csv", "--json"],
        "eval again": ["eval", model, data, "--csv", place / "rows.csv"],
        "eval shots": ["eval", model, data, "--shots", "1,3", "--seeds", 2, "--json", "--out", place / "shots.html"],
        "eval table": ["eval", model, data, "--shots", "1,9", "--out", place / "table.html"],
        "eval words": ["eval", model, data, "--shots", "one"],
        "eval curve": ["eval", model, larger, "--curve", "--target", 0.9, "--json", "--out", place / "curve.html"],
        "eval more": ["eval", model, larger, "--curve", "--out", place / "more.html"],
        "eval nothing": ["eval", model],
        "suite": ["eval", "--suite", place / "suite.toml", "--out", place / "suite"],
        "suite again": ["eval", "--suite", place / "suite.toml", "--out", place / "suite", "--json"],
        "suite key": ["eval", "--suite", place / "wrong.toml"],
        "suite shots": ["eval", "--suite", place / "suite.toml", "--shots", "1"],
        "eval page": ["eval", model, data, "--out", place / "none.html"],
        "eval split": ["eval", model, data, "--split", "val"],
        "eval model": ["eval", place / "absent.safetensors", data],
        "eval data": ["eval", model, place / "absent"],
        "table": ["predict", model, data / "test", "--top", 2],
        "csv": ["predict", model, data / "test", "--top", 2, "--format", "csv"],
        "json": ["predict", model, data / "test", "--json"],
        "files": ["predict", model, data / "test/ant/9.png", data / "test/ant/1.png", place / "no.png"],
        "broken": ["predict", model, data / "test/ant/9.png"],
        "absent": ["predict", model, place / "no.png"],
        "format": ["predict", model, data, "--format", "xml"],
        "top": ["predict", model, data, "--top", 0],
        "empty": ["predict", model, data, "--device", "gpu"],
    }
    return dict(zip(calls, run_all(calls.values()), strict=True))


def test_eval_tells_people_the_share_the_interval_and_each_class(done):
    out = done["eval"]
    assert (out.code, out.stderr) == (0, "")
    assert "of 12; 95 % interval" in out.stdout
    assert "1 image that could not be read" in out.stdout
    assert all(name in out.stdout for name in ("ant", "bee", "cat", "precision"))


def test_eval_is_one_json_object(done):
    body = json.loads(done["eval all"].stdout)
    assert next(iter(body.items())) == ("schema", "vitreous.eval/1")
    assert (body["images"], body["split"], body["temperature"]) == (24, "all", 1.5)
    assert body["top1"] == body["right"] / 24
    assert "top5" not in body


def test_eval_of_a_few_shots_is_a_table_a_page_and_json(done, place):
    body = json.loads(done["eval shots"].stdout)
    assert next(iter(body.items())) == ("schema", "vitreous.eval/1")
    assert [(row["shots"], len(row["right"]), row["fitted_on"]) for row in body["few_shot"]] == [(1, 2, 3), (3, 2, 9)]
    assert (body["images"], body["classes"]) == (12, 3)
    assert "<svg" in (place / "shots.html").read_text()
    assert json.loads((place / "shots.json").read_text())["few_shot"] == body["few_shot"]
    assert "9 shots: fewer images of ant (4), bee (4), cat (4); all of them were taken" in done["eval table"].stdout


def test_a_page_of_shots_has_a_free_place_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [Path(cli_eval._page(data)).name for data in ("photos/", "pets-*.zip", "*")] == [
        "photos-1.html",
        "pets-1.html",
        "images-1.html",
    ]
    Path("evals").mkdir()
    Path("evals/photos-1.html").touch()
    assert Path(cli_eval._page("photos")) == Path("evals/photos-2.html")


def test_eval_tells_whether_more_labels_would_help(done, place):
    body = json.loads(done["eval curve"].stdout)["learning_curve"]
    assert [row["images"] for row in body["curve"]] == [6, 12, 24, 48]
    assert [needed["accuracy"] for needed in body["needed"]] == [0.9]
    assert set(body["law"]) == {"a", "b", "c"}
    text = (place / "curve.html").read_text()
    assert "Would more labels help?" in text
    assert text.count("<svg") == 2
    assert "twice as many" in done["eval more"].stdout
    assert "shots" in done["eval more"].stdout


def test_eval_of_a_suite_is_a_table_and_its_failures_end_with_one(done, place):
    out = done["suite"]
    assert out.code == 1
    assert "few-shot, 3 shots" in out.stdout
    assert "failed  gone, few-shot on set: " in out.stdout
    assert out.stderr.splitlines()[1].startswith("1/2  set  m  few-shot, 3 shots  ")
    body = json.loads(done["suite again"].stdout)
    assert next(iter(body.items())) == ("schema", "vitreous.eval/1")
    assert [row["error"] is None for row in body["rows"]] == [True, True, False, False]
    assert (place / "suite/suite.html").read_text().startswith("<!doctype html>")


def test_other_labels_and_a_row_an_image(done, place):
    body = json.loads(done["eval labels"].stdout)
    assert (body["right"], body["images"]) == (12, 12)  # every class is right
    assert len(list(csv.DictReader((place / "rows.csv").read_text().splitlines()))) == 12
    assert "--force" in done["eval again"].line


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("eval split", "no split 'val'"),
        ("eval words", "--shots one are not whole numbers"),
        ("eval page", "say shots="),
        ("eval nothing", "vitreous eval --suite FILE"),
        ("suite key", "has no key 'shot'; near: shots"),
        ("suite shots", "names its models, images and tasks itself"),
        ("eval model", "absent.safetensors is not there"),
        ("eval data", "absent is not there"),
        ("absent", "no.png is not there"),
        ("format", "no format 'xml'; say table, csv, json"),
        ("top", "give 1 or more"),
        ("empty", "gpu is not a device"),
    ],
)
def test_bad_input_is_one_line(done, call, words):
    assert words in done[call].line


def test_predict_prints_a_row_for_each_picture_and_counts_the_broken(done):
    out = done["table"]
    assert out.code == 0
    assert len(out.stdout.splitlines()) == 13
    assert "9.png  is cut short" in out.stdout
    assert out.stderr == "1 of 13 images could not be read\n"


def test_predict_as_csv_and_as_json_lines_says_the_same(done):
    table = list(csv.DictReader(io.StringIO(done["csv"].stdout)))
    lines = [json.loads(line) for line in done["json"].stdout.splitlines()]
    assert [row["name"] for row in table] == [line["name"] for line in lines]
    assert all(next(iter(line)) == "schema" and line["schema"] == "vitreous.predict/1" for line in lines)
    for row, line in zip(table, lines, strict=True):
        if "error" in line:
            assert row["error"] == line["error"]
        else:
            assert row["said"] == line["said"][0] == row["label1"]
            assert float(row["p1"]) == pytest.approx(line["top"][0]["probability"], abs=1e-5)
            assert sum(one["probability"] for one in line["top"]) == pytest.approx(1)


def test_some_broken_is_done_and_all_broken_is_no(done):
    assert done["files"].code == 0
    assert done["files"].stderr == "2 of 3 images could not be read\n"
    assert len(done["files"].stdout.splitlines()) == 3
    assert done["broken"].code == 1


def test_none_of_these(place):
    model = vitreous.load(place / "model.safetensors")
    model.threshold = 1e6
    vitreous.save(model, place / "strict")
    call = ("predict", place / "strict.safetensors", place / "set/test/bee")
    out = run(*call)
    assert out.code == 0
    assert re.fullmatch(r"(\S+ +none of these \(nearest: (ant|bee|cat)\)\n){4}", out.stdout)
    rows = list(csv.DictReader(run(*call, "--format", "csv").stdout.splitlines()))
    lines = [json.loads(line) for line in run(*call, "--json").stdout.splitlines()]
    for row, line in zip(rows, lines, strict=True):
        assert (row["said"], row["label1"], row["p1"]) == ("none of these", line["top"][0]["label"], "")
        assert line["top"][0]["probability"] >= 1 / 3


def test_an_unsure_answer_is_marked_in_every_format_and_explained_once(place):
    model = vitreous.load(place / "model.safetensors")
    model.track_record = TrackRecord(right=0.8, low=0.7, high=0.9, images=50, sure_from=0.9999)
    vitreous.save(model, place / "unsure")
    call = ("predict", place / "unsure.safetensors", place / "set/test/bee")
    out = run(*call)
    assert out.stdout.count("  unsure: ") == 4
    assert out.stderr.count("unsure: ") == 1
    rows = list(csv.DictReader(run(*call, "--format", "csv").stdout.splitlines()))
    assert [row["unsure"] for row in rows] == ["yes"] * 4
    lines = [json.loads(line) for line in run(*call, "--json").stdout.splitlines()]
    assert all(line["is_unsure"] and line["said"] for line in lines)
    model.track_record = replace(model.track_record, sure_from=1.0)  # never sure: one line says it for all
    vitreous.save(model, place / "never")
    out = run("predict", place / "never.safetensors", *call[2:])
    assert out.stdout.count("unsure") == 0
    assert out.stderr.count("all unsure: even the surest answers") == 1


def test_a_picture_of_the_train_set_is_answered_as_the_model_answers(place):
    model = vitreous.load(place / "model.safetensors")
    path = place / "set/train/bee/2.png"
    (answer,) = vitreous.predict(model, path)
    from PIL import Image

    from vitreous.images.pixels import preprocess

    with torch.inference_mode():
        logits = model(preprocess.apply(Image.open(path), model.preprocess)[None])
    found = dict(zip(answer.labels, answer.probabilities, strict=True))
    wanted = dict(zip(model.labels, (logits / 1.5).softmax(-1)[0].tolist(), strict=True))
    assert found == pytest.approx(wanted, abs=0.02)  # to bytes and back: half a level


def test_predict_tells_what_it_assumes_of_weights_without_a_config(tmp_path):
    vitreous.save(awake(classes=3, width=192, heads=3), tmp_path / "theirs", format="timm")
    (tmp_path / "0.png").write_bytes(encoded(0))
    (tmp_path / "bare").mkdir()
    file = tmp_path / "bare" / "model.safetensors"
    file.write_bytes((tmp_path / "theirs" / "model.safetensors").read_bytes())
    whole, bare = (run("predict", str(model), str(tmp_path / "0.png")) for model in (tmp_path / "theirs", file))
    assert "assumed" not in whole.stderr
    assert "no config lies beside" in bare.stderr
    assert "assumed: preprocessing: timm's" in bare.stderr
