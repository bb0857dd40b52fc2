"""E-DATA, E-SIZE, P1's appendices D.1, D.2 and D.5: grids build, arms cost the same, effects point the right way."""

import math
from itertools import pairwise

import pytest

from vitreous import papers
from vitreous.models.catalog import blueprint, parse
from vitreous.models.cost import macs
from vitreous.papers.experiment import ArmTable
from vitreous.papers.experiments import EXPERIMENTS, data, data_inside, optimizer, scaling, size, speed
from vitreous.papers.experiments.networks import (
    ALL,
    HYBRID,
    KINDS,
    LEARNED,
    LEARNING,
    NETWORKS,
    RESNET,
    SHARES,
    SIZE_NAMES,
    UNSEEN,
    VIT,
    arm_of,
    downstream,
)
from vitreous.papers.sets import Sets
from vitreous.papers.verdict import NOT_RUN, judge

ANSWERED = (
    "data",
    "data-inside",
    "size",
    "size-small",
    "compute",
    "optimizer",
)  # by committed cells of the laptop's scale
OURS = (*ANSWERED, "scaling", "speed")
SEEDS = range(8)
CLASSES = {"laptop": 6, "gpu": 100, "full": 21_841}


# Grids ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("scale", ["laptop", "gpu", "full"])
def test_every_grid_names_networks_that_build(name, scale):
    placed = EXPERIMENTS[name].placed(scale, 3)
    assert {one.seed for one in placed} == set(EXPERIMENTS[name].planned(scale, 3))
    for network in {one.cell.options.get("model") for one in placed} - {None}:
        assert sum(parameter.numel() for parameter in blueprint(parse(network)).parameters()) > 0


@pytest.mark.parametrize("scale", ["laptop", "gpu", "full"])
@pytest.mark.parametrize("kind", [HYBRID, RESNET])
@pytest.mark.parametrize("size_name", SIZE_NAMES)
def test_rivals_cost_the_same_within_a_tenth(scale, kind, size_name):
    mine, theirs = (macs(parse(f"{NETWORKS[scale][size_name][each]} classes={CLASSES[scale]}")) for each in (kind, VIT))
    assert mine == pytest.approx(theirs, rel=0.1)


@pytest.mark.parametrize("scale", ["laptop", "gpu", "full"])
def test_sizes_grow_by_at_least_two(scale):
    for kind in KINDS:
        costs = [macs(parse(f"{NETWORKS[scale][each][kind]} classes={CLASSES[scale]}")) for each in SIZE_NAMES]
        assert all(more >= 1.9 * less for less, more in pairwise(costs))


@pytest.mark.parametrize("scale", ["laptop", "gpu", "full"])
def test_deeper_and_wider_cost_the_same(scale):
    deeper, wider = (parse(scaling.SHAPES[scale][each]) for each in (scaling.DEEPER, scaling.WIDER))
    assert macs(deeper) == pytest.approx(macs(wider), rel=0.1)
    counts = [sum(p.numel() for p in blueprint(config).parameters()) for config in (deeper, wider)]
    assert counts[0] == pytest.approx(counts[1], rel=0.13)


@pytest.mark.parametrize("scale", ["laptop", "gpu"])
def test_what_is_timed_costs_the_same(scale):
    how = speed.SETTINGS[scale]
    for side in how["sides"]:
        vit, resnet = (macs(parse(f"{how['networks'][kind]} image_size={side}")) for kind in (VIT, RESNET))
        assert vit == pytest.approx(resnet, rel=0.1)


def test_classes_learned_and_unseen_are_all_of_the_embedded_set_and_share_none():
    whole = Sets().open("fashion")
    assert sorted(LEARNED + UNSEEN) == sorted(whole.classes)
    part = Sets().part({"data": "fashion", "classes": list(LEARNED)}, 0)
    assert int((part.splits == "train").sum()) == LEARNING["laptop"]["shares"][ALL]


def test_every_training_of_a_scale_sees_as_many_images():
    for scale in ("laptop", "gpu", "full"):
        cells = [one.cell for one in EXPERIMENTS["data"].placed(scale, 2) if one.cell.work == "train"]
        pretraining = [cell.options["recipe"] for cell in cells if cell.options["recipe"] != "fine-tune"]
        assert len({(recipe["length"], recipe["batch"]) for recipe in pretraining}) == 1


def test_no_pair_of_the_likeness_shares_its_first_weights():
    cells = [one.cell for one in EXPERIMENTS["data-inside"].placed("laptop") if one.cell.work == "likeness"]
    assert cells
    assert all(cell.needs[0].options["seed"] != cell.needs[1].options["seed"] for cell in cells)


def test_as_many_epochs_are_fewer_steps_of_fewer_images():
    how = LEARNING["gpu"]
    steps = int(how["recipe"]["length"].split()[0])
    assert size.same_epochs("gpu") / how["shares"]["30 %"] == pytest.approx(steps / how["shares"][ALL], rel=0.01)


def test_experiments_share_their_trainings():
    keys = {name: {one.cell.key for one in EXPERIMENTS[name].placed("gpu")} for name in OURS}
    assert keys["compute"] < keys["size"]
    for name in ("size", "data-inside", "optimizer", "scaling"):
        assert keys[name] & keys["data"]


# Effects -------------------------------------------------------------------------------------------------------------


def table(arms):
    """{arm: {reading: value}} for eight seeds that differ a little."""

    def moved(value, seed, place):
        if isinstance(value, list):
            return [moved(each, seed, place + i) for i, each in enumerate(value)]
        return value * (1 + 1e-4 * ((3 * seed + 5 * place) % 7))

    return ArmTable(
        {
            arm: {seed: {name: moved(value, seed, i) for name, value in row.items()} for seed in SEEDS}
            for i, (arm, row) in enumerate(arms.items())
        }
    )


def verdicts(experiment, rows):
    """By claim, each judged alone."""
    found = table(rows)
    return {claim.name: judge([(claim.rule, list(claim.effects(found)))])[0].verdict for claim in experiment.claims}


def expected(experiment, *, holds):
    return {claim.name: claim.rule.holds if holds else claim.rule.fails for claim in experiment.claims}


def log(share):
    return math.log10(float(share.split()[0]))


def learned_rows(right, kinds=KINDS, sizes=("middle",), shares=SHARES):
    """Arms of all kinds, sizes and shares, with accuracy, transfer and shots alike.  right(kind, size, share)"""
    rows = {}
    for kind in kinds:
        for size_name in sizes:
            for share in shares:
                arm, value = arm_of(kind, share, size_name), right(kind, size_name, share)
                cost = 10.0 ** (6 + SIZE_NAMES.index(size_name))
                rows[arm] = {"accuracy": value, "5_shot_pets": value, "macs": cost}
                rows[f"{arm} → pets"] = {"accuracy": value}
    return rows


def test_a_vit_that_passes_the_resnet_supports_every_claim_of_data_and_a_swap_none():
    lines = {VIT: (0.6, 0.1), HYBRID: (0.7, 0.05), RESNET: (0.7, 0.02)}

    def right(kind, size_name, share):
        level, gain = lines[kind]
        return level + gain * log(share)

    assert verdicts(data.EXPERIMENT, learned_rows(right)) == expected(data.EXPERIMENT, holds=True)
    lines[VIT], lines[RESNET] = lines[RESNET], lines[VIT]
    assert verdicts(data.EXPERIMENT, learned_rows(right)) == expected(data.EXPERIMENT, holds=False)


def test_transfer_is_the_mean_over_all_sets_and_missing_if_one_is():
    rows = {"ViT, 3 %": {"accuracy": 0.9}, "ViT, 3 % → pets": {"accuracy": 0.5}, "ViT, 3 % → cars": {"accuracy": 0.7}}
    found = downstream(ArmTable({arm: {0: row} for arm, row in rows.items()}))
    assert found.arms == ["ViT, 3 %"]
    assert found.values("ViT, 3 %", "transfer") == {0: pytest.approx(0.6)}
    assert found.values("ViT, 3 %", "accuracy") == {0: 0.9}
    half = downstream(ArmTable({arm: {0: row} for arm, row in rows.items()} | {"ViT, 3 % → cars": {0: {}}}))
    assert half.values("ViT, 3 %", "transfer") == {}


def test_the_crossing_is_where_the_lines_meet():
    def meeting_at(percent):
        def right(kind, size_name, share):
            return 0.5 + (0.1 * (log(share) - math.log10(percent)) if kind == VIT else 0.0)

        rows = learned_rows(right)
        return data.crossing_point(ArmTable({arm: dict.fromkeys(SEEDS, row) for arm, row in rows.items()}), "gpu")

    inside, beyond = meeting_at(20), meeting_at(400)
    assert inside.percents == pytest.approx([20] * len(SEEDS))
    assert inside.is_in_range
    assert str(inside) == "the ViT meets the ResNet at 10,000 to 10,000 images"
    assert not beyond.is_in_range
    assert "beyond our 50,000 images: lines through the seeds meet at 200,000 images" in str(beyond)


def test_a_gap_that_widens_never_closes():
    rows = learned_rows(lambda kind, size_name, share: 0.5 - (0.1 * log(share) if kind == VIT else 0.0))
    found = data.crossing_point(table(rows), "gpu")
    assert all(math.isinf(percent) for percent in found.percents)
    assert "the gap does not close" in str(found)
    assert "not known" in str(data.crossing_point(ArmTable({}), "gpu"))


def inside_rows(sign, fall):
    rows = {}
    for share in SHARES:
        grown = sign * log(share)
        rows[arm_of(VIT, share)] = {
            "accuracy": 0.5 + 0.1 * grown,
            "same_answer": 0.5 + 0.1 * grown,
            "distance_min": [0.7 - 0.1 * grown, 0.8 - 0.1 * grown, 0.1, 0.1],
            "distance_low_quarter": 0.8 - 0.1 * grown,
            "probe_10_shot_patches": [0.4 + 0.01 * grown, *[0.5 + 0.1 * grown] * 2, 0.9],
        } | ({"likeness_low": 0.5 + fall, "likeness_high": 0.5 - fall} if share != ALL else {})
    return rows | {data_inside.BASELINE: {"likeness_low": 0.6, "likeness_high": 0.6}}


def test_what_data_add_inside_is_told_from_its_reverse():
    experiment = data_inside.EXPERIMENT
    assert verdicts(experiment, inside_rows(+1, 0.3)) == expected(experiment, holds=True)
    assert verdicts(experiment, inside_rows(-1, -0.3)) | {"C46c": ""} == expected(experiment, holds=False) | {
        "C46c": ""
    }


def test_heads_above_the_lowest_two_blocks_do_not_count_as_low():
    rows = inside_rows(+1, 0.3)
    found = data_inside.derived(table(rows)).values(arm_of(VIT, ALL), "distance_nearest")
    assert all(value == pytest.approx(0.5, abs=0.01) for value in found.values())


def grown_together(kind, size_name, share):
    place = SIZE_NAMES.index(size_name) - 1
    return 0.5 + 0.1 * log(share) + 0.05 * place * (log(share) - 1)


def test_size_and_data_that_grow_together_are_told_from_their_reverse():
    shares = size.SIZED_SHARES
    up = learned_rows(grown_together, sizes=SIZE_NAMES, shares=shares)
    down = learned_rows(lambda *which: 1 - grown_together(*which), sizes=SIZE_NAMES, shares=shares)
    assert verdicts(size.SIZE, up) == expected(size.SIZE, holds=True)
    assert verdicts(size.SIZE, down) == expected(size.SIZE, holds=False) | {"C08b": "SUPPORTED"}


def test_returns_that_do_not_diminish_contradict_the_log():
    straight = learned_rows(lambda kind, size_name, share: 0.2 + 0.005 * 10 ** log(share), shares=size.SIZED_SHARES)
    effects = list(size.log_fits_better(table(straight)))
    assert len(effects) == 2
    assert all(value < 0 for effect in effects for value in effect.values.values())


@pytest.mark.parametrize("hurt", [True, False])
def test_a_small_network_hurt_by_data_is_told_from_one_that_gains(hurt):
    less, most = (0.6, 0.5) if hurt else (0.5, 0.6)
    rows = {arm_of(RESNET, size.MORE, "small"): less, arm_of(RESNET, ALL, "small"): most, size.SAME_EPOCHS: less}
    rows = {arm: {"accuracy": value} for arm, value in rows.items()}
    rows |= {f"{arm} → pets": row for arm, row in rows.items()}
    assert verdicts(size.SIZE_SMALL, rows) == expected(size.SIZE_SMALL, holds=hurt)


def test_the_compute_ratio_is_the_distance_of_parallel_lines():
    def right(kind, size_name, share):
        lead = {VIT: 0.05, HYBRID: 0.05, RESNET: 0.0}[kind]
        return 0.5 + lead + 0.1 * SIZE_NAMES.index(size_name)

    rows = learned_rows(right, sizes=SIZE_NAMES, shares=(ALL,))
    exact = ArmTable({arm: dict.fromkeys(SEEDS, row) for arm, row in rows.items()})
    (effect,) = size.compute_ratio(exact)
    assert list(effect.values.values()) == pytest.approx([0.5] * len(SEEDS))  # 0.05 of 0.1 per ten times the compute
    worse = learned_rows(lambda *which: 1 - right(*which), sizes=SIZE_NAMES, shares=(ALL,))
    (effect,) = size.compute_ratio(table(worse))
    assert not effect.numbers


@pytest.mark.parametrize("holds", [True, False])
def test_a_hybrids_lead_that_shrinks_is_told_from_one_that_grows(holds):
    leads = (0.1, 0.05, 0.0) if holds else (-0.1, 0.0, 0.1)

    def right(kind, size_name, share):
        place = SIZE_NAMES.index(size_name)
        level = {VIT: 0.0, HYBRID: leads[place], RESNET: -0.1 if holds else 0.1}[kind]
        return 0.5 + level + 0.1 * place

    rows = learned_rows(right, sizes=SIZE_NAMES, shares=(ALL,))
    assert verdicts(size.COMPUTE, rows) == expected(size.COMPUTE, holds=holds)


@pytest.mark.parametrize("holds", [True, False])
def test_adam_and_shape_are_told_from_their_reverse(holds):
    high, middle, low = (0.7, 0.6, 0.5) if holds else (0.5, 0.6, 0.7)
    adam = {
        f"{each} ResNet, {how}": value
        for each in optimizer.SIZES_ASKED
        for how, value in (("Adam", high), ("SGD", low))
    }
    shapes = {scaling.DEEPER: high, scaling.WIDER: middle, scaling.BASE: middle, scaling.COARSER: low}
    for experiment, arms in ((optimizer.EXPERIMENT, adam), (scaling.EXPERIMENT, shapes)):
        rows = {arm: {"accuracy": value} for arm, value in arms.items()}
        rows |= {f"{arm} → pets": row for arm, row in rows.items()}
        assert verdicts(experiment, rows) == expected(experiment, holds=holds)


@pytest.mark.parametrize("holds", [True, False])
def test_speed_is_told_from_its_reverse(holds):
    rows = {}
    for side in (64, 128, 256):
        rate = side**-2.0 if holds else side**-4.0
        rows[speed.at_side(VIT, side)] = {"images_per_second": rate, "saved_mib": 1.0 if holds else 3.0}
        rows[speed.at_side(RESNET, side)] = {"images_per_second": rate * (1.2 if holds else 2), "saved_mib": 2.0}
    for count in (1, 8, 64):
        rows[f"{VIT}, batch {count}"] = {"images_per_second": count ** (0.5 if holds else -0.5)}
    for width in (192, 384):
        rows[f"{VIT}, width {width}"] = {"macs_per_second": width ** (0.5 if holds else -0.5)}
    assert verdicts(speed.EXPERIMENT, rows) == expected(speed.EXPERIMENT, holds=holds)


@pytest.mark.parametrize("name", OURS)
def test_without_cells_nothing_is_judged(name):
    experiment = EXPERIMENTS[name]
    empty = ArmTable({one.arm: {} for one in experiment.placed("laptop", 3)})
    effects = [list(claim.effects(empty)) for claim in experiment.claims]
    assert not any(effect.numbers for each in effects for effect in each)


# Results -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ANSWERED)
def test_committed_cells_answer_every_claim_at_laptop_scale(name):
    (outcome,) = papers.verify(name, scale="laptop")
    assert len(outcome.records) == outcome.cells
    for claim, found in outcome.claims:
        assert found.verdict != NOT_RUN, claim.name
        assert all(len(effect.values) >= 3 for effect in found.effects)
