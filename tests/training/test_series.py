"""Series that are left out whole: by --group-by, or guessed where that changes the number beyond its interval."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import run_all
from finished_run import invented
from PIL import Image
from small_runs import MODEL, SIDE, fitted, plan_of, rule, tinted_folder

import vitreous
from vitreous.errors import DataError
from vitreous.evaluation.accuracy import independent, wilson
from vitreous.images.sources import image_file
from vitreous.training.plan import plan as plans
from vitreous.training.run import closed_form
from vitreous.training.run.closed_form import Series
from vitreous.training.tell.card import card
from vitreous.training.tell.page import page
from vitreous.training.tell.write import Run

pytestmark = pytest.mark.usefixtures("own_cache")

SHOTS, TAKEN = 6, 16  # of a series, and series in all: every second is of class a
FOOTNOTE = "Left out one by one"
GUESS = "The series are a guess; --group-by names them."


def shots(root, name, moment=None):
    """Patterns of colour, equal in brightness, each photographed several times; its class was drawn by lot.

    Only who has seen another shot of a pattern can name its class. To a hash of brightness no two shots are alike.
    """
    draw = np.random.default_rng(0)
    for taken in range(TAKEN):
        red, blue = draw.uniform(-70, 70, (2, 4, 4, 1)).repeat(SIDE // 4, 1).repeat(SIDE // 4, 2)
        colour = np.concatenate([red, -0.509 * red - 0.194 * blue, blue], 2)
        for shot in range(SHOTS):
            noise = draw.normal(128, 12, (SIDE, SIDE, 1))
            file = root / name(taken, shot)
            file.parent.mkdir(parents=True, exist_ok=True)
            exif = Image.Exif()
            if moment:
                exif[image_file.CAMERA_MODEL] = "A1"
                exif.get_ifd(image_file.EXIF_PART)[image_file.TAKEN_AT] = moment(taken, shot)
            Image.fromarray((noise + colour).clip(0, 255).astype(np.uint8)).save(file, exif=exif)
    return root


def by_number(taken, shot):
    return f"{'ab'[taken % 2]}/{20 * taken + shot}.png"


def by_folder(taken, shot):
    return f"{'ab'[taken % 2]}/day {taken}/{'xyzuvw'[shot]}{'abcdefghijklmnop'[taken]}.png"


def by_nothing(taken, shot):
    return f"{'ab'[taken % 2]}/{'pqrstu'[shot]}{'abcdefghijklmnop'[taken]}.png"


def by_hour(taken, shot):
    return f"2026:05:{taken + 1:02} 12:{9 * shot:02}:00"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Random: the whole image is one patch, so that features are a projection of its pixels."""
    model = vitreous.build("Ti/16 width=64 depth=1 heads=2 mlp=64 pool=gap", image_size=SIDE, classes=7, seed=0)
    model.preprocess = rule()
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    vitreous.save(model, path)
    return str(path)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    return shots(tmp_path_factory.mktemp("numbered"), by_number)


@pytest.fixture(scope="module")
def in_folders(tmp_path_factory):
    return shots(tmp_path_factory.mktemp("folders"), by_folder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Images that were taken one by one: their names have numbers all the same."""
    return tinted_folder(tmp_path_factory.mktemp("plain"), 128, strength=60)


def fit(data, out, weights, **options):
    return vitreous.fit(data, weights=weights, out=out, device="cpu", workers=0, check=False, **options)


def text_of(run, name):
    return (Path(run.path) / name).read_text().replace("\u00a0", " ")


# ------------------------------------------------------------------------------------------------------------- guessed


def test_the_number_of_whole_series_is_the_headline_and_the_other_the_footnote(numbered, weights, tmp_path):
    run = fit(numbered, tmp_path / "run", weights)
    told, judged = run.metrics["series"], run.metrics["judged"]
    assert (told["by"], told["count"], told["images"]) == ("neighbouring file numbers", TAKEN, TAKEN * SHOTS)
    assert (told["matters"], told["is_headline"], told["is_given"]) == (True, True, False)
    one, whole, at_random = (told[name]["accuracy"] for name in ("one_by_one", "whole", "at_random"))
    assert one > 0.95
    assert at_random > 0.95, "as many images left out at random change nothing"
    assert whole < 0.75, "better than a coin: a head was asked about a pattern that it had seen"
    assert judged["top1"] < 0.75
    low, high = judged["interval"]
    plain = wilson(judged["right"], judged["images"])
    assert high - low > 1.2 * (plain[1] - plain[0]), f"{TAKEN} patterns are not {TAKEN * SHOTS}"
    headline = f"Measured by leaving out whole series ({TAKEN} series guessed by neighbouring file numbers)"
    footnote = f"{FOOTNOTE}, {100 * one:.1f} %"
    for text in (text_of(run, "report.html"), text_of(run, "README.md"), json.dumps(run.metrics)):
        assert headline in text
        assert footnote in text
        assert "too high for new images" in text
        assert GUESS in text
    assert "images left out one by one" in text_of(run, "report.html")
    assert f"**{100 * judged['top1']:.1f} %** of new images" in text_of(run, "README.md")
    lines = str(run).splitlines()
    at = next(
        i for i, line in enumerate(lines) if line.startswith("right ")
    )  # a model no better than a coin says so first
    right, below = lines[at : at + 2]
    share, images = f"{100 * judged['top1']:.1f} %", judged["images"]
    assert right.startswith(f"right    {share} of {images:,} images of series that it had not seen (")
    assert below == f"series   {TAKEN} guessed by neighbouring file numbers; one by one {100 * one:.1f} %, too high"
    assert footnote in "\n".join(map(str, run.told)), "--verbose tells it whole"


def test_where_series_change_nothing_the_number_stands_and_nothing_is_said_above(plain, weights, tmp_path):
    run = fit(plain, tmp_path / "run", weights)
    told = run.metrics["series"]
    assert (told["matters"], told["is_headline"]) == (False, False)
    assert run.metrics["footnote"] is None
    assert "Measured by leave-one-out" in run.metrics["how_judged"]
    assert "\nseries " not in str(run)
    assert run.metrics["judged"]["interval"] == list(wilson(run.metrics["judged"]["right"], 128))
    for text in (text_of(run, "report.html"), text_of(run, "README.md")):
        assert FOOTNOTE not in text
        assert GUESS not in text
    assert "no clear difference, so the number stands" in text_of(run, "report.html")


@pytest.mark.parametrize(
    ("name", "moment", "by"),
    [
        (by_folder, None, "subfolders"),
        (by_nothing, by_hour, "the same camera and hour"),
        (by_nothing, None, "features much alike"),
    ],
)
def test_series_are_guessed_by_folders_by_exif_and_by_features(name, moment, by, weights, tmp_path):
    plan = plan_of(shots(tmp_path / "set", name, moment), weights=weights, check=False)
    assert plan.series.by == by
    assert plan.series.matters
    patterns = np.array([name[-5] if name[2:5] != "day" else name.split("/")[1] for name in plan.data.names])
    groups, _ = closed_form.rounds(plan.data)
    torn = [pattern for pattern in set(patterns) if len(set(groups[patterns == pattern])) > 1]
    assert len(torn) <= (TAKEN // 4 if by == "features much alike" else 0)


def test_fewer_images_to_learn_from_are_no_reason():
    """Whole series are left out only if they are worse than as many images at random, too."""

    def matters(one, whole, at_random, least):
        given = {"one_by_one": one, "whole": whole, "at_random": at_random, "least_at_random": least, "judged": 100}
        return Series("x", False, 10, 100, **given).matters

    assert matters(90, 70, 88, 86)
    assert not matters(90, 88, 90, 89), "within the interval of 82.6 to 94.5"
    assert not matters(90, 84, 83, 82), "within it still"
    assert not matters(90, 82, 84, 81), "one draw at random was lower"
    assert not matters(90, 70, 72, 71), "at random as many are lost"
    assert matters(90, 60, 72, 71), "beyond the interval of those, too: 62.5 to 79.9"
    assert not Series("x", True, 10, 100).matters


def test_a_guess_that_changes_the_number_makes_the_test_split_anew(numbered, weights):
    """From 2,000 images on test judges; here asked for by folds=0."""
    plan = plan_of(numbered, weights=weights, check=False, folds=0)
    assert plan.protocol == "closed-form"
    assert plan.series.matters
    pairs = set(zip(plan.data.groups.tolist(), plan.data.splits.tolist(), strict=True))
    assert len(pairs) == TAKEN
    assert {side for _, side in pairs} == {"train", "test"}


# --------------------------------------------------------------------------------------------------------------- given


def test_series_that_are_named_are_left_out_whole_and_the_other_number_stands_below(in_folders, weights, tmp_path):
    run = fit(in_folders, tmp_path / "run", weights, group_by="folder")
    assert f"whole series ({TAKEN} series by folder)" in run.metrics["how_judged"]
    assert FOOTNOTE in run.metrics["footnote"]
    assert GUESS not in run.metrics["footnote"]
    assert f"series   {TAKEN} by folder; one by one 100.0 %, too high" in str(run)
    assert run.metrics["judged"]["top1"] < 0.75
    assert run.load().source["learned_from"] == "all"


def test_named_series_that_change_nothing_say_so(plain, weights, tmp_path):
    run = fit(plain, tmp_path / "run", weights, group_by=r"\d\d(\d)\d\.png")
    assert "by \\d\\d(\\d)\\d\\.png)" in run.metrics["how_judged"]
    assert "no clear difference, so the series hardly matter here" in run.metrics["footnote"]
    assert "%, no clear difference" in str(run)
    assert "too high" not in str(run) + run.metrics["footnote"]


@pytest.mark.parametrize("folds", [0, 3])
def test_no_training_learns_from_a_series_that_judges(in_folders, tmp_path, folds):
    """From scratch nothing is measured beside it, so there is no footnote."""
    run = fitted(in_folders, tmp_path / "run", group_by="folder", folds=folds)
    where = "Images were set aside in whole series" if not folds else "cross-validation with whole series left out"
    assert f"{where} ({TAKEN} series by folder)" in run.metrics["how_judged"]
    assert run.metrics["footnote"] is None
    assert f"series   {TAKEN} by folder, each kept whole" in str(run)


@pytest.mark.parametrize("how", [{"group_by": "folder"}, {"folds": 0}, {}])
def test_a_resumed_run_has_the_same_series_and_the_same_split(in_folders, weights, tmp_path, how):
    plan = plan_of(in_folders, weights=weights, check=False, **how)
    config = json.loads(json.dumps(plan.to_json()))
    again = plans.resumed(config, None, tmp_path, lambda line: None)
    assert again.series == plan.series
    assert (again.data.splits == plan.data.splits).all()
    assert len(set(zip(again.data.groups.tolist(), plan.data.groups.tolist(), strict=True))) == TAKEN


def test_a_run_from_before_series_were_known_can_be_resumed(plain, weights, tmp_path):
    config = json.loads(json.dumps(plan_of(plain, weights=weights, check=False).to_json()))
    del config["series"], config["groups"], config["estimate"]["series"]
    assert plans.resumed(config, None, tmp_path, lambda line: None).series is None


# ------------------------------------------------------------------------------------------------------------ cautions


def test_images_that_seem_to_come_in_series_are_told_where_nothing_measures_them(in_folders, plain):
    told = plan_of(in_folders, model=MODEL, check=False).cautions
    assert any("seem to come in series, by subfolders;" in line and "--group-by folder" in line for line in told)
    assert not plan_of(plain, model=MODEL, check=False).cautions, "numbers alone are no reason for a caution"
    assert not plan_of(in_folders, model=MODEL, check=False, group_by="folder").cautions


def test_a_class_that_is_one_series_is_told(tmp_path, weights):
    root = shots(tmp_path / "set", by_folder)
    for number, day in enumerate(sorted((root / "b").iterdir())):
        for file in day.iterdir():
            file.rename(root / "b" / f"{number}-{file.name}")
        day.rmdir()
    (line,) = plan_of(root, weights=weights, check=False, group_by="folder").cautions
    assert line.startswith("1 class has one series alone (b); left out whole, nothing of the class is learned")


def test_a_split_of_their_own_that_separates_series_is_told(in_folders, tmp_path, weights):
    for file in sorted(in_folders.glob("*/*/*.png")):
        label, day = file.parts[-3:-1]
        side = "test" if file.name[0] in "xy" else "train"
        target = tmp_path / "set" / side / label / f"{day.replace(' ', '')}-{file.name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    (line,) = plan_of(tmp_path / "set", weights=weights, check=False, group_by=r"day\d+").cautions
    assert line == f"the set's own test split separates {TAKEN} series, so its number is too high"


# ------------------------------------------------------------------------------------------------ what is told, by hand

MATTERS = Series("folder", True, 12, 100, one_by_one=90, whole=60, at_random=88, least_at_random=85, judged=100)


@pytest.mark.parametrize(
    ("judged_by", "series", "words"),
    [
        ("leave-one-out", MATTERS, "Left out one by one, 90.0 % (82.6 to 94.5) are right: too high for new images"),
        (
            "test",
            MATTERS,
            "frozen features named 90.0 % (82.6 to 94.5) when images were left out one by one, and 60.0 %",
        ),
        ("cross-validation", MATTERS, "a number without series would be too high"),
        ("test", replace(MATTERS, whole=89), "no clear difference"),
    ],
)
def test_the_footnote_says_what_was_measured(judged_by, series, words):
    summary = invented(120, 3, judged_by=judged_by, folds=5, series=series)
    assert words in summary.footnote
    assert words in card(summary)
    assert words in str(page(summary)).replace("\\xa0", " ")
    assert "whole series" in summary.how_judged
    assert summary.about_series is None


@pytest.mark.parametrize(
    ("judged_by", "series", "line"),
    [
        ("leave-one-out", MATTERS, "12 by folder; one by one 90.0 %, too high"),
        ("leave-one-out", replace(MATTERS, is_given=False), "12 guessed by folder; one by one 90.0 %, too high"),
        ("leave-one-out", replace(MATTERS, whole=89), "12 by folder; one by one 90.0 %, no clear difference"),
        ("test", MATTERS, "12 by folder; frozen features: 90.0 % one by one, 60.0 % whole"),
        ("test", Series("folder", True, 12, 100), "12 by folder, each kept whole"),
        ("leave-one-out", replace(MATTERS, is_given=False, whole=89), None),
        ("test", None, None),
    ],
)
def test_the_terminal_has_one_line_about_series_if_they_are_kept_whole(judged_by, series, line):
    told = None if series is None else series.to_json()
    metrics = {"judged_by": judged_by, "judged": {"top1": 0.6, "images": 100, "interval": [0.5, 0.7]}, "series": told}
    facts = {event.about: event.text for event in Run("runs/x", {**metrics, "how_judged": ""}).told if "about" in event}
    assert facts.get("series") == line
    assert ("of series that it had not seen" in facts["right"]) is (line is not None)


def test_without_series_nothing_is_told_of_them():
    for series in (None, replace(MATTERS, is_given=False, whole=89)):
        summary = invented(120, 3, series=series)
        assert summary.footnote is None
        assert "series" not in summary.how_judged
        assert "series" not in card(summary)
        assert ("the number stands" in str(page(summary))) is (series is not None)


def test_images_that_are_right_or_wrong_together_count_as_one():
    is_right = np.arange(40) % 4 > 0
    assert independent(is_right, np.arange(40)) == pytest.approx(39, abs=1)
    assert independent(np.repeat(is_right, 5), np.repeat(np.arange(40), 5)) == pytest.approx(39, abs=1)
    assert independent(np.ones(40, bool), np.arange(40) // 4) == 10


# ----------------------------------------------------------------------------------------------------------- bad input


def test_a_grouping_that_is_too_coarse_for_the_folds_is_named(plain, weights, tmp_path):
    with pytest.raises(DataError, match=r"the 128 images of .* are only 10 series .* group them more finely"):
        fit(plain, tmp_path / "run", weights, group_by=r"(\d)\.png", folds=12, recipe="fine-tune")


def test_what_groups_nothing_is_one_line_and_exit_2(plain, numbered, tmp_path, weights):
    rows = "".join(f"{file},{file.parent.name},{i % 4}\n" for i, file in enumerate(sorted(plain.glob("*/*.png"))))
    (tmp_path / "table.csv").write_text("path,label,who\n" + rows)
    given = ["--weights", weights, "--device", "cpu", "--out", tmp_path / "run", "--group-by"]
    calls = {
        ("fit", plain, *given, "("): "group_by='(' is neither a column nor a regular expression",
        ("fit", plain, *given, "patient"): "group_by='patient' matches no path, such as",
        ("fit", tmp_path / "table.csv", *given, "what"): "nor is it one of the columns who",
        ("fit", plain, *given, "exif-day"): "tells its day by EXIF; group by folder",
        ("fit", plain, *given, "folder"): "--group-by folder puts each class of",
        ("fit", plain, *given, "png"): f"--group-by png puts all 128 images of {plain} into one series",
        ("fit", plain, *given, "png", "--then", plain): "--group-by is for one set of images",
    }
    for done, words in zip(run_all(calls), calls.values(), strict=True):
        assert words in done.line
    assert not (tmp_path / "run").exists()
