"""The experiments on transfer: matched arms, imported runs with their own numbers, effects that point the right way."""

import importlib.util
import json
import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from shared_files import ROOT

from vitreous.errors import ConfigError
from vitreous.evaluation.evaluate import evaluate
from vitreous.models.catalog import blueprint, build, parse
from vitreous.models.cost import macs
from vitreous.papers.claims import ledger, verify
from vitreous.papers.experiment import ArmTable, walk
from vitreous.papers.experiments import shots, transfer
from vitreous.papers.experiments.transfer_runs import (
    ALIKE,
    GPU_MODEL,
    POLICIES,
    TRANSFER,
    UNLIKE,
    checkpoint,
    from_scratch,
    tuned,
)
from vitreous.papers.outcome import PaperOutcome
from vitreous.papers.results import COMMITTED, Results, read
from vitreous.papers.verdict import judge
from vitreous.papers.worker import compute, new_bench
from vitreous.papers.works.overfitting import on_train
from vitreous.papers.works.resizing import Resized, answers_at_size, at_size
from vitreous.papers.works.train import train
from vitreous.training import recipes
from vitreous.training.recipe import Recipe
from vitreous.weights.load_model import load
from vitreous.weights.save_model import save

ROWS = {"T02", "T05", "T06", "T07", "T08", "T09", "T12", "T16", "C07", "C09", "C12", "Q12"}
STUDY = ROOT / "benchmarks" / "results" / "transfer_study.jsonl"
LINES = [json.loads(line) for line in STUDY.read_text("utf-8").splitlines()]
EVERY = [(one, scale) for one in transfer.TRANSFER_EXPERIMENTS for scale in one.scales]


# Grids ----------------------------------------------------------------------------------------------------------------


def test_every_row_of_the_family_has_a_claim_at_gpu_scale():
    claimed = {claim.row for one in transfer.TRANSFER_EXPERIMENTS for claim in one.claims if "gpu" in claim.scales}
    assert claimed == ROWS
    assert all("G" in ledger()[row].tags for row in ROWS)


@pytest.mark.parametrize(("experiment", "scale"), EVERY, ids=lambda one: getattr(one, "name", one))
def test_a_grid_builds_with_networks_that_exist(experiment, scale):
    placed = experiment.placed(scale)
    assert {one.seed for one in placed} == set(experiment.planned(scale))
    names = {one.cell.options["model"] for one in placed if one.cell.options.get("model")}
    for name in names:
        assert sum(p.numel() for p in blueprint(parse(name)).parameters()) > 0
    places = [(one.arm, one.seed, one.cell.work) for one in placed]
    assert len(places) == len(set(places))  # no cell hides another


@pytest.mark.parametrize("scale", TRANSFER)
def test_vit_and_resnet_are_matched_in_compute_before_and_after(scale):
    how = TRANSFER[scale]
    size = {} if scale != "gpu" else {"image_size": 64}
    vit, resnet = (macs(parse(name).change(**size)) for name in (how.model, how.resnet))
    steps, resnet_steps = (int(text.split()[0]) for text in (how.fine_tuning["length"], how.resnet_steps))
    assert resnet * how.resnet_lengths[-1] == pytest.approx(vit * how.lengths[-1], rel=0.1)
    assert resnet * resnet_steps == pytest.approx(vit * steps, rel=0.1)


def test_the_resnet_of_the_study_had_55_percent_and_is_not_judged():
    vit, resnet = (macs(parse(name).change(image_size=64)) for name in (GPU_MODEL, TRANSFER["gpu"].resnet))
    assert 70 * resnet / (100 * vit) == pytest.approx(0.55, abs=0.01)
    arms = {arm: {seed: {"accuracy": 0.5} for seed in range(3)} for arm in cost_arms("gpu")}
    unjudged = {arm: rows for arm, rows in arms.items() if arm.startswith(transfer.SHORT_RESNET)}
    assert unjudged
    changed = arms | {arm: {seed: {"accuracy": 0.1} for seed in rows} for arm, rows in unjudged.items()}
    before, after = (list(transfer.vit_over_resnet(ArmTable(rows))) for rows in (arms, changed))
    assert before == after


def cost_arms(scale):
    return dict.fromkeys(one.arm for one in transfer.COST.placed(scale))


@pytest.mark.parametrize("scale", TRANSFER)
def test_scratch_and_transfer_share_network_images_and_steps(scale):
    how = TRANSFER[scale]
    begun = tuned(how, how.amounts, 1, images=how.numbers[0], steps=how.gain_steps)
    alone = from_scratch(how, how.amounts, 1, how.numbers[0], how.gain_steps)
    for name in ("data", "images", "classes", "draw", "seed"):
        assert begun.options.get(name) == alone.options.get(name)
    assert begun.options["fields"]["length"] == alone.options["recipe"]["length"]
    assert begun.options["fields"]["batch"] == alone.options["recipe"]["batch"]
    up, scratch = (parse(name) for name in (how.model, how.scratch_model))
    assert scratch.encoder.width == up.encoder.width
    assert scratch.encoder.depth == up.encoder.depth


def test_scratch_at_gpu_scale_is_the_recipe_that_the_study_used():
    """Fine-tune with every layer at Muon's rates, as transfer_study.py asked for it."""
    asked = {"optimizer": "muon", "muon_lr": 0.02, "peak_lr": 1e-3, "weight_decay": 0.1, "policy": "full"}
    asked |= {"length": "400 steps", "batch": 64, "dev": 0.0}
    theirs = recipes.get("fine-tune", images=1000, classes=10, image_size=(32, 32), model=None).change(**asked)
    cell = from_scratch(TRANSFER["gpu"], TRANSFER["gpu"].amounts, 0, 1000, "400 steps")
    ours = Recipe(name="paper").change(**cell.options["recipe"])
    about = {"name": theirs.name, "source": theirs.source, "evaluate_every": theirs.evaluate_every}
    assert replace(ours, **about) == theirs
    assert parse(cell.options["model"]).encoder.drop_path == 0.1  # what the checkpoint's network has


# Imported runs --------------------------------------------------------------------------------------------------------


def importer():
    spec = importlib.util.spec_from_file_location("importer", ROOT / "benchmarks" / "import_transfer_runs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_import_is_what_the_script_makes_of_the_files(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["import", "--out", str(tmp_path)])
    importer().main()
    assert "182 cells" in capsys.readouterr().out
    assert (tmp_path / "transfer-study.json").read_bytes() == (COMMITTED / "transfer-study.json").read_bytes()


def study(experiment, **cell):
    """Accuracies by seed, read from the lines without the code that imports them."""
    rows = [line for line in LINES if line["experiment"] == experiment]
    found = {one["cell"]["seed"]: one["accuracy"] for one in rows if cell.items() <= one["cell"].items()}
    assert len(found) == 3
    return found


def test_imported_cells_have_the_numbers_of_the_study():
    placed = {
        (one.arm, one.seed): one.cell for one in transfer.AUGMENTATION.placed("gpu", 3) if one.cell.work == "train"
    }
    results = Results()
    for case, data in ((ALIKE, "imagenette"), (UNLIKE, "fashion")):
        for policy in POLICIES:
            for is_augmented in (True, False):
                name = "last-3" if policy == "upper" else policy
                wanted = study("policies", data=data, train=300, policy=name, augmented=is_augmented)
                arm = transfer.layers_arm(case, transfer.LITTLE, policy, is_augmented=is_augmented)
                for seed, accuracy in wanted.items():
                    found = results.get(placed[arm, seed])
                    assert found.readings["accuracy"] == accuracy
                    assert found.origin == "benchmarks/results/transfer_study.jsonl"
                    assert "H200" in found.environment["hardware"]["devices"][0]


def outcome(experiment, scale="gpu"):
    (found,) = verify(experiment.name, scale=scale)
    return found


def effects(found, name):
    return next(judged for claim, judged in found.claims if claim.name == name)


def test_verdicts_at_gpu_scale_come_from_the_study():
    gain = outcome(transfer.GAIN)
    begun, alone = (
        [study("amounts", train=n, begun=how) for n in (100, 300, 1000, 3000)] for how in ("weights", "scratch")
    )
    gained = [[one[seed] - other[seed] for one, other in zip(begun, alone, strict=True)] for seed in range(3)]
    falls = [-np.polyfit([2, math.log10(300), 3, math.log10(3000)], row, 1)[0] for row in gained]
    judged = effects(gain, "T02b")
    assert judged.effects[0].numbers == pytest.approx(falls)
    assert max(judged.effects[0].numbers) < 0
    assert effects(gain, "T02a").verdict == "SUPPORTED"
    head, every = (study("policies", data="fashion", train=None, policy=name) for name in ("head", "all"))
    judged = effects(outcome(transfer.LAYERS), "T05")
    assert judged.effects[0].numbers == pytest.approx([every[seed] - head[seed] for seed in range(3)])


def test_what_the_study_did_not_measure_is_not_run():
    assert effects(outcome(transfer.LAYERS), "T08b").verdict == "NOT RUN"
    assert effects(outcome(transfer.COST), "C09b").verdict == "NOT RUN"
    assert effects(outcome(transfer.TASKS), "T16").verdict == "NOT RUN"
    assert "vitreous paper run transfer-cost --scale gpu" in " ".join(outcome(transfer.COST).notes)


@pytest.mark.parametrize("file", sorted(COMMITTED.glob("transfer-*.json")), ids=lambda file: file.stem)
def test_committed_cells_are_cells_of_a_grid(file):
    every = [*EVERY, *((shots.EXPERIMENT, scale) for scale in shots.EXPERIMENT.scales)]
    grids = [experiment.grid(scale, range(experiment.planned(scale).stop)) for experiment, scale in every]  # and pilots
    keys = {one.key for grid in grids for one in walk(placed.cell for placed in grid)}
    assert {one.key for one in read(file)} <= keys


# Effects --------------------------------------------------------------------------------------------------------------


def noisy(value, seed):
    return value + 0.002 * (seed - 1)


def planted(experiment, scale, of):
    """of(arm): its readings; every seed a little off."""
    arms = dict.fromkeys(one.arm for one in experiment.placed(scale))
    return ArmTable(
        {
            arm: {
                seed: {name: noisy(v, seed * i) for i, (name, v) in enumerate(of(arm).items(), 1)} for seed in range(8)
            }
            for arm in arms
        }
    )


def by_policy(sign):
    good = {"much unlike: all": 1, "much alike: upper": 1, "little unlike: upper": 1, "little alike: head": 1}

    def readings(arm):
        accuracy = 0.6 + sign * 0.05 * good.get(arm, 0)
        overfit = 0.2 if arm == "little alike: all" else 0.1
        return {"accuracy": accuracy, "train_accuracy": 0.6 + sign * overfit + (accuracy - 0.6)}

    return readings


def by_augmentation(sign):
    def readings(arm):
        worse = sign * 0.05 * arm.endswith(", plain")
        return {"accuracy": 0.6 - worse, "train_accuracy": 0.7 + worse}

    return readings


def by_images(sign):
    def readings(arm):
        few = 4 - math.log10(float(arm.split(", ", 1)[1].removesuffix(" images").replace(",", "")))
        return {"accuracy": 0.5 + sign * 0.1 * few * arm.startswith("transferred")}

    return readings


def better(word, amount=0.05):
    return lambda sign: (
        lambda arm: {
            "accuracy": 0.6 + sign * amount * (word in arm),
            "accuracy_before": 0.6 + sign * amount * (word in arm),
        }
    )


def by_cost(sign):
    """Checkpoints of 10, 20, 30 … percent; the ResNet's lies between two of them."""

    def readings(arm):
        name, what = arm.split(": ")
        order = [each for each in ("10 steps", "30 steps", "100 steps", "200 steps") if each in name]
        level = {"10 steps": 0.2, "30 steps": 0.4, "100 steps": 0.6, "200 steps": 0.8}[order[0]] if order else 0.5
        level = 0.95 if "185" in name else level  # a ResNet that no ViT equals is left out
        if what == "checkpoint":
            return {"accuracy": level}
        return {"accuracy": 0.3 + level + (sign * 0.05 if order else 0)}

    return readings


PLANTED = [
    (transfer.LAYERS, "T05", by_policy),
    (transfer.LAYERS, "T06", by_policy),
    (transfer.LAYERS, "T07", by_policy),
    (transfer.LAYERS, "T08a", by_policy),
    (transfer.LAYERS, "T08b", by_policy),
    (transfer.AUGMENTATION, "T09a", by_augmentation),
    (transfer.AUGMENTATION, "T09b", by_augmentation),
    (transfer.ONE_RULE, "Q12", better("layer-decay")),
    (transfer.GAIN, "T02a", by_images),
    (transfer.GAIN, "T02b", by_images),
    (transfer.PRETRAINING, "C07", better("from all")),
    (transfer.TASKS, "T16", better("transferred")),
    (transfer.RESOLUTION, "T12a", better("2-D")),
    (transfer.RESOLUTION, "T12b", better("2-D")),
    (transfer.COST, "C09b", by_cost),
]


@pytest.mark.parametrize(("experiment", "name", "plant"), PLANTED, ids=[name for _, name, _ in PLANTED])
def test_a_planted_effect_is_found_and_its_reverse_is_too(experiment, name, plant):
    claim = next(one for one in experiment.claims if one.name == name)
    for sign, verdict in ((1, claim.rule.holds), (-1, claim.rule.fails)):
        table = planted(experiment, "laptop", plant(sign))
        (judged,) = judge([(claim.rule, list(claim.effects(table)))])
        assert judged.verdict == verdict


def test_cifar_claims_at_gpu_scale_point_the_right_way():
    for sign, verdict in ((1, "SUPPORTED"), (-1, "CONTRADICTED")):
        table = planted(transfer.CIFAR10, "gpu", better("transferred")(sign))
        assert [judge([(c.rule, list(c.effects(table)))])[0].verdict for c in transfer.CIFAR10.claims] == [verdict] * 2


def test_a_resnet_that_no_vit_equals_decides_nothing():
    table = planted(transfer.COST, "laptop", by_cost(1))
    above = {
        arm: {
            s: {"accuracy": 0.9} if arm.startswith("ResNet, ") and arm.endswith("checkpoint") else row
            for s, row in rows.items()
        }
        for arm, rows in table.rows.items()
    }
    (effect,) = transfer.vit_over_resnet(ArmTable(above))
    assert effect.numbers == []


def test_a_gain_over_three_tasks_waits_for_all_of_them():
    table = planted(transfer.TASKS, "laptop", better("transferred")(1))
    some = {arm: rows for arm, rows in table.rows.items() if arm != "from scratch: Coat or Shirt"}
    (effect,) = transfer.mean_gain_over_tasks(ArmTable(some))
    assert effect.numbers == []
    (effect,) = transfer.mean_gain_over_tasks(table)
    assert statistics.mean(effect.numbers) == pytest.approx(0.05, abs=0.01)


# Works ----------------------------------------------------------------------------------------------------------------

TINY = "S/7 width=32 depth=2 heads=2 mlp=64 image_size=28 channels=1"
SHORT = {"length": "3 steps", "batch": 16, "peak_lr": 1e-3, "dev": 0.0}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return new_bench({"device": "cpu", "workers": 1, "models": str(tmp_path_factory.mktemp("models"))})


@pytest.fixture(scope="module")
def trained(bench):
    """A training on two classes, with its readings."""
    cell = train(TINY, "fashion", 3, images=40, classes=("Bag", "Sandal"), recipe=SHORT)
    answer = compute(cell, bench)
    return cell, answer["readings"]


def test_a_training_on_some_classes_knows_only_those(bench, trained):
    cell, readings = trained
    assert bench.model(cell).labels == ("Sandal", "Bag")
    assert readings["parameters"] == sum(p.numel() for p in build(TINY, classes=2).parameters())


def test_on_train_tells_what_a_training_tells_of_itself(bench, trained):
    cell, readings = trained
    assert compute(on_train(cell), bench)["readings"] == {"train_accuracy": pytest.approx(readings["train_accuracy"])}


def test_a_draw_of_its_own_chooses_the_same_images_for_every_seed(bench):
    def drawn(seed, **options):
        part = bench.sets.part({"data": "fashion", "images": 30, **options}, seed).split("train")
        return set(part.ids.tolist())

    assert drawn(0, draw=0) == drawn(1, draw=0) == drawn(0)
    assert drawn(0) != drawn(1)


@pytest.fixture(scope="module")
def positions(tmp_path_factory):
    """A network whose table of positions is random, as a file."""
    model = build(TINY, classes=2, seed=1)
    table = model.embedding.positions.table
    with torch.no_grad():
        table.copy_(torch.randn(table.shape, generator=torch.Generator().manual_seed(2)))
    file = tmp_path_factory.mktemp("weights") / "model.safetensors"
    save(model, file)
    return file, table.detach().numpy()


def moved(file, how):
    return at_size(file, Resized(42, how)).embedding.positions.table.detach().numpy()


def test_positions_move_as_a_grid_as_a_line_or_anew(positions):
    file, before = positions
    patches = before[1:]
    corners = moved(file, "2-D")[1:].reshape(6, 6, -1)[::5, ::5]
    np.testing.assert_allclose(corners, patches.reshape(4, 4, -1)[::3, ::3], atol=1e-6)
    line = np.stack([np.interp(np.linspace(0, 15, 36), np.arange(16), column) for column in patches.T], 1)
    np.testing.assert_allclose(moved(file, "1-D")[1:], line, atol=1e-5)
    new = moved(file, "anew")[1:]
    assert new.std() == pytest.approx(0.02, rel=0.1)
    for how in ("2-D", "1-D", "anew"):
        np.testing.assert_array_equal(moved(file, how)[0], before[0])  # the class token keeps its own


def test_other_weights_stay_when_positions_move(positions):
    file, _ = positions
    old, new = (model.state_dict() for model in (load(file), at_size(file, Resized(42, "1-D"))))
    changed = {name for name in old if old[name].shape != new[name].shape or not torch.equal(old[name], new[name])}
    assert changed == {"embedding.positions.table"}


def test_unknown_moves_and_networks_without_positions_are_refused(positions, tmp_path):
    with pytest.raises(ConfigError, match="give 2-D, 1-D, anew"):
        at_size(positions[0], Resized(42, "3-D"))
    save(build(TRANSFER["laptop"].resnet, classes=2), tmp_path / "resnet.safetensors")
    with pytest.raises(ConfigError, match="no positions"):
        at_size(tmp_path / "resnet.safetensors", Resized(42, "1-D"))


def test_answers_before_any_step_are_those_of_the_resized_model(bench, trained):
    cell, _ = trained
    found = compute(answers_at_size(cell, Resized(42, "2-D")), bench)["readings"]["accuracy_before"]
    data = bench.sets.part({"data": "fashion", "classes": ["Bag", "Sandal"]}, 0)
    judged = evaluate(load(bench.model_file(cell), image_size=42), data, device="cpu", workers=1)
    assert found == pytest.approx(judged.right / judged.images)


def test_a_training_begins_at_another_size(bench, trained):
    cell, _ = trained
    larger = train(
        None, "fashion", 0, images=20, classes=("Coat", "Dress"), recipe=SHORT, weights=cell, resized=Resized(42, "1-D")
    )
    answer = compute(larger, bench)
    assert answer["status"] == "done", answer
    assert bench.model(larger).config.image_size == (42, 42)
    assert larger.key != replace_resized(larger, "2-D").key


def replace_resized(cell, how):
    return replace(cell, options={**cell.options, "resized": Resized(42, how).to_json()})


def test_checkpoints_of_a_laptop_belong_to_their_seed_and_those_of_a_gpu_do_not():
    for scale, is_shared in (("laptop", False), ("gpu", True)):
        how = TRANSFER[scale]
        first, second = (checkpoint(how, seed, how.amounts.learned) for seed in (0, 1))
        assert (first.key == second.key) == is_shared


def test_a_tenth_of_the_images_is_seen_ten_times_as_often():
    how = TRANSFER["gpu"]
    whole, tenth = checkpoint(how, 0, None), checkpoint(how, 0, None, images=how.tenth)
    assert whole.options["fields"]["length"] == "100 epochs"
    assert tenth.options["fields"]["length"] == "1000 epochs"
    assert tenth.options["images"] == 5000


def test_seeds_that_chose_their_number_do_not_decide():
    experiment = transfer.TASKS
    assert list(experiment.planned("laptop")) == list(range(3, 11))
    assert list(experiment.planned("gpu")) == list(range(5))  # no pilots there
    first = [one.cell for one in experiment.grid("laptop", range(3))]
    assert not {one.key for one in first} & {one.cell.key for one in experiment.placed("laptop")}
    judged = PaperOutcome(experiment, "laptop", experiment.placed("laptop"), Results())
    assert any("3 seeds before these" in note for note in judged.notes)
