"""The examples of CONTRIBUTING, all nine in one package from outside: each is found by name and does what it says."""

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from doc_blocks import assert_block
from shared_files import ROOT

from vitreous.cli import COMMAND_GROUP, OUTSIDE_TITLE
from vitreous.registry import Registry

PAGE = ROOT / "CONTRIBUTING.md"
EXAMPLES = dict(re.findall(r"^### An? ([\w ]+)\n.*?^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S))
PARTS = {  # what to add: where its table is, the table, the example's name there, and its value
    "pool": ("models.pooling", "POOLS", "last-patch", "LastPatch"),
    "position": ("models.positions", "POSITION_KINDS", "ramp", "Ramp"),
    "data source": ("images.sources", "SOURCES", "greys", "GREYS"),
    "weight format": ("weights.formats", "FORMATS", "house", "HOUSE"),
    "recipe": ("training.recipes", "RECIPES", "quick", "quick"),
    "measure": ("measures", "MEASURES", "token-norm", "TOKEN_NORM"),
    "experiment": ("papers.experiments", "EXPERIMENTS", "depth", "DEPTH"),
    "export target": ("exports.export", "TARGETS", "pt2-gzip", "PT2_GZIP"),
    "command": ("cli", "COMMANDS", "size", ""),
}
PROGRAM = """
import contextlib, io, json, pathlib, torch, vitreous
from vitreous import cli
from vitreous.exports.graphs import ready_to_export
from vitreous.exports.target import make_parts
from vitreous.measures.explain import look_at

def build(**parts):
    model = vitreous.build("Ti/8", width=16, depth=2, heads=2, mlp=24, image_size=16, classes=3, seed=0, **parts)
    torch.nn.init.normal_(model.head.weight)
    return model.eval()

def command(*words):
    with contextlib.redirect_stdout(io.StringIO()) as told, contextlib.suppress(SystemExit):
        cli.main(list(words))
    return told.getvalue()

found, x = {}, torch.randn(2, 3, 16, 16)
pathlib.Path("a.greys").write_text("\\n".join(map(str, range(0, 256, 8))))
data = vitreous.images.open("a.greys")

model = build(pool="last-patch")
with vitreous.taps(model, ["norm", "representation"]) as seen:
    model(x)
flow = torch.rand(2, 4, 4)
found["pool"] = [torch.equal(seen["representation"], seen["norm"][:, -1]),
                 torch.equal(model.pool.reads(flow), flow[:, -1]), model.pool.silence]

def shares(maps):
    return [(each.ravel() / each.sum()).tolist() for each in maps]

places, whole = range(4), make_parts(ready_to_export(model), attention=True).whole
with torch.inference_mode():
    exported = [whole(torch.from_numpy(data.read(i)))[2].numpy() for i in places]
found["maps"] = {"report": shares(look.map for look in look_at(model, data, places).looks),
                 "export": shares(exported),
                 "rollout": vitreous.look(model, data.take(places), only=["rollout"])["rollout"]["mean_map"]}

model = build(positions="ramp")
vitreous.save(model, "ramp.safetensors")
found["position"] = torch.equal(vitreous.load("ramp.safetensors")(x), model(x))

found["data source"] = [data.kind, list(data.classes), len(data), int(data.read(3).max())]

model = build()
vitreous.save(model, "house.safetensors", format="house")
loaded = vitreous.load("house.safetensors")
found["weight format"] = [loaded.source["format"], torch.equal(loaded(x), model(x))]

run = vitreous.fit("a.greys", recipe="quick", folds=0, device="cpu", check=False)
recipe = json.loads(pathlib.Path(run.path, "config.json").read_text())["recipe"]
found["recipe"] = [recipe["name"], recipe["length"], pathlib.Path(run.report).is_file()]
found["recipes"] = json.loads(command("fit", "--recipe", "list", "--json"))["recipes"][-1]

looked = vitreous.look(build(), "a.greys", only=["token-norm"], out="inside")["token-norm"]
found["measure"] = [looked["images"], [row["layer"] for row in looked["rows"]], looked["rows"][0]["norm"] > 0]
found["drawn"] = [pathlib.Path("inside", name).read_text() for name in ("figures/token-norm.svg", "look.html")]

depth = vitreous.papers.run(vitreous.papers.EXPERIMENTS["depth"], seeds=2, out="results", jobs=0)
found["experiment"] = [depth.table.arms, len(depth.records), len(depth.claims[0][1].effects[0].numbers),
                       [one.title for one in vitreous.papers.find("E-MINE")]]

parity = vitreous.export(build(), "exported", to="pt2-gzip", data="a.greys")
found["export target"] = [parity.passed, sorted(path.name for path in pathlib.Path("exported").glob("*.gz"))]

found["command"] = json.loads(command("size", "B/16", "--json"))
found["help"] = command("--help")
pathlib.Path("found.json").write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What came of each example, all in one process that has them installed."""
    place: Path = tmp_path_factory.mktemp("outside")
    groups = []
    for kind, (room, table, name, value) in PARTS.items():
        file = kind.replace(" ", "_")
        (place / f"{file}.py").write_text(EXAMPLES[kind])
        groups.append(f"[{group_of(room, table)}]\n{name} = {file}{value and ':'}{value}\n")
    record = place / "outside-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text("".join(groups))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=place, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads((place / "found.json").read_text())


def group_of(room, table):
    """The group of entry points that adds to a table."""
    held = getattr(import_module(f"vitreous.{room}"), table)
    return f"vitreous.{held.kind}" if isinstance(held, Registry) else COMMAND_GROUP


def test_each_thing_that_can_be_added_has_an_example():
    assert list(EXAMPLES) == list(PARTS)


def test_the_tables_and_their_groups_are_those_of_the_code():
    rows = []
    for kind, (room, table, _, _) in PARTS.items():
        rows.append(f"| {kind} | `{table}` of `vitreous.{room}` | `{group_of(room, table)}` |\n")
    head = "| to add | the table | group of entry points |\n|---|---|---|\n"
    assert_block(PAGE, "tables", head + "".join(rows))


def test_a_pool_is_explained_by_what_it_reads(found):
    assert found["pool"] == [True, True, ""]


def test_a_pool_is_explained_alike_by_rollout_report_and_export(found):
    maps = found["maps"]
    assert np.argmax(maps["report"], 1).tolist() == [3] * 4  # the last of four patches
    assert maps["export"] == [pytest.approx(each, abs=1e-4) for each in maps["report"]]
    assert np.ravel(maps["rollout"]) == pytest.approx(np.mean(maps["report"], 0), abs=1e-4)


def test_a_position_is_built_saved_and_loaded(found):
    assert found["position"] is True


def test_a_source_is_opened_by_what_lies_there(found):
    assert found["data source"] == ["greys", ["dark", "light"], 32, 24]


def test_a_format_is_written_recognised_and_read(found):
    assert found["weight format"] == ["house", True]


def test_a_recipe_trains_by_its_name(found):
    assert found["recipe"] == ["quick", "2 epochs", True]
    assert found["recipes"] == {"name": "quick", "source": "ours", "about": "A first look, in two epochs"}


def test_a_measure_reads_every_block(found):
    assert found["measure"] == [32, ["blocks.0.output", "blocks.1.output"], True]


def test_a_measure_draws_its_own_figure(found):
    figure, page = found["drawn"]
    assert figure.startswith("<svg")
    assert "norm of the tokens" in figure
    assert "norm of the tokens" in page


def test_an_experiment_runs_its_grid_and_judges(found):
    assert found["experiment"] == [["depth 1", "depth 2"], 4, 2, ["Do two blocks beat one?"]]


def test_a_target_is_written_and_says_the_same(found):
    assert found["export target"] == [True, ["fixed.gz", "image.gz", "tensor.gz"]]


def test_a_command_is_one_of_the_command_line(found):
    assert found["command"] == {"schema": "vitreous.size/1", "parameters": 86567656}
    assert OUTSIDE_TITLE in found["help"]
    assert "Say how many parameters a network has." in found["help"].partition(OUTSIDE_TITLE)[2]
