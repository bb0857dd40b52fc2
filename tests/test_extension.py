"""One file, one line: a position, a pool and a weight format from outside the tree are found by name, everywhere."""

import json
import os
import subprocess
import sys
from textwrap import dedent

import pytest

EXTENSION = '''
"""A position that shifts every token, a pool that takes the last patch, and a format that is one .safetensors file."""

import torch
from safetensors.torch import save_file
from torch import nn

from vitreous.models.pooling import Pool
from vitreous.models.positions import Positions
from vitreous.models.preprocess import Preprocess
from vitreous.models.config import ViTConfig
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
'''

ENTRY_POINTS = """
[vitreous.positions]
shifted = out_of_tree:Shifted
[vitreous.pools]
last-patch = out_of_tree:LastPatch
[vitreous.formats]
plain = out_of_tree:PLAIN
"""


@pytest.fixture
def outside(tmp_path):
    """A folder that looks installed: one file, and its lines in a table of entry points."""
    (tmp_path / "out_of_tree.py").write_text(dedent(EXTENSION))
    record = tmp_path / "out_of_tree-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: out-of-tree\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text(ENTRY_POINTS)
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def python(code, env, cwd):
    done = subprocess.run(
        [sys.executable, "-c", dedent(code)], env=env, cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def command(*words, env, cwd):
    return subprocess.run(
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
