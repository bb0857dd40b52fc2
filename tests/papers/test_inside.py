"""Looks inside trained models as cells: readings by hand, images dealt once, matched arms, claims that flip."""

import math

import numpy as np
import pytest
import torch
from papers.small_experiment import TINY

from vitreous import papers
from vitreous.errors import ConfigError, DataError
from vitreous.images import open_data
from vitreous.models.catalog import blueprint, build, parse
from vitreous.models.cost import macs
from vitreous.models.taps import taps
from vitreous.papers.experiment import ArmTable, walk
from vitreous.papers.experiments import EXPERIMENTS
from vitreous.papers.experiments.attention import slope_over_depth
from vitreous.papers.experiments.inside import GAP, HYBRID, INSIDE, RELEASED_WEIGHTS, RESNET, VIT, ends
from vitreous.papers.experiments.language import BAG, ENCODER, LETTER_MODELS, NO_ORDER, WORDS_ARM
from vitreous.papers.experiments.skips import EARLY
from vitreous.papers.verdict import judge
from vitreous.papers.worker import compute, new_bench
from vitreous.papers.works import look as readings
from vitreous.papers.works.look import READ, dealt, looked, looked_at_start, lower_half, read
from vitreous.papers.works.text import (
    LETTERS,
    letter_model,
    letters,
    neighbouring_words,
    neighbours,
    patch_neighbours,
    run_words,
    text,
    word_vectors,
)
from vitreous.papers.works.tokens import token_kinds, tokens_and_slopes
from vitreous.papers.works.train import train

MINE = [
    "embeddings", "attention", "local-heads", "skips", "uniformity", "place", "readouts-inside", "receptive-field",
    "shift", "patches-and-words", "sequence",
]  # fmt: skip
CLASSES = {"fashion": 10, "tiny-imagenet": 100, "imagenet": 1000}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return new_bench({"device": "cpu", "workers": 0, "models": str(tmp_path_factory.mktemp("models"))})


@pytest.fixture(scope="module")
def fashion():
    return open_data.open("fashion")


# Grids ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MINE)
def test_every_network_of_every_scale_can_be_built(name):
    experiment = EXPERIMENTS[name]
    for scale in experiment.scales:
        placed = experiment.placed(scale)
        assert {one.seed for one in placed} == set(experiment.planned(scale))
        for cell in walk(one.cell for one in placed):
            for option in ("model", "at_start"):
                model = cell.options.get(option)
                if model and not model.startswith("bag ") and model not in (*RELEASED_WEIGHTS.values(), "bit-r50"):
                    blueprint(parse(model))
            assert set(cell.options.get("only", ())) <= set(READ)


@pytest.mark.parametrize("scale", list(INSIDE))
def test_arms_are_matched_within_a_tenth(scale):
    """In multiply-adds; at gpu scale within a hundredth, and the class token's within two."""
    how = INSIDE[scale]
    configs = {arm: parse(f"{model} classes={CLASSES[how.data]}") for arm, model in how.models.items()}
    size = {arm: macs(config) for arm, config in configs.items()}
    assert {RESNET, HYBRID, GAP} <= set(size)
    for arm in size:
        assert size[arm] == pytest.approx(size[VIT], rel=0.1 if scale != "gpu" else 0.02 if arm == GAP else 0.01), arm


@pytest.mark.parametrize("scale", ["laptop", "gpu"])
def test_readers_of_letters_are_matched_within_a_tenth(scale):
    model, bag, _ = LETTER_MODELS[scale]
    sizes = [sum(p.numel() for p in letter_model(name, 0)[0].parameters()) for name in (model, bag)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.1)


def test_experiments_that_look_into_the_same_network_share_the_cell():
    keys = [{one.cell.key for one in EXPERIMENTS[name].placed("laptop")} for name in ("place", "skips", "uniformity")]
    assert len(set.intersection(*keys)) == 4 * 8  # two trainings and two looks for each of eight seeds


def test_released_weights_are_a_scale_of_their_own():
    with pytest.raises(ConfigError, match="positions has no scale 'released'; give --scale laptop or gpu or full"):
        EXPERIMENTS["positions"].placed("released")
    outcome = papers.verify("attention", scale="released")[0]
    assert "over groups of images or places, not over trainings" in outcome.notes[0]


# Images --------------------------------------------------------------------------------------------------------------


def test_groups_of_images_share_none(fashion):
    test = fashion.split("test")
    groups = [dealt(test, 64, group).ids.tolist() for group in range(5)]
    assert len({image for group in groups for image in group}) == 5 * 64
    assert dealt(test, 64).ids.tolist() == groups[0]
    assert len(dealt(test, 10**6)) == len(test)
    with pytest.raises(DataError, match="has 2200 images, too few for group 34 of 64; ask for fewer"):
        dealt(test, 64, 34)


def test_a_look_is_known_by_its_models_images_and_measures():
    one, other = (train(TINY, "fashion", seed) for seed in (0, 1))
    cells = [
        looked(one, "fashion", ["probes"]), looked(other, "fashion", ["probes"]), looked(one, "fashion", ["positions"]),
        looked(one, "fashion", ["probes"], seen=64), looked(one, "fashion", ["probes"], group=0),
        looked(one, "fashion", ["probes"], against=other), looked("deit-tiny", "fashion", ["probes"]),
        looked_at_start(TINY, 0, "fashion", ["probes"]), looked_at_start(TINY, 1, "fashion", ["probes"]),
    ]  # fmt: skip
    assert len({cell.key for cell in cells}) == len(cells)


# Readings ------------------------------------------------------------------------------------------------------------


def test_a_look_reads_test_images_through_the_model_of_its_cell(bench, fashion):
    """Distance by its definition, patch by patch."""
    cell = looked_at_start(TINY, 3, "fashion", ["attention-distance"], seen=20)
    answer = compute(cell, bench)["readings"]
    model = build(TINY, seed=3).eval()
    shown = dealt(fashion.split("test"), 20)
    pixels = torch.stack([torch.from_numpy(shown.read(i)).permute(2, 0, 1).float() / 255 for i in range(20)])
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (model.preprocess.mean, model.preprocess.std))
    with torch.inference_mode(), taps(model, "blocks.0.attention.weights") as seen:
        model((pixels - mean) / std)
    weights = seen["blocks.0.attention.weights"][:, :, 1:, 1:].double()  # B H 16 16
    far = torch.tensor([[7 * math.dist(divmod(i, 4), divmod(j, 4)) for j in range(16)] for i in range(16)]).double()
    heads = (weights * far).sum(-1).mean((0, 2)) / far.mean()
    assert answer["distance_mean"] == pytest.approx([heads.mean().item()], rel=1e-4)
    assert answer["distance_min"] == pytest.approx([heads.min().item()], rel=1e-4)
    assert answer["distance_even_px"] == pytest.approx(far.mean().item(), rel=1e-6)


def test_distances_are_in_units_of_even_attention():
    rows = [{"layer": layer, "distance_px": far} for layer, far in [(0, 4.0), (0, 9.0), (1, 9.0), (1, 10.0)]]
    found = readings.distances({"uniform_px": 10.0, "rows": rows})
    assert found["distance_min"] == [0.4, 0.9]
    assert found["distance_wide"] == [0.5, 1.0]
    assert found["distance_local"] == [0.5, 0.0]
    assert found["distance_spread"] == pytest.approx([0.25, 0.05])


def test_skips_are_logarithms_by_branch():
    row = {"class_ratio": math.e, "patches_ratio": 1.0}
    found = readings.skips(
        {"rows": [{**row, "branch": "attention"}, {**row, "branch": "mlp", "patches_ratio": math.e**2}]}
    )
    assert found["skip_class_attention"] == [1.0]
    assert found["skip_patches_mlp"] == pytest.approx([2.0])
    assert found["skip_mean"] == pytest.approx(1.0)
    unit = {"branch": "convolutions", "class_ratio": None, "patches_ratio": 1.0}
    assert set(readings.skips({"rows": [unit]})) == {"skip_patches_convolutions", "skip_mean"}


def test_neighbouring_weights_of_a_smooth_filter_are_alike():
    assert readings.autocorrelation(np.ones((3, 4, 4))) == pytest.approx(1)
    assert readings.autocorrelation(np.indices((1, 4, 4)).sum(0) % 2 * 2 - 1.0) == pytest.approx(-1)
    noise = np.random.default_rng(0).normal(size=(1, 200, 200))
    assert abs(readings.autocorrelation(noise)) < 0.02


def test_likeness_across_a_block_is_between_what_comes_before_and_after():
    names = ["embedding.tokens", "blocks.0.norm1", "blocks.0.output", "blocks.1.output"]
    cka = [[1.0, 9, 0.8, 0.2], [9, 9, 9, 9], [0.8, 9, 1.0, 0.4], [0.2, 9, 0.4, 1.0]]
    found = readings.within(
        {"rows_of_matrix": names, "cka": cka, "low_high": 0.5, "uniformity": 0.6, "of_blocks": {"low_high": 0.4}}
    )
    assert found["cka_across"] == pytest.approx([0.5, 0.3])


@pytest.mark.parametrize(("reach", "slope"), [(1.0, 1.0), (0.5, 0.5)])
def test_the_slope_of_matches_is_that_of_this_depth_on_the_others(reach, slope):
    """Layer j of the other network is most like layer reach × j of ours."""
    cka = np.zeros((33, 33))
    for j in range(33):
        cka[round(reach * j), j] = 0.9
    found = readings.across(
        {
            "cka": cka.tolist(),
            "rows_of_matrix": [f"blocks.{i}.output" for i in range(33)],
            "columns_of_matrix": [f"stages.{j // 11}.units.{j % 11}.output" for j in range(33)],
            "same_name": [],
        }
    )
    assert found["match_slope"] == pytest.approx(slope, abs=0.05)
    assert found["match_last_stage"] == pytest.approx(0.9 / 11 if reach == 1 else 0)


def test_constant_layers_have_no_part_in_matches():
    found = readings.across(
        {"cka": [[None, 0.5], [0.4, None], [0.2, 0.1]], "rows_of_matrix": [f"blocks.{i}.output" for i in range(3)],
         "columns_of_matrix": ["root", "stages.0.units.0.output"], "same_name": []}
    )  # fmt: skip
    assert found["match_best"] == [0.5, 0.4, 0.2]


def test_heads_that_look_alike_as_far_are_sorted():
    rows = [{"layer": 0, "distance_px": far} for far in (1.0, 2.0, 4.0, 8.0)]
    alike = [[math.exp(-abs(a["distance_px"] - b["distance_px"])) for b in rows] for a in rows]
    found = {"attention-distance": {"rows": rows}, "head-likeness": {"heads": [alike]}}
    assert readings.heads_by_distance(found)["heads_apart"] == pytest.approx(1)
    assert readings.heads_by_distance({"head-likeness": {"heads": [alike]}}) == {}


def test_groups_of_places_hold_each_place_once():
    """Likeness that falls with distance gives a correlation of 1 from every group of places."""
    places = [(r, c) for r in range(6) for c in range(6)]
    tiles = np.array([[-math.dist(a, b) for b in places] for a in places]).reshape(6, 6, 6, 6)
    found = {
        "grid": [6, 6],
        "tile_step": 1,
        "tiles": tiles.tolist(),
        "nearness": 0.3,
        "row_column": 0.1,
        "axis_diagonal": 0.0,
    }
    for group in range(5):
        assert read("positions", found, group)["position_nearness"] == pytest.approx(1)
    assert read("positions", found)["position_nearness"] == 0.3


def test_depth_is_cut_in_halves_and_thirds():
    assert lower_half([1, 2, 3]) == [1, 2]
    assert ends([1, 2, 3, 4, 5, 6, 7, 8], 3) == ([1, 2], [7, 8])
    assert ends([1, 2, 3], 4) == ([1], [3])
    assert slope_over_depth([0.2, 0.5, 0.8]) == pytest.approx(0.6)


def test_an_unknown_measure_is_named():
    with pytest.raises(DataError, match="no readings are named for the measure 'rollout'; there are: attention"):
        read("rollout", {})


# Tokens and text -----------------------------------------------------------------------------------------------------


def test_slopes_are_those_of_the_loss_at_the_input_of_each_block():
    model = build(TINY.replace("depth=1", "depth=2"), classes=3, seed=0).double()
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(1))
    images, labels = (
        torch.randn(2, 1, 28, 28, dtype=torch.float64, generator=torch.Generator().manual_seed(2)),
        torch.tensor([0, 2]),
    )
    last, slopes = tokens_and_slopes(model, images.clone(), labels)
    z0 = model.embedding(model.stem(images), model.grid).detach().requires_grad_()
    z1 = model.blocks[0](z0)
    z2 = model.blocks[1](z1)
    loss = torch.nn.functional.cross_entropy(model.head(model.norm(z2)[:, 0]), labels, reduction="sum")
    wanted = torch.stack([slope.norm(dim=-1) for slope in torch.autograd.grad(loss, [z0, z1])])
    torch.testing.assert_close(last, z2.detach())
    torch.testing.assert_close(slopes, wanted)


def test_tokens_need_a_class_token(bench):
    model = TINY + " pool=gap"
    cell = token_kinds(
        train(model, "fashion", 0, images=100, recipe={"length": "1 steps", "batch": 32}), "fashion", seen=32
    )
    assert "name such a model" in compute(cell, bench)["error"]
    named = token_kinds(
        train(TINY, "fashion", 0, images=100, recipe={"length": "1 steps", "batch": 32}), "fashion", seen=32
    )
    found = compute(named, bench)["readings"]
    assert len(found["gradient_class"]) == 1
    assert -1 <= found["class_patches"] <= found["class_best_patch"] <= 1.01


def test_the_text_is_whole():
    assert text().startswith("In the beginning")
    assert 150_000 < len(text().split()) < 170_000
    assert set(letters().tolist()) == set(range(len(LETTERS)))


def test_words_in_the_same_company_have_like_vectors():
    """0 and 1 stand between the same words, 2 between others."""
    random = np.random.default_rng(0)
    said = []
    for _ in range(2000):
        word = int(random.integers(3))
        company = (3, 4) if word < 2 else (5, 6)
        said += [company[0], word, company[1], -1, -1, -1, -1]
    vectors = word_vectors(np.array(said), known=7, width=5)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert unit[0] @ unit[1] > 0.9 > 0.3 > unit[0] @ unit[2]


def test_neighbours_of_smooth_images_are_alike_and_of_noise_are_not():
    random = np.random.default_rng(0)
    level = random.normal(size=(50, 1, 3))
    smooth = patch_neighbours("smooth", np.repeat(level, 16, 1) + 0.1 * random.normal(size=(50, 16, 3)), (4, 4), 0)
    noise = patch_neighbours("noise", random.normal(size=(50, 16, 3)), (4, 4), 0)
    assert smooth["smooth_gap"] > 0.8
    assert abs(noise["noise_gap"]) < 0.1
    assert smooth["smooth_effect"] > 1 > abs(noise["noise_effect"])
    right = neighbours("x", np.eye(2), np.array([[0, 0], [0, 1]]), np.array([[0, 1], [1, 0], [1, 1], [0, 0]]))
    assert right == {"x_beside": 0.5, "x_random": 0.5, "x_gap": 0.0, "x_effect": 0.0}


def test_words_are_judged_on_text_that_gave_no_counts(bench):
    one, other = (run_words(neighbouring_words(seed), bench) for seed in (0, 1))
    assert one != other
    assert -1 < one["words_random"] < one["words_beside"] < 1


@pytest.mark.parametrize(("name", "reads_order"), [
    ("S/4 patch=1 image_size=1x6 width=16 depth=1 heads=2 mlp=16", True),
    ("S/4 patch=1 image_size=1x6 width=16 depth=1 heads=2 mlp=16 positions=none", False),
    ("bag 6 16 20", False),
])  # fmt: skip
def test_positions_alone_make_a_reader_of_letters_read_their_order(name, reads_order):
    model, count = letter_model(name, 0)
    last = model.vit.head if hasattr(model, "vit") else model.mlp[-1]
    torch.nn.init.normal_(last.weight, generator=torch.Generator().manual_seed(0))
    x = torch.tensor([[1, 2, 3, 4, 5, 6]])
    assert count == 6
    with torch.inference_mode():
        apart = (model(x) - model(x.flip(1))).abs().max()
    assert (apart > 1e-4) == reads_order


# Claims --------------------------------------------------------------------------------------------------------------

LOW_TO_HIGH, HIGH_TO_LOW = [0.2, 0.5, 0.9], [0.9, 0.5, 0.2]
CLAIMED = {  # by experiment: arm -> readings that are as every claim says; and as none says
    "embeddings": (
        {
            VIT: {"filters_held": 0.9, "filters_smoothness": 0.5, "position_nearness": 0.4},
            "before training": {"filters_held": 0.5, "filters_smoothness": 0.0, "position_nearness": 0.0},
        },
        {
            VIT: {"filters_held": 0.2, "filters_smoothness": -0.5, "position_nearness": -0.4},
            "before training": {"filters_held": 0.5, "filters_smoothness": 0.0, "position_nearness": 0.0},
        },
    ),
    "attention": (
        {
            VIT: {
                "distance_mean": LOW_TO_HIGH,
                "distance_min": [0.3, 0.4, 0.9],
                "distance_max": [0.9, 0.9, 0.9],
                "distance_spread": [0.3, 0.2, 0.1],
                "distance_wide": [0.2, 0.5, 1.0],
                "distance_even_px": 10.0,
                "heads_apart": 0.5,
            },
            HYBRID: {"distance_mean": [0.8, 0.9], "distance_min": [0.7, 0.9], "distance_even_px": 10.0},
        },
        {
            VIT: {
                "distance_mean": HIGH_TO_LOW,
                "distance_min": [0.7, 0.4, 0.1],
                "distance_max": [0.7, 0.5, 0.5],
                "distance_spread": [0.1, 0.2, 0.3],
                "distance_wide": [0.2, 0.5, 0.1],
                "distance_even_px": 10.0,
                "heads_apart": -0.5,
            },
            HYBRID: {"distance_mean": [0.4, 0.9], "distance_min": [0.3, 0.9], "distance_even_px": 10.0},
        },
    ),
    "local-heads": ({VIT: {"heads_trend_low": -0.6}}, {VIT: {"heads_trend_low": 0.6}}),
    "skips": (
        {
            VIT: {
                "skip_class_attention": [2, 1, 0],
                "skip_class_mlp": [2, 1, 0],
                "skip_patches_attention": [0, 1, 2],
                "skip_patches_mlp": [0, 1, 2],
                "skip_mean": 2.0,
                "cut_accuracy_mean": 0.4,
                "gradient_apart": 2.0,
            },
            RESNET: {"skip_mean": 1.0, "cut_accuracy_mean": 0.1},
            EARLY: {"gradient_apart": 1.0},
        },
        {
            VIT: {
                "skip_class_attention": [0, 1, 2],
                "skip_class_mlp": [0, 1, 2],
                "skip_patches_attention": [2, 1, 0],
                "skip_patches_mlp": [2, 1, 0],
                "skip_mean": 1.0,
                "cut_accuracy_mean": 0.1,
                "gradient_apart": -2.0,
            },
            RESNET: {"skip_mean": 2.0, "cut_accuracy_mean": 0.4},
            EARLY: {"gradient_apart": -1.0},
        },
    ),
    "uniformity": (
        {
            VIT: {"cka_low_high": 0.8, "match_before_last_third": 0.7, "match_last_third": 0.4, "match_slope": 0.5},
            RESNET: {"cka_low_high": 0.4},
        },
        {
            VIT: {"cka_low_high": 0.3, "match_before_last_third": 0.4, "match_last_third": 0.7, "match_slope": 1.5},
            RESNET: {"cka_low_high": 0.6},
        },
    ),
    "place": (
        {
            VIT: {"place_hit": 0.8, "place_chance": 0.02, "own_patches": 0.5, "class_patches": 0.2},
            RESNET: {"place_hit": 0.3},
        },
        {
            VIT: {"place_hit": 0.01, "place_chance": 0.02, "own_patches": 0.1, "class_patches": 0.2},
            RESNET: {"place_hit": 0.3},
        },
    ),
    "readouts-inside": (
        {
            VIT: {
                "token_probe_last": 0.3,
                "place_hit": 0.8,
                "match_last_stage": 0.3,
                "probe_10_shot_patches": [0.3, 0.6],
            },
            GAP: {
                "token_probe_last": 0.6,
                "place_hit": 0.3,
                "match_last_stage": 0.6,
                "probe_10_shot_patches": [0.2, 0.6],
            },
        },
        {
            VIT: {
                "token_probe_last": 0.6,
                "place_hit": 0.3,
                "match_last_stage": 0.6,
                "probe_10_shot_patches": [0.3, 0.6],
            },
            GAP: {
                "token_probe_last": 0.3,
                "place_hit": 0.8,
                "match_last_stage": 0.3,
                "probe_10_shot_patches": [0.2, 0.6],
            },
        },
    ),
    "receptive-field": (
        {VIT: {"field_low": 0.6}, RESNET: {"field_low": 0.3}},
        {VIT: {"field_low": 0.3}, RESNET: {"field_low": 0.6}},
    ),
    "shift": (
        {VIT: {"same_answer": 0.6}, RESNET: {"same_answer": 0.9}},
        {VIT: {"same_answer": 0.9}, RESNET: {"same_answer": 0.6}},
    ),
    "patches-and-words": (
        {
            VIT: {"raw_gap": 0.5, "embedded_gap": 0.4, "raw_effect": 1.5, "embedded_effect": 1.4},
            WORDS_ARM: {"words_effect": 0.3},
        },
        {
            VIT: {"raw_gap": -0.5, "embedded_gap": -0.4, "raw_effect": 0.1, "embedded_effect": 0.1},
            WORDS_ARM: {"words_effect": 0.5},
        },
    ),
    "sequence": (
        {ENCODER: {"accuracy": 0.5}, NO_ORDER: {"accuracy": 0.2}, BAG: {"accuracy": 0.2}},
        {ENCODER: {"accuracy": 0.2}, NO_ORDER: {"accuracy": 0.5}, BAG: {"accuracy": 0.5}},
    ),
}


def _table(arms):
    """Four seeds that differ a little, each arm in its own way."""

    def moved(value, seed, arm):
        by = 0.001 * ((seed * 7 + arm * 3) % 5 - 2)
        return [each + by for each in value] if isinstance(value, list) else value + by

    return ArmTable(
        {arm: {seed: {name: moved(value, seed, number) for name, value in row.items()} for seed in range(8)}
         for number, (arm, row) in enumerate(arms.items())}
    )  # fmt: skip


@pytest.mark.parametrize("name", MINE)
def test_verdicts_follow_the_data_and_flip_with_them(name):
    claims = EXPERIMENTS[name].claims_at("laptop")
    as_claimed, reversed_ = (
        judge([(claim.rule, list(claim.effects(_table(arms)))) for claim in claims]) for arms in CLAIMED[name]
    )
    for claim, found, other in zip(claims, as_claimed, reversed_, strict=True):
        assert found.verdict == claim.rule.holds, claim.name
        assert other.verdict == claim.rule.fails, claim.name


@pytest.mark.parametrize("name", MINE)
def test_committed_results_give_a_verdict_again(name):
    for outcome in papers.verify(name):
        assert outcome.records
        assert not [note for note in outcome.notes if "older definition" in note]
        assert [claim.row for claim, _ in outcome.claims] == [
            claim.row for claim in EXPERIMENTS[name].claims_at(outcome.scale)
        ]
