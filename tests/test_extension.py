"""One file, one line: a position, a pool, a weight format, a recipe and a command from outside are found by name."""

import json
import os
import subprocess
import sys
from textwrap import dedent

import forks
import pytest

from vitreous.models.pooling import POOLS

EXTENSION = '''
"""A position that shifts every token, a pool that takes the last patch, and a format that is one .safetensors file."""

import torch
from safetensors.torch import save_file
from torch import nn

from vitreous.models.pooling import Pool
from vitreous.models.positions import Positions
from vitreous.models.preprocess import Preprocess
from vitreous.models.config import ViTConfig
from vitreous.training.recipe import Recipe
from vitreous.weights.formats import Draft, Format
from vitreous.weights.layouts import pair, rule


class Shifted(Positions):
    """Every token gains one learned vector."""

    def __init__(self, config, grid):
        super().__init__(config, grid)
        self.shift = nn.Parameter(torch.empty(config.encoder.width))

    def start(self):
        nn.init.ones_(self.shift)

    def forward(self, x, grid):
        return x + self.shift


class LastPatch(Pool):
    def forward(self, z):
        return z[:, -1]


def names(config):
    parts = ("norm1", "attention.qkv", "attention.merge", "norm2", "mlp.expand", "mlp.contract")
    blocks = [f"blocks.{i}.{part}" for i in range(config.encoder.depth) for part in parts]
    return ["embedding.projection", *blocks, "norm", "head"]


def rules(config):
    out = [r for name in names(config) for r in pair(name, "x/" + name.replace(".", "/"), join="/")]
    return [*out, rule("embedding.class_token", "x/cls"), rule("embedding.positions.table", "x/positions")]


def draft(found, hints):
    t = found.tensors
    width, patch = t.shape("x/embedding/projection/weight", 2)
    config = ViTConfig().change(
        width=width, depth=t.depth("x/blocks/{}/norm1/weight"), heads=hints.heads or 1,
        mlp=t.shape("x/blocks/0/mlp/expand/weight", 2)[0], patch=round((patch / 3) ** 0.5),
        image_size=hints.image_size or 16, classes=t.shape("x/head/weight", 2)[0],
    )
    return Draft(config, Preprocess(size=config.image_size), t)


def write(model, tensors, path):
    save_file(dict(tensors), path)
    return [path]


PLAIN = Format(
    name="plain", holds="plain ViT", recognises=lambda found: "x/cls" in found.tensors,
    draft=draft, rules=rules, refuses=lambda config: [], write=write,
)


def brief(given):
    return Recipe(name="brief", source="elsewhere")
'''

COMMAND = '''
import typer

EXAMPLE = "vitreous greet --name you"


def run(name: str = "you") -> None:
    """Greet somebody."""
    if name == "nobody":
        raise typer.BadParameter("nobody is here")
    print(f"hello {name}")
'''

ENTRY_POINTS = """
[vitreous.positions]
shifted = out_of_tree:Shifted
[vitreous.pools]
last-patch = out_of_tree:LastPatch
[vitreous.formats]
plain = out_of_tree:PLAIN
[vitreous.recipes]
brief = out_of_tree:brief
[vitreous.commands]
greet = out_of_tree_command
"""


@pytest.fixture
def outside(tmp_path):
    """A folder that looks installed: one file, and its lines in a table of entry points."""
    (tmp_path / "out_of_tree.py").write_text(dedent(EXTENSION))
    (tmp_path / "out_of_tree_command.py").write_text(dedent(COMMAND))
    record = tmp_path / "out_of_tree-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: out-of-tree\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text(ENTRY_POINTS)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}


def python(code, env, cwd):
    done = forks.run(
        [sys.executable, "-c", dedent(code)], env=env, cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def command(*words, env, cwd):
    return forks.run(
        [sys.executable, "-m", "vitreous", *words], env=env, cwd=cwd, capture_output=True, text=True, check=False
    )


def test_the_command_line_lists_what_came_from_outside(outside, tmp_path):
    options = json.loads(command("models", "--options", "--json", env=outside, cwd=tmp_path).stdout)["options"]
    assert "shifted" in options["positions"]["values"]
    assert "last-patch" in options["pool"]["values"]
    refused = command("convert", "Ti/16", "x", "--to", "no-such", env=outside, cwd=tmp_path)
    assert refused.returncode == 2
    assert "plain" in refused.stderr


def test_models_are_built_of_it_saved_and_loaded(outside, tmp_path):
    code = """
        import torch, vitreous
        small = dict(width=16, depth=2, heads=2, mlp=24, image_size=16, classes=3, seed=0)
        model = vitreous.build("Ti/8 positions=shifted", pool="last-patch", **small)
        assert not model.config.embedding.class_token
        vitreous.save(model, "own.safetensors")
        x = torch.randn(2, 3, 16, 16)
        torch.nn.init.normal_(model.head.weight)
        vitreous.save(model, "own.safetensors", force=True)
        torch.testing.assert_close(vitreous.load("own.safetensors")(x), model(x), rtol=1e-5, atol=1e-5)
        plain = vitreous.build("Ti/8", **small)
        torch.nn.init.normal_(plain.head.weight)
        vitreous.save(plain, "plain.safetensors", format="plain")
        torch.testing.assert_close(vitreous.load("plain.safetensors")(x), plain(x), rtol=1e-5, atol=1e-5)
        print(vitreous.load("plain.safetensors").source["format"])
    """
    assert python(code, outside, tmp_path).strip() == "plain"


def test_ours_cannot_be_replaced_from_outside(outside, tmp_path):
    record = tmp_path / "out_of_tree-1.0.dist-info"
    (record / "entry_points.txt").write_text("[vitreous.positions]\nlearned = out_of_tree:Shifted\n")
    code = """
        from vitreous.models.positions import POSITION_KINDS, LearnedPositions
        assert "shifted" not in POSITION_KINDS
        print(POSITION_KINDS["learned"] is LearnedPositions)
    """
    assert python(code, outside, tmp_path).strip() == "True"


def test_a_part_that_cannot_be_loaded_is_refused_by_name_and_breaks_no_other(outside, tmp_path):
    (tmp_path / "out_of_tree.py").write_text("raise RuntimeError('no\\nluck')")
    code = """
        import vitreous
        small = dict(width=16, depth=1, heads=2, mlp=24, image_size=16, classes=3)
        vitreous.build("Ti/4", **small)
        try:
            vitreous.build("Ti/4", pool="last-patch", **small)
        except vitreous.errors.ConfigError as error:
            print(error)
    """
    why = "pools 'last-patch' of out-of-tree cannot be loaded (RuntimeError: no luck); mend or uninstall out-of-tree"
    assert python(code, outside, tmp_path).strip() == why


def test_a_recipe_that_fails_hides_no_other(outside, tmp_path):
    file = tmp_path / "out_of_tree.py"
    file.write_text(file.read_text() + "\n\ndef brief(given):\n    raise ValueError('no data')\n")
    rows = json.loads(command("fit", "--recipe", "list", "--json", env=outside, cwd=tmp_path).stdout)["recipes"]
    assert rows[-1] == {"name": "brief", "source": "fails: no data", "about": "brief"}
    assert len(rows) > 10


def test_a_name_that_a_table_lacks_has_a_default():
    assert POOLS.get("no-such-pool") is None


def test_a_recipe_from_outside_is_listed_and_near_names_are_told(outside, tmp_path):
    rows = json.loads(command("fit", "--recipe", "list", "--json", env=outside, cwd=tmp_path).stdout)["recipes"]
    assert rows[-1] == {"name": "brief", "source": "elsewhere", "about": "brief"}  # it has no docstring
    code = """
        from vitreous.errors import ConfigError
        from vitreous.training import recipes
        print(recipes.get("brief").source)
        try:
            recipes.get("breif")
        except ConfigError as error:
            print(error)
    """
    known, error = python(code, outside, tmp_path).splitlines()
    assert known == "elsewhere"
    assert error == "no recipe is called 'breif'; near: brief (all: vitreous fit --recipe list)"


def test_a_command_from_outside_is_one_of_the_command_line(outside, tmp_path):
    text = command("--help", env=outside, cwd=tmp_path).stdout
    assert "Greet somebody." in text.partition("─ From other packages ─")[2]
    assert command("greet", "--name", "Ada", env=outside, cwd=tmp_path).stdout == "hello Ada\n"
    assert "Example:  vitreous greet --name you" in command("greet", "--help", env=outside, cwd=tmp_path).stdout
    wrong = command("greet", "--colour", env=outside, cwd=tmp_path)
    assert wrong.stderr == "vitreous: No such option: --colour; see: vitreous greet --help\n"
    assert "try: vitreous greet" in command("greets", env=outside, cwd=tmp_path).stderr


BROKEN = {
    "no such module": None,
    "an error on import": "raise RuntimeError('no\\nluck')",
    "an exit on import": "raise SystemExit(3)",
    "no run": "EXAMPLE = 'vitreous greet'",
    "no example": "def run(): 'Greet.'",
    "no docstring": "EXAMPLE = 'vitreous greet'\ndef run(): pass",
    "a signature that typer cannot read": "EXAMPLE = 'vitreous greet'\ndef run(x: int | str): 'Greet.'",
}


@pytest.mark.parametrize("source", BROKEN.values(), ids=BROKEN)
def test_a_command_that_fails_is_named_in_one_line_and_breaks_no_other(source, outside, tmp_path):
    file = tmp_path / "out_of_tree_command.py"
    file.unlink() if source is None else file.write_text(source)
    code = """
        import contextlib, sys
        from vitreous.cli import main
        with contextlib.suppress(SystemExit):
            main(sys.argv[1:])
        assert "torch" not in sys.modules
    """
    helped = subprocess.run(
        [sys.executable, "-c", dedent(code), "--help"],
        env=outside, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    (line,) = helped.stderr.splitlines()
    assert line.startswith("vitreous: the command greet of out-of-tree cannot be used (")
    assert "vitreous fit photos" in helped.stdout
    version = command("--version", env=outside, cwd=tmp_path)
    assert (version.returncode, version.stderr) == (0, "")


def test_our_commands_wait_for_no_other_package(outside, tmp_path):
    (tmp_path / "out_of_tree_command.py").write_text("raise RuntimeError")
    record = tmp_path / "out_of_tree-1.0.dist-info"
    (record / "entry_points.txt").write_text("[vitreous.commands]\ndoctor = out_of_tree_command\n")
    for words in (["doctor", "--help"], ["--help"]):
        done = command(*words, env=outside, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert "Say what this machine has" in done.stdout
