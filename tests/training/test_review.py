"""Mistakes that a reader found once, and that must not come back."""

import json
import os
import shutil
import sys
from pathlib import Path

import forks
import numpy as np
import pytest
from PIL import Image
from small_runs import MODEL, PLAIN, SIDE, picture_folder

import vitreous
from vitreous.errors import ConfigError, DataError
from vitreous.evaluation.accuracy import HAS_LEARNED
from vitreous.training.plan import plan as plans
from vitreous.training.run import folder as runs

SMALL = PLAIN.change(image_size=SIDE, length="3 steps")


def fitted(data, out, **options):
    asked = {"model": MODEL, "recipe": SMALL, "device": "cpu", "workers": 0, "check": False, "folds": 0}
    return vitreous.fit(data, out=out, **{**asked, **options})


@pytest.fixture
def folder(tmp_path):
    return picture_folder(tmp_path / "shapes", 60)


@pytest.mark.parametrize("force", [False, True])
def test_a_run_that_cannot_begin_takes_no_other_file_with_it(folder, tmp_path, force):
    out = tmp_path / "precious"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    with pytest.raises((ConfigError, DataError, vitreous.errors.ExistsError)):
        fitted(folder, out, force=force, mixup=0.2, batch=7)
    assert (out / "thesis.txt").read_text() == "mine"


def test_a_folder_with_hidden_files_is_not_empty(folder, tmp_path):
    out = tmp_path / "dotty"
    out.mkdir()
    (out / ".secret").write_text("mine")
    with pytest.raises(vitreous.errors.ExistsError):
        fitted(folder, out)
    assert (out / ".secret").is_file()


def test_what_cannot_be_done_is_said_before_an_older_run_goes(folder, tmp_path):
    run = fitted(folder, tmp_path / "run")
    for wrong in ({"mixup": 0.2, "batch": 7}, {"log": ["nolog"]}, {"policy": "last-9"}):
        with pytest.raises(ConfigError):
            fitted(folder, tmp_path / "run", force=True, **wrong)
    assert Path(run.model).is_file()


def test_a_late_fault_leaves_nothing_that_resume_would_take(folder, tmp_path, monkeypatch):
    def planned_then_broken(*given, **options):
        job = plan(*given, **options)
        for file in folder.rglob("*.png"):
            file.write_bytes(b"no picture")
        return job

    plan = plans.make
    monkeypatch.setattr(plans, "make", planned_then_broken)
    with pytest.raises(DataError):
        fitted(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_pictures_without_labels_are_what_masked_patches_are_for(tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    for i in range(24):
        pixels = np.random.default_rng(i).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(flat / f"{i}.png")
    recipe = SMALL.change(task="masked-patches", dev=0.0, name="masked-patches")
    run = fitted(flat, tmp_path / "run", recipe=recipe, model=f"{MODEL} mask_token=true")
    assert run.load().config.readout.classes == 0
    assert "data" not in run.load().source  # it has learned no label, so fine-tuning on these images needs no caution
    assert "report" not in run.to_json()


def test_other_classes_of_the_same_number_get_a_new_head(folder, tmp_path):
    run = fitted(folder, tmp_path / "run")
    other = tmp_path / "renamed"
    for kind in folder.iterdir():
        target = other / f"other {kind.name}"
        target.mkdir(parents=True)
        for file in kind.iterdir():
            (target / file.name).write_bytes(file.read_bytes())
    again = fitted(other, tmp_path / "again", weights=run.model, model=None, length="1 steps")
    first = next(event for event in runs.read(again.path) if event["kind"] == "step")
    assert first["loss"] == pytest.approx(np.log(4), abs=1e-5)


def test_weights_that_have_seen_the_images_are_said(folder, tmp_path):
    run = fitted(folder, tmp_path / "run", folds=2)
    told = []
    again = fitted(folder, tmp_path / "again", weights=run.model, model=None, folds=2, tell=told.append)
    assert any("have learned from these very images" in event.get("text", "") for event in told)
    assert "have learned from these very images" in Path(again.report).read_text()
    fresh = fitted(folder, tmp_path / "fresh")
    assert not fresh.metrics["notes"]


def test_weights_that_may_have_seen_imagenets_images_are_said(folder, tmp_path):
    for name, kind in zip(("n01440764", "n02102040", "n02979186", "n03000684"), sorted(folder.iterdir()), strict=True):
        kind.rename(kind.with_name(name))
    run = fitted(folder, tmp_path / "run")
    assert not run.metrics["notes"], "from scratch nothing was seen"
    again = fitted(folder, tmp_path / "again", weights=run.model, model=None, length="1 steps")
    assert any("the classes are ImageNet's" in note for note in again.metrics["notes"])


def test_a_test_split_of_ones_own_is_judged_beside_the_folds(tmp_path):
    both = tmp_path / "both"
    picture_folder(both / "train", 48)
    picture_folder(both / "test", 20, first=100)
    run = fitted(both, tmp_path / "run", folds=2)
    assert run.metrics["judged"]["images"] == 48
    assert run.metrics["test"]["images"] == 20
    assert "own test split" in Path(run.report).read_text()


def test_a_small_train_split_beside_a_large_val_gets_a_batch_that_fits(tmp_path):
    both = tmp_path / "both"
    picture_folder(both / "train", 20)
    picture_folder(both / "val", 40, first=50)
    picture_folder(both / "test", 10, first=200)
    run = fitted(both, tmp_path / "run", recipe=SMALL.change(batch=32, dev=0.1))
    assert run.metrics["steps"] == 3


def test_a_run_goes_on_from_another_folder(folder, tmp_path):
    script = (
        "import os, sys, vitreous\n"
        "from small_runs import MODEL, PLAIN, SIDE\n"
        "def die(event):\n"
        "    if event['kind'] == 'step' and event['step'] == 2: os._exit(9)\n"
        "recipe = PLAIN.change(image_size=SIDE, length='4 steps')\n"
        "vitreous.fit('shapes', model=MODEL, recipe=recipe, out='run', folds=0, check=False, workers=0, tell=die)\n"
    )
    places = [str(Path(__file__).parent.parent), *sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    done = forks.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 9, done.stderr
    run = vitreous.fit(tmp_path / "run", resume=True)  # this process is elsewhere
    assert run.metrics["steps"] == 4


def test_another_sets_run_is_not_taken_for_this_ones(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    longer = Path("runs/shapes-old-1")
    longer.mkdir(parents=True)
    (longer / "config.json").write_text(json.dumps({"run": "x"}))
    (longer / "events.jsonl").write_text("")
    with pytest.raises(vitreous.errors.RunError, match="no unfinished run"):
        vitreous.fit("shapes", resume=True)


def test_a_finished_run_keeps_no_states(folder, tmp_path):
    run = fitted(folder, tmp_path / "run", folds=2)
    assert not list((Path(run.path) / "state").glob("*.safetensors"))


def test_the_numbers_of_a_run_are_those_of_eval(folder, tmp_path):
    both = tmp_path / "both"
    picture_folder(both / "train", 60)
    picture_folder(both / "test", 24, first=100)
    run = fitted(both, tmp_path / "run", recipe=SMALL.change(dev=0.2))
    result = vitreous.evaluate(run.load(), both)
    assert run.metrics["judged"]["right"] == result.right
    assert run.metrics["judged"]["temperature"] == pytest.approx(run.load().temperature)
    assert run.metrics["judged"]["unlike"] == result.unlike
    assert result.unlike < result.images / 2
    html = (tmp_path / "run" / "report.html").read_text().replace("\u00a0", " ")
    assert f"It also says so of {100 * result.unlike / result.images:.1f} % of the images judged" in html


def test_eval_says_when_a_model_has_learned_from_the_images(folder, tmp_path):
    crossed = fitted(folder, tmp_path / "crossed", folds=2).load()
    assert any("learned from these very images" in note for note in vitreous.evaluate(crossed, folder).notes)
    split = fitted(folder, tmp_path / "split").load()
    assert not vitreous.evaluate(split, folder).notes
    assert any("learned" in note for note in vitreous.evaluate(split, folder, split="train").notes)


def test_without_a_test_split_eval_judges_all_images_but_those_learned_from(folder, tmp_path):
    run = fitted(folder, tmp_path / "run", folds=2)
    model = run.load()
    same = vitreous.evaluate(model, folder)
    assert (same.images, same.about["split"]) == (60, "all")
    assert str(same).startswith("The model has learned from these very images: the number says nothing about new ones.")
    new = picture_folder(tmp_path / "new", 24, first=500)
    others = vitreous.evaluate(model, new)
    assert (others.images, others.notes) == (24, ())
    assert others.about["images_used"] == "24 files, all judged: the set has no test split of its own"
    mixed = shutil.copytree(folder, tmp_path / "mixed")
    for file in new.rglob("*.png"):
        shutil.copy(file, mixed / file.parent.name / f"new-{file.name}")
    both = vitreous.evaluate(model, mixed)
    assert (both.images, both.right, both.notes) == (24, others.right, ())
    assert both.about["images_used"] == "84 files, 60 that the model learned from: 24 judged"
    whole = vitreous.evaluate(model, mixed, split="all")
    assert whole.notes == ("the model has learned from 60 of these 84 images: the number is too high",)
    assert whole.alarm is None or "learned" not in whole.alarm  # the others are new
    (tmp_path / "moved").mkdir()
    moved = vitreous.load(shutil.copy(run.model, tmp_path / "moved"))
    unknown = vitreous.evaluate(moved, mixed)
    assert unknown.images == 84
    assert "which images the model learned from is not known here" in unknown.notes[0]
    assert vitreous.evaluate(moved, folder).alarm == same.alarm  # the set itself is known


def test_eval_knows_what_the_weights_of_a_run_have_learned_from(folder, tmp_path):
    first = fitted(folder, tmp_path / "first", folds=2)
    new = picture_folder(tmp_path / "new", 24, first=500)
    second = fitted(new, tmp_path / "second", folds=2, weights=first.path, model=None, image_size=None)
    for seen in (folder, new):
        assert any(HAS_LEARNED in note for note in vitreous.evaluate(second.load(), seen).notes)


@pytest.mark.parametrize("has_own", [True, False])
def test_eval_believes_a_test_split_that_was_left_out_beside_series(folder, tmp_path, has_own):
    """Series kept whole make another split than `eval` would make, so that the digests decide."""
    data = folder
    if has_own:
        data = tmp_path / "own"
        shutil.copytree(folder, data / "train")
        picture_folder(data / "test", 24, first=500)
    run = fitted(data, tmp_path / "run", folds=0, group_by=r"(\d)\.png$")
    result = vitreous.evaluate(run.load(), data)
    assert (result.images, result.right) == (run.metrics["judged"]["images"], run.metrics["judged"]["right"])
    assert not any(HAS_LEARNED in note for note in result.notes)


def test_a_made_test_split_is_what_eval_judges_after_a_run_that_left_it_out(folder, tmp_path):
    run = fitted(folder, tmp_path / "run")
    result = vitreous.evaluate(run.load(), folder)
    assert (result.images, result.right) == (run.metrics["judged"]["images"], run.metrics["judged"]["right"])
    assert "that the model learned from" in result.about["images_used"]
