"""The main job from end to end: what it leaves, what its numbers may depend on, and how it goes on."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from picture_sets import make_batches
from PIL import Image
from small_runs import (
    BUSY,
    MODEL,
    SIDE,
    SMALL,
    Arrays,
    Death,
    assert_equal_states,
    die_at,
    fitted,
    image_set,
    picture_folder,
    sized,
)
from tiny_models import line_of

import vitreous
from vitreous.errors import BusyError, ConfigError, DataError, RunError
from vitreous.evaluation import calibration, inference
from vitreous.images import splits
from vitreous.images.pixels.preprocess import finish
from vitreous.training.recipe import Recipe
from vitreous.training.run import folder as runs
from vitreous.training.run import protocols
from vitreous.training.run.loop import Loop
from vitreous.weights import load_model


def weights_of(run):
    return run.load().state_dict()


def events_of(path, *kinds):
    return [event for event in runs.without_clocks(runs.read(path)) if event["kind"] in kinds]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return picture_folder(tmp_path_factory.mktemp("sets") / "shapes", 80)


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    """A whole run with its check, a dev and a test split."""
    return fitted(folder, tmp_path_factory.mktemp("runs") / "one", check=True, length="12 steps")


def test_the_time_told_is_what_the_user_waited(folder, tmp_path, monkeypatch):
    """Reading, checking and the report count; of a resumed run, all sessions but the nights between."""
    rests = iter((0.4, 0.4))
    run = fitted(folder, tmp_path / "one", check=True, tell=lambda event: time.sleep(next(rests, 0)))
    metrics = run.metrics
    assert metrics["total_seconds"] > metrics["seconds"] + 0.8
    assert "in all, 0 s of training" in Path(run.path, "README.md").read_text() or metrics["seconds"] >= 0.5
    page = Path(run.report).read_text()
    assert "<dt>in all</dt>" in page
    assert "of training on CPU" in page
    lines = [("start", 100, {"waited": 7}), ("step", 130, {}), ("restore", 9_000, {}), ("step", 9_020, {})]
    lines += [("restore", 20_000, {}), ("step", 20_001, {})]
    text = "".join(json.dumps({"kind": kind, "time": at, **more}) + "\n" for kind, at, more in lines)
    (tmp_path / "events.jsonl").write_text(text)
    assert runs.seconds_before(tmp_path, since=19_000) == 7 + 30 + 20


# ------------------------------------------------------------------------------------------------------- what it leaves


def test_a_run_leaves_a_model_numbers_a_page_a_card_and_what_happened(run, folder):
    place = Path(run.path)
    there = {file.name for file in place.iterdir()}
    assert there == {
        *("README.md", "config.json", "events.jsonl", "learned.npy"),
        *("metrics.json", "model.safetensors", "report.html", "state"),
    }  # fmt: skip
    metrics = json.loads((place / "metrics.json").read_text())
    assert metrics == json.loads(json.dumps(run.metrics))
    config = json.loads((place / "config.json").read_text())
    assert config["data"]["path"] == str(folder)
    assert config["recipe"]["length"] == "12 steps"
    assert {"command", "record", "network", "reasons", "run"} <= config.keys()
    page, card = (place / "report.html").read_text(), (place / "README.md").read_text()
    share = f"{100 * metrics['judged']['top1']:.1f}"
    assert share in page
    assert card.startswith("---\n")
    assert "image-classification" in card
    assert [event["step"] for event in events_of(place, "step")] == list(range(1, 13))
    assert share in str(run)
    assert run.report in str(run)


def test_the_number_is_that_of_the_saved_model_on_the_images_of_test(run, folder):
    data = vitreous.images.open(folder)
    again = vitreous.evaluate(run.load(), data, split="test", workers=0)
    judged = run.metrics["judged"]
    assert (again.right, again.images) == (judged["right"], judged["images"]) == (judged["right"], 16)
    assert run.metrics["judged_by"] == "test"
    low, high = judged["interval"]
    assert 0 <= low <= judged["top1"] <= high <= 1


def test_the_model_kept_is_the_latest_that_dev_called_worth_keeping(run):
    """Not always the best: tests/training/test_loop.py has the rule."""
    last = [look for look in events_of(run.path, "dev") if look["kept"]][-1]
    assert run.metrics["kept_step"] == last["step"]
    assert run.metrics["dev"] == {name: last[name] for name in ("step", "accuracy", "loss")}


def test_temperature_and_threshold_are_fitted_on_dev_and_used_by_every_answer(run, folder):
    model, data = run.load(), vitreous.images.open(folder)
    _, dev = splits.cut_dev(data, 0.2, 0)
    z = inference.logits(model, dev, workers=0)
    assert model.temperature == run.metrics["temperature"]
    assert model.temperature == pytest.approx(calibration.fit_temperature(z.values, z.labels), rel=1e-4)
    assert model.threshold == run.metrics["threshold"]
    assert model.threshold == pytest.approx(calibration.fit_threshold(z.scores), rel=1e-4)
    test = data.split("test")
    z = inference.logits(model, test, workers=0)
    p, scores = calibration.softmax(z.values, model.temperature), z.scores
    answers = list(vitreous.predict(model, test, top=4, workers=0))
    assert len(answers) == len(test)
    for answer, row, score in zip(answers, p, scores, strict=True):
        assert answer.probabilities == pytest.approx(sorted(row, reverse=True), rel=1e-4)
        assert answer.labels[0] == data.classes[int(row.argmax())]
        assert answer.is_unlike == (score < model.threshold)


def test_the_same_run_again_is_the_same_run_and_another_seed_is_not(folder, tmp_path):
    ours, theirs, others = (
        fitted(folder, tmp_path / str(i), recipe=BUSY.change(image_size=SIDE), seed=i // 2) for i in range(3)
    )
    assert_equal_states(weights_of(ours), weights_of(theirs))
    assert events_of(ours.path, "step", "dev") == events_of(theirs.path, "step", "dev")
    assert not torch.equal(weights_of(others)["head.weight"], weights_of(ours)["head.weight"])


# ---------------------------------------------------------------------------------------- what numbers may depend on


def test_test_images_and_their_labels_change_nothing_but_the_number(tmp_path):
    """Weights, best state, temperature and threshold are bit for bit those of a run that had others there."""
    data = image_set(90, test=30)
    labels, pictures = data.labels.copy(), data.source.pixels.copy()
    labels[60:] = (labels[60:] + 1) % 4
    pictures[60:] = pictures[60:][::-1] // 2
    others = replace(data, labels=labels, source=Arrays(pictures))
    one, two = (fitted(some, tmp_path / str(i)) for i, some in enumerate((data, others)))
    assert_equal_states(weights_of(two), weights_of(one))
    for name in ("temperature", "threshold", "kept_step", "dev", "answer_above"):
        assert two.metrics[name] == one.metrics[name], name
    assert two.metrics["judged"]["loss"] != one.metrics["judged"]["loss"]


@pytest.fixture(scope="module")
def unlearnable(tmp_path_factory):
    """Noise with labels drawn at random, every picture there twice: only who has seen one can name it."""
    root, draw = tmp_path_factory.mktemp("noise") / "noise", np.random.default_rng(0)
    for i in range(30):
        image = Image.fromarray(draw.integers(0, 256, (SIDE, SIDE, 3), np.uint8))
        for copy in ("a", "b"):
            file = root / f"class {i % 3}" / f"{i}{copy}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            image.save(file)
    return root


@pytest.fixture(scope="module")
def crossed(unlearnable, tmp_path_factory):
    recipe = Recipe(name="by heart", batch=16, peak_lr=5e-3, weight_decay=0.0).change(
        length="50 steps", crop="none", flip=0.0, image_size=SIDE
    )
    model = "Ti/4 width=32 depth=2 heads=2 mlp=64"
    out = tmp_path_factory.mktemp("runs") / "crossed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs.RunFolder, "forget_states", lambda self: None)  # a test asks the models of the folds
        return fitted(unlearnable, out, recipe=recipe, model=model, folds=None)


def test_cross_validated_every_image_is_judged_once_by_a_model_that_has_not_seen_it(crossed, unlearnable):
    """Nor a copy of it. What is kept has seen them all, and knows them by heart."""
    metrics = crossed.metrics
    assert metrics["judged_by"] == "cross-validation"
    assert metrics["judged"]["images"] == 60
    assert metrics["judged"]["top1"] < 0.6, "better than chance at noise: a model was asked what it had seen"
    data = vitreous.images.open(unlearnable)
    known = vitreous.evaluate(crossed.load(), data, split="all", workers=0)
    assert known.right >= 57
    stages = {event["stage"]: event["steps"] for event in events_of(crossed.path, "step")}
    assert stages == {**{f"fold-{k}": 50 for k in range(1, 6)}, "fit": 50}


def test_the_cross_validated_number_is_that_of_the_models_of_the_folds(crossed, unlearnable):
    """Each judges the images of its fold."""
    data = vitreous.images.open(unlearnable)
    part = splits.folds(data, 5, 0)
    names = [data.name(i).rpartition("/")[2] for i in range(60)]
    by_picture = {}
    for name, fold in zip(names, part.tolist(), strict=True):
        by_picture.setdefault(name[:-5], set()).add(fold)
    assert all(len(found) == 1 for found in by_picture.values()), "two copies lie in different folds"
    model, right, logits = crossed.load(), 0, np.zeros((60, 3), np.float32)
    with runs.RunFolder.open(crossed.path) as held:
        for fold in range(5):
            state = held.latest_state(f"fold-{fold + 1}").tensors
            model.load_state_dict({n.removeprefix("network."): t for n, t in state.items() if n.startswith("network.")})
            found = inference.logits(model, data.take(part == fold), workers=0)
            logits[part == fold] = found.values
            right += int((found.values.argmax(1) == found.labels).sum())
    assert right == crossed.metrics["judged"]["right"]
    assert calibration.fit_temperature(logits, data.labels) == pytest.approx(crossed.metrics["temperature"], rel=1e-5)


def test_a_cross_validated_budget_in_seconds_is_shared_by_all_trainings(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(vitreous.training.run.loop, "TRIAL_SECONDS", 0.02)
    found = fitted(folder, tmp_path / "run", folds=2, length="0.3 seconds")
    (event,) = events_of(found.path, "steps")
    assert event["budget"] == pytest.approx(0.1)
    assert {e["steps"] for e in events_of(found.path, "step")} == {event["steps"]}


# ---------------------------------------------------------------------------------------------------- kinds of images


def test_several_labels_are_learned_and_answered(tmp_path):
    data = image_set(72, test=20)
    bright = data.source.pixels.mean((1, 2)) > 127  # red, green, blue
    data = image_set(72, test=20, labels=bright.astype(np.int64))
    found = fitted(data, tmp_path / "run", length="10 steps")
    model = found.load()
    assert model.answers == "several"
    assert found.metrics["judged"]["exact_match"] == found.metrics["judged"]["right"] / 20
    assert 0 <= found.metrics["judged"]["mean_average_precision"] <= 1
    assert json.loads((tmp_path / "run" / "config.json").read_text())["recipe"]["loss"] == "sigmoid"
    z = inference.logits(model, data.split("test"), workers=0).values
    p = calibration.sigmoid(z, model.temperature)
    for answer, row in zip(vitreous.predict(model, data.split("test"), workers=0), p, strict=True):
        assert answer.probabilities == pytest.approx(sorted(row, reverse=True), rel=1e-4)
        if not answer.is_unlike:
            assert set(answer.said) == {data.classes[k] for k in np.flatnonzero(row >= 0.5)}
    assert (tmp_path / "run" / "report.html").is_file()
    crossed = fitted(data, tmp_path / "crossed", folds=2)
    assert crossed.metrics["judged"]["images"] == 52, "a test split of its own is not among them"


def test_grey_images_stay_grey(tmp_path):
    data = vitreous.images.open("fashion", limit=100)
    found = fitted(data, tmp_path / "run", image_size=28)
    model = found.load()
    assert model.config.channels == len(model.preprocess.mean) == 1
    assert found.metrics["judged"]["images"] == len(data.split("test"))
    (answer,) = vitreous.predict(model, data.read(0), workers=0)
    assert answer.error is None


@pytest.mark.parametrize("test", [0, 20])
def test_without_dev_the_last_state_is_kept_and_nothing_is_fitted(test, tmp_path):
    found = fitted(image_set(60, test=test), tmp_path / "run", dev=0.0)
    assert (found.metrics["kept_step"], found.metrics["dev"]) == (4, None)
    assert (found.load().temperature, found.load().threshold) == (1.0, None)
    assert found.metrics["judged_by"] == ("test" if test else "none")
    assert ("judged" in found.metrics) == bool(test)
    assert found.path in str(found)
    assert Path(found.model).name in str(found)
    assert (tmp_path / "run" / "report.html").exists() == bool(test)


# ------------------------------------------------------------------------------------------- one training after another


@pytest.mark.claim("T14")
def test_pre_train_change_the_head_fine_tune_and_evaluate_in_one_call(tmp_path):
    """Two steps each; exact for a seed; every loss is the cross-entropy of a plain loop written here."""
    up, down = image_set(48, test=8), image_set(64, test=16)
    down = replace(down, labels=down.labels % 2, classes=("even", "odd"), path="down")
    recipe = Recipe(name="plain", batch=8, optimizer="sgd", momentum=0.0, weight_decay=0.0, peak_lr=0.5, clip=None)
    recipe = recipe.change(
        length="2 steps", schedule="constant", warmup=0.0, crop="none", flip=0.0, dev=0.2, image_size=SIDE
    )
    options = {"recipe": recipe, "then": down, "then_recipe": recipe}
    one, two = (fitted(up, tmp_path / name, **options) for name in ("one", "two"))
    assert_equal_states(weights_of(one), weights_of(two))
    assert one.metrics["judged"] == two.metrics["judged"]

    model = vitreous.build(MODEL, image_size=SIDE, classes=4, seed=0)
    best = {}
    for data, place in ((up, tmp_path / "one-first"), (down, tmp_path / "one")):
        if data is down:
            model.load_state_dict(best)
            model.head = torch.nn.Linear(16, 2)
            torch.nn.init.zeros_(model.head.weight)
            torch.nn.init.zeros_(model.head.bias)
        train, _ = splits.cut_dev(data, 0.2, 0)
        rule = one.load().preprocess
        batches = make_batches(train, batch=8, preprocess=rule, augment=sized(recipe).augment, workers=0)
        told = events_of(place, "step")
        looks = events_of(place, "dev")
        assert [event["step"] for event in told] == [1, 2]
        for batch, event in zip(batches, told, strict=False):
            loss = F.cross_entropy(model(finish(batch.images, rule)), batch.labels)
            assert event["loss"] == pytest.approx(loss.item(), rel=1e-5)
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.5 * parameter.grad
            if any(look["kept"] and look["step"] == event["step"] for look in looks):
                best = {name: t.clone() for name, t in model.state_dict().items()}
    assert told[0]["loss"] == pytest.approx(math.log(2)), "the new head says nothing yet"
    saved = weights_of(one)
    for name, tensor in best.items():
        torch.testing.assert_close(saved[name], tensor, rtol=1e-4, atol=1e-6)
    judged = vitreous.evaluate(one.load(), down, split="test", workers=0)
    assert (judged.right, judged.images) == (one.metrics["judged"]["right"], 16)
    assert one.load().labels == ("even", "odd")


def test_masked_patches_then_fine_tuning(folder, tmp_path):
    recipe = SMALL.change(task="masked-patches", model=f"{MODEL} mask_token=true", length="3 steps")
    found = fitted(
        folder, tmp_path / "run", model=None, recipe=recipe, then=folder, then_recipe=SMALL.change(length="1 steps")
    )
    first = tmp_path / "run-first"
    metrics = json.loads((first / "metrics.json").read_text())
    assert metrics["task"] == "masked-patches"
    assert math.isfinite(metrics["loss"])
    assert [event["stage"] for event in events_of(first, "step")] == ["masked-patches"] * 3
    assert found.metrics["judged_by"] == "test"
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["weights"] == str(first / "model.safetensors")
    (loss,) = [event["loss"] for event in events_of(found.path, "step")]
    assert loss == pytest.approx(math.log(4)), "the head is new"


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_a_teacher_is_listened_to(run, folder, kind, tmp_path):
    """The loss is the mean of its own and of the teacher's part."""
    alone = fitted(folder, tmp_path / "alone", length="3 steps")
    taught = fitted(folder, tmp_path / "taught", length="3 steps", teacher=run.model, distillation=kind)
    first, second = (events_of(one.path, "step") for one in (alone, taught))
    if kind == "hard":
        assert second[0]["loss"] == pytest.approx(math.log(4)), "all classes alike for both of them, at first"
    assert second[-1]["loss"] != first[-1]["loss"]
    assert weights_of(taught).keys() == weights_of(alone).keys(), "the teacher is no part of what is saved"


def test_a_teacher_is_read_once_however_many_trainings_it_has(run, folder, tmp_path, monkeypatch):
    read, reads = load_model.read, []
    monkeypatch.setattr(load_model, "read", lambda path: reads.append(path) or read(path))
    fitted(folder, tmp_path / "taught", length="2 steps", teacher=run.model, folds=2)
    assert reads == [Path(run.model)]


def test_a_teacher_of_other_classes_is_refused(run, tmp_path):
    data = image_set(60)
    data = replace(data, labels=data.labels % 2, classes=("a", "b"))
    with pytest.raises(vitreous.errors.ConfigError) as error:
        fitted(data, tmp_path / "run", teacher=run.model)
    line_of(error.value, "teacher answers 4 classes", "2")


def test_weights_of_another_run_with_other_classes_begin_a_run(run, tmp_path):
    data = image_set(60)
    data = replace(data, labels=data.labels % 2, classes=("a", "b"))
    found = fitted(data, tmp_path / "run", model=None, weights=run.model, length="1 steps")
    assert events_of(found.path, "step")[0]["loss"] == pytest.approx(math.log(2))
    assert found.load().labels == ("a", "b")


def test_a_rival_judges_the_same_images(tmp_path):
    seen = []

    def rival(train, judged):
        seen.append((len(train), len(judged)))
        return vitreous.training.tell.summary.Rival("a coin", 5, len(judged))

    found = fitted(image_set(60, test=20), tmp_path / "run", rival=rival)
    assert seen == [(40, 20)]
    assert found.metrics["rivals"] == [{"name": "a coin", "right": 5, "seen": 20}]
    assert "a coin: 25.0 %" in [str(event) for event in found.told if event.is_detail]


# ------------------------------------------------------------------------------------------------------------- going on


@pytest.mark.parametrize("folds", [0, 2])
def test_ended_anywhere_a_run_goes_on_to_the_same_end(folder, folds, tmp_path):
    recipe = BUSY.change(image_size=SIDE, dev=0.2, length="4 steps")
    whole = fitted(folder, tmp_path / "whole", recipe=recipe, folds=folds)
    for stage in ("fold-2", "fit") if folds else ("fit",):
        for step in (1, 3):
            out = tmp_path / f"{stage}-{step}"
            with pytest.raises(Death):
                fitted(folder, out, recipe=recipe, folds=folds, tell=die_at(step, stage))
            again = vitreous.fit(folder, out=out, resume=True)
            assert_equal_states(weights_of(again), weights_of(whole))
            assert runs.without_clocks(runs.read(out)) == runs.without_clocks(runs.read(whole.path))
            ours, theirs = (runs.without_clocks([r.metrics])[0] for r in (again, whole))
            assert ours == theirs


def test_a_run_goes_on_with_the_options_it_began_with_and_no_others(folder, tmp_path):
    asked = {"model": MODEL, "recipe": BUSY.change(image_size=SIDE, dev=0.2), "length": "3 steps"}
    with pytest.raises(Death):
        vitreous.fit(folder, out=tmp_path / "run", folds=0, tell=die_at(2), **asked)
    with pytest.raises(ConfigError) as error:
        vitreous.fit(folder, out=tmp_path / "run", resume=True, length="9 steps")
    line_of(error.value, "3 steps", "9 steps")
    again = vitreous.fit(folder, out=tmp_path / "run", resume=True, **asked)
    assert again.metrics["steps"] == 3


def test_a_finished_run_says_that_it_is(run, folder):
    told = []
    before = {file.name: file.stat().st_mtime_ns for file in Path(run.path).iterdir()}
    again = vitreous.fit(run.path, resume=True, tell=told.append)
    assert [event["text"] for event in told] == [f"{run.path} is finished already"]
    assert again.metrics == json.loads(json.dumps(run.metrics))
    assert str(again) == str(run)
    assert {file.name: file.stat().st_mtime_ns for file in Path(run.path).iterdir()} == before


def test_a_run_of_changed_images_does_not_go_on(tmp_path):
    folder = picture_folder(tmp_path / "shapes", 60)
    with pytest.raises(Death):
        fitted(folder, tmp_path / "run", tell=die_at(2))
    min((folder / "disc").iterdir()).unlink()
    with pytest.raises(RunError) as error:
        vitreous.fit(tmp_path / "run", resume=True)
    line_of(error.value, folder, "60 images then, 59 now")


def test_a_damaged_state_is_passed_over_for_the_one_before_and_said(folder, tmp_path, monkeypatch):
    whole = fitted(folder, tmp_path / "whole")
    monkeypatch.setattr(protocols, "Loop", partial(Loop, save_seconds=0.0))
    with pytest.raises(Death):
        fitted(folder, tmp_path / "run", tell=die_at(4))
    newest = max((tmp_path / "run" / "state").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    told = []
    again = vitreous.fit(tmp_path / "run", resume=True, device="cpu", workers=0, tell=told.append)
    (note,) = [event["text"] for event in told if event["kind"] == "note"]
    assert str(newest) in note
    assert "passed over for the state before it" in note
    assert_equal_states(weights_of(again), weights_of(whole))


def test_where_every_state_is_damaged_the_run_begins_anew_and_says_so(folder, tmp_path):
    whole = fitted(folder, tmp_path / "whole")
    with pytest.raises(Death):
        fitted(folder, tmp_path / "run", tell=die_at(3))
    for state in (tmp_path / "run" / "state").glob("*.safetensors"):
        state.write_bytes(b"nothing")
    told = []
    again = vitreous.fit(tmp_path / "run", resume=True, device="cpu", workers=0, tell=told.append)
    assert any("passed over" in event.get("text", "") for event in told)
    assert_equal_states(weights_of(again), weights_of(whole))
    assert runs.without_clocks(runs.read(tmp_path / "run")) == runs.without_clocks(runs.read(tmp_path / "whole"))


def test_a_second_process_on_one_run_is_refused(folder, tmp_path):
    with pytest.raises(Death):
        fitted(folder, tmp_path / "run", tell=die_at(2))
    with runs.RunFolder.open(tmp_path / "run"), pytest.raises(BusyError) as error:
        vitreous.fit(tmp_path / "run", resume=True)
    line_of(error.value, tmp_path / "run", "another process")


def test_an_older_run_is_not_overwritten_unless_told_to(folder, tmp_path):
    first = fitted(folder, tmp_path / "run", length="1 steps")
    with pytest.raises(vitreous.errors.ExistsError) as error:
        fitted(folder, tmp_path / "run", length="1 steps")
    line_of(error.value, first.path, "--resume", "--force")
    fitted(folder, tmp_path / "run", length="2 steps", force=True)
    assert [event["step"] for event in events_of(tmp_path / "run", "step")] == [1, 2]


def test_the_newest_unfinished_run_of_the_data_is_found(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        with pytest.raises(Death):
            fitted(folder, None, tell=die_at(2))
    again = vitreous.fit(folder, resume=True, device="cpu", workers=0)
    assert again.path == "runs/shapes-2"
    assert vitreous.fit(folder, resume=True, device="cpu", workers=0).path == "runs/shapes-1"
    with pytest.raises(RunError) as error:
        vitreous.fit(folder, resume=True)
    line_of(error.value, "shapes", "no unfinished run")
    with pytest.raises(DataError) as error:
        vitreous.fit(folder, resume=True, out=tmp_path / "nothing")
    line_of(error.value, tmp_path / "nothing", "not a run folder")


def test_pre_training_and_fine_tuning_ended_between_go_on(folder, tmp_path):
    """What the first training has done is not done again."""
    options = {"then": folder, "then_recipe": SMALL, "length": "2 steps"}
    whole = fitted(folder, tmp_path / "whole", **options)
    count = 0

    def tell(event):
        nonlocal count
        count += event["kind"] == "step"
        if count == 4:
            raise Death

    with pytest.raises(Death):
        fitted(folder, tmp_path / "run", tell=tell, **options)
    file = tmp_path / "run-first" / "model.safetensors"
    before = file.stat().st_mtime_ns
    again = fitted(folder, tmp_path / "run", resume=True, **options)
    assert file.stat().st_mtime_ns == before
    assert_equal_states(weights_of(again), weights_of(whole))


# ------------------------------------------------------------------------------------------------------ several devices


def test_two_processes_have_the_losses_of_one_at_the_same_batch(folder, tmp_path):
    """torchrun on the CPU. The same images a step, so the same numbers within rounding."""
    changes = ["image_size=16", "batch=8", "dev=0.2", "mixup=0.3", "drop_path=0.2", "optimizer=sgd", "peak_lr=0.5"]
    words = [
        "fit",
        str(folder),
        "--model",
        MODEL,
        "--recipe",
        "small-data",
        "--steps",
        "6",
        "--folds",
        "0",
        "--no-check",
    ]
    words += ["--device", "cpu", "--workers", "0", *(word for change in changes for word in ("--set", change))]
    two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for name, start in (("one", []), ("two", two)):
        call = [sys.executable, *start, "-m", "vitreous", *words, "--out", str(tmp_path / name)]
        with subprocess.Popen(
            call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        ) as process:
            try:
                said, _ = process.communicate(timeout=120)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # the ranks too
        assert process.returncode == 0, said
    ours, theirs = (events_of(tmp_path / name, "step") for name in ("two", "one"))
    assert len(ours) == 6
    assert ours[-1]["loss"] != ours[0]["loss"]
    for one, other in zip(ours, theirs, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert one["norm"] == pytest.approx(other["norm"], rel=1e-3)
    ours, theirs = (events_of(tmp_path / name, "dev") for name in ("two", "one"))
    assert [look["loss"] for look in ours] == pytest.approx([look["loss"] for look in theirs], rel=1e-4)
    metrics = [json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("two", "one")]
    assert metrics[0]["judged"]["images"] == metrics[1]["judged"]["images"]
    assert metrics[0]["temperature"] == pytest.approx(metrics[1]["temperature"], rel=1e-3)
