"""Features: what the model itself computes, read once, kept whole or not at all."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import forks
import numpy as np
import pytest
import torch
from picture_sets import photos
from shared_files import ROOT
from tiny_models import BIT, VIT, awake, line_of

import vitreous
from vitreous.errors import VitreousError
from vitreous.evaluation import features
from vitreous.evaluation.features import choose_readings, extract, model_digest
from vitreous.images.pixels import decode


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


@pytest.fixture(scope="module")
def model():
    return awake()


@pytest.fixture
def data():
    return photos(20, test=12)


def ready(model, data) -> torch.Tensor:
    """The set as the model's input, by the public parts alone."""
    rule = model.preprocess
    pixels = np.stack([decode.finish(data.read(i), rule) for i in range(len(data))])
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    return (x - torch.tensor(rule.mean).view(-1, 1, 1)) / torch.tensor(rule.std).view(-1, 1, 1)


def close(found, wanted):
    np.testing.assert_allclose(np.asarray(found, np.float32), wanted.numpy(), atol=2e-5)


# What is read


def test_features_are_what_the_head_reads(model, data):
    found = extract(model, data, workers=0, batch=7)
    with torch.inference_mode():
        close(found.only, model.features(ready(model, data)))
    np.testing.assert_array_equal(found.labels, data.labels)
    np.testing.assert_array_equal(found.ids, data.ids)
    assert found.classes == data.classes


def test_several_taps_and_pools_in_one_pass(model, data):
    found = extract(model, data, ["blocks.*.output:cls", "blocks.1.output:gap", "norm:mean", "norm:max"], workers=0)
    assert list(found.values) == [
        "blocks.0.output:cls",
        "blocks.1.output:cls",
        "blocks.1.output:gap",
        "norm:mean",
        "norm:max",
    ]
    with torch.inference_mode(), vitreous.taps(model, ["blocks.*.output", "norm"]) as seen:
        model(ready(model, data))
    close(found["blocks.0.output:cls"], seen["blocks.0.output"][:, 0])
    close(found["blocks.1.output:gap"], seen["blocks.1.output"][:, 1:].mean(1))
    close(found["norm:mean"], seen["norm"].mean(1))
    close(found["norm:max"], seen["norm"][:, 1:].amax(1))


def test_all_tokens_one_token_heads_and_vectors(model, data):
    names = ["blocks.1.output:tokens", "blocks.1.output:token-3", "blocks.0.attention.per_head:cls", "representation"]
    found = extract(model, data, [*names, "embedding.patches:gap"], workers=0)
    with torch.inference_mode(), vitreous.taps(model, ["blocks.*.output", "**.per_head", "embedding.patches"]) as seen:
        features = model.features(ready(model, data))
    tokens = seen["blocks.1.output"]
    close(found["blocks.1.output:tokens"], tokens)
    close(found["blocks.1.output:token-3"], tokens[:, 3])
    close(found["blocks.0.attention.per_head:cls"], seen["blocks.0.attention.per_head"][:, :, 0].flatten(1))
    close(found["representation"], features)
    close(found["embedding.patches:gap"], seen["embedding.patches"].mean(1))  # no token stands before the patches


def test_the_unread_class_token_of_a_gap_model(data):
    model = awake(VIT, pool="gap", class_token=True)
    found = extract(model, data, "norm", pool=("cls", "gap"), workers=0)
    with torch.inference_mode(), vitreous.taps(model, "norm") as seen:
        model(ready(model, data))
    close(found["norm:cls"], seen["norm"][:, 0])
    close(found["norm:gap"], model.features(ready(model, data)).detach())


def test_maps_of_a_resnet(data):
    model = awake(BIT)
    found = extract(model, data, ["stages.0.output", "stages.0.output:tokens", "features"], workers=0)
    with torch.inference_mode(), vitreous.taps(model, "stages.0.output") as seen:
        features = model.features(ready(model, data))
    close(found["stages.0.output:gap"], seen["stages.0.output"].mean((2, 3)))
    close(found["stages.0.output:tokens"], seen["stages.0.output"].flatten(2).transpose(1, 2))
    close(found["features"], features)


VARIANTS = [
    (VIT, {}),
    (VIT, {"pool": "map", "class_token": False, "registers": 2}),
    (VIT, {"pool": "gap", "pool_order": "mean-first", "positions": "relative"}),
    (VIT, {"pool": "cls-and-gap", "representation": 7, "norm": "post"}),
    (VIT, {"stem": "resnet", "patch": 1}),
    (BIT, {}),
]


@pytest.mark.parametrize(("config", "changes"), VARIANTS, ids=str)
def test_any_tap_of_any_model(config, changes, data):
    """A pattern that means all of them: one finite row an image from each, in one pass."""
    changes = {"units": (1, 1), "resnet_width": 0.25} | changes if changes.get("stem") else changes
    model = awake(config, **changes)
    found = extract(model, data, ["features", "**"], pool="gap", workers=0, cache=False)
    taps = {reading.partition(":")[0] for reading in found.values}
    assert taps == {"features", *vitreous.tap_names(model)}
    for name, rows in found.values.items():
        assert rows.shape[0] == 20, name
        assert rows.ndim == 2, name
        assert np.isfinite(rows).all(), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_on_a_gpu_the_same_to_its_precision(model, data):
    near = extract(model, data, ["features", "blocks.*.output:gap"], device="cuda", precision="float32", cache=False)
    low = extract(model, data, ["features", "blocks.*.output:gap"], device="cuda", cache=False)
    cpu = extract(model, data, ["features", "blocks.*.output:gap"], device="cpu", workers=0, cache=False)
    for name in cpu.values:
        np.testing.assert_allclose(near[name], cpu[name], atol=1e-3)
        np.testing.assert_allclose(low[name], cpu[name], atol=0.1)


def test_a_head_is_neither_needed_nor_looked_at(model, data):
    """A checkpoint without one works, and another head on the same backbone finds its features kept."""
    bare = awake(classes=0)
    bare.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("head.")})
    first = extract(bare, data, workers=0)
    second = extract(model, data, workers=0)
    assert (first.is_kept, second.is_kept) == (False, True)
    assert first.model == second.model == model_digest(model, with_head=False) != model_digest(model)
    assert not extract(model, data, "logits", workers=0).is_kept
    with torch.inference_mode():
        close(extract(model, data, "logits", workers=0).only, model(ready(model, data)))


def test_the_model_is_as_before(model, data):
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    extract(model, data, "blocks.*.output", workers=0, cache=False)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
    model.eval()


# What is kept


def test_the_second_call_computes_nothing(model, data, monkeypatch):
    first = extract(model, data, ["features", "norm"], workers=0)
    monkeypatch.setattr(type(model), "features", None)
    second = extract(model, data, ["features", "norm"], workers=0)
    assert (first.is_kept, second.is_kept) == (False, True)
    for name in first.values:
        np.testing.assert_array_equal(first[name], second[name])
    assert isinstance(second["features"], np.memmap)


def test_only_what_is_missing_is_computed(model, data):
    extract(model, data, "norm", workers=0)
    found = extract(model, data, ["norm", "blocks.0.output"], workers=0)
    assert not found.is_kept
    assert extract(model, data, ["blocks.0.output"], workers=0).is_kept


@pytest.mark.parametrize("change", ["weights", "images", "preprocess"])
def test_another_model_set_or_preprocessing_is_computed_anew(data, change):
    model = awake()
    first = extract(model, data, workers=0)
    if change == "weights":
        with torch.no_grad():
            model.blocks[0].norm1.weight[0] += 0.5
    if change == "images":
        data = data.take(np.arange(20)[::-1])
    if change == "preprocess":
        model.preprocess = replace(model.preprocess, mean=(0.1, 0.2, 0.3))
    second = extract(model, data, workers=0)
    assert not second.is_kept
    assert not np.array_equal(first.only, second.only)


def test_a_folder_of_ones_own_is_held_to_its_model(model, data, tmp_path):
    extract(model, data, workers=0, cache=tmp_path / "mine")
    assert extract(model, data, workers=0, cache=tmp_path / "mine").is_kept
    for other, images, word in [(awake(seed=1), data, "another model"), (model, data.split("test"), "another choice")]:
        with pytest.raises(VitreousError) as error:
            extract(other, images, workers=0, cache=tmp_path / "mine")
        line_of(error.value, tmp_path / "mine", word)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "diary.txt").write_text("dear")
    with pytest.raises(VitreousError) as error:
        extract(model, data, workers=0, cache=tmp_path / "full")
    line_of(error.value, "other things than features")


def test_damage_is_noticed_and_mended(model, data, place):
    good = np.array(extract(model, data, workers=0).only)
    (file,) = place.rglob("values.bin")
    raw = bytearray(file.read_bytes())
    raw[100] ^= 1
    file.write_bytes(raw)
    found = extract(model, data, workers=0)
    assert not found.is_kept
    np.testing.assert_allclose(found.only, good, atol=2e-6)
    file.write_bytes(file.read_bytes()[:-5])
    assert not extract(model, data, workers=0).is_kept


def test_after_any_cut_it_goes_on_from_what_is_safe(model, data, place, monkeypatch):
    """Whatever stands behind the last journalled part is dropped; nothing before it is computed again."""
    monkeypatch.setattr(features, "SYNC_SECONDS", 0.0)
    good = np.array(extract(model, data, workers=0, batch=4).only)
    (journal,) = place.rglob("journal.jsonl")
    lines = journal.read_text().splitlines(keepends=True)
    assert len(lines) == 1 + 5 + 1
    seen, real = [], type(model).features
    monkeypatch.setattr(type(model), "features", lambda self, x: seen.append(len(x)) or real(self, x))
    for kept in (1, 3, 6):
        journal.write_text("".join(lines[:kept]) + lines[kept][: len(lines[kept]) // 2])
        seen.clear()
        found = extract(model, data, workers=0, batch=4)
        assert sum(seen) == 20 - 4 * (kept - 1)
        np.testing.assert_allclose(found.only, good, atol=2e-6)
        np.testing.assert_array_equal(found.places, np.arange(20))


SLOW = """
import sys, time
sys.path.insert(0, {tests!r})
from picture_sets import photos
from tiny_models import awake
from vitreous.evaluation import features
features.SYNC_SECONDS = 0.0
model = awake()
real = type(model).features
type(model).features = lambda self, x: (time.sleep(0.1), real(self, x))[1]
print(features.extract(model, photos(20, test=12), workers=0, batch=2).is_kept)
"""


def slow_call(place) -> subprocess.Popen:
    """A second of extraction, in a process of its own."""
    program = SLOW.format(tests=os.fspath(ROOT / "tests"))
    environment = os.environ | {"VITREOUS_CACHE": str(place.parent)}
    return forks.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)


def test_killed_in_the_middle_it_goes_on(model, data, place):
    process = slow_call(place)
    end = time.monotonic() + 60
    while (
        time.monotonic() < end
        and not (lines := sum(len(j.read_bytes().splitlines()) for j in place.rglob("journal.jsonl"))) > 3
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert lines > 3
    (journal,) = place.rglob("journal.jsonl")
    before = journal.read_bytes()
    assert b"whole" not in before
    found = extract(model, data, workers=0, batch=2)
    assert journal.read_bytes().startswith(before.rpartition(b"\n")[0])
    np.testing.assert_allclose(found.only, extract(model, data, workers=0, cache=False).only, atol=2e-6)


def test_two_at_once_compute_once(place):
    """The second waits for the first and finds its rows."""
    both = [slow_call(place), slow_call(place)]
    assert sorted(process.communicate(timeout=60)[0].strip() for process in both) == ["False", "True"]


def test_nothing_is_kept_where_nothing_should_be(model, data, place):
    found = extract(model, data, "norm:tokens", workers=0, cache=False)
    assert not place.exists()
    assert found.only.shape == (20, 17, 16)


def test_a_home_that_cannot_be_written_costs_the_keeping_alone(model, data, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "file" / "cache"))
    assert len(extract(model, data, workers=0)) == 20


def test_half_precision_where_it_is_exact_enough(model, data, monkeypatch):
    assert extract(model, data, workers=0).only.dtype == np.float32  # small: nothing to save
    monkeypatch.setattr(features, "HALF_PRECISION_FROM", 0)
    low = extract(model, data, "norm", workers=0)
    assert low.only.dtype == np.float16
    np.testing.assert_allclose(
        low.only, extract(model, data, "norm", workers=0, keep="float32").only, rtol=1e-3, atol=1e-3
    )
    random = np.random.default_rng(0)
    for rows in (1e6 * random.normal(size=(9, 4)), 1000 + 0.1 * random.normal(size=(9, 4))):  # too large; a large mean
        assert features._kind(rows.astype(np.float32), 9, "auto") == np.float32
    assert extract(model, data, workers=0, keep="float16").only.dtype == np.float16


def test_memory_does_not_grow_with_the_set(model, place, monkeypatch):
    """A column holds nothing but what the next part needs."""
    monkeypatch.setattr(features, "SYNC_SECONDS", 0.0)
    held = []
    real = features._OnDisk.add
    monkeypatch.setattr(
        features._OnDisk,
        "add",
        lambda self, *rest: (
            real(self, *rest),
            held.append(sum(v.nbytes for v in vars(self).values() if hasattr(v, "nbytes"))),
        ),
    )
    extract(model, photos(20), workers=0, batch=2)
    assert held
    assert max(held) == 0


# What is lacking


def test_images_that_cannot_be_read_are_named(model, data, place):
    data.source.files[3] = data.source.files[3][:40]
    for is_kept in (False, True):
        found = extract(model, data, workers=0)
        assert (len(found), found.skipped, found.is_kept) == (19, (data.name(3),), is_kept)
        np.testing.assert_array_equal(found.places, np.delete(np.arange(20), 3))
        np.testing.assert_array_equal(found.labels, np.delete(data.labels, 3))
    data.source.files[:] = [raw[:40] for raw in data.source.files]
    with pytest.raises(VitreousError) as error:
        extract(model, data, workers=0, cache=False)
    line_of(error.value, "no image of", "could be read")


def test_rows_can_be_taken(model, data):
    found = extract(model, data, ["features", "norm"], workers=0)
    part = found.take(found.labels == 0)
    assert set(part.labels.tolist()) == {0}
    np.testing.assert_array_equal(part["norm:cls"], found["norm:cls"][found.labels == 0])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"taps": "blocks.9.output"}, ["no tap matches 'blocks.9.output'"]),
        ({"taps": []}, ["no tap was named"]),
        ({"taps": "norm:median"}, ["no pool 'median'", "token-0"]),
        ({"taps": "norm:token-17"}, ["17 tokens", "token-17"]),
        ({"taps": "embedding.patches:cls"}, ["embedding.patches has no class token", ":gap"]),
        ({"keep": "int8"}, ["keep='int8'"]),
        ({"data": photos(20).take(np.zeros(20, bool))}, ["no images"]),
    ],
)
def test_what_cannot_be_read_is_one_line(model, data, given, words):
    with pytest.raises(VitreousError) as error:
        extract(**{"model": model, "data": data, "workers": 0, "cache": False} | given)
    line_of(error.value, *words)


def test_wrong_readings_are_answered_with_those_there_are(model, data):
    found = extract(model, data, ["features", "norm"], workers=0)
    with pytest.raises(VitreousError) as error:
        found["norm:gap"]
    line_of(error.value, "'norm:gap'", "features, norm:cls")
    with pytest.raises(VitreousError) as error:
        found.only  # noqa: B018
    line_of(error.value, "2 readings")


def test_the_models_own_pool_is_the_default(model):
    assert [r.name for r in choose_readings(model, "norm")] == ["norm:cls"]
    assert [r.name for r in choose_readings(awake(VIT, pool="gap", class_token=False), "norm")] == ["norm:gap"]
    assert json.dumps([r.name for r in choose_readings(model, ["norm:gap", "norm:gap", "features"])])
