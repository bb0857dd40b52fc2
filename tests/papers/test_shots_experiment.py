"""Few shots of unseen classes: the grid, the work against a computation of its own, and effects of known direction."""

import math

import numpy as np
import pytest

from vitreous.evaluation.episodic import draw
from vitreous.evaluation.features import extract
from vitreous.models.catalog import blueprint, build, parse
from vitreous.papers.claims import verify
from vitreous.papers.experiment import ArmTable
from vitreous.papers.experiments import shots
from vitreous.papers.experiments.transfer_runs import TRANSFER, checkpoint
from vitreous.papers.verdict import judge
from vitreous.papers.worker import compute, new_bench
from vitreous.papers.works.episodes import COUNT, episodic, reading_name

TINY = "S/7 width=32 depth=2 heads=2 mlp=64 image_size=28 channels=1"
CLASSES = ("Coat", "Dress", "Bag")


@pytest.mark.parametrize("scale", shots.EXPERIMENT.scales)
def test_the_grid_has_untrained_and_trained_checkpoints_and_enough_episodes(scale):
    placed = shots.EXPERIMENT.placed(scale)
    readings = [one.cell for one in placed if one.cell.work == "episodes"]
    assert {cell.options["episodes"] for cell in readings} == {COUNT}
    assert COUNT >= 600
    arms = {one.arm for one in placed} - {shots.RELEASED}
    assert len(arms) == 1 + len(shots.SHOTS[scale].lengths)
    for name in {one.cell.options["model"] for one in placed if one.cell.options.get("model")} - {"deit-tiny"}:
        assert blueprint(parse(name)) is not None


@pytest.mark.parametrize("scale", ["laptop", "gpu"])
def test_classes_of_episodes_were_not_trained_on(scale):
    how = shots.SHOTS[scale]
    if how.unseen is not None:
        assert not set(how.unseen) & set(how.learned)
        assert max(how.ways) <= len(how.unseen)
    else:
        assert how.data != TRANSFER[scale].up  # pets have no class of tiny-imagenet100


def test_checkpoints_are_those_of_transfer():
    how, runs = shots.SHOTS["laptop"], TRANSFER["laptop"]
    ours = shots.shot_checkpoint(runs, 2, how.learned, how.lengths[-1])
    assert ours.key == checkpoint(runs, 2, how.learned).key
    gpu = TRANSFER["gpu"]
    assert shots.shot_checkpoint(gpu, 0, None, 100).key == checkpoint(gpu, 0, None).key


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return new_bench({"device": "cpu", "workers": 1, "models": str(tmp_path_factory.mktemp("models"))})


def test_episodes_are_nearest_class_means_by_cosine(bench):
    cell = episodic(TINY, "fashion", ways=(2, 3), shots=(1, 4), classes=CLASSES, seed=5)
    found = compute(cell, bench)["readings"]
    data = bench.sets.part({"data": "fashion", "classes": list(CLASSES)}, 0).split("test")
    features = extract(build(TINY, seed=5).eval(), data, cache=False, device="cpu", workers=1)
    x = features.only.astype(np.float64)
    for ways, count in ((2, 1), (3, 4)):
        rows = draw(features.labels, ways=ways, shots=count, queries=15, count=COUNT)
        right = []
        for episode in rows:
            means = np.stack([x[kind[:count]].mean(0) for kind in episode])
            for k, kind in enumerate(episode):
                for row in kind[count:]:
                    cosines = means @ x[row] / (np.linalg.norm(means, axis=1) * np.linalg.norm(x[row]))
                    right.append(cosines.argmax() == k)
        assert found[reading_name(ways, count)] == pytest.approx(np.mean(right), abs=1e-3)


def test_the_likeness_gap_is_that_of_all_pairs(bench):
    cell = episodic(TINY, "fashion", ways=(2,), shots=(1,), classes=CLASSES)
    found = compute(cell, bench)["readings"]
    data = bench.sets.part({"data": "fashion", "classes": list(CLASSES)}, 0).split("test")
    features = extract(build(TINY, seed=0).eval(), data, cache=False, device="cpu", workers=1)
    unit = features.only / np.linalg.norm(features.only, axis=1, keepdims=True)
    cosines = unit.astype(np.float64) @ unit.T
    same = features.labels[:, None] == features.labels[None]
    within = cosines[same & ~np.eye(len(unit), dtype=bool)].mean()
    assert found["within"] == pytest.approx(within, abs=1e-5)
    assert found["likeness_gap"] == pytest.approx(within - cosines[~same].mean(), abs=1e-5)


def table(sign, *, likeness=1):
    """Accuracy falls with ways and rises with shots; better checkpoints have likelier classes."""
    rows = {}
    for level, arm in enumerate(["untrained", "10 steps", "100 steps", "200 steps"]):
        rows[arm] = {}
        for seed in range(8):
            row = {"likeness_gap": 0.1 * likeness * level + 0.001 * seed}
            for ways in (2, 3, 4):
                for count in (1, 5, 20):
                    lift = sign * (0.04 * math.log2(count) - 0.3 * math.log2(ways / 2))
                    row[reading_name(ways, count)] = 0.6 + 0.02 * level + lift + 0.003 * (seed - 1) * ways
            rows[arm][seed] = row
    return ArmTable(rows)


@pytest.mark.parametrize("name", ["F04a", "F04b", "F05"])
def test_a_planted_trend_is_found_and_its_reverse_is_too(name):
    claim = next(one for one in shots.EXPERIMENT.claims if one.name == name)
    for sign, verdict in ((1, "SUPPORTED"), (-1, "CONTRADICTED")):
        (judged,) = judge([(claim.rule, list(claim.effects(table(sign))))])
        assert judged.verdict == verdict


def test_guessing_falls_with_the_classes_and_not_when_chance_is_taken_off():
    rows = {seed: {reading_name(k, n): 1 / k for k in (2, 3, 4) for n in (1, 5, 20)} for seed in range(3)}
    guessing = ArmTable({"untrained": rows})
    (raw,), (corrected,) = (of(guessing) for of in (shots.falls_with_ways, shots.corrected_falls_with_ways))
    assert min(raw.numbers) > 0.1
    assert corrected.numbers == pytest.approx([0.0] * 3, abs=1e-9)


def test_likeness_that_goes_with_accuracy_is_found_and_its_reverse_is_too():
    claim = next(one for one in shots.EXPERIMENT.claims if one.row == "F07")
    for likeness, correlation in ((1, 1.0), (-1, -1.0)):
        (effect,) = claim.effects(table(1, likeness=likeness))
        assert effect.numbers == pytest.approx([correlation] * 8)


def test_a_released_model_is_shown_and_not_judged():
    rows = dict(table(1).rows)
    rows[shots.RELEASED] = {0: {reading_name(ways, count): 0.5 for ways in (2, 3, 4) for count in (1, 5, 20)}}
    for claim in shots.EXPERIMENT.claims:
        assert list(claim.effects(ArmTable(rows))) == list(claim.effects(table(1)))


def test_the_committed_cells_answer_on_a_laptop():
    (found,) = verify("shots", scale="laptop")
    assert len(found.records) == found.cells
    assert {claim.name: judged.verdict for claim, judged in found.claims} == {
        "F04a": "SUPPORTED",
        "F04b": "SUPPORTED",
        "F05": "SUPPORTED",
        "F07": "SUPPORTED",
    }
