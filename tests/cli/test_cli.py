"""The command line keeps its promises: exit codes, one line per error, one JSON object, instant help."""

import json
import os
import shlex
import signal
import subprocess
import sys
from xml.etree import ElementTree

import forks
import pytest
import torch
from commands import run_all

import vitreous
from vitreous.cli import COMMANDS, OTHER_WORDS
from vitreous.weights import starter

ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in {"VITREOUS_DEBUG", "FORCE_COLOR", "GITHUB_ACTIONS"}}
ENVIRONMENT |= {"COLUMNS": "80", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
CALL = [sys.executable, "-c", "from vitreous.cli import main; main()"]


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return forks.run([*CALL, *words], capture_output=True, text=True, env=ENVIRONMENT | environment)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The single line on stderr of a command that could not."""
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("vitreous: ")
    return line.removeprefix("vitreous: ")


def test_help_shows_every_command_under_its_title_with_an_example():
    text = run("--help").stdout
    titles = list(dict.fromkeys(COMMANDS.values()))
    assert [text.index(f"─ {title} ─") for title in titles] == sorted(text.index(f"─ {title} ─") for title in titles)
    for command in COMMANDS:
        assert f"vitreous {command}" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_an_example_in_its_help(command):
    done = run(command, "--help")
    assert done.returncode == 0
    assert f"Example:  vitreous {command}" in done.stdout
    assert "--json" in done.stdout


def test_no_words_at_all_is_a_call_for_help():
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == run("--help").stdout.strip()


def test_version():
    assert run("--version").stdout == f"vitreous {vitreous.__version__}\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["modles"], "there is no command 'modles'; try: vitreous models"),
        (["xyz"], f"there is no command 'xyz'; there are: {', '.join(COMMANDS)}"),
        (["convert", "in"], "Missing argument 'OUT'; see: vitreous convert --help"),
        (["doctor", "--colour"], "No such option: --colour; see: vitreous doctor --help"),
        (["--colour"], "No such option: --colour; see: vitreous --help"),
        (
            ["look", "m", "a.png", "b.png", "c.png"],
            "Got unexpected extra argument(s) (b.png …); name one image, a folder, or a pattern in quotes; "
            "see: vitreous look --help",
        ),
        (
            ["fit", "my", "photos"],
            "Got unexpected extra argument(s) (photos); put quotes around a name with spaces; see: vitreous fit --help",
        ),
        (["doctor", "much"], "Got unexpected extra argument(s) (much); see: vitreous doctor --help"),
    ],
)
def test_a_wrong_word_is_answered_in_one_line(words, line):
    assert one_line(run(*words)) == line


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("train", "fit"),
        ("train photos --epochs 3", "fit photos --epochs 3"),
        ("test last 'my photos'", "eval last 'my photos'"),
        ("inspect last photos", "look last photos"),
        ("classify last cat.jpg", "predict last cat.jpg"),
        ("reproduce C18", "paper run C18"),
        ("trian photos", "fit photos"),
        ("inspekt last", "look last"),
    ],
)
def test_other_peoples_words_are_answered_with_the_right_command(typed, ours):
    word, *rest = shlex.split(typed)
    assert one_line(run(word, *rest)) == f"there is no command {word!r}; try: vitreous {ours}"


@pytest.mark.parametrize("ours", OTHER_WORDS.values())
def test_each_right_command_is_one(ours):
    assert ours.split()[0] in COMMANDS


def test_an_error_shows_its_traceback_only_when_asked():
    words = ["models", "Q/99"]
    assert "Q/99" in one_line(run(*words))
    for done in (run("--debug", *words), run(*words, "--debug"), run(*words, VITREOUS_DEBUG="1")):
        assert done.returncode == 2
        assert "Traceback" in done.stderr
        assert "ModelNameError" in done.stderr


def test_doctor_prints_one_json_object():
    body = json.loads(run("doctor", "--json").stdout)
    assert next(iter(body.items())) == ("schema", "vitreous.doctor/1")
    assert body["vitreous"] == vitreous.__version__


def test_models_fit_eighty_columns_and_carry_exact_counts():
    done = run("models")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "…" not in done.stdout
    (base,) = [line.split() for line in done.stdout.splitlines() if line.split()[:1] == ["B/16"]]
    assert base[1:3] == ["86,567,656", "17.56"]
    families = [line.strip() for line in done.stdout.splitlines() if line.strip() in {"ViT", "hybrids", "BiT"}]
    assert families == ["ViT", "hybrids", "BiT"]
    assert ("`starter`, inside the package, is trained" in done.stdout) == starter.is_there()


def test_models_prints_one_json_object():
    body = json.loads(run("models", "B/16", "BiT-R50x1", "--json").stdout)
    assert next(iter(body.items())) == ("schema", "vitreous.models/1")
    assert [row["name"] for row in body["models"]] == ["B/16", "BiT-R50x1"]
    assert body["models"][0]["parameters"] == 86_567_656


SMALL = "Ti/8 width=16 depth=2 heads=2 mlp=24 image_size=32 classes=5"


def test_models_draws_one_model_whole(tmp_path):
    model = vitreous.build(SMALL, stem="convolutions", pool="gap")
    vitreous.save(model, tmp_path / "mine.safetensors")
    named, as_json, saved, again, over = run_all(
        [
            ["models", SMALL, "--draw", tmp_path / "small.svg"],
            ["models", SMALL, "--draw", tmp_path / "json.svg", "--json"],
            ["models", tmp_path / "mine.safetensors", "--draw", tmp_path / "mine.svg"],
            ["models", SMALL, "--draw", tmp_path / "small.svg"],
            ["models", SMALL, "--draw", tmp_path / "small.svg", "--force"],
        ]
    )
    assert named.code == saved.code == over.code == 0
    assert named.stdout.splitlines()[-1] == f"drawing: {tmp_path / 'small.svg'}"
    table = "".join(line for line in named.stdout.splitlines() if not line.startswith("drawing"))
    assert max(map(len, named.stdout.splitlines()[:-1])) <= 80
    assert f"{vitreous.models.catalog.describe(SMALL).parameters:,}" in table
    body = json.loads(as_json.stdout)
    assert list(body) == ["schema", "drawing", "parts"]
    assert [part["name"] for part in body["parts"]][:2] == ["patches to tokens", "tokens in front"]
    assert body["parts"][-1]["shape"] == [5]
    words = [ElementTree.parse(tmp_path / f"{name}.svg").getroot().itertext() for name in ("small", "mine")]
    plain, hybrid = (" ".join(" ".join(each).split()) for each in words)
    assert "patches to tokens" in plain
    assert "convolution 3" in hybrid
    assert "patches to tokens" not in hybrid
    assert f"{tmp_path / 'small.svg'} exists already" in again.line


def test_a_drawing_gets_the_name_of_its_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_all([["models", SMALL, "--draw"]])[0].stdout.splitlines()[-1] == "drawing: Ti-8.svg"
    assert (tmp_path / "Ti-8.svg").read_text().startswith("<svg")


def test_what_cannot_be_drawn_is_told_in_one_line(tmp_path):
    wrong = [
        (["B/16", "S/16", "--draw"], "--draw draws one model into a file of .svg, .png, .pdf"),
        (["B/16", "--draw", tmp_path / "b.jpg"], "--draw draws one model into a file of .svg, .png, .pdf"),
        (["--draw"], "--draw draws one model"),
        (["Q/99", "--draw"], "no model is called 'Q/99'"),
        ([tmp_path / "none.safetensors", "--draw"], "is not there"),
    ]
    for (_, words), done in zip(wrong, run_all([["models", *call] for call, _ in wrong]), strict=True):
        assert words in done.line
    assert list(tmp_path.iterdir()) == []


def test_models_counts_what_fixed_positions_cost():
    (row,) = json.loads(run_all([["models", "Ti/16 positions=sincos-2d", "--json"]])[0].stdout)["models"]
    assert row["macs"] == vitreous.models.catalog.describe("Ti/16").macs


def test_models_lists_the_options_and_their_values():
    done = run("models", "--options")
    assert max(map(len, done.stdout.splitlines())) <= 80
    options = json.loads(run("models", "--options", "--json").stdout)["options"]
    assert options["positions"]["default"] == "learned"
    assert {"none", "learned", "relative"} <= set(options["positions"]["values"])
    assert all(name in done.stdout for name in options)


def test_convert_writes_a_file_once_and_again_by_force(tmp_path):
    source, path = tmp_path / "small.safetensors", tmp_path / "small.npz"
    vitreous.save(vitreous.build("Ti/16 depth=1", image_size=32, classes=3, seed=0), source)
    words = ["convert", str(source), str(path), "--to", "google"]
    body = json.loads(run(*words, "--json").stdout)
    assert next(iter(body.items())) == ("schema", "vitreous.convert/1")
    assert path.exists()
    assert "--force" in one_line(run(*words))
    assert run(*words, "--force").returncode == 0
    assert vitreous.load(path)(torch.zeros(1, 3, 32, 32)).shape == (1, 3)


def test_convert_names_the_formats_there_are(tmp_path):
    source = tmp_path / "small.safetensors"
    vitreous.save(vitreous.build("Ti/16 depth=1", image_size=32, classes=3, seed=0), source)
    line = one_line(run("convert", str(source), str(tmp_path / "out"), "--to", "gif"))
    assert all(word in line for word in ("gif", "google", "timm", "huggingface"))


def test_convert_says_which_file_is_not_there(tmp_path):
    assert "absent.npz" in one_line(run("convert", str(tmp_path / "absent.npz"), str(tmp_path / "out"), "--to", "timm"))


@pytest.mark.parametrize("size", ["abc", "12x", "3x4x5", "-1"])
def test_convert_refuses_what_is_no_image_size(size):
    line = one_line(run("convert", "in", "out", "--to", "timm", f"--image-size={size}"))
    assert line == f"image size {size!r} is not a size; give 384, or 384x512 (rows x columns)"


def test_a_closed_pipe_is_met_with_silence():
    process = forks.Popen([*CALL, "doctor"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_with_its_code_after_clearing_up(number, code, tmp_path):
    program = f"""
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite that runs in the background ignores it
import vitreous.cli, vitreous.cli.doctor
from vitreous.files import atomic_write
def run():
    '''Wait.'''
    def write(file):
        print("waiting", flush=True)
        time.sleep(60)
    atomic_write({str(tmp_path / "half")!r}, write)
vitreous.cli.doctor.run = run
vitreous.cli.main(["doctor"])
"""
    process = forks.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(number)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (code, "")
    assert not any(tmp_path.iterdir())


def test_a_name_with_spaces_wants_quotes():
    done = run("check", "my", "photos")
    assert done.returncode == 2
    assert "put quotes around a name with spaces" in done.stderr
