"""Runs that something happens to: a picture goes, weights change, two begin at once, the last step spoils all."""

import json
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import MODEL, PLAIN, SIDE, SMALL, Death, die_at, fitted, picture_folder

import vitreous
from vitreous.cli.training_display import display
from vitreous.errors import BusyError, NotFiniteError, RunError
from vitreous.evaluation import inference
from vitreous.training.plan import plan as plans
from vitreous.training.run import folder as runs
from vitreous.training.run import protocols
from vitreous.training.run.folder import RunFolder
from vitreous.training.run.loop import Loop

SPOILED = {"optimizer": "sgd", "peak_lr": 1e30, "clip": "none", "length": "1 steps"}


def damage(folder, number=5):
    """Cut one of its pictures short; returns which."""
    file = sorted(folder.rglob("*.png"))[number]
    file.write_bytes(file.read_bytes()[:60])
    return file


@pytest.fixture
def folder(tmp_path):
    return picture_folder(tmp_path / "shapes", 60)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two files of weights."""
    place = tmp_path_factory.mktemp("models")
    for seed in (0, 1):
        model = vitreous.build(MODEL, image_size=SIDE, classes=4, seed=seed)
        vitreous.save(model, place / f"{seed}.safetensors")
    return place


# ---------------------------------------------------------------------------------------- a picture that cannot be read


@pytest.mark.parametrize("number", [0, 5])
def test_a_picture_that_cannot_be_read_is_not_judged_and_the_folds_go_on(folder, tmp_path, number):
    bad, said = damage(folder, number), []
    run = fitted(folder, tmp_path / "run", folds=3, tell=lambda event: said.append(event.get("text", "")))
    assert run.metrics["judged"]["images"] == 59
    assert any(bad.name in line and "not judged" in line for line in said)


def test_a_picture_that_goes_after_the_plan_ends_no_run(folder, tmp_path, monkeypatch):
    plan = plans.make

    def then_damage(*given, **options):
        job = plan(*given, **options)
        damage(folder)
        return job

    monkeypatch.setattr(plans, "make", then_damage)
    assert fitted(folder, tmp_path / "run", folds=3, check=True).metrics["judged"]["images"] == 59


def test_a_dev_picture_that_cannot_be_read_is_not_judged(folder, tmp_path):
    for number in range(0, 60, 4):
        damage(folder, number)
    run = fitted(folder, tmp_path / "run", dev=0.5)
    assert run.metrics["dev"]["accuracy"] >= 0


# ----------------------------------------------------------------------------------------------------- how to repeat it


def test_a_resumed_run_tells_the_command_it_began_with(folder, tmp_path, monkeypatch):
    where = tmp_path / "run"
    monkeypatch.setattr(sys, "argv", ["vitreous", "fit", "shapes", "--out", "run"])
    with pytest.raises(Death):
        fitted(folder, where, tell=die_at(2))
    monkeypatch.setattr(sys, "argv", ["vitreous", "fit", "run", "--resume"])
    run = vitreous.fit(where, resume=True, device="cpu", workers=0)
    for file in (Path(run.report), where / "README.md"):
        assert "vitreous fit shapes --out run" in file.read_text()
        assert "--resume" not in file.read_text()


# ------------------------------------------------------------------------------------- whom it learns from, and of what


def test_the_last_run_as_teacher_stays_the_one_it_was(folder, models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("older", "newer"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    shutil.copy(models / "0.safetensors", "runs/older/model.safetensors")
    with pytest.raises(Death):
        fitted(folder, tmp_path / "run", teacher="last", tell=die_at(2))
    shutil.copy(models / "1.safetensors", "runs/newer/model.safetensors")
    frozen = json.loads((tmp_path / "run" / runs.CONFIG).read_text())["recipe"]["teacher"]
    assert frozen == str(tmp_path / "runs" / "older")
    monkeypatch.chdir(tmp_path / "runs")
    assert vitreous.fit(tmp_path / "run", resume=True, device="cpu", workers=0).metrics["steps"] == 4


@pytest.mark.parametrize("what", ["weights", "teacher"])
def test_a_run_does_not_go_on_with_other_weights(folder, models, tmp_path, what):
    file, where = tmp_path / "mine.safetensors", tmp_path / "run"
    shutil.copy(models / "0.safetensors", file)
    given = {"model": None, "weights": file} if what == "weights" else {"teacher": str(file)}
    with pytest.raises(Death):
        fitted(folder, where, **given, tell=die_at(2))
    shutil.copy(models / "1.safetensors", file)
    with pytest.raises(RunError, match=f"the {what} .*mine.safetensors changed after the run began"):
        vitreous.fit(where, resume=True, device="cpu", workers=0)
    config = json.loads((where / runs.CONFIG).read_text())
    del config["digests"]  # as runs were recorded before
    (where / runs.CONFIG).write_text(json.dumps(config))
    assert vitreous.fit(where, resume=True, device="cpu", workers=0).metrics["steps"] == 4


# ---------------------------------------------------------------------------------------------------------- two at once


def test_a_name_of_ours_that_another_run_takes_meanwhile_is_given_up_for_the_next(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan, others = plans.make, []

    def then_taken(*given, **options):
        others.append(RunFolder.create("runs/shapes-1", {}))
        return plan(*given, **options)

    monkeypatch.setattr(plans, "make", then_taken)
    assert fitted(folder, None).path == "runs/shapes-2"
    with pytest.raises(BusyError):
        monkeypatch.setattr(plans, "make", plan)
        fitted(folder, "runs/shapes-1")
    others[0].close()


def test_a_pair_of_runs_moves_on_together(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan, others = plans.make, []

    def then_taken(*given, **options):
        if not others:
            others.append(RunFolder.create("runs/shapes-1-first", {}))
        return plan(*given, **options)

    monkeypatch.setattr(plans, "make", then_taken)
    monkeypatch.setattr(sys, "argv", ["vitreous", "fit", "shapes"])
    run = fitted(folder, None, then=folder, then_recipe=SMALL)
    assert run.path == "runs/shapes-2"
    assert (tmp_path / "runs/shapes-2-first/model.safetensors").is_file()
    others[0].close()
    assert runs.next_name("runs", "shapes").name == "shapes-3"


# --------------------------------------------------------------------------------------------- the last step spoils all


@pytest.mark.parametrize("folds", [0, 3])
@pytest.mark.parametrize("rate", [1e30, 1e20, 1e38])
def test_weights_that_the_last_step_spoils_end_the_run(folder, tmp_path, folds, rate):
    where = tmp_path / "run"
    with pytest.raises(NotFiniteError, match=r"the weights after step 0 are not finite.*bad-batch") as told:
        fitted(folder, where, folds=folds, **{**SPOILED, "peak_lr": rate})
    assert "\n" not in str(told.value)
    assert list(where.glob("bad-batch-*")), "the batch is kept"
    (state,) = (where / "state").glob("*.safetensors")
    tensors = runs.read_state(state).tensors
    assert all(np.isfinite(t.float().numpy()).all() for n, t in tensors.items() if n.startswith("network."))
    assert not (where / "model.safetensors").exists()


@pytest.mark.parametrize("how", [{}, {"average": "ema"}])
def test_the_weight_that_is_spoiled_is_named(folder, tmp_path, how, capsys):
    """In the error, in the event, and in the line that people see."""
    where = tmp_path / "run"
    with display() as tell, pytest.raises(NotFiniteError) as told:
        fitted(folder, where, tell=tell, **SPOILED, **how)
    (event,) = (event for event in runs.read(where) if event["kind"] == "nan")
    assert (event["what"], event["step"]) == ("weights", 0)
    names = vitreous.build(MODEL, image_size=SIDE, classes=4).state_dict()
    assert event["weight"] in names
    words = f"the weights after step 0 are not finite, or too large to compute with ({event['weight']} first)"
    assert str(told.value).startswith(words)
    assert words in capsys.readouterr().err.splitlines()


def test_answers_that_are_no_numbers_are_not_called_a_loss(folder, tmp_path, monkeypatch, capsys):
    """Every weight is finite, and what dev gets from them is not."""
    answers = inference.logits

    def overflow(*given, **options):
        found = answers(*given, **options)
        return replace(found, values=np.full_like(found.values, np.inf))

    monkeypatch.setattr(inference, "logits", overflow)
    words = "the answers on dev after step 3 are not finite, or too large to compute with"
    with display() as tell, pytest.raises(NotFiniteError, match=f"{words}; the weights before step 0 are saved"):
        fitted(folder, tmp_path / "run", tell=tell)
    assert words in capsys.readouterr().err.splitlines()


def test_a_loss_that_is_no_number_is_called_one(folder, tmp_path, capsys):
    where = tmp_path / "run"
    with display() as tell, pytest.raises(NotFiniteError, match="the loss or gradient of step 1 is not finite"):
        fitted(folder, where, tell=tell, folds=3, **{**SPOILED, "length": "3 steps"})
    (event,) = (event for event in runs.read(where) if event["kind"] == "nan")
    assert event["what"] == "loss or gradient"
    assert "the loss or gradient of step 1 is not finite" in capsys.readouterr().err.splitlines()


def test_masked_patches_save_no_weights_that_are_not_finite(folder, tmp_path):
    where = tmp_path / "run"
    task = {"recipe": PLAIN.change(task="masked-patches", image_size=SIDE)}
    with pytest.raises(NotFiniteError):
        fitted(folder, where, model=f"{MODEL} mask_token=true", **task, **{**SPOILED, "peak_lr": 1e38})
    assert not (where / "model.safetensors").exists()


def test_every_state_that_is_saved_is_one_to_go_on_from(folder, tmp_path, monkeypatch):
    """The first of three steps spoils the weights, and the second says so, with a save due between them."""
    monkeypatch.setattr(protocols, "Loop", partial(Loop, save_seconds=0.0))
    monkeypatch.setattr("vitreous.training.run.loop.SAVE_SHARE", 0)
    where = tmp_path / "run"
    with pytest.raises(NotFiniteError):
        fitted(folder, where, folds=3, **{**SPOILED, "length": "3 steps"})
    for state in (where / "state").glob("*.safetensors"):
        tensors = runs.read_state(state).tensors
        assert all(torch.isfinite(t.norm()) for n, t in tensors.items() if n.startswith("network."))
