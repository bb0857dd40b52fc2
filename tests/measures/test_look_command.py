"""`vitreous look` as a shell calls it, and a measure from outside the tree."""

import json
import os

import pytest
from commands import run_all
from picture_files import class_folders
from PIL import Image
from tiny_models import BIT, VIT, awake

import vitreous

OUTSIDE = '''
"""How large the tokens are: a measure that is one file, its figure and all."""

from vitreous.measures.measure import Averages, Drawn, Measure
from vitreous.report import charts
from vitreous.report.files import Panel


class Brightness(Averages):
    def __init__(self, subject, other=None):
        super().__init__()

    def see(self, tap, x, side=0):
        self.gather("mean", x.mean((1, 2)))

    def finish(self):
        return {"brightness": self.mean("mean").item(), "rows": [{"brightness": self.mean("mean").item()}]}


def draw(found, beside, arrays):
    line = charts.Line("tokens", [0, 1], [found["brightness"], 0.0])
    return [Drawn([Panel(charts.lines([line], title="brightness by depth", x_title="depth"), "Brightness")])]


BRIGHTNESS = Measure(
    name="brightness", sentence="How large the tokens are.", figure="none", saw="Nothing.", start=Brightness,
    says=lambda found: f"the mean is {found['brightness']:.3f}", taps={"vit": ("embedding.tokens",)},
    draw=draw, method=lambda found: "Mean of all tokens.",
)
'''


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """Models, pictures, and a package that brings a measure."""
    root = tmp_path_factory.mktemp("desk")
    vitreous.save(awake(classes=2), root / "vit.safetensors")
    vitreous.save(awake(VIT.change(pool="gap", class_token=False)), root / "gap.safetensors")
    vitreous.save(awake(BIT, image_size=16), root / "bit.safetensors")
    class_folders(root / "photos", {"cat": 6, "dog": 6})
    class_folders(root / "three", {"cat": 3})
    (root / "outside.py").write_text(OUTSIDE)
    record = root / "outside-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text("[vitreous.measures]\nbrightness = outside:BRIGHTNESS\n")
    return root


def test_the_command(desk):
    vit, photos, out = desk / "vit.safetensors", desk / "photos", desk / "inside"
    distance = ["--only", "attention-distance,similarity", "--batch", "6"]
    listed, as_json, told, kept, whole, fast = run_all(
        [
            ["look", "--list"],
            ["look", "--list", "--json"],
            ["look", vit, photos, *distance, "--out", out],
            ["look", vit, photos, *distance, "--out", out],
            ["look", vit, photos, "--json", "--images", "8", "--against", desk / "bit.safetensors"],
            ["look", "Ti/16 depth=1 width=32 heads=2 mlp=32 image_size=32", "--only", "positions", "--out", desk / "n"],
        ]
    )
    assert [done.code for done in (listed, as_json, told, kept, whole, fast)] == [0] * 6
    assert "P1 figure 7" in listed.stdout
    assert {"name", "sentence", "figure", "papers_saw", "cost"} == set(json.loads(as_json.stdout)["measures"][0])
    assert "heads of the first block look" in told.stdout
    assert f"page     {(out / 'look.html').as_uri()}\n" in told.stdout
    assert f"numbers  {out}/inspection.json" in told.stdout
    assert told.stderr.startswith("2 measures on 12 images: 12 forwards")
    assert "nothing to compute" in kept.stderr
    body = json.loads(whole.stdout)
    assert next(iter(body)) == "schema"
    assert body["schema"] == "vitreous.look/1"
    assert body["skipped"]["similarity-across"].startswith("CKA of 8 images is mostly chance")
    assert "skip-ratio" in body["found_against"]
    assert "images of fashion" in fast.stdout


def test_without_a_folder_a_look_goes_to_looks_and_says_so(desk, tmp_path):
    look = ["look", desk / "vit.safetensors", desk / "photos", "--only", "positions"]
    pair = [*look, "--against", desk / "gap.safetensors"]
    there = f"import os; os.chdir({str(tmp_path)!r})"
    first, second, both, as_json = run_all([look, look, pair, [*look, "--json"]], before=there)
    names = ["vit-1", "vit-2", "vit-against-gap-1"]
    for done, name in zip((first, second, both), names, strict=True):
        folder = tmp_path / "looks" / name
        assert f"page     {(folder / 'look.html').as_uri()}\nfigures  looks/{name}/figures" in done.stdout
        assert (folder / "look.html").is_file()
        assert (folder / "figures" / "P1-fig7-positions.svg").is_file()
    assert sorted(file.name for file in (tmp_path / "looks").iterdir()) == sorted(names)  # none for --json
    assert json.loads(as_json.stdout)["found"]


def test_after_a_stop_the_folder_to_go_on_in_is_named(desk, tmp_path):
    stop = f"""
import os
from vitreous.measures import shift
os.chdir({str(tmp_path)!r})
def stopped(*_):
    raise KeyboardInterrupt
shift._Shift.finish = stopped
"""
    look = ["look", desk / "vit.safetensors", desk / "photos", "--only"]
    late, early = run_all([[*look, "positions,shift"], [*look, "shift"]], before=stop)
    assert (late.code, early.code) == (130, 130)
    assert late.stderr.endswith("vitreous: stopped; the same command with --out looks/vit-1 goes on\n")
    assert "goes on" not in early.stderr  # nothing was kept
    (again,) = run_all([[*look, "positions,shift", "--out", tmp_path / "looks" / "vit-1"]])
    assert again.stderr.startswith("1 measure on 12 images")


def test_where_no_look_can_be_written_is_said_first(desk, tmp_path):
    (tmp_path / "looks").write_text("a file")
    (done,) = run_all(
        [["look", desk / "vit.safetensors", desk / "photos"]], before=f"import os; os.chdir({str(tmp_path)!r})"
    )
    assert "looks is not a folder" in done.line


def test_bad_input_is_one_line(desk):
    vit, gap, bit, photos = (
        desk / name for name in ("vit.safetensors", "gap.safetensors", "bit.safetensors", "photos")
    )
    (desk / "full").mkdir()
    (desk / "full" / "inspection.json").write_text("{}")
    calls = {
        ("look",): "name a model: vitreous look MODEL",
        ("look", vit, photos, "--only", "clas-attention"): "there is no measure 'clas-attention'",
        ("look", gap, photos, "--only", "class-attention"): "has no class token; leave it out",
        ("look", bit, photos, "--only", "attention-distance"): "is a network of convolutions and has no attention",
        ("look", vit, desk / "three", "--only", "similarity"): "likeness needs 4 images or more, and there are 3",
        (
            "look",
            vit,
            photos,
            "--only",
            "similarity-across",
        ): "compares two models, and one was named (--against MODEL2)",
        ("look", vit, photos, "--images", "0"): "images=0 leaves nothing to look at",
        ("look", vit, photos, "--layers", "odd"): "layers='odd' is unknown",
        ("look", vit, desk / "no-such-folder"): "no-such-folder",
        ("look", "no-such-model", photos): "no-such-model",
        ("look", vit, photos, "--out", desk / "full", "--only", "positions"): "inspection.json exists already",
    }
    for done, words in zip(run_all(list(calls)), calls.values(), strict=True):
        assert words in done.line


def test_a_measure_from_outside_is_one_file_and_one_line(desk):
    there = {**os.environ, "PYTHONPATH": os.pathsep.join([str(desk), os.environ.get("PYTHONPATH", "")])}
    listed, looked = run_all(
        [
            ["look", "--list"],
            ["look", desk / "vit.safetensors", desk / "photos", "--only", "brightness", "--out", desk / "b", "--json"],
        ],
        environment=there,
    )
    assert "brightness" in listed.stdout
    assert json.loads(looked.stdout)["found"]["brightness"]["brightness"] != 0
    figures = desk / "b" / "figures"
    assert sorted(file.name for file in figures.iterdir()) == ["brightness.csv", "brightness.png", "brightness.svg"]
    svg = (figures / "brightness.svg").read_text("utf-8")
    assert "Mean of all" in svg
    with Image.open(figures / "brightness.png") as picture:
        assert len(picture.convert("RGB").resize((120, 80)).getcolors(2**16)) > 20  # something is drawn
    html = (desk / "b" / "look.html").read_text("utf-8")
    part = html.split('<section id="brightness">')[1].split("</section>")[0]
    assert 'aria-label="brightness by depth"' in part
    assert "Mean of all tokens." in part
    assert "the mean is" in html.split('<section id="short"')[1].split("</section>")[0].lower()
