"""What was asked for and cannot be, found by an audit: one line with the true reason, before anything is written."""

import json
import re

import pytest
from commands import run_all
from live_bars import drawn, step
from picture_files import class_folders
from small_runs import CPU, MODEL, PLAIN, SIDE, picture_folder
from tiny_models import line_of

import vitreous
from vitreous.errors import ConfigError, ModelNameError, VitreousError
from vitreous.training.plan import plan as plans
from vitreous.training.recipe import Recipe
from vitreous.training.run.step import precision_on

WHERE = ["--device", "cpu", "--workers", "0", "--no-check"]
SMALL = [*WHERE, "--model", MODEL, "--set", f"image_size={SIDE}"]
STEPS = [*SMALL, "--steps", "2", "--folds", "0"]
GIVEN = [*WHERE, "--steps", "1", "--folds", "0", "--set", "image_size=16"]
SEED = "99999999999999999999"

REFUSED = {  # the words after the folder, and what the line has
    "no weights": ([*GIVEN, "--weights", "Ti/16 depth=1"], ["network without weights", "--model 'Ti/16 depth=1'"]),
    "bfloat16": ([*STEPS, "--set", "precision=bfloat16"], ["bfloat16 on cpu", "precision=float32"]),
    "betas above": ([*STEPS, "--set", "betas=2,3"], ["betas=2.0,3.0", "below 1"]),
    "betas nan": ([*STEPS, "--set", "betas=nan,0.9"], ["betas=nan,0.9", "below 1"]),
    "one beta": ([*STEPS, "--set", "betas=0.9"], ["betas='0.9'", "2 numbers with a comma between"]),
    "eps": ([*STEPS, "--set", "eps=-1"], ["eps=-1", "must be 0 or more"]),
    "seed": ([*STEPS, "--set", f"seed={SEED}"], [f"seed={SEED}", "digits"]),
    "mps": ([*STEPS, "--device", "mps"], ["device=mps", "no Apple GPU"]),
    "batch": ([*STEPS, "--set", "batch=1"], ["batch=1", "two images or more"]),
    "dev": ([*STEPS, "--set", "dev=0.99"], ["dev=0.99 leaves", "--set dev=0.1"]),
    "policy twice": ([*GIVEN, "--policy", "head", "--set", "policy=all"], ["policy is given twice", "--policy"]),
    "model twice": ([*STEPS, "--set", "model=S/16"], ["model is given twice", "--model"]),
    "seed twice": ([*STEPS, "--seed", "1", "--set", "seed=2"], ["seed is given twice", "--seed", "seed=2"]),
    "length twice": ([*STEPS, "--set", "length=3 epochs"], ["length is given twice", "--steps", "length=3 epochs"]),
    "then twice": (
        [*STEPS, "--then", "x", "--policy", "head", "--then-set", "policy=all"],
        ["policy is given twice", "--then-set policy=all"],
    ),
    "then": ([*STEPS, "--then", "x", "--then-set", "peak_lr"], ["--then-set 'peak_lr' has no value"]),
}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """All calls in one process; without a GPU of Apple's, wherever the tests run."""
    root = tmp_path_factory.mktemp("audit")
    shapes = picture_folder(root / "shapes", 60)
    class_folders(root / "pairs", {"cat": 2, "dog": 2})
    class_folders(root / "single", {"cat": 2, "dog": 1}, start=50)
    calls = {name: ["fit", shapes, *words, "--out", root / "runs" / name] for name, (words, _) in REFUSED.items()}
    for name in ("pairs", "single"):
        calls[name] = ["fit", root / name, *SMALL, "--steps", "1", "--out", root / "runs" / name]
    calls["pairs again"] = [*calls["pairs"][:-1], root / "again", "--folds", "4"]
    before = f"import torch; torch.backends.mps.is_available = lambda: False; import os; os.chdir({str(root)!r})"
    found = dict(zip(calls, run_all(calls.values(), before=before), strict=True))
    return found | {"written": sorted(path.name for path in (root / "runs").glob("*"))}


def refused(done, *words):
    assert done.code == 2, (done.code, done.stderr)
    line = done.stderr.splitlines()[-1]
    assert line.startswith("vitreous: "), done.stderr
    assert "our mistake" not in done.stderr
    for word in words:
        assert word in line, f"{word!r} is not in: {line}"
    return line


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_one_line_with_its_reason(done, name):
    refused(done[name], *REFUSED[name][1])
    assert name not in done["written"]


def test_too_few_pictures_for_the_folds_are_told_what_to_do(done):
    refused(done["pairs"], "4 images", "too few for 5 folds", "--folds 4", "add images")
    assert done["pairs again"].code == 0, "the folds that were named do not work"
    assert "--folds" not in refused(done["single"], "3 images", "too few for 5 folds", "5 or more to each class")


@pytest.mark.parametrize("recipe", ["auto", "fine-tune"])
def test_a_network_without_weights_is_no_beginning(tmp_path, recipe):
    data = picture_folder(tmp_path / "shapes", 24)
    with pytest.raises(ConfigError) as caught:
        vitreous.fit(data, weights=MODEL, recipe=recipe, out=tmp_path / "run", device="cpu", check=False)
    line_of(caught.value, "without weights", MODEL)
    with pytest.raises(ModelNameError):
        vitreous.fit(data, weights="S16", recipe=recipe, out=tmp_path / "run", device="cpu", check=False)
    assert not (tmp_path / "run").exists()


def test_bfloat16_is_refused_where_it_may_be_missing():
    with pytest.raises(ConfigError) as caught:
        precision_on(CPU, "bfloat16")
    line_of(caught.value, "bfloat16 on cpu", "float32 or auto")
    assert precision_on(CPU, "auto") == precision_on(CPU, "float32") == "float32"


def test_values_at_the_edge_stay_allowed():
    edge = Recipe().change(betas="0,0.5", eps="0", seed=str(2**64 - 1))
    assert (edge.betas, edge.eps, edge.seed) == ((0.0, 0.5), 0.0, 2**64 - 1)


def test_labels_that_nobody_looks_at_are_not_called_wrong(tmp_path):
    told = []
    masked = PLAIN.change(
        task="masked-patches", model=f"{MODEL} mask_token=true", image_size=SIDE, length="1 steps", dev=0.0
    )
    vitreous.fit(
        picture_folder(tmp_path / "shapes", 24),
        recipe=masked,
        out=tmp_path / "run",
        device="cpu",
        workers=0,
        tell=told.append,
    )
    lines = [event["text"] for event in told if event["kind"] in ("say", "fact")]
    assert any(line.startswith("check: ") for line in lines)
    assert not [line for line in lines if "outside the classes" in line or line.startswith("caution")]


# ---------------------------------------------------------------------------------------------------------- other words


def test_fields_by_their_usual_names_are_keywords_of_fit(tmp_path):
    data = picture_folder(tmp_path / "shapes", 24)
    asked = {"epochs": 2, "batch_size": 8, "lr": 0.002, "image_size": SIDE}
    run = vitreous.fit(data, model=MODEL, out=tmp_path / "run", folds=0, device="cpu", workers=0, check=False, **asked)
    recipe = json.loads((tmp_path / "run" / "config.json").read_text())["recipe"]
    assert (recipe["length"], recipe["batch"], recipe["peak_lr"]) == ("2 epochs", 8, 0.002)
    assert run.load().config.image_size == (SIDE, SIDE)


def test_a_wrong_value_or_an_unknown_name_is_one_line():
    for options, words in (
        ({"epochs": -1}, "length='-1 epochs' is not a length"),
        ({"lr": "fast"}, "peak_lr='fast' does not fit"),
        ({"epochs": 1, "steps": 2}, "length is given twice, by epochs and by steps"),
        ({"colour": 3}, "a recipe has no field 'colour'"),
    ):
        with pytest.raises(ConfigError) as error:
            vitreous.fit("fashion", **options)
        assert words in line_of(error.value)


TYPOS = {
    "model": ({"model": "S16"}, "no model is called 'S16'; near: S/16"),
    "change": ({"model": "S/16 widht=3"}, "widht"),
    "weights": ({"weights": "nowhere.safetensors"}, "nowhere.safetensors is not there"),
    "no weights": ({"weights": "Ti/16"}, "Ti/16 is a network without weights"),
    "weight word": ({"weights": "startr"}, "no weights are called 'startr'; did you mean starter?"),
    "last": ({"weights": "last"}, "there is no finished run under runs"),
    "recipe": ({"recipe": "smal-data"}, "no recipe is called 'smal-data'; near: small-data"),
    "then recipe": (
        {"then": "fashion", "then_recipe": "fine-tnue"},
        "no recipe is called 'fine-tnue'; near: fine-tune",
    ),
}


@pytest.mark.parametrize("name", TYPOS)
def test_typos_are_told_before_an_image_is_read(name, tmp_path, monkeypatch):
    def never(*given, **options):
        raise AssertionError("images were opened")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plans.open_data, "open", never)
    options, words = TYPOS[name]
    with pytest.raises(VitreousError) as error:
        vitreous.fit("photos", **options)
    assert words in line_of(error.value)
    assert not list(tmp_path.iterdir()), "nothing is left behind"
    with pytest.raises(AssertionError, match="images were opened"):
        vitreous.fit("photos", model="S/16", recipe="small-data")


# --------------------------------------------------------------------------------------------------------- the live bar


ALL = "epoch 3.2, loss 1.234, train 50 % right, lr 1.0e-03, 1,234 images/s, 3.0 GiB"


@pytest.mark.parametrize(
    ("width", "last"), [(30, "left"), (60, "epoch 3.2"), (80, "50 % right"), (100, "loss 1.234"), (200, "3.0 GiB")]
)
def test_the_bar_shows_share_time_and_step_first_and_nothing_by_halves(width, last):
    (line,) = drawn(width, step(6_000))
    assert len(line) <= width
    said = re.sub(r"^[━╸╺ ]*", "", line)
    assert (" 50 %, 83 s left, fit step 6,000/12,000, " + ALL).strip().startswith(said)
    assert said.endswith(last)


def test_the_bar_of_a_check_shows_how_many(monkeypatch):
    clock = iter([100.0, 110.0])
    monkeypatch.setattr("vitreous.cli.training_display.time.monotonic", lambda: next(clock, 110.0))
    first, second = ({"kind": "checking", "done": done, "total": 40} for done in (10, 20))
    assert drawn(60, first) == [" 25 %, checking 10/40"]
    clock = iter([100.0, 110.0])
    assert drawn(60, first, second) == [" 50 %, 10 s left, checking 20/40"]


def test_a_stage_that_ends_early_leaves_no_bar():
    assert drawn(80, step(6_000), {"kind": "patience", "stage": "fit", "step": 6_000, "looks": 3}) == []
    assert drawn(80, step(6_000), {"kind": "trial", "stage": "fit", "rate": 1.0, "failed": True}) == []
    (line,) = drawn(80, step(6_000, "fold 1"), step(600, "fold 2"))
    assert "fold 2 step 600/12,000" in line
