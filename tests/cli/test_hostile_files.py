"""Files made to hang, flood or fool a command: one line about each of them, and all others are read."""

import csv
import html
import io
import json
import os
import re
import socket
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import forks
import numpy as np
import pytest
from commands import Done, run_all
from picture_files import class_folders, encoded, zip_of
from PIL import Image
from safetensors import safe_open
from tiny_models import awake

import vitreous

pytestmark = pytest.mark.skipif(os.name == "nt", reason="pipes, devices and names of any bytes are POSIX")
MEMORY = "import resource; resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))" * (sys.platform == "linux")
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 40\n%%EndComments\nshowpage\n%%EOF\n"
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
ODD = "o\x1b[31m\x07\r\x9bm\u202e\u2066\u200fd.png"
LINES = {
    "big.png": "big.png has 176.9 megapixels; at most 120 are read here: shrink it",
    "wide.png": "wide.png has 178.0 megapixels; at most 120 are read here: shrink it",
    "device.jpg": "device.jpg is a device and no file; move it away",
    "pipe.jpg": "pipe.jpg is a pipe and no file; move it away",
    "socket.jpg": "socket.jpg is a socket and no file; move it away",
    "eps.jpg": "eps.jpg is not an image in any format known here; give a JPEG or PNG, or fetch it again",
    "palette.png": "palette.png is broken (its palette is missing); delete it, or fetch it again",
    "scans.jpg": "scans.jpg has more than 200 scans, which no camera writes; save it anew",
    "sparse.jpg": "sparse.jpg has 1,099,511,627,776 bytes; at most 512 MiB are read as one image: move it away",
}


def png(columns: int, rows: int, bits: int = 1, kind: int = 0) -> bytes:
    """A PNG that says it is so large, and holds hardly a line."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = struct.pack(">IIBBBBB", columns, rows, bits, kind, 0, 0, 0)
    packed = zlib.compress(bytes(4000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def scans(count: int) -> bytes:
    raw = encoded(1, "JPEG", progressive=True)
    return raw[:-2] + raw[raw.rindex(b"\xff\xda") : -2] * count + b"\xff\xd9"


def fill(folder: Path) -> None:
    """Everything of LINES, a folder that contains itself and one a thousand deep, and names that a terminal obeys."""
    (folder / "big.png").write_bytes(png(13_300, 13_300))
    (folder / "wide.png").write_bytes(png(178_000_000, 1))
    (folder / "palette.png").write_bytes(png(16, 16, 8, 3))
    (folder / "scans.jpg").write_bytes(scans(300))
    (folder / "eps.jpg").write_bytes(EPS)
    (folder / "device.jpg").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.jpg")
    with (folder / "sparse.jpg").open("wb") as file:
        file.truncate(1 << 40)
    (folder / "itself").symlink_to(".")
    (folder / "above").symlink_to("../..")
    for name in (ODD, os.fsdecode(b"\xff\xfe.png"), "\x1b]0;x\x07.png"):
        (folder / name).write_bytes(encoded(70 + len(name)) if name[0] != "\x1b" else b"no picture")
    before = Path.cwd()
    try:
        os.chdir(folder)
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind("socket.jpg")  # a longer path would not fit
        for _ in range(1000):
            Path("d").mkdir()
            os.chdir("d")
        Path("deep.png").write_bytes(encoded(79))
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("hostile")
    model = awake(classes=2)
    model.labels = ("c\x1b[31mat\u202e", "dog")
    vitreous.save(model, root / "model")
    class_folders(root / "set", {"cat": 4, "dog": 4})
    try:
        fill(root / "set/cat")
    except OSError as error:
        pytest.skip(f"this disk holds no such files: {error}")
    zip_of(root / "set.zip", {"cat/eps.jpg": EPS, "cat/big.png": png(13_300, 13_300), "cat/0.png": encoded(1)})
    os.mkfifo(root / "pipe.zip")
    (root / "programs").mkdir()
    (root / "programs/gs").write_text(f"#!/bin/sh\ntouch '{root}/gs-ran'\n")
    (root / "programs/gs").chmod(0o755)
    yield root
    subprocess.run(["rm", "-rf", str(root / "set")], check=True)  # shutil stops at a thousand folders, too


@pytest.fixture(scope="module")
def done(place):
    """All calls in one process, which ends within run_all's time."""
    model, data = place / "model.safetensors", place / "set"
    calls = {
        "check": ["check", data],
        "check json": ["check", data, "--json", "--out", place / "health.html"],
        "table": ["predict", model, data],
        "csv": ["predict", model, data, "--format", "csv"],
        "json": ["predict", model, data, "--json"],
        "files": ["predict", model, data / "cat/pipe.jpg", data / "cat/0.png", data / "cat/device.jpg"],
        "pack": ["pack", data, place / "pack", "--json"],
        "pack zip": ["pack", place / "set.zip", place / "zip-pack"],
        "pipe": ["check", place / "pipe.zip"],
    }
    programs = {"PATH": f"{place}/programs:{os.environ['PATH']}", "VITREOUS_CACHE": str(place / "cache")}
    return dict(zip(calls, run_all(calls.values(), before=MEMORY, environment=os.environ | programs), strict=True))


@pytest.mark.slow
def test_fit_and_look_leave_each_out(place):
    model, data = place / "model.safetensors", place / "set"
    short = [
        "--model",
        "Ti/16",
        "--weights",
        "none",
        "--steps",
        2,
        "--folds",
        0,
        "--set",
        "image_size=32",
        "--set",
        "batch=4",
    ]
    calls = [
        ["fit", data, *short, "--out", place / "run"],
        ["look", model, data, "--only", "attention-distance", "--out", place / "inside"],
    ]
    programs = {"PATH": f"{place}/programs:{os.environ['PATH']}", "VITREOUS_CACHE": str(place / "cache")}
    fit, look = run_all(calls, before=MEMORY, environment=os.environ | programs)
    assert (fit.code, look.code) == (0, 0), fit.stderr + look.stderr
    assert "check    10 files cannot be read (cat/" in fit.stderr
    assert "left out: 10 images that could not be read" in look.stdout
    assert not OBEYED.search(fit.stdout + fit.stderr + look.stdout + look.stderr)
    assert not (place / "gs-ran").exists()


def test_no_other_program_is_started(done, place):
    assert not (place / "gs-ran").exists()


@pytest.mark.parametrize(("name", "line"), LINES.items())
def test_predict_says_one_line_about_each(done, name, line):
    rows = [row for row in done["table"].stdout.splitlines() if f"cat/{name} " in row]
    assert len(rows) == 1
    assert rows[0].endswith(f"  {line.removeprefix(f'{name} ')}")
    (row,) = (row for row in answers(done["json"]) if row["name"].endswith(f"cat/{name}"))
    assert row["error"].endswith(line)


def answers(json_lines: Done) -> list[dict]:
    return [json.loads(line) for line in json_lines.stdout.splitlines()]


def test_predict_answers_all_others(done):
    rows = answers(done["json"])
    assert [done[call].code for call in ("table", "csv", "json", "files")] == [0, 0, 0, 0]
    assert sum("said" in row for row in rows) == 8 + 3  # also names of any bytes, and one a thousand folders down
    assert [row["name"] for row in rows if row["name"].endswith(ODD)]
    assert [os.fsencode(row["name"]) for row in rows if os.fsencode(row["name"]).endswith(b"\xff\xfe.png")]
    assert sum("error" in row for row in rows) == len(LINES) + 1
    assert done["json"].stderr == "10 of 21 images could not be read\n"
    cells = list(csv.reader(io.StringIO(done["csv"].stdout)))
    assert len(cells) == 22
    assert {len(row) for row in cells} == {15}


def test_predict_takes_such_files_by_name(done):
    pipe, good, device = done["files"].stdout.splitlines()
    assert pipe.endswith("is a pipe and no file; move it away")
    assert "%" in good
    assert device.endswith("is a device and no file; move it away")


def test_check_names_each_and_reads_the_others(done):
    body = json.loads(done["check json"].stdout)
    files = {kind["kind"]: {case["files"][0] for case in kind["cases"]} for kind in body["findings"]}
    assert files["too-large"] >= {"cat/big.png", "cat/wide.png", "cat/scans.jpg"}
    rest = {f"cat/{name}" for name in LINES} - {"cat/big.png", "cat/wide.png", "cat/scans.jpg"}
    assert files["unreadable"] | files["too-large"] >= rest
    assert body["images"] == 8 + 3 + len(LINES) + 1
    assert "left out 2 folders that lead back into themselves: cat/above, cat/itself" in body["notes"]


def test_pack_leaves_each_out_by_name(done):
    body = json.loads(done["pack"].stdout)
    assert body["images"] == 8 + 3
    left = "\n".join(why for _, why in body["left_out"])
    assert all(line in left for line in LINES.values())


def test_images_inside_a_zip_are_held_to_the_same_limits(done):
    assert done["pack zip"].code == 0
    assert "eps.jpg is not an image in any format known here" in done["pack zip"].stdout
    assert "big.png has 176.9 megapixels; at most 120 are read here" in done["pack zip"].stdout


def test_a_pipe_named_as_a_set_is_refused(done):
    assert done["pipe"].line.endswith("pipe.zip is a pipe and no file; move it away")


def test_a_terminal_is_sent_nothing_that_it_obeys(done):
    for name, each in done.items():
        assert not OBEYED.search(each.stdout + each.stderr), name
    assert r"cat/o\u001b[31m\u0007\u000d\u009bm\u202e\u2066\u200fd.png"[-36:] in done["table"].stdout
    assert r"c\u001b[31mat\u202e" in done["table"].stdout
    assert "unexpected" not in "".join(each.stderr for each in done.values())


def test_a_page_obeys_no_name(done, place):
    text = (place / "health.html").read_text("utf-8")
    assert not OBEYED.search(text)
    assert r"\u001b]0;x\u0007.png" in html.unescape(text).replace("<wbr>", "")


def test_no_warning_of_pillow_reaches_the_user(place):
    """Also from a process that only reads: 178 megapixels, of which Pillow warns."""
    code = "import sys; from vitreous.images.sources.image_file import open_image; "
    code += "open_image(sys.stdin.buffer.read(), 'a')"
    told = forks.run([sys.executable, "-c", code], input=png(13_300, 13_300), capture_output=True)
    assert b"Warning" not in told.stderr
    assert told.stderr.splitlines()[-1].endswith(b"a has 176.9 megapixels; at most 120 are read here: shrink it")


def test_a_terminal_of_ascii_gets_letters_written_out(tmp_path):
    """A strict stdout, as most have, with a class that is no UTF-8 and one in another script."""
    root = class_folders(tmp_path / "set", {"cat": 3, "ねこ": 2, os.fsdecode(b"\xff\xfe"): 2})
    call = [sys.executable, "-c", "from vitreous.cli import main; main()", "check", str(root), "--fresh"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii:strict", "VITREOUS_CACHE": str(tmp_path)}
    found = forks.run(call, capture_output=True, timeout=60, env=environment)
    assert (found.returncode, found.stderr) == (0, b"")
    assert rb"class \u306d\u3053: 2 images" in found.stdout
    assert rb"class \xff\xfe: 2 images" in found.stdout


def test_half_a_character_in_labels_is_written_out(tmp_path):
    """A checkpoint may say anything: what comes back can be printed, stored and served."""
    model = awake(classes=2)
    model.labels = ("cat", "dog")
    vitreous.save(model, tmp_path / "model")
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        told = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118  it is no dict
    sealed = json.loads(told[1]["vitreous"])
    sealed["manifest"] = sealed["manifest"].replace('"dog"', '"d\\ud800"')
    from safetensors.torch import save_file

    from vitreous.files import digest

    sealed["digest"] = digest(sealed["manifest"].encode())
    save_file(told[0], tmp_path / "odd.safetensors", {"vitreous": json.dumps(sealed)})
    assert vitreous.load(tmp_path / "odd.safetensors").labels == ("cat", "d\\ud800")
    with pytest.raises(vitreous.errors.ConfigError, match=r"label 'd\\\\ud800' holds half a character"):
        vitreous.load(tmp_path / "odd.safetensors", labels=["cat", "d\ud800"])


def test_half_a_character_in_the_labels_of_shards_is_written_out(tmp_path):
    from picture_files import tar_of

    files = {}
    for i in range(6):
        files[f"{i}.png"] = encoded(i)
        files[f"{i}.json"] = json.dumps({"label": "cat" if i % 2 else "d\ud800g", "who": "\ud801"}).encode()
    data = vitreous.images.open(tar_of(tmp_path / "a.tar", files), group_by="who")
    assert data.classes == ("cat", "d\\ud800g")
    assert np.bincount(data.labels).tolist() == [3, 3]
    assert str(vitreous.check(data))


def test_folders_that_link_to_each_other_end(tmp_path):
    """Twelve folders, each with links to all others: 12! paths, of which few are walked."""
    root = class_folders(tmp_path / "set", {f"c{i}": 1 for i in range(12)})
    for i in range(12):
        for k in range(12):
            if i != k:
                (root / f"c{i}" / f"to{k}").symlink_to(f"../c{k}")
    data = vitreous.images.open(root, split=None, limit=5)
    assert any("lead back into themselves" in note for note in data.notes)


def test_the_pixels_of_an_image_are_not_decoded_to_refuse_it(tmp_path):
    Image.new("1", (13_300, 13_300)).save(tmp_path / "whole.png")
    with pytest.raises(vitreous.errors.TooLargeError):
        vitreous.images.sources.image_file.decode((tmp_path / "whole.png").read_bytes(), "whole.png")
