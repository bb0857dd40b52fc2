"""`vitreous.plan`: laws of its arithmetic, agreement with what was measured and published, and what it refuses."""

import json

import pytest
import torch
from shared_files import ROOT

import vitreous
from vitreous.cli import main
from vitreous.errors import ConfigError
from vitreous.models.catalog import parse
from vitreous.models.cost import training_flops
from vitreous.training.plan import devices, forecast, trial
from vitreous.training.plan.forecast import plan
from vitreous.training.recipe import Recipe
from vitreous.training.run.step import UNCOMPILED_SPEED, Step, kind_of_compiling
from vitreous.training.run.utilisation import share_of_peak

TINY = "Ti/16 depth=2 width=32 heads=2 mlp=64"
BASES = {"counted", "measured", "modelled", "published", "data sheet"}


@pytest.fixture
def command(capsys):
    """Runs `vitreous plan` in this process: its code, and what it prints."""

    def run(*words):
        with pytest.raises(SystemExit) as end:
            main(["plan", *words])
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return run


# ---------------------------------------------------------------------------------------------------------- its sources


def test_the_shares_of_the_peak_are_those_of_the_benchmarks():
    """6 x multiply-adds x images/s over the data sheet's peak, from the files that the table names."""
    results = ROOT / "benchmarks" / "results"
    seen = json.loads((results / "train_speed.json").read_text())
    speeds = {(case["model"], case["batch"]): case["our_images_per_second"] for case in seen["cases"]}
    bit = json.loads((results / "cifar10_bit.json").read_text())
    speeds["BiT-R50x1", 512] = bit["runs"][0]["images_per_second"]
    for row in devices._table()["shares"]:
        changes = {"image_size": row["pixels"], "classes": 10 if row["pixels"] == 32 else 1000}
        if row["model"].startswith("BiT"):
            changes["root"] = "small"
        flops = training_flops(parse(row["model"]).change(**changes)) * speeds[row["model"], row["batch"]]
        assert row["share"] == pytest.approx(share_of_peak(flops, "NVIDIA H200"), abs=6e-4)
        assert (ROOT / row["source"]).exists()


def test_every_device_has_a_peak_and_links():
    for name in devices.names():
        if name not in devices.ON_THIS_MACHINE:
            for precision in ("float32", "bfloat16"):
                kind = devices.find(name, precision)
                assert kind.flops > 1e12
                assert kind.link >= kind.network > 0
                assert kind.memory > 2**30


def test_a_measured_speed_is_told_as_measured_and_a_carried_one_as_modelled():
    """B/16 at batch 512 on one H200 is a row of the benchmark."""
    row = plan("B/16", device="h200", batch=512)
    assert row.basis["step"] == row.basis["speed"] == "measured"
    assert row.batch / row.step.total == pytest.approx(3966, rel=0.01)
    for other in (
        plan("B/16", device="h100", batch=512),
        plan("B/16", device="h200", batch=256),
        plan("S/14", device="h200"),
    ):
        assert other.basis["step"] == other.basis["speed"] == "modelled"


@pytest.mark.parametrize(("model", "exaflop"), [("B/16", 224), ("L/16", 1567), ("H/14", 4262)])
def test_the_papers_own_runs_take_the_arithmetic_that_it_prints(model, exaflop):
    """P1's table 6, on 303 million images of JFT."""
    said = plan(model, like="p1-jft", devices=64, device="h100")
    assert said.published[1] == exaflop
    assert training_flops(said.config) * said.batch * said.steps / 1e18 == pytest.approx(exaflop, rel=0.005)
    assert said.images == 303_000_000
    assert said.batch == 4096
    assert f"{exaflop:,} exaFLOP" in str(said)


# ----------------------------------------------------------------------------------------------------------------- laws


def test_twice_the_images_take_twice_the_time():
    one, two = (plan("S/16", images=n, epochs=4, batch=512, devices=4, device="a100") for n in (2**20, 2**21))
    assert two.seconds == pytest.approx(2 * one.seconds)
    assert two.device_hours == pytest.approx(one.seconds * 2 * 4 / 3600)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_more_devices_never_take_longer_and_never_cost_less(parallel):
    """Computing is shared out; the exchange is not."""
    said = [plan("L/16", images=10**6, batch=4096, devices=n, device="h100", parallel=parallel) for n in (2, 8, 64)]
    assert said[0].seconds > said[1].seconds > said[2].seconds
    assert said[0].device_hours <= said[1].device_hours <= said[2].device_hours


def test_a_slow_link_leaves_an_exchange_in_the_open():
    """One node of cards without a fast link against one with it, at a batch too small to hide it."""
    fast, slow = (plan("L/16", batch=64, devices=8, device=name) for name in ("h100", "h100-pcie"))
    assert fast.step.exposed < 0.1 * fast.step.total
    assert slow.step.exposed > 0.5 * slow.step.total
    assert slow.step.exchange > 10 * fast.step.exchange


def test_what_fits_is_shared_as_copies_and_what_does_not_in_shards():
    assert plan("B/16", batch=512, devices=8, device="h100").parallel == "ddp"
    assert plan("B/16", batch=512, device="h100").parallel == "alone"
    said = plan("G/14", batch=512, devices=8, device="l4")
    assert said.parallel == "fsdp"
    assert "a whole copy" in said.why
    assert plan("B/16", batch=512, devices=8, device="h100", parallel="fsdp").parallel == "fsdp"


def test_the_largest_batch_fits_and_a_twentieth_more_does_not():
    said = plan("L/16", batch=256, device="h100")
    assert said.largest < said.largest_checkpointed
    room = forecast.ROOM_SHARE * said.device.memory
    for count, fits in ((said.largest, True), (said.largest + said.largest // 20, False)):
        needs = forecast.memory(said.config, count, "adamw", "bfloat16", compiled="whole")
        assert (needs.total <= room) is fits


def test_recomputing_costs_a_third_and_parts_cost_nothing():
    """Eight operations for six. On one device a step in parts exchanges nothing."""
    plain, again = (plan("L/16", batch=256, device="h200", checkpointing=wanted) for wanted in (False, True))
    assert again.step.computing == pytest.approx(plain.step.computing * 4 / 3)
    assert again.memory.activations < plain.memory.activations / 4
    parts = plan("L/16", batch=4096, device="h200", checkpointing=False)
    assert parts.parts > 1
    assert parts.step.total == pytest.approx(16 * plain.step.total)


def test_a_config_a_model_and_a_checkpoint_are_planned_alike(tmp_path):
    model = vitreous.build(TINY, image_size=32, classes=3, seed=0)
    vitreous.save(model, tmp_path / "tiny.safetensors")
    said = [plan(given, batch=8, device="l4") for given in (model, model.config, str(tmp_path / "tiny.safetensors"))]
    assert said[0].memory == said[1].memory == said[2].memory
    assert said[0].parameters == sum(p.numel() for p in model.parameters())


# --------------------------------------------------------------------------------------------------------------- output


def test_it_is_read_at_once_on_a_narrow_terminal(command):
    """At most 15 lines of 80 columns; every line with a figure says how it was found."""
    code, said, _ = command("H/14", "--like", "p1-jft", "--devices", "64", "--device", "a100")
    lines = said.splitlines()
    assert code == 0
    assert len(lines) <= 15
    assert max(map(len, lines)) <= 80
    assert "2,500 TPUv3-core-days" in said
    told = [line for line in lines if line[:9].strip() not in ("", "in GiB", "left out", "next")]
    assert all(any(line.endswith(basis) for basis in BASES) for line in told)


def test_json_holds_every_figure_and_how_it_was_found(command):
    words = ["--images", "1281167", "--epochs", "90", "--batch", "4096", "--devices", "8", "--device", "h100"]
    said = json.loads(command("L/16", *words, "--json")[1])
    assert next(iter(said)) == "schema"
    assert said["schema"] == "vitreous.plan/1"
    assert set(said["basis"].values()) <= BASES
    assert said["steps"] == 90 * (1281167 // 4096)
    assert said["memory"]["total"] < said["device"]["memory"]
    assert {"parameters", "memory", "largest", "step", "seconds", "device_hours", "parallel", "why"} <= set(said)


def test_the_devices_are_listed(command):
    _, said, _ = command("B/16", "--device", "list")
    assert "h100" in said
    assert "NVIDIA L40S" in said
    assert command("B/16", "--device", "list", "--json")[0] == 0


def test_measuring_runs_our_own_step_and_stands_beside_the_model():
    said = plan(TINY, image_size=32, batch=8, device="cpu", measure=True)
    assert said.measured.steps == 20
    assert said.measured.images == 8
    assert said.measured.seconds > 0
    assert said.measured.memory is None, "torch counts no bytes of a CPU"
    assert said.to_json()["measured"]["modelled_seconds"] == said.modelled_seconds > 0
    assert "20 steps of 8 images" in str(said)
    assert "<table>" in said._repr_html_()


def test_memory_is_of_a_compiled_step_where_a_run_is_long_enough_to_compile():
    """A residual network keeps less than half then; 20 steps are not worth the wait."""
    short, long, unknown = (plan("BiT-R50x1", batch=256, device="h200", **words) for words in LENGTHS)
    assert long.memory == unknown.memory
    assert long.memory.activations < short.memory.activations / 2
    assert plan("Ti/16", batch=8, device="cpu", steps=10**6).memory == plan("Ti/16", batch=8, device="cpu").memory


LENGTHS = {"steps": 20}, {"steps": 10**6}, {}


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("model", ["BiT-R50x1", "R50+B/16", "B/16 stem=convolutions", "B/16"])
@pytest.mark.parametrize("seconds", [6, 45, 600])
def test_memory_is_of_what_fit_compiles(seconds, model, parallel):
    """Blocks alone in a run of 12 to 90 seconds, and in shards: not the stem before them, nor a network without any."""
    config, batch = parse(model), 64
    said = plan(
        model, batch=2 * batch, devices=2, device="h200", parallel=parallel, checkpointing=False,
        steps=round(seconds * UNCOMPILED_SPEED / training_flops(config) / batch),
    )  # fmt: skip
    has_blocks = not model.startswith("BiT")
    kind = kind_of_compiling(seconds, has_blocks=has_blocks, sharded=parallel == "fsdp")
    assert said.parts == 1
    assert said.memory == forecast.memory(config, batch, "adamw", "bfloat16", parallel=parallel, world=2, compiled=kind)


def test_timed_steps_are_a_training_by_the_recipe(monkeypatch):
    """Our own step, at the recipe's batch, in its parts; the head begins at zero and moves."""
    made = []
    monkeypatch.setattr(trial, "Step", lambda *args, **options: made.append(Step(*args, **options)) or made[-1])
    config = parse(TINY).change(image_size=32, classes=3)
    trial.measure(config, Recipe(batch=8, accumulation=2), torch.device("cpu"), steps=2)
    (step,) = made
    assert step.parts == 2
    assert step.read().images == 8 * (2 + trial.TRIAL_WARM_UP)
    assert step.network.head.weight.abs().sum() > 0


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["B/16", "--device", "h10"], "no device is called 'h10'; near: h100, h100-pcie"),
        (["B/16", "--device", "abacus"], "no device is called 'abacus'; there are: b200, h200, h100"),
        (["B/16", "--images", "0", "--device", "h100"], "images=0 is nothing to learn from; give 1 or more"),
        (["B/16", "--batch", "100", "--devices", "8", "--device", "h100"], "a batch of 100 has no 8 equal parts"),
        (
            ["G/14 depth=200", "--batch", "2", "--device", "l4"],
            "and no number of them that divides the batch is enough",
        ),
        (["G/14", "--batch", "64", "--device", "l4"], "has room for 20 GiB; in shards it fits --devices 2"),
        (["G/14", "--batch", "2", "--device", "h100", "--parallel", "dpp"], "parallel='dpp' is not one of auto, ddp"),
        (["B/16", "--devices", "0", "--device", "h100"], "devices=0 trains nothing"),
        (["B/16", "--images", "100", "--device", "h100"], "a batch of 512 is more than the 100 images"),
        (["B/16", "--epochs", "3", "--device", "h100"], "3 epochs are of how many images?"),
        (["B/16", "--epochs", "3", "--steps", "4", "--device", "h100"], "epochs and steps both say how long"),
        (["B/16", "--steps", "0", "--device", "h100"], "steps=0 is no length"),
        (["B/16", "--precision", "float8", "--device", "h100"], "precision='float8' is not one of auto"),
        (["B/16", "--precision", "bfloat16", "--device", "cpu"], "bfloat16 on cpu is slow or missing here"),
        (["B/17x"], "no model is called 'B/17x'"),
        (["B/16", "--like", "p1-jf", "--device", "h100"], "no recipe is called 'p1-jf'; near: p1-jft"),
        (["B/16", "--like", "linear-probe", "--device", "h100"], "takes no steps"),
    ],
)
def test_nonsense_is_refused_in_one_line(words, said, command):
    code, _, error = command(*words)
    assert code == 2
    assert error.startswith("vitreous: ")
    assert error.count("\n") == 1
    assert said in error


def test_copies_that_were_asked_for_and_do_not_fit_are_refused_with_a_way_out():
    with pytest.raises(ConfigError, match="leave --parallel and --checkpointing to the plan"):
        plan("G/14", batch=64, devices=8, device="l4", parallel="ddp")
