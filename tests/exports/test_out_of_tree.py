"""One file and one entry point outside the tree: a target like ours, and pools that are explained or refused."""

import json
import os
import sys

import forks
import pytest
from tiny_models import VIT, awake

import vitreous
from vitreous.errors import ConfigError
from vitreous.exports import export
from vitreous.exports.target import Package, Target, require

EXTENSION = '''
"""A runtime that is PyTorch by another name, a pool that says what it reads, and one that does not."""

import torch

from vitreous.exports.target import Package, Runner, Target
from vitreous.models.pooling import Pool


def write(parts, folder, scratch, options):
    for form, module in (("image", parts.whole), ("tensor", parts.network), ("fixed", parts.network)):
        torch.save(module, folder / f"{form}.eager")
    torch.save(parts.preprocessing, scratch / "preprocessing.eager")


def run_image(path):
    import torch

    module = torch.load(path, weights_only=False)
    return lambda image: [y.detach().numpy() for y in module(torch.from_numpy(image))]


def open_file(path):
    module = torch.load(path, weights_only=False)

    def run(x):
        with torch.inference_mode():
            found = module(torch.from_numpy(x))
        return [y.numpy() for y in (found if isinstance(found, tuple) else (found,))]

    return run


EAGER = Target(
    name="eager",
    about="PyTorch, pickled",
    suffix=".eager",
    write=write,
    open=open_file,
    describe=lambda path: {"torch": torch.__version__, "operators": {}},
    precisions=("fp16",),
    runner=Runner(Package("torch"), run_image),
)


class LastPatch(Pool):
    def forward(self, z):
        return z[:, -1]

    def reads(self, flow, weights=None):
        return flow[:, -1]


class Silent(Pool):
    def forward(self, z):
        return z[:, -1]
'''

ENTRY_POINTS = """
[vitreous.targets]
eager = out_of_tree:EAGER
[vitreous.pools]
last-patch = out_of_tree:LastPatch
silent = out_of_tree:Silent
"""

TARGET = """
import json, sys
from pathlib import Path
import numpy as np
import vitreous
from vitreous.server import exported, runtimes

parity = json.loads(Path("out/parity.json").read_text())
assert parity["passed"] and [form["form"] for form in parity["forms"]] == ["tensor", "fixed", "image"]
assert "pip install numpy pillow torch" in Path("out/CARD.md").read_text()
found = exported.read(exported.find("out"))
model = vitreous.load("tiny.safetensors")
seen = np.zeros((*model.preprocess.size, 3), np.uint8)
import torch
from vitreous.images.pixels.preprocess import normalise
with torch.inference_mode():
    ours = model(normalise(seen, model.preprocess)[None]).numpy()
np.testing.assert_allclose(exported.FileEngine(found).answers_to([seen])[:, :-1], ours, rtol=1e-3, atol=1e-4)
runtimes.check("eager", None)
"""

POOLS = """
import numpy as np, torch, vitreous
from pathlib import Path
from vitreous.errors import ConfigError
from vitreous.exports.export import TARGETS
from vitreous.images.pixels.preprocess import apply
from vitreous.measures.explain import attention_maps

small = dict(width=16, depth=2, heads=2, mlp=24, image_size=16, classes=3, seed=0)
model = vitreous.build("Ti/4", pool="last-patch", **small).eval()
for p in model.parameters():
    torch.nn.init.normal_(p, std=0.3)
assert vitreous.export(model, "told", to="eager", attention=True, images=4).passed
image = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
theirs = TARGETS["eager"].open(Path("told/image.eager"))(image)[2]
ours = attention_maps(model, apply(image, model.preprocess)[None])[0].numpy()
np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-6)
np.testing.assert_allclose(ours.sum(), 1, rtol=1e-3)

silent = vitreous.build("Ti/4", pool="silent", **small).eval()
try:
    vitreous.export(silent, "silent", to="eager", attention=True, images=4)
except ConfigError as error:
    assert "the pool Silent does not say which tokens it reads" in str(error), error
else:
    raise AssertionError("it was exported")
assert not Path("silent").exists()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder that looks like an installed package, with a tiny model beside it."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "out_of_tree.py").write_text(EXTENSION)
    record = folder / "out_of_tree-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: out-of-tree\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text(ENTRY_POINTS)
    vitreous.save(awake(VIT), folder / "tiny.safetensors")
    return folder


def python(place, *words):
    path = os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH")]))
    return forks.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=place,
        capture_output=True,
        text=True,
    )


def test_a_target_from_outside_is_exported_to_compared_run_and_served(place, tmp_path):
    from picture_files import photo

    done = python(place, "-m", "vitreous", "export", "tiny.safetensors", "out", "--to", "eager", "--images", 4)
    assert done.returncode == 0, done.stderr
    assert "eager, float32: agrees with PyTorch" in done.stdout
    done = python(place, "-c", TARGET)
    assert done.returncode == 0, done.stderr
    photo(1).save(tmp_path / "photo.png")
    done = python(place, place / "out" / "run.py", tmp_path / "photo.png", "--json")
    assert done.returncode == 0, done.stderr
    (answer,) = vitreous.predict(vitreous.load(place / "tiny.safetensors"), tmp_path / "photo.png")
    assert json.loads(done.stdout)["top"][0]["label"] == answer.labels[0]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "vitreous export tiny.safetensors no --to onnx|openvino|pt2|web|eager"),
        (("--to", "abacus"), "there is no export to 'abacus'; choose onnx, openvino, pt2, web, eager"),
        (("--to", "eager", "--opset", "18"), "eager has no opset; leave it out"),
        (("--to", "eager", "--int8", "--data", "x"), "there is no int8 for eager; choose --to onnx or openvino or web"),
    ],
)
def test_the_command_line_lists_and_refuses_it_like_ours(place, words, line):
    done = python(place, "-m", "vitreous", "export", "tiny.safetensors", "no", *words)
    assert done.returncode == 2
    assert line in done.stderr
    assert not (place / "no").exists()


def test_an_exported_map_is_that_of_a_pool_from_outside_or_refused_by_name(place):
    done = python(place, "-c", POOLS)
    assert done.returncode == 0, done.stderr


def test_a_package_that_is_no_extra_of_ours_is_named_with_its_command(monkeypatch, tmp_path):
    ours = export.TARGETS["pt2"]
    monkeypatch.setitem(export.TARGETS.parts, "pt2", Target(**vars(ours) | {"packages": (Package("no_such_package"),)}))
    with pytest.raises(ConfigError, match="export to pt2 needs no_such_package; pip install no_such_package"):
        vitreous.export(awake(VIT), tmp_path / "out", to="pt2")
    require((Package("torch"),), "this test")
