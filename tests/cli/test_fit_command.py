"""vitreous fit, as a command: what it prints, and one clear line for everything that cannot be."""

import json
import re
import sys

import pytest
import torch
from commands import run, run_all
from picture_files import class_folders
from PIL import Image
from small_runs import MODEL, picture_folder
from tiny_models import awake

import vitreous
from vitreous.cli.fit import fields_as_set
from vitreous.training import recipes
from vitreous.training.run import folder as runs

FAST = ["--model", MODEL, "--device", "cpu", "--workers", "0", "--steps", "2", "--folds", "0"]
FAST += [word for change in ("image_size=16", "batch=8", "dev=0.2") for word in ("--set", change)]
GIVEN = ["--device", "cpu", "--workers", "0", "--no-check", "--weights"]
PROBE = ["--recipe", "linear-probe"]
WILD = [word for change in ("optimizer=sgd", "peak_lr=1e30", "clip=none") for word in ("--set", change)]


def line_of(done, *words):
    """The last line of a command that could not, the only one in our name."""
    assert done.code == 2, (done.code, done.stdout, done.stderr)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    line = done.stderr.splitlines()[-1]
    assert [other for other in done.stderr.splitlines() if other.startswith("vitreous: ")] == [line]
    assert "our mistake" not in line
    for word in words:
        assert str(word) in line, f"{word!r} is not in: {line}"
    return line


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Images good and bad, and things that are no weights."""
    root = tmp_path_factory.mktemp("place")
    picture_folder(root / "shapes", 60)
    (root / "empty").mkdir()
    (root / "texts" / "a").mkdir(parents=True)
    (root / "texts" / "a" / "note.txt").write_text("no picture")
    class_folders(root / "one", {"cat": 12})
    for i in range(12):
        file = root / "blank" / ("cat", "dog")[i % 2] / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20), (10 * i, 200, 90)).save(file)
    (root / "blank" / "cat" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    class_folders(root / "three", {"cat": 2, "dog": 1}, start=50)
    picture_folder(root / "torn", 40)
    for kind in ("disc", "cross"):
        (root / "torn" / kind / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    (root / "file").write_text("no folder")
    (root / "weights.safetensors").write_bytes(b"no weights at all")
    vitreous.save(awake(classes=3), root / "model")
    broken = awake(classes=3)
    torch.nn.init.constant_(broken.norm.weight, torch.nan)
    vitreous.save(broken, root / "nan")
    whole = (root / "model.safetensors").read_bytes()
    (root / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    return root


@pytest.fixture(scope="module")
def done(place):
    """All calls in one process."""
    shapes, out = place / "shapes", place / "out"
    calls = {
        "nothing": ["fit"],
        "absent": ["fit", place / "absent", *FAST],
        "empty": ["fit", place / "empty", *FAST],
        "texts": ["fit", place / "texts", *FAST],
        "one": ["fit", place / "one", *FAST],
        "class": ["fit", place / "shapes" / "disc", *FAST],
        "image": ["fit", next((place / "shapes" / "disc").iterdir()), *FAST],
        "blank": ["fit", place / "blank", *FAST],
        "three": ["fit", place / "three", *FAST],
        "three folds": ["fit", place / "three", *FAST[:-8], "--set", "image_size=16", "--set", "batch=8"],
        "under a file": ["fit", shapes, *FAST, "--out", place / "file" / "run"],
        "read only": ["fit", shapes, *FAST, "--out", "/proc/run"],
        "somebody's": ["fit", shapes, *FAST, "--out", place / "texts"],
        "nan": ["fit", shapes, *FAST, "--set", "peak_lr=nan"],
        "no number": ["fit", shapes, *FAST, "--set", "peak_lr=fast"],
        "negative": ["fit", shapes, *FAST, "--set", "peak_lr=-1"],
        "field": ["fit", shapes, *FAST, "--set", "peak_rl=1"],
        "no value": ["fit", shapes, *FAST, "--set", "peak_lr"],
        "then field": ["fit", shapes, *FAST, "--then", shapes, "--then-set", "mixupp=1", "--out", place / "then"],
        "recipe": ["fit", shapes, *FAST, "--recipe", "smal-data"],
        "zero epochs": ["fit", shapes, *FAST[:6], "--epochs", "0"],
        "zero steps": ["fit", shapes, *FAST[:6], "--steps", "0"],
        "fewer steps": ["fit", shapes, *FAST[:6], "--steps", "-3"],
        "no seconds": ["fit", shapes, *FAST[:6], "--seconds", "nan"],
        "twice": ["fit", shapes, *FAST, "--epochs", "1"],
        "model": ["fit", shapes, *FAST, "--model", "S16"],
        "too large": ["fit", shapes, *FAST, "--model", "H/4 width=16384 depth=96 heads=64 mlp=65536"],
        "size": ["fit", shapes, *FAST, "--set", "image_size=17"],
        "no weights": ["fit", shapes, *FAST[2:], "--weights", place / "weights.safetensors"],
        "cut weights": ["fit", shapes, *FAST[2:], "--weights", place / "cut.safetensors"],
        "absent weights": ["fit", shapes, *FAST[2:], "--weights", place / "nowhere.safetensors"],
        "both": ["fit", shapes, *FAST, "--weights", place / "model.safetensors"],
        "policy": ["fit", shapes, *GIVEN, place / "model.safetensors", "--policy", "upper"],
        "last": ["fit", shapes, *GIVEN, place / "model.safetensors", "--policy", "last-9"],
        "policy alone": ["fit", shapes, *FAST, "--policy", "head"],
        "closed form": ["fit", shapes, *GIVEN, place / "model.safetensors", *PROBE, "--set", "mixup=0.2"],
        "penalty": ["fit", shapes, *GIVEN, place / "model.safetensors", *PROBE, "--set", "l2=-1"],
        "broken": ["fit", shapes, *GIVEN, place / "nan.safetensors"],
        "sweep folds": ["fit", shapes, *FAST, "--folds", "2", "--sweep"],
        "sweep dev": ["fit", shapes, *FAST, "--set", "dev=0", "--sweep"],
        "sides": ["fit", shapes, *FAST, "--set", "image_size=16x24x3"],
        "solved": ["fit", shapes, *GIVEN, place / "model.safetensors", "--policy", "head", "--out", place / "solved"],
        "device": ["fit", shapes, *FAST, "--device", "gpu"],
        "on nan": ["fit", shapes, *FAST, "--on-nan", "ignore"],
        "log": ["fit", shapes, *FAST, "--log", "wandb"],
        "folds": ["fit", shapes, *FAST, "--folds", "1"],
        "many folds": ["fit", shapes, *FAST, "--folds", "99"],
        "workers": ["fit", shapes, *FAST, "--workers", "-1"],
        "parts": ["fit", shapes, *FAST, "--set", "accumulation=3"],
        "torn pairs": ["fit", shapes, *FAST, "--set", "accumulation=8", "--set", "mixup=0.2"],
        "teacher": ["fit", shapes, *FAST, "--set", f"teacher={place / 'model.safetensors'}"],
        "resume": ["fit", shapes, "--resume", "--out", place / "empty"],
        "unchecked": ["fit", place / "torn", *FAST, "--no-check", "--out", place / "unchecked"],
        "diverges": ["fit", shapes, *FAST, *WILD, "--out", place / "wild"],
        "busy": ["fit", place / "held", "--resume"],
        "good": ["fit", shapes, *FAST, "--out", out],
        "verbose": ["fit", shapes, *FAST, "--verbose", "--out", place / "verbose"],
        "solved verbose": [
            "fit",
            shapes,
            *GIVEN,
            place / "model.safetensors",
            "--policy",
            "head",
            "--verbose",
            "--out",
            place / "solved-verbose",
        ],
        "roomy": ["fit", shapes, *FAST, "--set", "optimizer=sgd", "--no-check", "--out", place / "roomy"],
        "again": ["fit", shapes, *FAST, "--out", out],
        "forced": ["fit", shapes, *FAST, "--out", out, "--force", "--json"],
        "finished": ["fit", out, "--resume"],
        "torn": ["fit", place / "torn", *FAST, "--out", place / "torn-run", "--json"],
        "list": ["fit", "--recipe", "list"],
        "list json": ["fit", "--recipe", "list", "--json"],
    }
    before = f"import os; os.chdir({str(place)!r}); os.environ['VITREOUS_CACHE'] = {str(place / 'cache')!r}"
    with runs.RunFolder.create(place / "held", {}):
        return dict(zip(calls, run_all(calls.values(), before=before), strict=True))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("nothing", ["vitreous fit FOLDER"]),
        ("absent", ["absent"]),
        ("empty", ["empty"]),
        ("texts", ["texts"]),
        ("one", ["one", "one class (cat)"]),
        ("class", ["has no folders of classes; did you mean", "shapes?"]),
        ("image", ["is one image; did you mean", "shapes?"]),
        ("blank", ["all 12 readable images of", "are blank", "vitreous check", "--no-check"]),
        ("three", ["three"]),
        ("three folds", ["three"]),
        ("under a file", ["file/run"]),
        ("read only", ["/proc/run"]),
        ("somebody's", ["texts", "--out"]),
        ("nan", ["peak_lr=nan", "finite"]),
        ("no number", ["peak_lr='fast'", "a number"]),
        ("negative", ["peak_lr=-1", "above 0"]),
        ("field", ["'peak_rl'", "near: peak_lr"]),
        ("no value", ["'peak_lr'", "NAME=VALUE"]),
        ("then field", ["'mixupp'", "mixup"]),
        ("recipe", ["'smal-data'", "near: small-data", "--recipe list"]),
        ("zero epochs", ["0 epochs", "length"]),
        ("zero steps", ["0 steps", "length"]),
        ("fewer steps", ["-3 steps", "length"]),
        ("no seconds", ["nan seconds", "length"]),
        ("twice", ["--epochs and --steps", "give one"]),
        ("model", ["'S16'", "S/16"]),
        ("too large", ["GiB", "smaller"]),
        ("size", ["17"]),
        ("no weights", ["weights.safetensors"]),
        ("cut weights", ["cut.safetensors"]),
        ("absent weights", ["nowhere.safetensors"]),
        ("both", ["--model", "--weights"]),
        ("policy", ["'upper'", "head, last-K, all, layer-decay, full"]),
        ("last", ["last-9", "last-1 to last-2"]),
        ("policy alone", ["--weights MODEL"]),
        ("closed form", ["each image as it is", "leave augmentation out"]),
        ("penalty", ["l2=-1.0", "above 0"]),
        ("broken", ["not finite", "row 0"]),
        ("sweep folds", ["2 folds", "--folds or --sweep"]),
        ("sweep dev", ["dev=0", "--set dev=0.1"]),
        ("sides", ["image_size='16x24x3'"]),
        ("device", ["gpu"]),
        ("on nan", ["'ignore'", "stop, rollback"]),
        ("log", ["wandb", "tensorboard"]),
        ("folds", ["folds=1 splits nothing", "2 or more"]),
        ("many folds", ["99 folds", "too few"]),
        ("workers", ["workers", "-1"]),
        ("parts", ["batch=8", "3 equal parts"]),
        ("torn pairs", ["batch of 8", "accumulation=8", "pairs"]),
        ("teacher", ["teacher answers 3 classes", "4"]),
        ("resume", ["empty", "not a run folder"]),
        ("diverges", ["not finite", "wild/bad-batch-", "--on-nan rollback"]),
        ("busy", ["held", "in use by another process"]),
        ("again", ["out", "--resume", "--force"]),
    ],
)
def test_what_cannot_be_is_one_clear_line_and_exit_2(done, call, words):
    line_of(done[call], *words)


def test_a_run_tells_people_its_number_and_where_things_are(done, place):
    out = done["good"]
    assert out.code == 0, out.stderr
    assert re.search(r"^right    [\d.]+ % of 12 test images", out.stdout, re.M)
    assert f"saved    {(place / 'out' / 'report.html').as_uri()} and model.safetensors\n" in out.stdout
    assert "fit: step 2 of 2" in out.stderr
    assert "\x1b" not in out.stdout + out.stderr, "no colours where nobody looks"


@pytest.mark.parametrize("call", ["good", "solved"])
def test_a_newcomer_reads_ten_lines_at_most(done, call):
    lines = [line for line in (done[call].stderr + done[call].stdout).splitlines() if ": step " not in line]
    abouts = [line.split()[0] for line in lines]
    assert abouts == [
        about
        for about in ("found", "check", "plan", "alarm", "right", "trust", "unknown", "weakest", "saved", "next")
        if about in abouts
    ], "each once, in this order, and nothing else"
    assert {"found", "plan", "right", "saved", "next"} <= set(abouts)


DETAILS = {
    "verbose": ["parameters", "memory for 8 images at a time", "in float32", "Measured on 12 test images"],
    "solved verbose": ["frozen features and a closed-form classifier: ", "LogME", "solved in ", ": l2 ", "in float32"],
}


@pytest.mark.parametrize(("call", "brief"), [("verbose", "good"), ("solved verbose", "solved")])
def test_details_are_told_to_those_who_ask(done, call, brief):
    words, few = (done[name].stderr + done[name].stdout for name in (call, brief))
    assert done[call].code == 0, words
    for detail in DETAILS[call]:
        assert detail in words
        assert detail not in few
    assert all(line.split()[0] in words for line in few.splitlines())


def test_a_head_that_is_solved_tells_of_no_steps(done, place):
    out = done["solved"]
    assert out.code == 0, out.stderr
    assert f"plan     teach the last layer of {place.name} your classes; the other layers stay\n" in out.stderr
    assert re.search(r"^right    [\d.]+ % of [\d,]+ images that it had not seen \(", out.stdout, re.M)
    assert "60 right when left out" in done["solved verbose"].stderr
    assert "step" not in out.stderr


def test_a_run_is_one_json_object_for_machines(done, place):
    body = json.loads(done["forced"].stdout)
    assert next(iter(body.items())) == ("schema", "vitreous.fit/1")
    assert body["path"] == str(place / "out")
    assert body["judged"]["images"] == 12
    assert body["steps"] == 2


def test_a_finished_run_says_so_and_shows_its_number_again(done):
    out = done["finished"]
    assert out.code == 0
    assert "finished already" in out.stderr
    assert [line.split()[0] for line in out.stdout.splitlines()] == [
        line.split()[0] for line in done["good"].stdout.splitlines()
    ]


def test_pictures_that_cannot_be_read_are_left_out_with_a_line(done, place):
    out = done["torn"]
    assert out.code == 0, out.stderr
    assert "check    2 files cannot be read (cross/torn.png …)" in out.stderr
    assert f"vitreous check {place / 'torn'}\n" in out.stderr
    assert json.loads((place / "torn-run" / "config.json").read_text())["data"]["images"] == 40


def test_pictures_that_nobody_checked_and_cannot_be_read_end_no_run(done):
    assert done["unchecked"].code == 0, done["unchecked"].stderr
    assert "torn.png" in done["unchecked"].stderr


def test_every_recipe_is_listed(done):
    assert done["list"].code == 0
    assert all(name in done["list"].stdout for name in recipes.RECIPES)
    body = json.loads(done["list json"].stdout)
    assert body["schema"] == "vitreous.fit/1"
    assert [row["name"] for row in body["recipes"]] == list(recipes.RECIPES)
    assert all(row["about"] for row in body["recipes"])


LIMITS = """
import resource, signal
import vitreous.cli
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
left, call = [20_000, 110_000, resource.RLIM_INFINITY], vitreous.cli.main
def limited(words):
    resource.setrlimit(resource.RLIMIT_FSIZE, (left.pop(0), resource.RLIM_INFINITY))
    call(words)
vitreous.cli.main = limited
"""  # bytes that a file may have, call after call


@pytest.mark.skipif(sys.platform != "linux", reason="limits of a file's size are Linux's here")
def test_a_disk_that_fills_is_one_line_and_the_run_goes_on_when_there_is_room(done, place):
    """Too small for a state, then for the page, and then large enough."""
    out = place / "full"
    begin = ["fit", place / "shapes", *FAST, "--set", "optimizer=sgd", "--no-check", "--out", out]
    state, page, last = run_all([begin, ["fit", out, "--resume"], ["fit", out, "--resume"]], before=LIMITS)
    line_of(state, out / "state", "no room", "--resume")
    assert "state" not in line_of(page, out, "no room", "--resume"), "all steps were made"
    assert last.code == 0, last.stderr
    ours, theirs = (vitreous.load(folder / "model.safetensors").state_dict() for folder in (out, place / "roomy"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ("photos --lr 1e-3", "photos --set|peak_lr=1e-3"),
        ("--batch-size=8 photos", "--set|batch=8 photos"),
        ("photos --image-size 32 --weight-decay 0.1", "photos --set|image_size=32 --set|weight_decay=0.1"),
        ("photos --max-steps 9", "photos --set|length=9 steps"),
        ("photos --ema --steps 4", "photos --set|average=ema --steps 4"),
        ("photos --epochs 4 --colour 3", "photos --epochs 4 --colour 3"),
        ("photos --lr", "photos --set|peak_lr="),
    ],
)
def test_fields_of_a_recipe_are_options_by_our_name_and_by_others(words, read):
    wanted = [part for word in re.split(r" (?!steps$)", read) for part in word.split("|")]
    assert fields_as_set(words.split(), {"--epochs", "--steps", "--set"}) == wanted


def test_a_wrong_value_of_such_an_option_is_one_line():
    assert run("fit", "photos", "--lr", "fast").line == "vitreous: peak_lr='fast' does not fit; give a number"
    assert "is given twice" in run("fit", "photos", "--num-epochs", 3, "--epochs", 2).line
