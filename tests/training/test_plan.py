"""What a run will do: images, network and recipe made to fit each other, before the first step."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from picture_sets import make_batches
from PIL import Image
from small_runs import CPU, MODEL, PLAIN, SIDE, assert_equal_states, image_set, network, picture_folder, plan_of
from tiny_models import line_of

import vitreous
from vitreous.errors import ConfigError, DataError, RunError, VitreousError
from vitreous.images import splits
from vitreous.models import catalog
from vitreous.training.plan import plan as plans
from vitreous.training.plan.plan import resumed
from vitreous.training.plan.starting_weights import CROSS_VALIDATE_BELOW
from vitreous.training.run import decoded
from vitreous.training.run.decoded import decode_once
from vitreous.training.run.network import start_model
from vitreous.training.run.runtime import Runtime
from vitreous.weights import load_model

SMALL = PLAIN.change(image_size=SIDE)


def job_of(data, *, recipe=SMALL, model=MODEL, weights=None, checked=False, folds=0, said=None, **overrides):
    say = [].append if said is None else said.append
    model = model if weights is None else None
    asked = {"recipe": recipe, "check": checked, "folds": folds, "changes": overrides}
    return plan_of(data, model=model, weights=weights, say=say, **asked)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return picture_folder(tmp_path_factory.mktemp("sets") / "shapes", 60)


def test_a_job_written_down_and_read_back_is_the_same_job(folder):
    job = job_of(folder, checked=True, mixup=0.2, length="3 epochs")
    then = json.loads(json.dumps(job.to_json()))
    again = resumed(then, None, Path(), print)
    assert json.loads(json.dumps(again.to_json())) == then
    for name in ("recipe", "preprocess", "config", "protocol", "folds", "reasons", "classes", "left_out"):
        assert getattr(again, name) == getattr(job, name), name
    ours, theirs = (start_model(one, CPU).state_dict() for one in (again, job))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_images_that_changed_since_are_refused_with_what_changed(tmp_path):
    folder = picture_folder(tmp_path / "shapes", 40)
    then = job_of(folder).to_json()
    picture_folder(folder, 3, first=40)
    with pytest.raises(RunError) as error:
        resumed(then, None, Path(), print)
    line_of(error.value, folder, "40 images then, 43 now", "start a new run")


def test_a_changed_label_alone_is_a_change(tmp_path):
    folder = picture_folder(tmp_path / "shapes", 40)
    then = job_of(folder).to_json()
    first = min((folder / "disc").iterdir())
    first.rename(folder / "square" / first.name)
    with pytest.raises(RunError, match="digest of images and labels"):
        resumed(then, None, Path(), print)


def test_the_network_has_the_images_classes_channels_and_size(folder):
    grey = image_set(40, channels=1)
    model = start_model(job_of(grey), CPU)
    assert model.config.channels == 1
    assert model.preprocess.mean == (0.5,)
    assert model.labels == grey.classes
    model = start_model(job_of(folder), CPU)
    assert (model.config.channels, model.config.readout.classes, model.config.image_size) == (3, 4, (16, 16))


def test_a_network_asked_for_wins_over_the_recipes_own():
    job = job_of(image_set(40), recipe=SMALL.change(model="S/8"), model=MODEL)
    assert job.config.encoder.width == 16


def test_a_recipe_that_names_no_network_asks_for_one():
    with pytest.raises(ConfigError) as error:
        job_of(image_set(40), model=None)
    line_of(error.value, "small", "--model")


@pytest.mark.parametrize(("folds", "count", "batch"), [(0, 20, 14), (5, 20, 12), (5, 400, 64)])
def test_a_step_takes_no_more_images_than_the_smallest_training_has(folds, count, batch):
    """Of 20 with 4 for test: dev leaves 14; folds leave 12. And always whole pairs."""
    said = []
    job = job_of(image_set(count, test=count // 5), recipe=SMALL.change(batch=64), folds=folds, said=said)
    assert job.recipe.batch == batch
    assert any(f"a step takes {batch} images" in line for line in said) == (batch < 64)


def test_few_images_are_cross_validated_and_many_are_not():
    assert job_of(image_set(60), folds=None).folds == plans.FOLDS
    assert job_of(image_set(60), folds=None, task="masked-patches", model=f"{MODEL} mask_token=true").folds == 0
    many = image_set(40)
    many = many.take(np.arange(CROSS_VALIDATE_BELOW) % 40)
    assert job_of(many, folds=None).folds == 0


def test_several_labels_bring_the_sigmoid_loss_and_softmax_is_refused():
    labels = np.random.default_rng(0).integers(0, 2, (40, 3))
    job = job_of(image_set(40, labels=labels), smoothing=0.1)
    assert (job.recipe.loss, job.recipe.smoothing, job.data.has_many_labels) == ("sigmoid", 0.0, True)
    assert start_model(job, CPU).answers == "several"
    with pytest.raises(ConfigError) as error:
        job_of(image_set(40, labels=labels), loss="softmax")
    line_of(error.value, "several labels", "softmax")


def test_images_that_cannot_be_read_are_left_out_and_named(tmp_path):
    folder = picture_folder(tmp_path / "shapes", 40)
    (folder / "disc" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    said = []
    job = job_of(folder, checked=True, said=said)
    assert job.left_out == ("disc/torn.png",)
    assert len(job.data) == 40
    assert any("left out: 1 image that cannot be read, such as disc/torn.png" in line for line in said)
    again = resumed(json.loads(json.dumps(job.to_json())), None, Path(), print)
    assert len(again.data) == 40
    assert again.health.read == job.health.read == "1 of 41 files cannot be read, 40 images read"
    assert again.health.findings == job.health.findings
    assert again.health.unread == ("disc/torn.png",)


@pytest.mark.parametrize("folds", [0, 5])
def test_the_split_is_told_if_it_is_used(folder, folds):
    """A cross-validated run judges every image, so "12 test" would be false."""
    plan = job_of(folder, folds=folds)
    line = next(line for line in plans.announce(plan, Runtime(CPU)) if isinstance(line, str))
    assert line.startswith(f"{folder}: folders, 60 images")
    assert (" test)" in line) == (not folds)


def test_what_is_left_without_unreadable_images_must_be_learnable(tmp_path):
    folder = picture_folder(tmp_path / "shapes", 40)
    kinds = sorted(folder.iterdir())
    for file in [file for kind in kinds[1:] for file in kind.iterdir()]:
        file.write_bytes(b"no image")
    with pytest.raises(DataError) as caught:
        job_of(folder, checked=True)
    line_of(caught.value, f"one class ({kinds[0].name})", "add another")
    for file in kinds[0].iterdir():
        file.write_bytes(b"no image")
    with pytest.raises(DataError) as caught:
        job_of(folder, checked=True)
    line_of(caught.value, "none of the 40 images of", "can be read, such as", "see why: vitreous check")


def test_blank_images_are_refused_unless_some_show_something(tmp_path):
    """Or unless nobody checks: colours may be the classes."""
    for i in range(20):
        file = tmp_path / "blank" / ("a", "b")[i % 2] / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (SIDE, SIDE), (10 * i, 90, 200)).save(file)
    with pytest.raises(DataError) as caught:
        job_of(tmp_path / "blank", checked=True)
    line_of(caught.value, "all 20 images of", "are blank", "vitreous check", "--no-check")
    assert len(job_of(tmp_path / "blank", checked=False).data) == 20
    picture_folder(tmp_path / "blank", 4)
    assert len(job_of(tmp_path / "blank", checked=True).data) == 24


def test_images_without_a_label_are_not_learned_from():
    labels = image_set(40).labels.copy()
    labels[:5] = -1
    assert len(job_of(image_set(40, labels=labels)).data) == 35
    job = job_of(
        image_set(40, labels=labels), task="masked-patches", recipe="masked-patches", model=None, image_size=16
    )
    assert len(job.data) == 40


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": np.zeros(40)}, ("one class", "disc")),
        ({"classes": ()}, ("no labels", "--recipe masked-patches")),
        ({"splits": np.full(40, "test")}, ("no training images",)),
    ],
)
def test_what_cannot_be_learned_from_is_refused(change, words):
    data = dataclasses.replace(image_set(40), **change)
    data = dataclasses.replace(data, labels=data.labels.astype(np.int64))
    with pytest.raises(DataError) as error:
        job_of(data)
    line_of(error.value, "shapes", *words)


def test_a_model_larger_than_memory_is_refused_before_it_is_made(monkeypatch):
    """Without a byte of it: the network asked for would fill any machine."""
    monkeypatch.setattr(catalog, "materialise", None)
    with pytest.raises(ConfigError) as error:
        job_of(image_set(40), model="H/4 width=16384 depth=96 heads=64 mlp=65536")
    line_of(error.value, "GiB", "cpu", "vitreous models")


# -------------------------------------------------------------------------------------------------------------- weights


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    model = network(classes=7)
    model.labels = tuple("abcdefg")
    path = tmp_path_factory.mktemp("weights") / "seven"
    vitreous.save(model, path)
    return str(path.with_suffix(".safetensors"))


def test_weights_of_other_classes_keep_all_but_the_head(weights):
    job = job_of(image_set(40), weights=weights)
    model, before = start_model(job, CPU), vitreous.load(weights)
    assert model.config.readout.classes == 4
    assert not model.head.weight.any(), "a new head begins at zero"
    theirs = before.state_dict()
    same = [name for name, t in model.state_dict().items() if not name.startswith("head.")]
    assert len(same) == len(theirs) - 2
    assert all(torch.equal(model.state_dict()[name], theirs[name]) for name in same)
    assert job.preprocess == before.preprocess


def test_a_recipes_dropout_comes_to_weights_and_changes_none(weights):
    job = job_of(image_set(40), weights=weights, drop_path=0.3, dropout=0.2, head_bias=-3.0)
    model = start_model(job, CPU)
    assert (model.config.encoder.drop_path, model.config.encoder.dropout) == (0.3, 0.2)
    before = vitreous.load(weights).state_dict()
    name = "blocks.1.mlp.expand.weight"
    assert torch.equal(model.state_dict()[name], before[name])
    assert (model.head.bias == -3).all()


def test_weights_that_changed_since_are_refused(weights, tmp_path):
    data = image_set(40)
    then = job_of(data, weights=weights).to_json()
    vitreous.save(vitreous.build("Ti/8 width=32 depth=1 heads=2", image_size=16, classes=4), tmp_path / "other")
    then = {name: value for name, value in then.items() if name != "digests"}  # as a run was recorded before
    job = resumed({**then, "weights": str(tmp_path / "other.safetensors")}, data, Path(), print)
    with pytest.raises(RunError, match="the weights changed since the run began"):
        start_model(job, CPU)


def test_what_a_plan_has_read_begins_the_training_and_is_held_no_longer(weights, monkeypatch):
    job = job_of(image_set(40), weights=weights)
    plan_has_read = job.start.model
    with monkeypatch.context() as patch:
        patch.setattr(load_model, "read", None)  # nothing more is read
        first, second = start_model(job, CPU, again=True), start_model(job, CPU)
    assert second is plan_has_read
    assert job.start.model is None
    third = start_model(job, CPU)
    for other in (first, third):
        assert not {p.data_ptr() for p in other.parameters()} & {p.data_ptr() for p in second.parameters()}
        assert_equal_states(other.state_dict(), second.state_dict())
        assert (other.config, other.preprocess, other.labels) == (second.config, second.preprocess, second.labels)


@pytest.mark.parametrize("channels", [1, 3])
def test_weights_and_images_of_other_channels_either_work_or_say_why_not(channels, tmp_path):
    """What starts can be trained on: the network takes the images it is given."""
    vitreous.save(network(channels=channels), tmp_path / "model")
    data = image_set(40, channels=4 - channels)
    try:
        job = job_of(data, weights=str(tmp_path / "model.safetensors"))
    except VitreousError as error:
        line_of(error, "channels")
        return
    batch = next(iter(make_batches(data, batch=4, preprocess=job.preprocess, workers=0)))
    assert batch.images.shape[1] == start_model(job, CPU).config.channels


# ------------------------------------------------------------------------------------------------------- decoded once


def test_what_is_decoded_once_is_what_would_have_been_read(tmp_path, monkeypatch):
    """Dev exactly as an evaluation sees it; every picture with its own label and id; memory and disk hold the same."""
    data = vitreous.images.open(picture_folder(tmp_path / "shapes", 60, side=100))
    job = job_of(data, length="9 epochs")
    train, dev = splits.cut_dev(data, 0.2)
    found = []
    for share in (1.0, 0.0):  # of memory that pictures may take
        monkeypatch.setattr(decoded, "MEMORY_SHARE", share)
        find = decode_once(job, train, dev, tmp_path, Runtime(CPU))
        assert (tmp_path / "pack").exists() == (share == 0)
        found.append((find(train), find(dev)))
    for one, before in zip(found[0], (train, dev), strict=True):
        assert (one.ids.tolist(), one.labels.tolist()) == (before.ids.tolist(), before.labels.tolist())
        assert [one.name(i) for i in range(3)] == [before.name(i) for i in range(3)]
    seen = [batch_of(some, len(dev), job.preprocess) for some in (dev, found[0][1], found[1][1])]
    assert torch.equal(seen[1], seen[0])
    assert torch.equal(seen[2], seen[0])
    for i in range(len(train)):
        assert np.array_equal(found[0][0].read(i), found[1][0].read(i))


def batch_of(data, count, rule):
    return next(iter(make_batches(data, batch=count, preprocess=rule, workers=0))).images


def test_what_is_shown_twice_at_most_is_read_as_it_lies(tmp_path):
    data = vitreous.images.open(picture_folder(tmp_path / "shapes", 40))
    train = data.split("train")
    job = job_of(data, length="2 epochs")
    assert decode_once(job, train, None, tmp_path, Runtime(CPU))(train) is train
