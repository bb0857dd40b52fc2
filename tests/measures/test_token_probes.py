"""What single tokens hold of the class: planted labels are found where they were planted, and nowhere else."""

import csv
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from picture_sets import Arrays, arrays, as_set
from tiny_models import BIT, VIT, awake, line_of

import vitreous
from vitreous.errors import ConfigError
from vitreous.measures import MEASURES
from vitreous.measures.subject import Settings, Subject
from vitreous.measures.token_probes import MAX_PLACES, MAX_TOKEN_IMAGES_HELD, even_grid, some_layers

TOKENS, PROBES = MEASURES["token-probes"], MEASURES["probes"]
CHANCE = 1 / 3
NEAR = 0.12  # of chance, on 240 test images


def pictures(n: int, test: int):
    """Labelled noise of three classes, in a drawn order."""
    noise = np.random.default_rng(0).integers(0, 256, (n, 16, 16, 3), np.uint8)
    return as_set(Arrays(noise), test=test).take(np.random.default_rng(1).permutation(n))


def subject_of(model, data) -> Subject:
    return Subject(model, "M", data, Settings())


def planted(shape: tuple[int, ...], labels: np.ndarray, place: tuple[int, ...] | None, seed: int = 0) -> torch.Tensor:
    """Noise, and the label in the first numbers of one token.  shape: T D of one image.  place: the token."""
    x = torch.randn(len(labels), *shape, generator=torch.Generator().manual_seed(seed))
    if place is not None:
        x[(slice(None), *place)][:, :3] = 9 * torch.eye(3)[torch.from_numpy(labels)]
    return x


def read(subject: Subject, values: dict[str, torch.Tensor], batch: int = 100, measure=TOKENS):
    """What the measure finds in these activations."""
    reading = measure.start(subject, None)
    for begin in range(0, len(subject.data), batch):
        places = np.arange(begin, min(begin + batch, len(subject.data)))
        subject.of_batch = {"places": places}
        for tap, x in values.items():
            reading.see(tap, x[places])
        reading.update()
    return reading.finish()


def accuracies(found, layer: str, token: str = "patch") -> np.ndarray:
    rows = found["rows"]
    return np.array([row["ten_shot"] for row in rows if (row["layer"], row["token"]) == (layer, token)])


@pytest.mark.claim("I18")
def test_one_token_that_holds_the_label_is_all_right_and_the_others_are_chance():
    """Class token and 16 places: the label lies in place 6 of the first block, and in the class token of the last."""
    data = pictures(400, test=240)
    x = {"blocks.0.output": planted((17, 16), data.labels, (1 + 6,)),
         "blocks.1.output": planted((17, 16), data.labels, (0,), seed=1)}  # fmt: skip
    found = read(subject_of(awake(), data), x)
    first, last = (accuracies(found, layer) for layer in ("blocks.0", "blocks.1"))
    assert first[6] > 0.98
    assert np.abs(np.delete(first, 6) - CHANCE).max() < NEAR
    assert np.abs(last - CHANCE).max() < NEAR
    layers = found["layers"]
    assert layers[1]["class_token"] > 0.98
    assert abs(layers[0]["class_token"] - CHANCE) < NEAR
    assert layers[0]["highest"] == pytest.approx(first.max())
    assert layers[0]["lowest"] == pytest.approx(first.min())
    assert layers[0]["mean"] == pytest.approx(first.mean(), abs=1e-5)
    assert (found["images"], found["fitted_on"], found["chance"]) == (240, 30, pytest.approx(CHANCE, abs=1e-5))
    assert "on the class token there 9" in TOKENS.says(found) or "on the class token there 100" in TOKENS.says(found)


@pytest.mark.claim("I18")
def test_noise_is_chance_everywhere():
    data = pictures(400, test=240)
    model = awake(VIT.change(pool="gap", class_token=False, depth=1))
    found = read(subject_of(model, data), {"blocks.0.output": planted((16, 16), data.labels, None)})
    (layer,) = found["layers"]
    assert max(layer["highest"] - CHANCE, CHANCE - layer["lowest"]) < NEAR
    assert abs(layer["mean"] - CHANCE) < NEAR / 3
    assert layer["error"] == pytest.approx(math.sqrt(layer["mean"] * (1 - layer["mean"]) / 240), rel=1e-4)
    assert layer["class_token"] is None
    assert not found["sampled"]
    assert "class token" not in TOKENS.says(found)
    assert "even grid" not in TOKENS.says(found)


@pytest.mark.claim("I18")
def test_a_token_of_a_resnet_is_a_place_of_its_map():
    """Of a map of 16×16 one row and column in 3 is asked; the label lies at row 6, column 9."""
    data = pictures(400, test=240)
    taps = [f"stages.{stage}.units.{unit}.output" for stage, unit in ((0, 0), (1, 0), (1, 1))]
    place = (slice(None), 6, 9)
    large = planted((8, 16, 16), data.labels, place)
    small = planted((8, 2, 3), data.labels, None)
    found = read(subject_of(awake(BIT), data), dict(zip(taps, (large, small, small), strict=True)))
    assert [layer["grid"] for layer in found["layers"]] == [[16, 16], [2, 3], [2, 3]]
    assert [layer["asked"] for layer in found["layers"]] == [[6, 6], [2, 3], [2, 3]]
    rows = [row for row in found["rows"] if row["layer"] == "stages.0.units.0"]
    best = max(rows, key=lambda row: row["ten_shot"])
    assert (best["row"], best["column"]) == (6, 9)
    assert best["ten_shot"] > 0.98
    assert max(row["ten_shot"] for row in rows if row is not best) < CHANCE + NEAR
    assert found["sampled"]
    assert TOKENS.says(found).endswith("; at most 49 places of a layer, on an even grid")


@given(st.tuples(st.integers(1, 200), st.integers(1, 200)))
def test_the_asked_places_are_an_even_grid_within_the_grid(grid):
    """One step for both directions, the least that is enough, and as much left over on one side as on the other."""
    axes = even_grid(grid)
    assert 1 <= len(axes[0]) * len(axes[1]) <= MAX_PLACES
    assert axes[0].step == axes[1].step
    for n, axis in zip(grid, axes, strict=True):
        before, after = axis[0], n - 1 - axis[-1]
        assert 0 <= before <= after <= before + 1
        assert after < axis.step
    if (step := axes[0].step) > 1:
        assert -(-grid[0] // (step - 1)) * -(-grid[1] // (step - 1)) > MAX_PLACES


def test_grids_of_real_models():
    assert even_grid((7, 7)) == (range(7), range(7))
    assert even_grid((14, 14)) == (range(0, 14, 2), range(0, 14, 2))
    assert even_grid((56, 56)) == (range(3, 56, 8), range(3, 56, 8))
    assert even_grid((1, 60)) == (range(1), range(0, 60, 2))


def test_a_place_that_never_changes_is_chance_and_is_said():
    """As the corner of pictures on a white ground, which the least squares refuse."""
    data = pictures(400, test=240)
    x = planted((17, 16), data.labels, (1 + 6,))
    x[:, 1] = 0.25
    found = read(subject_of(awake(VIT.change(depth=1)), data), {"blocks.0.output": x})
    assert accuracies(found, "blocks.0")[0] == pytest.approx(CHANCE, abs=1e-5)
    assert accuracies(found, "blocks.0")[6] > 0.98
    assert found["layers"][0]["constant"] == 1
    assert "the same in all shots count as chance: 1 of block 1." in TOKENS.method(found)


def test_a_layer_that_never_changes_is_named_by_probes_and_the_others_are_read():
    """A class token that no patch reaches, and a place on a white ground; once they stopped all probes."""
    data = pictures(400, test=240)
    first, last = planted((17, 16), data.labels, (0,)), planted((17, 16), data.labels, (0,), seed=1)
    first[:, 0], first[:, 1 + 10] = 0.25, -1.0
    found = read(subject_of(awake(), data), {"blocks.0.output": first, "blocks.1.output": last}, measure=PROBES)
    assert found["constant"] == ["blocks.0 (cls)", "blocks.0 (middle)"]
    rows = {(row["layer"], row["tokens"]): row for row in found["rows"]}
    assert len(rows) == 6
    for pool in ("cls", "middle"):
        still = rows["blocks.0", pool]
        assert still["linear"] == still["ten_shot"] == found["chance"]
        assert still["interval"] is None
    assert rows["blocks.1", "cls"]["linear"] > 0.98
    assert rows["blocks.1", "cls"]["interval"][0] > 0.9
    assert PROBES.says(found).endswith("; constant: block 1 (class token), block 1 (one patch)")
    assert "counts as chance: block 1 (class token), block 1 (one patch)." in PROBES.method(found)
    assert PROBES.draw(found, None, {})


def test_what_changes_in_few_images_alone_is_chance_where_a_draw_has_none_of_them():
    data = pictures(400, test=240)
    x = planted((17, 16), data.labels, None)
    x[:, 0] = 0.0
    x[np.flatnonzero(data.splits == "train")[:3], 0] = 1.0
    model = awake(VIT.change(depth=1))
    found = read(subject_of(model, data), {"blocks.0.output": x}, measure=PROBES)
    assert found["constant"] == []
    assert "constant" not in PROBES.says(found)
    (own,) = [row for row in found["rows"] if row["tokens"] == "cls"]
    assert found["chance"] in own["ten_shot_seeds"]
    assert own["interval"] is not None


def test_five_layers_are_asked_and_fewer_of_a_shallow_network():
    chosen = some_layers([f"blocks.{i}" for i in range(12)])
    assert list(chosen) == [f"blocks.{i}" for i in (0, 3, 6, 8, 11)]
    assert list(chosen.values()) == pytest.approx([0, 3 / 11, 6 / 11, 8 / 11, 1])
    assert some_layers(["a"]) == {"a": 0}
    assert some_layers(["a", "b"]) == {"a": 0, "b": 1}
    assert list(some_layers(["a", "b", "c"])) == ["a", "b", "c"]


def test_rows_of_so_many_images_are_held_and_no_more():
    """In half precision, the last batch cut; a batch that did not go through leaves nothing behind."""
    data = pictures(MAX_TOKEN_IMAGES_HELD + 80, test=300)
    subject = subject_of(awake(VIT.change(depth=1)), data)
    reading = TOKENS.start(subject, None)
    huge = torch.full((1, 17, 16), 1e6)
    for begin in range(0, len(data), 300):
        subject.of_batch = {"places": np.arange(begin, min(begin + 300, len(data)))}
        reading.see("blocks.0.output", huge)
        reading.drop()
        reading.see("blocks.0.output", huge.expand(len(subject.of_batch["places"]), -1, -1))
        reading.update()
    held = reading.values["blocks.0.output"]
    assert sum(map(len, held)) == reading.count == MAX_TOKEN_IMAGES_HELD
    assert all(rows.dtype == np.float16 and np.isfinite(rows).all() for rows in held)
    found = reading.finish()  # all rows are the same
    assert found["layers"][0]["constant"] == 16
    assert found["layers"][0]["lowest"] == found["layers"][0]["highest"] == found["chance"]
    assert found["held"] == found["held_at_most"] == MAX_TOKEN_IMAGES_HELD
    assert found["images"] == (data.splits[:MAX_TOKEN_IMAGES_HELD] == "test").sum()
    assert not reading.values


@pytest.mark.claim("I18")
def test_a_look_finds_the_patch_that_tells_the_class(tmp_path):
    """Blocks that add nothing leave each patch its own: one patch of the image tells the class, and its token does."""
    data = pictures(240, test=120)
    for i, label in zip(data.ids, data.labels, strict=True):
        data.source.pixels[i, 4:8, 8:12] = 255 * np.eye(3)[label]  # red, green or blue in row 1, column 2
    model = awake(classes=3)
    with torch.no_grad():
        for block in model.blocks:
            for part in (block.attention.merge, block.mlp.contract):
                part.weight.zero_()
                part.bias.zero_()
    seen = vitreous.look(model, data, only=["token-probes"], batch=32, out=tmp_path)
    found = seen["token-probes"]
    for layer in ("blocks.0", "blocks.1"):
        right = accuracies(found, layer).reshape(4, 4)
        assert right[1, 2] > 0.9
        assert np.abs(np.delete(right.ravel(), 6) - CHANCE).max() < 0.2
        assert accuracies(found, layer, "class") == pytest.approx(CHANCE, abs=1e-5)  # the same in all images
    assert json.loads((tmp_path / "inspection.json").read_text())["found"]["token-probes"] == found
    with (tmp_path / "figures" / "P2-figD.4-token-probes.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[0].values())[:4] == ["blocks.0", "class", "", ""]
    assert len(table) == 2 * 17
    assert (tmp_path / "figures" / "P2-figD.4-token-probes.png").stat().st_size > 1000
    text = (tmp_path / "look.html").read_text("utf-8")
    assert "Right by place, each map on its own scale" in text
    assert "Rows of 240 images in float16 (1,024 at most)" in text


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        (awake(VIT.change(pool="gap", class_token=False, image_size=32)), {"blocks.0": 64, "blocks.1": 64}),
        (
            awake(VIT.change(registers=2, depth=7)),
            dict.fromkeys(("blocks.0", "blocks.2", "blocks.3", "blocks.4", "blocks.6"), 16),
        ),
        (
            awake(VIT.change(stem="resnet", image_size=32, patch=1, units=(1, 1), resnet_width=0.25)),
            {"stem.stages.0.units.0": 64, "stem.stages.1.units.0": 16, "blocks.0": 16, "blocks.1": 16},
        ),
        (awake(BIT), {"stages.0.units.0": 48, "stages.1.units.0": 12, "stages.1.units.1": 12}),
    ],
    ids=["no class token", "registers", "hybrid", "ResNet"],
)
def test_every_kind_of_network(model, layers):
    """layers: how many places each has; of 64, one row and column in 2 is asked."""
    found = vitreous.look(model, arrays(24, side=16, test=8), only=["token-probes"], batch=8)["token-probes"]
    assert {layer["layer"]: math.prod(layer["grid"]) for layer in found["layers"]} == layers
    for layer in found["layers"]:
        own = accuracies(found, layer["layer"])
        assert len(own) == math.prod(layer["asked"]) == (16 if layers[layer["layer"]] == 64 else layers[layer["layer"]])
        assert 0 <= layer["lowest"] <= layer["mean"] <= layer["highest"] <= 1
        is_class = layer["layer"].startswith("blocks.") and model.config.embedding.class_token
        assert (layer["class_token"] is not None) == is_class
    assert found["sampled"] == (64 in layers.values())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (arrays(6, side=16), ["a probe needs 2 train images of two classes, and test images", "the 6 drawn", "2 of a"]),
        (arrays(4, side=16, test=3), ["at most 2 of a class, 1 of them to train on"]),
        (replace(arrays(4, side=16), labels=np.full(4, -1), classes=()), ["does not have one label for each image"]),
        (replace(arrays(4, side=16), labels=np.ones((4, 3), np.int64)), ["does not have one label for each image"]),
    ],
    ids=["no test images", "too few", "no labels", "several labels"],
)
def test_why_there_is_no_probe_is_said_as_of_probes(data, words):
    lines = []
    for name in ("token-probes", "probes"):
        with pytest.raises(ConfigError) as error:
            vitreous.look(awake(), data, only=[name])
        lines.append(line_of(error.value, f"{name} has no meaning here", *words).removeprefix(name))
    assert lines[0] == lines[1]


def test_only_images_that_would_be_held_count_as_labelled():
    """The test images all lie behind the first 1,024, and probes hold 2,048."""
    subject = subject_of(awake(), as_set(Arrays(np.zeros((MAX_TOKEN_IMAGES_HELD + 9, 1, 1, 3), np.uint8)), test=9))
    line = TOKENS.why_not(subject, None)
    assert "the 1,024 drawn have at most 342 of a class, 1,024 of them to train on" in line
    assert MEASURES["probes"].why_not(subject, None) is None
