"""A suite: every row is its own function's number; nothing is measured twice, or lost by a failure or a kill."""

import json
import tomllib
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from doc_blocks import code_blocks
from picture_files import class_folders
from shared_files import ROOT
from tiny_models import awake, line_of

import vitreous
from vitreous.errors import ConfigError, VitreousError
from vitreous.evaluation import suite
from vitreous.evaluation.accuracy import wilson
from vitreous.evaluation.features import extract
from vitreous.evaluation.few_shot import mean_interval
from vitreous.evaluation.probes import probe_features
from vitreous.evaluation.suites import file as suite_file
from vitreous.evaluation.suites import measure_cells as suite_cells
from vitreous.evaluation.suites import page as suite_page
from vitreous.files import lock
from vitreous.report.page import render

NAMES = ("ant", "bee", "cat")
SMALL = {"length": "2 steps", "batch": 6}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two models of three classes and a set of them."""
    root = tmp_path_factory.mktemp("suite")
    for seed, name in enumerate(("one", "two")):
        model = awake(classes=3, seed=seed)
        model.labels = NAMES
        vitreous.save(model, root / name)
    class_folders(root / "set", {f"{s}/{c}": n for s, n in (("train", 8), ("test", 6)) for c in NAMES})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITREOUS_CACHE", str(root / "cache"))
        yield root


@pytest.fixture(scope="module")
def asked(place):
    return {
        "name": "small",
        "seeds": 2,
        "models": {"one": str(place / "one.safetensors"), "two": str(place / "two.safetensors")},
        "data": {"set": str(place / "set"), "part": {"path": str(place / "set"), "train": 12}},
        "tasks": [
            {"kind": "few-shot", "shots": [1, 4]},
            {"kind": "knn", "neighbours": 3, "data": ["set"]},
            {"kind": "logistic", "l2": 0.1, "data": ["set"]},
            {"kind": "accuracy", "data": ["set"], "models": ["one"]},
        ],
    }


@pytest.fixture(scope="module")
def found(asked, place):
    return suite(asked, out=place / "out", workers=0)


def rows_of(found):
    return {(row.model, row.data, row.measure): row for row in found.rows}


@pytest.fixture
def count(monkeypatch):
    """Of cells that are really measured."""
    done = []
    work = suite_cells.SuiteBench._measured
    monkeypatch.setattr(suite_cells.SuiteBench, "_measured", lambda self, plan: done.append(plan) or work(self, plan))
    return done


def test_every_row_is_the_number_of_its_own_function(found, place):
    model, data = vitreous.load(place / "one.safetensors"), vitreous.images.open(place / "set")
    rows = rows_of(found)
    shots = vitreous.evaluate(model, data, shots=(1, 4), seeds=2, workers=0)
    for s in (1, 4):
        row = rows["one", "set", "few-shot, 1 shot" if s == 1 else "few-shot, 4 shots"]
        assert row.mean == pytest.approx(shots.mean(s))
        assert row.interval == pytest.approx(shots.interval(s))
    train, test = (extract(model, data.split(s), workers=0) for s in ("train", "test"))
    for by, how in (("knn", {"neighbours": 3}), ("logistic", {"l2": 0.1})):
        wanted = probe_features(train, test, by=by, **how)["features"]
        assert (rows["one", "set", by].mean, rows["one", "set", by].interval) == (wanted.accuracy, wanted.interval)
    assert rows["one", "set", "accuracy"].mean == vitreous.evaluate(model, data, workers=0).top1
    assert ("two", "set", "accuracy") not in rows
    assert ("one", "part", "knn") not in rows


def test_a_row_says_what_it_cost_and_over_what_its_interval_is(found):
    for row in found.rows:
        assert row.error is None
        assert row.steps is None
        assert 0 <= row.seconds < 60
        assert row.peak_memory is None or row.peak_memory > 2**20
        many = len(row.accuracy) > 1
        assert row.interval_over == ("seeds" if many else "images")
        wanted = mean_interval(np.array(row.accuracy)) if many else wilson(round(18 * row.accuracy[0]), 18)
        assert row.interval == wanted
    assert all(one["images"] in (30, 42) for one in found.readings)


def test_fewer_training_images_lie_within_more_and_test_stays_whole(place, asked):
    parts = {f"n{n}": {"path": str(place / "set"), "train": n} for n in (6, 12)}
    wanted = suite_file.read(asked | {"data": parts, "tasks": [{"kind": "knn"}]})
    bench = suite_cells.SuiteBench(wanted, place, None, None, 0, "auto")
    six, twelve = bench.data("n6"), bench.data("n12")
    assert [int((d.splits == "test").sum()) for d in (six, twelve)] == [18, 18]
    assert set(six.ids) < set(twelve.ids)
    assert np.bincount(six.split("train").labels).tolist() == [2, 2, 2]


# Once, whatever happens


def test_nothing_is_measured_twice(asked, found, place, count):
    again = suite(asked, out=place / "out", workers=0)
    assert not count
    assert again.rows == found.rows


def test_a_new_task_is_all_that_is_measured(asked, found, place, count):
    more = asked | {"tasks": [*asked["tasks"], {"kind": "knn", "neighbours": 1, "name": "nearest", "models": ["two"]}]}
    again = suite(more, out=place / "out", workers=0)
    assert len(count) == 2
    assert {row.task for row in again.rows} == {"few-shot", "knn", "logistic", "accuracy", "nearest"}


def test_ended_in_the_middle_it_goes_on_from_there(asked, found, place, tmp_path, count):
    def stop(done, of, row):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        suite(asked, out=tmp_path / "out", workers=0, tell=stop)
    assert len(count) == 4
    assert not (tmp_path / "out/suite.json").exists()
    again = suite(asked, out=tmp_path / "out", workers=0)
    assert len(count) == 9
    assert [row.accuracy for row in again.rows] == [row.accuracy for row in found.rows]


@pytest.mark.parametrize("damage", [b"", b"{", b'{"format": 1}', b'{"format": 1, "key": "other", "cell": {}}'])
def test_a_damaged_cell_is_measured_anew(asked, found, place, count, damage):
    (file, *_) = sorted((place / "out/cells").glob("one-set-knn-*.json"))
    file.write_bytes(damage)
    assert suite(asked, out=place / "out", workers=0).rows[2].accuracy == found.rows[2].accuracy
    assert len(count) == 1


def test_another_model_under_the_same_name_is_measured_anew(asked, place, tmp_path, count):
    """And other images, too: a cell is found by what decides its numbers, not by names."""
    model = tmp_path / "model.safetensors"
    one = asked | {"models": {"m": str(model)}, "data": {"set": str(place / "set")}, "tasks": [{"kind": "knn"}]}
    for seed in (0, 1):
        vitreous.save(awake(classes=3, seed=seed), model, force=True)
        for _ in range(2):
            suite(one, out=tmp_path / "out", workers=0)
        assert len(count) == seed + 1
    class_folders(tmp_path / "set", {f"{s}/{c}": 5 for s in ("train", "test") for c in NAMES}, start=500)
    suite(one | {"data": {"set": str(tmp_path / "set")}}, out=tmp_path / "out", workers=0)
    assert len(count) == 3


def test_accuracy_is_left_out_where_classes_do_not_match(asked, place, tmp_path):
    """Said, and no failure: of several sets a model knows the classes of some."""
    class_folders(tmp_path / "dogs", {f"{s}/{c}": 4 for s in ("train", "test") for c in ("dog", "eel")})
    vitreous.save(awake(classes=0), tmp_path / "headless")
    both = asked | {
        "models": {"one": asked["models"]["one"], "headless": str(tmp_path / "headless.safetensors")},
        "data": {"set": asked["data"]["set"], "dogs": str(tmp_path / "dogs")},
        "tasks": [{"kind": "accuracy"}],
    }
    there = suite(both, out=tmp_path / "out", workers=0)
    assert [(row.model, row.data, row.mean is not None) for row in there.rows] == [
        ("one", "set", True),
        ("headless", "set", False),
        ("one", "dogs", False),
        ("headless", "dogs", False),
    ]
    assert not there.failures
    assert "no match" in str(there)
    assert "note    one, accuracy on dogs: the model does not know 2 of 2 classes" in str(there)
    assert "the model has no head" in str(there)
    assert render(suite_page.page(there)).count("no match") == 6


def test_a_failure_is_named_and_the_others_are_there(asked, found, place, tmp_path, count):
    """Tried again by the next call, since what was wrong may be mended."""
    broken = asked | {
        "models": asked["models"] | {"gone": str(tmp_path / "gone.safetensors")},
        "data": {"set": asked["data"]["set"], "missing": str(tmp_path / "missing")},
        "tasks": [{"kind": "few-shot", "shots": [1, 4]}],
    }
    there = suite(broken, out=tmp_path / "out", workers=0)
    failed = {(row.model, row.data, row.measure) for row in there.failures}
    every = {(m, d) for m in ("one", "two", "gone") for d in ("set", "missing") if "gone" in m or d == "missing"}
    assert failed == {(*pair, f"few-shot, {s}") for pair in every for s in ("1 shot", "4 shots")}
    assert rows_of(there)["one", "set", "few-shot, 4 shots"].accuracy == found.rows[1].accuracy
    assert "gone.safetensors is not there" in str(there)
    assert "missing is not there" in str(there)
    assert json.loads((tmp_path / "out/suite.json").read_text())["failures"] == 8
    assert "What failed" in (tmp_path / "out/suite.html").read_text()
    before = len(count)
    vitreous.save(awake(classes=3), tmp_path / "gone.safetensors")
    assert len(suite(broken, out=tmp_path / "out", workers=0).failures) == 6
    assert len(count) == before + 1  # the mended model, on the set that is there


# Training


def test_trainings_of_several_seeds_make_one_row_and_go_on_where_they_were(asked, place, tmp_path):
    """The second seed is stopped; the next call trains it alone. Weights and a new network alike."""
    trained = []

    def fit(data, **how):
        trained.append((how.get("model") or Path(how["weights"]).stem, how["seed"]))
        if trained[-1] == ("one", 1) and trained.count(("one", 1)) == 1:
            raise KeyboardInterrupt
        return vitreous.fit(data, **how)

    new = "Ti/4 width=16 depth=1 heads=2 mlp=16 image_size=16"
    task = {"kind": "fit", "recipe": "small-data", "set": SMALL}
    both = asked | {"models": {"one": asked["models"]["one"], "new": new}, "tasks": [task]}
    both |= {"data": {"set": asked["data"]["set"]}}
    with pytest.raises(KeyboardInterrupt):
        suite(both, out=tmp_path / "out", workers=0, fit=fit, device="cpu")
    found = suite(both, out=tmp_path / "out", workers=0, fit=fit, device="cpu")
    assert trained == [("one", 0), ("one", 1), ("one", 1), (new, 0), (new, 1)]
    assert [(row.measure, row.steps, len(row.accuracy), row.images) for row in found.rows] == [
        ("fit small-data, length=2 steps, batch=6", 2, 2, 18)
    ] * 2
    run = next((tmp_path / "out/fits").glob("one-set-0-*"))
    judged = json.loads((run / "metrics.json").read_text())["judged"]
    assert found.rows[0].accuracy[0] == judged["right"] / judged["images"]
    with pytest.raises(VitreousError) as error:
        suite(both, out=tmp_path / "out", workers=0)
    line_of(error.value, "fit=vitreous.fit")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("device", ["'device'", "the suite itself gives", "remove it from set"]),
        ("seed", ["'seed'", "the suite itself gives"]),
        ("lenght", ["'lenght'", "not a recipe field", "near: length"]),
        ("on_nan", ["'on_nan'", "not a recipe field"]),
    ],
)
def test_what_is_no_field_of_a_recipe_is_refused_before_anything_is_computed(asked, tmp_path, name, words):
    task = {"kind": "fit", "set": {**SMALL, name: "cpu"}}
    with pytest.raises(ConfigError) as error:
        suite(asked | {"tasks": [task]}, out=tmp_path / "out", fit=vitreous.fit)
    line_of(error.value, *words)
    assert not (tmp_path / "out").exists()


def test_fields_of_recipe_and_augmentation_may_be_set():
    """And of a `fit` that does not tell its recipe's type, any but what the suite says itself."""
    fields = {"length": "5 epochs", "policy": "head", "mixup": 0.2}
    suite_cells.check_set([suite_file.FitTask(set=fields)], vitreous.fit)
    for bare in (lambda data, **how: None, partial(vitreous.fit, log=())):
        suite_cells.check_set([suite_file.FitTask(set={"anything": 1})], bare)
        with pytest.raises(ConfigError):
            suite_cells.check_set([suite_file.FitTask(set={"device": "cpu"})], bare)


def test_trainings_that_differ_in_what_they_set_are_rows_of_their_own(asked, place, tmp_path):
    """On the page, too; tasks that no title tells apart are refused."""

    def fit(data, **how):
        judged = {"right": how["batch"], "images": 18}
        return SimpleNamespace(metrics={"judged": judged, "judged_by": "test", "steps": 1, "seconds": 0.1})

    only = {"models": {"one": asked["models"]["one"]}, "data": {"set": asked["data"]["set"]}, "seeds": 1}
    tasks = [{"kind": "fit", "set": {"batch": batch}} for batch in (3, 6, 9)]
    there = suite(asked | only | {"tasks": tasks}, out=tmp_path / "out", fit=fit, device="cpu")
    assert [(row.task, row.mean) for row in there.rows] == [(f"fit auto, batch={n}", n / 18) for n in (3, 6, 9)]
    side = suite_page._side_by_side(there, ["set"], ["one"])
    assert [line[0] for line in side.rows] == [row.task for row in there.rows]
    assert suite_page.page(there).answer == "1 model, 1 set, 3 measurements"
    with pytest.raises(ConfigError) as error:
        suite_file.read(asked | {"tasks": [{"kind": "knn", "neighbours": n} for n in (1, 5)]})
    line_of(error.value, "two tasks are both called 'knn' for one on set", "give each a name")


def test_a_cell_is_known_by_all_that_decides_it(asked, place, tmp_path, monkeypatch):
    """A training by device, head and labels, a probe by neither; both by our version."""

    def keys(head=0, labels=NAMES, device="cpu", version="1"):
        model = awake(classes=3)
        model.head.weight.data += head
        model.labels = labels
        vitreous.save(model, tmp_path / "m.safetensors", force=True)
        tasks = [{"kind": "fit", "set": SMALL}, {"kind": "knn"}]
        only = {"models": {"m": str(tmp_path / "m.safetensors")}, "data": {"set": asked["data"]["set"]}}
        wanted = suite_file.read(asked | only | {"tasks": tasks})
        monkeypatch.setattr(suite_cells, "doctor", lambda: SimpleNamespace(vitreous=version))
        bench = suite_cells.SuiteBench(wanted, tmp_path, None, device, 0, "auto")
        return [bench._key(plan, 0) for plan in wanted.plans()]

    first = keys()
    assert keys() == first
    for change in ({"head": 1}, {"labels": ("ant", "bee", "dog")}, {"device": "meta"}):
        fit, knn = keys(**change)
        assert (fit != first[0], knn == first[1]) == (True, True), change
    assert not set(keys(version="2")) & set(first)


# What it leaves


def test_table_json_and_page_tell_the_same(asked, found, place):
    found = suite(asked, out=place / "out", workers=0)
    body = json.loads((place / "out/suite.json").read_text())
    assert body["schema"] == "vitreous.suite/1"
    assert body["rows"] == json.loads(json.dumps([row.to_json() for row in found.rows]))
    assert {"versions", "hardware", "commit"} <= body["record"].keys()
    text = render(suite_page.page(found))
    for row in found.rows:
        assert f"{100 * row.mean:.1f} %" in str(found)
        assert f"{100 * row.mean:.1f} %" in text
    assert text.count("<svg") >= 4
    assert "://" not in text.replace("http://www.w3.org", "")
    assert "<pre>" in found._repr_html_()


def test_a_folder_of_others_is_not_touched(asked, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    for out, words in ((tmp_path, "thesis.txt"), (tmp_path / "thesis.txt", "is a file")):
        with pytest.raises(VitreousError) as error:
            suite(asked, out=out)
        line_of(error.value, words, "--out DIR")
    with lock(tmp_path / "busy/lock"), pytest.raises(VitreousError) as error:
        suite(asked, out=tmp_path / "busy")
    line_of(error.value, "another process uses")


GOOD = """
[models]
deit = "weights/deit-tiny"
[data]
pets = { path = "photos", train = 100 }
[[tasks]]
kind = "few-shot"
shots = [1, 5]
[[tasks]]
kind = "fit"
recipe = "fine-tune"
set = { length = "5 epochs", peak_lr = 0.003, mixup = 0.2 }
"""


def test_the_example_of_the_docs_is_a_suite():
    (text,) = code_blocks(ROOT / "docs/guide/suites.md", "toml")
    found = suite_file.read(tomllib.loads(text))
    assert len(list(found.plans())) == 4 + 6 + 3


def test_a_file_says_what_is_to_be_done(tmp_path):
    file = tmp_path / "pets.toml"
    file.write_text(GOOD)
    found = suite_file.read(file)
    assert (found.name, found.seeds) == ("pets", 3)
    assert [(plan.model, plan.data, plan.title) for plan in found.plans()] == [
        ("deit", "pets", "few-shot"),
        ("deit", "pets", "fit fine-tune, length=5 epochs, peak_lr=0.003, mixup=0.2"),
    ]
    assert suite_file.read(found) is found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("shots = [1, 5]", "shotss = [1, 5]"), ["task 1 (few-shot) has no key 'shotss'", "near: shots"]),
        (("[data]", "[date]"), ["no key 'date'", "near: data"]),
        (("train = 100", "trian = 100"), ["data.pets has no key 'trian'", "near: train"]),
        (('kind = "few-shot"', 'kind = "fewshot"'), ["no kind 'fewshot'", "near: few-shot"]),
        (('kind = "few-shot"\n', ""), ["task 1 does not say which", "knn"]),
        (("shots = [1, 5]", 'models = ["diet"]'), ["models 'diet'", "near: deit"]),
        (("shots = [1, 5]", "shots = [0]"), ["shots = 0 is not positive"]),
        (("shots = [1, 5]", "shots = []"), ["shots = 0 is not positive"]),
        (("shots = [1, 5]", 'shots = "many"'), ["tasks[0].shots", "got `str`"]),
        (("train = 100", "train = -1"), ["train = -1 is not positive"]),
        (("deit =", '"a b" ='), ["'a b' is not a valid name"]),
        (('deit = "weights/deit-tiny"', ""), ["names no models", "[models]"]),
        (('deit = "weights/deit-tiny"', "deit = 5"), ["models.deit is not text"]),
        (("[models]", "[models"), ["is not TOML", "line 2"]),
        ((GOOD[GOOD.index("[[") :], "tasks = []"), ["data.tasks is neither text nor a table"]),
        ((GOOD, "tasks = []\n" + GOOD[: GOOD.index("[[")]), ["asks for nothing", "few-shot"]),
    ],
)
def test_a_file_that_is_wrong_is_one_line(tmp_path, change, words):
    file = tmp_path / "suite.toml"
    assert change[0] in GOOD
    file.write_text(GOOD.replace(*change, 1))
    with pytest.raises(VitreousError) as error:
        suite_file.read(file)
    line_of(error.value, file, *words)


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(VitreousError) as error:
        suite_file.read(tmp_path / "no.toml")
    line_of(error.value, "no.toml", "name a suite's TOML file")
