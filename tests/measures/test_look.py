"""One look at a model: every kind of network, what is kept, and what is said when something cannot be."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from downloaded_kinds import DINOV3_LIKE, EVA02_LIKE, PE_LIKE
from picture_sets import Arrays, arrays, as_set
from tiny_models import BIT, VIT, awake, line_of
from torch.testing import assert_close

import vitreous
from vitreous.errors import ConfigError, DataError, ExistsError
from vitreous.measures import MEASURES, Likeness, attention_distance
from vitreous.measures import look as looking
from vitreous.models.catalog import blueprint

HYBRID = {
    "stem": "resnet",
    "image_size": 32,
    "patch": 1,
    "units": (1, 1),
    "resnet_width": 0.25,
}
ATTENTION = ["attention-distance", "attention-entropy", "head-likeness", "attention-maps", "rollout"]


@pytest.fixture(scope="module")
def pictures():
    return arrays(24, side=16, test=8)


@pytest.fixture(scope="module")
def model():
    return awake(classes=3)


@pytest.fixture(scope="module")
def seen(model, pictures):
    return vitreous.look(model, pictures, batch=8)


def test_every_measure_answers_or_says_why_not(seen):
    assert set(seen.found) | set(seen.skipped) == set(MEASURES)
    assert set(seen.skipped) == {"similarity-across", "heads-against-layers", "embeddings-change"}
    assert all("--against" in why for why in seen.skipped.values())
    assert len(seen.lines()) == len(seen.found)
    for name in MEASURES:
        assert name in str(seen)
    assert "<table>" in seen._repr_html_()


def test_the_numbers_go_to_json_whole(seen):
    body = seen.to_json()
    assert next(iter(body)) == "schema"
    assert body["schema"] == "vitreous.look/1"
    text = json.dumps(body, allow_nan=False)
    assert json.loads(text)["found"]["similarity"] == seen["similarity"]
    assert body["data"]["images"] == 24


def test_a_reading_is_the_function_on_all_images_at_once(model, pictures, seen):
    """Streaming in batches gives what one forward of everything gives."""
    order = looking.permutation(0, "look", 0, 24)
    x = torch.stack([torch.from_numpy(pictures.read(int(i))).permute(2, 0, 1) for i in order])
    x = (x.float() / 255 - 0.5) / 0.5
    layers = ["embedding.tokens", "blocks.*.output"]
    with torch.inference_mode(), vitreous.taps(model, ["blocks.*.attention.weights", *layers]) as taps:
        logits = model(x)
    far = attention_distance(taps["blocks.1.attention.weights"], (4, 4), 4.0).mean(0)
    rows = [row["distance_px"] for row in seen["attention-distance"]["rows"] if row["layer"] == 1]
    assert_close(torch.tensor(rows), far, rtol=1e-4, atol=1e-4)
    alike = Likeness()
    for part in range(0, 24, 8):
        alike.add({"a": taps["embedding.tokens"][part : part + 8], "b": taps["blocks.1.output"][part : part + 8]})
    found = seen["similarity"]
    i, j = (found["rows_of_matrix"].index(name) for name in ("embedding.tokens", "blocks.1.output"))
    assert found["cka"][i][j] == pytest.approx(alike.matrix()[0][1], abs=1e-3)
    lens = seen["logit-lens"]["rows"]
    assert lens[-1]["same_answer"] == 1
    assert lens[-1]["accuracy"] == pytest.approx((logits.argmax(-1).numpy() == pictures.labels[order]).mean(), abs=1e-6)


@pytest.mark.claim("I15")
def test_layers_are_listed_by_name_and_looking_changes_no_answer(model, pictures, seen):
    before = model(torch.zeros(1, 3, 16, 16))
    found = vitreous.look(model, pictures, only=["similarity"], batch=8)["similarity"]
    assert torch.equal(model(torch.zeros(1, 3, 16, 16)), before)
    assert found["rows_of_matrix"] == found["columns_of_matrix"]
    assert len(found["rows_of_matrix"]) == 1 + 6 * 2
    assert found["rows_of_matrix"][0] == "embedding.tokens"
    matrix = torch.tensor(found["cka"])
    assert_close(matrix, matrix.mT)
    assert_close(matrix.diagonal(), torch.ones(13))
    assert found["images"] == 24
    few = vitreous.look(model, pictures, only=["similarity"], batch=8, layers="blocks")["similarity"]
    assert few["rows_of_matrix"] == ["blocks.0.output", "blocks.1.output"]


@pytest.mark.claim("I21")
def test_a_model_against_itself_is_the_same_in_every_block(model, pictures):
    found = vitreous.look(model, pictures, against=model, only=["similarity-across", "embeddings-change"], batch=8)
    assert [row["cka"] for row in found["similarity-across"]["same_name"]] == [1, 1]
    assert found["embeddings-change"]["filter_space"] == pytest.approx(1)
    assert found["embeddings-change"]["position_pattern"] == pytest.approx(1)


@pytest.mark.claim("I20")
def test_heads_together_are_the_whole_before_the_projection(model, pictures):
    """Windows of heads come from sums over single heads; all heads are the full output of attention."""
    x = torch.randn(8, 3, 16, 16)
    with torch.inference_mode(), vitreous.taps(model, "blocks.0.attention.per_head") as taps:
        model(x)
    heads = taps["blocks.0.attention.per_head"]  # B H N d
    whole = heads.transpose(1, 2).flatten(2)
    alike = Likeness()
    alike.add({"0": heads[:, 0], "1": heads[:, 1], "whole": whole, "first": whole[..., :8]})
    joined = alike.joined({"all": ["0", "1"], "whole": ["whole"], "local": ["0"], "first": ["first"]}).matrix()
    assert joined[0][1] == pytest.approx(1, abs=1e-6)
    assert joined[2][3] == pytest.approx(1, abs=1e-6)
    found = vitreous.look(model, pictures, against=awake(BIT, image_size=16), only=["heads-against-layers"], batch=8)
    rows = found["heads-against-layers"]["rows"]
    assert [row["distance_px"] for row in rows] == sorted(row["distance_px"] for row in rows)
    assert {row["layer"] for row in rows} == {f"stages.{s}.units.{u}.output" for s, u in [(0, 0), (1, 0), (1, 1)]}


@pytest.mark.parametrize(
    "changes",
    [
        {"pool": "gap", "class_token": False},
        {"pool": "gap"},
        {"pool": "map", "class_token": False, "registers": 2},
        {"registers": 3, "positions": "relative"},
        {"pool": "cls-and-distillation", "distillation_token": True, "distillation_head": True},
        {"classes": 0, "positions": "none"},
        {"image_size": (16, 24), "patch": (4, 8)},
        {"norm": "post", "depth": 1, "heads": 1},
        {"pool": "gap", "pool_order": "mean-first", "positions_at": "every-layer", "skips": (1,)},
        {"image_size": 4},
        {"channels": 1},
        {**DINOV3_LIKE, "classes": 0},
        EVA02_LIKE,
        PE_LIKE,
        HYBRID,
    ],
    ids=str,
)
def test_every_kind_of_vit(changes, pictures):
    network = awake(VIT.change(**changes))
    found = vitreous.look(network, pictures, batch=8, images=16)
    json.dumps(found.to_json(), allow_nan=False)
    assert set(ATTENTION) <= set(found.found)
    assert ("class-attention" in found.found) == network.config.embedding.class_token
    assert ("logit-lens" in found.found) == bool(network.config.readout.classes)
    assert ("positions" in found.found) == (network.config.embedding.positions not in ("none", "relative"))
    if "stem" in changes:
        assert found.model["kind"] == "hybrid"
        assert found["receptive-field"]["rows"][0]["analytic_px"] > 1


def test_a_few_convolutions_before_the_tokens_make_a_hybrid_too(pictures):
    network = awake(VIT.change(stem="convolutions", patch=(4, 4), image_size=16))
    found = vitreous.look(network, pictures, batch=8, images=16, only=["positions"])
    assert found.model["kind"] == "hybrid"


def test_a_resnet(pictures):
    found = vitreous.look(awake(BIT, image_size=32, classes=3), pictures, batch=8)
    assert set(ATTENTION) <= set(found.skipped)
    assert all("no attention" in found.skipped[name] for name in ATTENTION)
    assert {"similarity", "skip-ratio", "localisation", "receptive-field", "skip-removal", "shift"} <= set(found.found)
    rows = [row for row in found["receptive-field"]["rows"] if row["when"] == "after"]
    assert [row["analytic_px"] for row in rows] == sorted(row["analytic_px"] for row in rows)
    assert "no attention" in found.skipped["attention-distance"]


def test_two_models_each_see_the_images_their_own_way(model, pictures):
    """Another size and other means: images are paired, and each model's own numbers are those of a look by itself."""
    other = awake(VIT.change(image_size=24, classes=3), seed=5)
    other.preprocess = type(other.preprocess)(size=(24, 24), mean=(0.4,) * 3, std=(0.2,) * 3)
    both = vitreous.look(model, pictures, against=other, only=["attention-distance", "similarity-across"], batch=8)
    alone = vitreous.look(other, pictures, only=["attention-distance"], batch=8)
    assert both.found_against["attention-distance"] == alone["attention-distance"]
    assert both["similarity-across"]["images"] == 24
    assert both.against["grid"] == [6, 6]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_sees_the_same(model, pictures, seen):
    found = vitreous.look(model, pictures, batch=8, device="cuda")
    assert set(found.found) == set(seen.found)
    for name in ("attention-distance", "skip-ratio", "receptive-field", "shift"):
        for here, there in zip(seen[name]["rows"], found[name]["rows"], strict=True):
            numbers = {key: value for key, value in here.items() if isinstance(value, float)}
            assert {key: there[key] for key in numbers} == pytest.approx(numbers, rel=1e-2, abs=1e-3)
    assert_close(torch.tensor(found["similarity"]["cka"]), torch.tensor(seen["similarity"]["cka"]), rtol=0, atol=1e-3)


def test_measures_that_read_taps_share_one_forward(model, pictures):
    """24 images in batches of 8 are three forwards, however many measures read them; and no hook stays behind."""
    calls = []
    counter = model.stem.register_forward_hook(lambda *_: calls.append(1))
    names = [name for name, measure in MEASURES.items() if measure.taps and not measure.is_pair]
    vitreous.look(model, pictures, only=names, batch=8)
    counter.remove()
    assert len(names) > 8
    assert len(calls) == 3
    assert not any(module._forward_hooks for module in model.modules())


def test_every_measure_says_what_it_is():
    for name, measure in MEASURES.items():
        assert measure.name == name
        for text in (measure.sentence, measure.saw):
            assert text.endswith(".")
            assert len(text) < 140
        assert measure.figure
        assert measure.cost
        assert set(measure.taps) <= {"vit", "stem", "bit", "map"}


def test_attention_maps_fit_a_page(seen, model):
    arrays_ = seen.arrays["attention-maps"]
    assert arrays_["maps"].shape == (4, 2, 2, 17, 16)
    assert arrays_["maps"].dtype == np.uint8
    assert arrays_["maps"].max(-1).min() == 255  # each query on a scale of its own
    assert arrays_["images"].shape == (4, 3, 16, 16)
    assert arrays_["rollout"].shape == arrays_["rollout_min"].shape == (4, 4, 4)


def test_large_models_get_fewer_and_coarser_maps(pictures):
    from vitreous.measures.attention_map import MAPS, MAX_MAPS_BYTES
    from vitreous.measures.subject import Settings, Subject

    large = blueprint(VIT.change(image_size=592, patch=16, width=1024, depth=24, heads=16))
    reading = MAPS.start(Subject(large, "L", pictures, Settings()), None)
    cells = reading.small[0] * reading.small[1]
    assert reading.examples * 24 * 16 * (cells + 1) * cells <= MAX_MAPS_BYTES
    assert cells >= 81


def test_probes_read_the_labels_by_layer(seen):
    rows = seen["probes"]["rows"]
    assert {row["tokens"] for row in rows} == {"gap", "cls", "middle"}
    assert len(rows) == 6
    assert all(0 <= row["linear"] <= 1 for row in rows)
    assert seen["probes"]["images"] == 8


def test_what_is_written_and_taken_up_again(model, pictures, tmp_path):
    out = tmp_path / "inside"
    names = ["attention-distance", "attention-maps", "shift"]
    first = vitreous.look(model, pictures, only=names[:2], out=out, batch=8)
    assert json.loads((out / "inspection.json").read_text())["found"] == first.found
    assert (
        (out / "figures" / "P1-fig7-attention-distance.csv")
        .read_text()
        .startswith("layer,head,distance_px,error_px,among_patches_px\n")
    )
    told = []
    kept = (out / "measures" / "attention-distance.json").stat().st_mtime_ns
    second = vitreous.look(model, pictures, only=names, out=out, batch=8, tell=told.append)
    assert told[0].startswith("1 measure on 24 images")
    assert (out / "measures" / "attention-distance.json").stat().st_mtime_ns == kept
    assert set(second.found) == set(names)
    assert np.array_equal(second.arrays["attention-maps"]["maps"], first.arrays["attention-maps"]["maps"])
    vitreous.look(model, pictures, only=names, out=out, batch=8, tell=told.append)
    assert told[-1] == "all measures are finished; nothing to compute"
    with pytest.raises(ExistsError) as refused:
        vitreous.look(awake(seed=3), pictures, only=names[:1], out=out, batch=8)
    line_of(refused.value, "another model, set or setting", "--force")
    vitreous.look(awake(seed=3), pictures, only=names[:1], out=out, batch=8, force=True)
    (out / "measures" / "attention-distance.json").write_text("{ torn")
    vitreous.look(awake(seed=3), pictures, only=names[:1], out=out, batch=8, force=True)


@pytest.mark.parametrize("what", ["preprocessing", "images", "settings", "model"])
def test_what_was_kept_of_another_look_is_not_taken_for_this_one(what, pictures, tmp_path):
    """Anything that decides the numbers: also images of one set, and an input of other means."""
    network, data, layers = awake(classes=3), pictures.take(range(12)), "every"
    vitreous.look(network, data, only=["patch-filters"], out=tmp_path, layers=layers)
    vitreous.look(network, data, only=["patch-filters"], out=tmp_path, layers=layers)
    if what == "preprocessing":
        network.preprocess = replace(network.preprocess, mean=(0.4, 0.5, 0.5))
    elif what == "images":
        data = pictures.take(range(12, 24))
    elif what == "settings":
        layers = "blocks"
    else:
        network = awake(classes=3, seed=1)
    with pytest.raises(ExistsError, match="another model, set or setting"):
        vitreous.look(network, data, only=["patch-filters"], out=tmp_path, layers=layers)


def test_killed_between_measures_the_finished_ones_stay(model, pictures, tmp_path, monkeypatch):
    names = ["similarity", "receptive-field", "shift"]

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("vitreous.measures.shift._Shift.finish", die)
        with pytest.raises(KeyboardInterrupt):
            vitreous.look(model, pictures, only=names, out=tmp_path, batch=8)
    assert {file.stem for file in (tmp_path / "measures").glob("*.json")} == set(names[:2])
    told = []
    vitreous.look(model, pictures, only=names, out=tmp_path, batch=8, tell=told.append)
    assert told[0].startswith("1 measure on")


def test_the_images_that_were_read_are_counted(model, tmp_path):
    """Of 26, two cannot be read; also when finished measures are taken up again."""
    for _ in range(2):
        data = as_set(Arrays(arrays(26, side=16).source.pixels, {3, 7}), test=8)
        found = vitreous.look(model, data, only=["attention-distance", "positions", "shift"], out=tmp_path, batch=8)
        assert found.data["images"] == 24
        assert str(found).startswith("this ViT on 24 images of ")
        text = (tmp_path / "look.html").read_text("utf-8")
        assert "on 24 images of " in text
        assert "<td>24 of " in text
        assert "26" not in re.findall(r"(\d+) images", text)
    assert vitreous.look(model, arrays(80, side=16), only=["shift"], batch=8).data["images"] == 64  # its sample
    assert vitreous.look(model, arrays(80, side=16), only=["positions"]).data["images"] == 80  # it reads none


def test_the_cost_comes_first_and_progress_reaches_its_end(model, pictures):
    told, ticks = [], []

    def count(done, of):
        ticks.append((done, of))

    vitreous.look(model, pictures, only=["similarity", "shift"], batch=8, tell=told.append, progress=count)
    assert told[0] == "2 measures on 24 images: 144 forwards of an image, 24 of them shared by all measures"
    assert ticks[-1][0] == ticks[-1][1]
    assert [done for done, _ in ticks] == sorted(done for done, _ in ticks)


def test_too_little_memory_means_smaller_batches_and_is_said(model, pictures):
    names = ["attention-distance", "logit-lens", "localisation"]
    plain = vitreous.look(model, pictures, only=names, batch=4)

    class Tight(torch.nn.Module):
        def forward(self, x):
            if len(x) > 4:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return x

    model.stem, before = Tight(), model.stem
    try:
        found = vitreous.look(model, pictures, only=names, batch=16)
    finally:
        model.stem = before
    assert found.notes == ("memory was too small for 16 images at a time; went on with 4",)
    assert found.found == plain.found


def test_numbers_that_are_not_finite_name_their_layer(model, pictures):
    with torch.no_grad():
        weight = model.blocks[1].mlp.contract.weight
        kept = weight[0, 0].item()
        weight[0, 0] = float("nan")
    try:
        with pytest.raises(DataError) as error:
            vitreous.look(model, pictures, only=["similarity"], batch=8)
    finally:
        with torch.no_grad():
            weight[0, 0] = kept
    line_of(error.value, "not finite", "first at blocks.1.output", "check its weights")


@pytest.mark.parametrize(
    ("network", "name", "words"),
    [
        (
            {"pool": "gap", "class_token": False},
            "class-attention",
            ["class-attention has no meaning", "no class token"],
        ),
        ({"classes": 0}, "logit-lens", ["logit-lens has no meaning", "no head"]),
        ("new", "logit-lens", ["has a head of zeros"]),
        ({}, "similarity-across", ["compares two models", "--against"]),
        (None, "rollout", ["rollout has no meaning", "no attention"]),
    ],
)
def test_a_measure_without_meaning_is_refused_when_asked_for(network, name, words, pictures):
    if network == "new":
        asked = vitreous.build(VIT, seed=0)
    else:
        asked = awake(BIT, image_size=16) if network is None else awake(VIT.change(**network))
    with pytest.raises(ConfigError) as error:
        vitreous.look(asked, pictures, only=[name])
    line_of(error.value, *words)


def test_too_few_images_are_said(model):
    with pytest.raises(ConfigError) as error:
        vitreous.look(model, arrays(3, side=16), only=["similarity"])
    line_of(error.value, "likeness needs 4 images or more, and there are 3")
    found = vitreous.look(model, arrays(3, side=16))
    assert "needs 4 images" in found.skipped["similarity"]
    assert "attention-distance" in found.found


def test_a_look_at_few_images_draws_no_likeness_and_warns_of_shares(model):
    """CKA of five images is off by 0.3; attention is drawn image by image and stays."""
    few = vitreous.look(model, arrays(5, side=16), layers="blocks")
    for name in ("similarity", "localisation"):
        assert few.skipped[name].startswith("CKA of 5 images is mostly chance: its unbiased estimate exists from 4")
        assert "from about 24 on" in few.skipped[name]
    assert set(ATTENTION) <= set(few.found)
    lines = dict(few.rows())
    for name in ("skip-removal", "shift", "logit-lens"):
        assert lines[name].endswith("; careful: a share of 5 answers may be off by 44 points")
    assert "careful" not in "".join(lines[name] for name in ATTENTION)


def test_likeness_that_is_named_is_measured_with_a_caution(model):
    named = vitreous.look(model, arrays(5, side=16), only=["similarity"])
    assert "careful: CKA of 5 images is mostly chance" in str(named)
    assert "careful" not in str(vitreous.look(model, arrays(24, side=16), only=["similarity", "shift"]))


def test_batches_too_small_for_likeness_are_said(model, pictures):
    with pytest.raises(ConfigError) as error:
        vitreous.look(model, pictures, only=["similarity"], batch=3)
    line_of(error.value, "likeness needs batches of 4 images or more, not of 3")
    with pytest.raises(ConfigError, match="batch=0 holds no image"):
        vitreous.look(model, pictures, batch=0)


def test_bad_words_are_answered():
    with pytest.raises(ConfigError) as error:
        vitreous.look(awake(), arrays(4), only=["atention-distance"])
    line_of(error.value, "there is no measure 'atention-distance'", "attention-distance", "--list")
    with pytest.raises(ConfigError, match="images=0 leaves nothing"):
        vitreous.look(awake(), arrays(4), images=0)
    with pytest.raises(ConfigError, match="layers='some' is unknown; give every or blocks"):
        vitreous.look(awake(), arrays(4), layers="some")
    with pytest.raises(ConfigError, match="no measure was named"):
        vitreous.look(awake(), arrays(4), only=[])


def test_one_image_is_enough_for_most(model):
    found = vitreous.look(model, arrays(1, side=16))
    json.dumps(found.to_json(), allow_nan=False)
    assert {"attention-distance", "rollout", "receptive-field", "skip-removal", "shift"} <= set(found.found)
    assert {"similarity", "localisation", "probes"} <= set(found.skipped)


def test_forwards_of_their_own_also_go_in_smaller_parts():
    from vitreous.measures.subject import in_chunks

    def work(part, first):
        if len(part) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return first, part.tolist()

    assert in_chunks(torch.arange(5), 4, work) == [(0, [0, 1]), (2, [2, 3]), (4, [4])]
    with pytest.raises(DataError, match="one image needs more memory than the device has; give device=cpu"):
        in_chunks(torch.arange(5), 4, lambda part, first: work(torch.arange(9), 0))


def test_images_of_any_size_and_kind_are_made_to_fit(model):
    """Grey, and of another size than the model's."""
    found = vitreous.look(model, arrays(8, side=30, channels=1), only=["attention-distance"], batch=8)
    assert found["attention-distance"]["images"] == 8


def test_receptive_fields_by_all_channels_agree_with_the_sample(model, pictures):
    sample = vitreous.look(model, pictures, only=["receptive-field"], batch=8)["receptive-field"]
    exact = vitreous.look(model, pictures, only=["receptive-field"], batch=8, exact=True)["receptive-field"]
    assert exact["channels"] == "all"
    for rough, row in zip(sample["rows"], exact["rows"], strict=True):
        assert rough["tap"] == row["tap"]
        assert rough["radius_px"] == pytest.approx(row["radius_px"], abs=max(6 * rough["error_px"], 0.5))
    after = {row["tap"]: row for row in exact["rows"]}
    assert after["blocks.0.output"]["own_patch_share"] > after["blocks.0.attention.output"]["own_patch_share"]


def test_a_set_that_cannot_be_read_is_said(model):
    broken = arrays(6, side=16)

    def fail(i):
        raise DataError(f"{i} cannot be read")

    broken.source.read = fail
    with pytest.raises(DataError, match=r"no image of a/set could be read"):
        vitreous.look(model, broken, only=["attention-distance"])
