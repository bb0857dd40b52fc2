"""Which patches an answer came from: the pool says it, and report, serve, look and export all say the same."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from picture_sets import arrays
from tiny_models import VIT, awake, line_of

import vitreous
from vitreous.errors import ConfigError
from vitreous.exports import onnx
from vitreous.exports.graphs import ready_to_export
from vitreous.exports.target import WriteOptions, make_parts
from vitreous.images.pixels import decode
from vitreous.images.pixels.preprocess import normalise, pixels
from vitreous.measures.explain import attention_maps, look_at
from vitreous.models.pooling import POOLS, MapPool, MeanOfPatches, Pool, find_pool
from vitreous.models.preprocess import Preprocess
from vitreous.models.taps import taps
from vitreous.server.engine import Engine
from vitreous.server.overlays import explained

IMAGES = 4
OPSET = 18


class LastPatch(Pool):
    """A pool from outside the tree that says what it reads."""

    def forward(self, z):
        return z[:, -1]

    def reads(self, flow, weights=None):
        return flow[:, -1]


class Sharper(MapPool):
    """An attention pool from outside the tree, whose first head alone counts."""

    def reads(self, flow, weights=None):
        return (weights[:, 0] @ flow[:, self.prefix :])[:, 0]


class Silent(Pool):
    """A pool from outside the tree that does not say what it reads."""

    def forward(self, z):
        return z[:, -1]


class Trimmed(MeanOfPatches):
    """A pool that changes what it inherits, and not what it says."""

    def forward(self, z):
        return z[:, self.prefix + 1 :].mean(1)


OURS, OUTSIDE = list(POOLS), {"last-patch": LastPatch, "sharper": Sharper}
SILENT = {"silent": Silent, "trimmed": Trimmed}


@pytest.fixture(autouse=True)
def from_outside(monkeypatch):
    for name, pool in (OUTSIDE | SILENT).items():
        monkeypatch.setitem(POOLS.parts, name, pool)


def network(pool, **changes):
    """Tokens of every kind stand in front, so that no two rows are the same."""
    model = awake(VIT, pool=pool, class_token=True, distillation_token=True, registers=2, **changes)
    model.preprocess = Preprocess(size=(16, 16))
    return model


@pytest.fixture(scope="module")
def pictures():
    return arrays(IMAGES, side=16)


def of_sum_one(maps):
    maps = np.asarray(maps, np.float64).reshape(-1, 16)
    return maps / maps.sum(1, keepdims=True)


def inputs(model, data):
    return torch.stack([normalise(pixels(data.read(i), model.preprocess), model.preprocess) for i in range(len(data))])


def exported(model, data, folder):
    """The maps of the image form in ONNX, from the picture on."""
    (folder / "scratch").mkdir()
    onnx.write(
        make_parts(ready_to_export(model), attention=True), folder, folder / "scratch", WriteOptions(opset=OPSET)
    )
    run = onnx.open_file(folder / "image.onnx")
    return [run(data.read(i))[2] for i in range(len(data))]


@pytest.mark.parametrize(
    ("pool", "order"), [*((pool, "norm-first") for pool in [*OURS, *OUTSIDE]), ("map", "mean-first")]
)
def test_report_serve_and_look_say_the_same(pool, order, pictures):
    model = network(pool, pool_order=order)
    report = [look.map for look in look_at(model, pictures, range(IMAGES)).looks]
    assert of_sum_one(attention_maps(model, inputs(model, pictures))) == pytest.approx(of_sum_one(report), abs=1e-5)
    with Engine(model, torch.device("cpu")).at_work() as engine:
        served = [engine.attend(decode.finish(pictures.read(i), model.preprocess))[1].rollout for i in range(IMAGES)]
    assert of_sum_one(served) == pytest.approx(of_sum_one(report), abs=1e-5)
    looked = vitreous.look(model, pictures, only=["rollout"])["rollout"]["mean_map"]
    assert np.ravel(looked) == pytest.approx(of_sum_one(report).mean(0), abs=1e-5)


@pytest.mark.parametrize("pool", [*OURS, *OUTSIDE])
def test_the_map_of_the_forms_that_are_exported_is_the_report_s(pool, pictures):
    model = network(pool)
    form = make_parts(ready_to_export(model), attention=True).whole
    with torch.inference_mode():
        found = [form(torch.from_numpy(pictures.read(i)))[2].numpy() for i in range(IMAGES)]
    assert_maps_of_the_report(found, model, pictures)


@pytest.mark.slow
@pytest.mark.parametrize("pool", [*OURS, *OUTSIDE])
def test_the_exported_map_is_the_report_s(pool, pictures, tmp_path):
    pytest.importorskip("onnxruntime", reason="the extra `export` is not installed")
    model = network(pool)
    assert_maps_of_the_report(exported(model, pictures, tmp_path), model, pictures)


def assert_maps_of_the_report(found, model, pictures):
    wanted = attention_maps(model, inputs(model, pictures)).numpy()
    assert np.stack(found) == pytest.approx(wanted, abs=1e-3 * float(wanted.max()))


def test_the_pools_differ(pictures):
    """Else the tests above would pass whatever is asked."""
    maps = [of_sum_one(attention_maps(network(pool), inputs(network(pool), pictures))) for pool in OURS]
    alike = [
        (a, b)
        for i, a in enumerate(OURS)
        for j, b in enumerate(OURS[:i])
        if np.abs(maps[i] - maps[j]).max() < 0.01 * maps[i].max()
    ]
    same = [("max", "gap"), ("cls-distillation-mean", "cls-and-distillation")]  # any patch; both tokens
    assert sorted(alike) == sorted(same)


@pytest.mark.parametrize("pool", [*OURS, *OUTSIDE])
def test_a_pool_says_that_it_reads_what_its_answer_depends_on(pool):
    """No token moves the pooled vector unless its row is read; and each row that is read does, but for the largest."""
    part = find_pool(network(pool))[0]
    z = torch.randn(1, 20, 16, generator=torch.Generator().manual_seed(1)).requires_grad_()
    with taps(part, "weights") if part.attends else nullcontext({}) as seen:
        part(z).square().sum().backward()
    moves = z.grad[0].abs().sum(-1) > 0
    is_read = part.reads(torch.eye(20)[None], seen.get("weights"))[0] > 0
    assert (moves <= is_read).all()
    assert moves.equal(is_read) or pool == "max"


@pytest.mark.parametrize("pool", SILENT)
def test_a_pool_that_does_not_say_what_it_reads_is_never_explained(pool, pictures, tmp_path):
    """Not as the mean, and not as its parent: everybody says that it does not tell."""
    model = network(pool)
    why = f"the pool {SILENT[pool].__name__} does not say which tokens it reads"
    found = look_at(model, pictures, range(IMAGES))
    assert found.looks == ()
    assert found.why_not.lower().startswith(why.lower())
    with pytest.raises(ConfigError) as error:
        attention_maps(model, inputs(model, pictures))
    line_of(error.value, why, "give the class a method `reads`")
    with pytest.raises(ConfigError) as error:
        vitreous.export(model, tmp_path / "out", to="pt2", attention=True)
    line_of(error.value, why, "leave --attention out")
    with pytest.raises(ConfigError) as error:
        explained(model, pictures, [], tmp_path / "explained")
    line_of(error.value, why, "leave --explain out")
    with Engine(model, torch.device("cpu")).at_work() as engine:
        seen = decode.finish(pictures.read(0), model.preprocess)
        assert engine.attend(seen)[1] is None
        assert engine.attend(seen, patch=3)[1].rollout.shape == (16,)
    with pytest.raises(ConfigError, match=f"rollout has no meaning here: {why}"):
        vitreous.look(model, pictures, only=["rollout"])
    looked = vitreous.look(model, pictures, only=["attention-maps"]).arrays["attention-maps"]
    assert "maps" in looked
    assert "rollout" not in looked
