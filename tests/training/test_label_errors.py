"""Labels that may be wrong, of images that were learned from: swapped ones are named, apart from those judged."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_runs import Death, assert_equal_states, die_at, fitted, picture_folder, tinted_folder

import vitreous
from vitreous.images.health.findings import WRONG_FOR_SURE
from vitreous.training import label_errors
from vitreous.training.label_errors import Doubts, Suspect, doubts_of
from vitreous.training.plan import estimate as estimates
from vitreous.training.tell import facts

FAST = {"device": "cpu", "workers": 0, "check": False}
STEPS = {"length": "2 steps", "batch": 16, "folds": 0}

pytestmark = pytest.mark.usefixtures("own_cache")


def swapped(folder, share=0.05):
    """The set as if its test split had come with it, some training labels moved on by one; and which."""
    data = replace(vitreous.images.open(folder), about={})
    train = np.flatnonzero(data.splits == "train")
    wrong = train[:: round(1 / share)]
    labels = data.labels.copy()
    labels[wrong] = (labels[wrong] + 1) % len(data.classes)
    return replace(data, labels=labels, content_id="5" * 32), {data.name(int(i)) for i in wrong}


@pytest.fixture(scope="module")
def tints(tmp_path_factory):
    return swapped(tinted_folder(tmp_path_factory.mktemp("sets") / "tints", 200, strength=200))


def page_of(run):
    text = (Path(run.path) / "report.html").read_text()
    return re.sub(r"\s+", " ", text.replace("<wbr>", "").replace("\u00a0", " "))


def section(page, heading):
    return page.split(f"<h2>{heading}")[1].split("<section")[0]


# ------------------------------------------------------------------------------------------------------ a solved head


@pytest.fixture(scope="module")
def solved(tints, weights, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "solved"
    return vitreous.fit(tints[0], weights=weights, recipe="linear-probe", out=out, **FAST)


def test_swapped_labels_that_a_head_was_solved_on_are_named(solved, tints):
    """Test judges the run, and no image of it is among those learned from."""
    data, wrong = tints
    found = solved.metrics["suspects"]["learned"]
    names = [one["name"] for one in found["suspects"]]
    assert solved.metrics["judged_by"] == "test"
    assert (found["images"], found["of"], found["count"]) == (160, 160, len(names))
    assert names, "a label that is more likely wrong than right is named"
    assert len(set(names) - wrong) <= 1, "and hardly another; how many are found depends on the features"
    train, test = ({part.name(i) for i in range(len(part))} for part in (data.split("train"), data.split("test")))
    assert set(names) <= train
    assert {one["name"] for one in solved.metrics["suspects"]["judged"]["suspects"]} <= test
    for one in (one for one in found["suspects"] if one["name"] in wrong):
        assert one["likelier"] == Path(one["name"]).parent.name  # the folder it lies in
        assert one["label"] != one["likelier"]
        assert one["confidence"] > one["own"]


def test_the_page_shows_them_apart_and_the_card_counts_them(solved, tints):
    page, found = page_of(solved), solved.metrics["suspects"]["learned"]
    part = section(page, "Training labels that may be wrong")
    assert "160 were judged when left out of frozen features" in part
    assert f"names {found['agree'] / 1.6:.1f} % as they are labelled" in part
    assert len(re.findall(r"<img ", part)) == min(len(found["suspects"]), 8)
    first = found["suspects"][0]
    assert f"perhaps {first['likelier']} (" in part
    assert f"labelled {first['label']} (" in part
    for one in found["suspects"]:
        assert Path(one["name"]).name in part
        assert Path(one["name"]).name not in section(page, "Labels that may be wrong")
    assert "not doubted" not in page
    assert f"{found['count']} of 160 learned from" in (Path(solved.path) / "README.md").read_text()


def test_the_terminal_counts_them_if_there_are_any(solved):
    found = solved.metrics["suspects"]["learned"]
    sure = {"learned": found, "judged": None}
    (line,) = [line for line in str(with_suspects(solved, sure)).splitlines() if line.startswith("weakest")]
    assert line.endswith(f"; {found['count']} labels may be wrong: see the report")
    none = {"learned": {**found, "count": 0}, "judged": None}
    assert "may be wrong" not in str(with_suspects(solved, none))


def with_suspects(run, suspects):
    """The run with these doubts, and a mistake."""
    first, *others = run.metrics["judged"]["classes"]
    missed = {**first, "right": first["right"] - 1, "recall": 0.0}
    judged = {**run.metrics["judged"], "classes": [missed, *others]}
    return replace(run, metrics={**run.metrics, "suspects": suspects, "judged": judged})


def test_no_name_of_a_picture_goes_with_the_model(solved):
    raw = Path(solved.model).read_bytes()
    assert all(Path(one["name"]).name.encode() not in raw for one in solved.metrics["suspects"]["learned"]["suspects"])


# ------------------------------------------------------------------------------------------- measured before training


def trained(data, weights, out, **how):
    return vitreous.fit(data, weights=weights, out=out, **FAST, **STEPS, **how)


@pytest.fixture(scope="module")
def tuned(tints, weights, tmp_path_factory):
    return trained(tints[0], weights, tmp_path_factory.mktemp("runs") / "tuned")


def test_the_measure_before_training_doubts_the_same_labels(solved, tuned):
    """The same features, penalties and rounds."""
    assert tuned.metrics["recipe"] != "linear-probe"
    assert tuned.metrics["suspects"]["learned"] == solved.metrics["suspects"]["learned"]
    assert "doubts" not in tuned.metrics["estimate"]
    assert "learned from, those of dev among them, 160 were judged when left out" in page_of(tuned)


def test_what_goes_on_tells_the_same_of_them_and_little_is_kept(tuned, tints, weights, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(Death):
        trained(tints[0], weights, out, tell=die_at(1))
    kept = json.loads((out / "config.json").read_text())["estimate"]["doubts"]
    assert len(kept["suspects"]) == kept["count"] < 20
    assert len(json.dumps(kept)) < 3_000
    again = vitreous.fit(tints[0], resume=True, out=out, device="cpu")
    assert_equal_states(again.load().state_dict(), tuned.load().state_dict())
    assert again.metrics["suspects"] == tuned.metrics["suspects"]
    heading = "Training labels that may be wrong"
    assert section(page_of(again), heading) == section(page_of(tuned), heading)


def test_a_run_begun_before_labels_were_doubted_goes_on(tuned, tints, weights, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(Death):
        trained(tints[0], weights, out, tell=die_at(1))
    config = json.loads((out / "config.json").read_text())
    del config["estimate"]["doubts"]
    (out / "config.json").write_text(json.dumps(config))
    again = vitreous.fit(tints[0], resume=True, out=out, device="cpu")
    assert_equal_states(again.load().state_dict(), tuned.load().state_dict())
    assert again.metrics["suspects"]["learned"] is None
    assert "were not doubted: the model has learned them, and this run asked no frozen features" in page_of(again)


def test_what_was_judged_is_not_told_twice(tints, weights, tmp_path):
    """Dev images judge where there is no test; the measure before training asked about them, too."""
    data = tints[0].split("train")
    run = trained(data, weights, tmp_path / "run")
    assert run.metrics["judged_by"] == "dev"
    learned, judged = (
        {one["name"] for one in run.metrics["suspects"][which]["suspects"]} for which in ("learned", "judged")
    )
    assert learned
    assert not learned & judged


def test_where_every_image_is_judged_there_is_one_list(tints, weights, tmp_path):
    run = vitreous.fit(
        replace(tints[0].split("train"), about={"split": {"made": True}}),
        weights=weights, recipe="linear-probe", out=tmp_path / "run", **FAST,
    )  # fmt: skip
    assert run.metrics["judged_by"] == "leave-one-out"
    assert {one["name"] for one in run.metrics["suspects"]["judged"]["suspects"]} & tints[1]
    assert run.metrics["suspects"]["learned"] is None
    page = page_of(run)
    assert "Training labels" not in page
    assert "not doubted" not in page


# -------------------------------------------------------------------------------------------------------- from scratch


def test_from_scratch_it_is_said_that_nobody_doubted(tints, tmp_path):
    run = vitreous.fit(tints[0], weights="none", out=tmp_path / "run", **FAST, **STEPS)
    assert run.metrics["suspects"]["learned"] is None
    page = section(page_of(run), "Labels that may be wrong")
    assert "images learned from were not doubted: the model has learned them, and it began from scratch" in page
    assert "vitreous check" in page
    assert "--weights starter" in page


# -------------------------------------------------------------------------------------------------------- the starter


def test_the_starter_finds_swapped_labels_that_are_learned_from(tmp_path):
    """The weights that come with the package, as `fit` measures them: of 5 swapped labels among 96, 4 are named."""
    data, wrong = swapped(tinted_folder(tmp_path / "tints", 120, strength=120))
    data = replace(data, content_id="6" * 32)
    run = vitreous.fit(data, out=tmp_path / "run", **FAST)
    names = {one["name"] for one in run.metrics["suspects"]["learned"]["suspects"]}
    assert len(names & wrong) >= 4
    assert len(names - wrong) <= 1


# ---------------------------------------------------------------------------------------------------------- its parts


def test_labels_that_agree_are_not_doubted(tints):
    data = tints[0]
    scores = 2.0 * np.eye(4)[data.labels] - 1
    assert doubts_of(data, scores) == Doubts(200, 200, 200, 0, ())


def test_of_very_many_the_most_doubtful_are_kept(tints, monkeypatch):
    monkeypatch.setattr(label_errors, "MAX_SUSPECTS_KEPT", 3)
    data, scores = tints[0], 2.0 * np.eye(4)[tints[0].labels] - 1
    scores[:6] = np.roll(scores[:6], 1, 1) * np.linspace(1.5, 2, 6)[:, None]
    found = doubts_of(data, scores, 1000)
    assert (found.images, found.of, found.count) == (200, 1000, 6)
    assert [s.place for s in found.suspects] == data.ids[[5, 4, 3]].tolist()
    assert found.without(data.ids[[4]]).count == 5


def test_an_estimate_comes_back_from_json():
    one = Suspect(7, 0, 1, 0.9, 0.05)
    measured = estimates.Estimate(8, 10, 10, 0.5, 0.1, 1.0, 2.0, Doubts(8, 10, 10, 1, (one,)))
    assert estimates.from_json(json.loads(json.dumps(measured.to_json()))) == measured
    before = {name: value for name, value in measured.to_json().items() if name != "doubts"}
    assert estimates.from_json(before) == replace(measured, doubts=None)


# ----------------------------------------------------------------------------------------------- one image, two labels


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """Forty images; one lies under a second label too, one nearly, one twice under its own; and a run on them."""
    root = picture_folder(tmp_path_factory.mktemp("sets") / "twice", 40, side=64)
    discs, crosses = (sorted((root / name).glob("*.png")) for name in ("disc", "cross"))
    shutil.copy(discs[0], root / "cross" / "same.png")
    Image.open(discs[1]).convert("RGB").save(root / "cross" / "nearly.jpg", quality=92)
    shutil.copy(crosses[0], root / "cross" / "copy.png")
    (root / "cross" / "torn.jpg").write_bytes(b"<!doctype html>")
    return fitted(root, tmp_path_factory.mktemp("runs") / "run", check=True, folds=2)


def test_an_image_under_two_labels_comes_first_among_those_that_may_be_wrong(twice):
    """At least one of the two is wrong, whatever a model answers; the exact copy comes before the near one."""
    exact, near = twice.metrics["suspects"]["conflicts"]
    assert exact["exact"]
    assert not near["exact"]
    assert "cross/same.png" in exact["names"]
    assert "cross/nearly.jpg" in near["names"]
    assert {*exact["labels"], *near["labels"]} == {"cross", "disc"}
    section = page_of(twice).split("<h2>Labels that are wrong, or may be")[1].split("<section")[0]
    sure = f"under two labels: where the pixels are the same, {WRONG_FOR_SURE}."
    assert section.index(sure) < section.index("the same pixels</")
    assert "labelled cross" in section
    assert "labelled disc" in section
    named = {name for each in (exact, near) for name in each["names"]}
    assert not named & {each["name"] for each in twice.metrics["suspects"]["judged"]["suspects"]}, "named once"
    about = f"2 images under two labels (where the pixels are the same, {WRONG_FOR_SURE})"
    assert about in (Path(twice.path) / "README.md").read_text()
    checked = vitreous.check(json.loads((Path(twice.path) / "config.json").read_text())["data"]["place"])
    assert checked.find("label-conflict").what == "2 images lie there under two labels"
    assert checked.find("label-conflict").do.startswith(f"Where the pixels are the same, {WRONG_FOR_SURE}.")


def test_each_number_of_images_follows_from_the_others(twice):
    """44 files, one of them torn: 43 are learned from and judged, two of them copies."""
    used = "44 files, 1 cannot be read: 43 images, each judged and each learned from; 2 of these are copies"
    assert twice.metrics["images_used"] == used
    assert twice.metrics["judged"]["images"] == 43
    assert f"{used}." in page_of(twice)
    assert used in (Path(twice.path) / "README.md").read_text()
    assert used in map(str, twice.told)
    assert " of 43 images that it had not seen (" in str(twice)


def test_a_model_that_knows_nothing_still_tells_of_an_image_under_two_labels(twice, tmp_path):
    folder = json.loads((Path(twice.path) / "config.json").read_text())["data"]["place"]
    run = fitted(folder, tmp_path / "run", check=True, folds=2, peak_lr=1e-12)
    assert run.alarm is not None
    assert len(run.metrics["suspects"]["conflicts"]) == 2
    section = page_of(run).split("<h2>Labels that are wrong, or may be")[1].split("<section")[0]
    assert "there twice, under two labels" in section
    assert "the model says" not in section


def test_the_weakest_class_counts_labels_that_are_wrong_for_sure():
    sure, near = ({"names": ["a", "b"], "labels": ["x", "y"], "exact": is_exact} for is_exact in (True, False))
    none = {"judged": {"count": 0}, "learned": None}
    for conflicts, count, words in (
        ([sure], 0, "1 image lies under two labels, one of them wrong for sure"),
        ([sure, sure], 0, "2 images lie under two labels each, one of them wrong for sure"),
        ([sure, near], 0, "1 image lies under two labels, one of them wrong for sure, and 1 more label may be wrong"),
        ([near], 2, "3 labels may be wrong"),
        ([], 0, ""),
    ):
        assert facts._doubts(none | {"conflicts": conflicts, "judged": {"count": count}}) == words
