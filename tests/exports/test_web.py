"""A page for any browser: what lies in its folder, where its runtime comes from, and what is refused."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import commands
import numpy as np
import pytest
import torch
from tiny_models import BIT, VIT, awake, line_of
from web_hosting import need_runtime

import vitreous
from vitreous.errors import ConfigError
from vitreous.exports import onnx as onnx_files
from vitreous.exports.graphs import PageNetwork, ready_to_export
from vitreous.exports.target import PageOptions, make_parts
from vitreous.exports.web import page_folder, web_target
from vitreous.exports.web.chromium import find_chromium
from vitreous.exports.web.onnx_weights import halve_weights, quantise_weights
from vitreous.exports.web.runtime_files import FETCHED_VERSION, WASM_FILES, WEBGPU_FILES, find_runtime
from vitreous.images.pixels.preprocess import normalise
from vitreous.models import architecture
from vitreous.models.pooling import POOLS, Pool
from vitreous.report.page import ANSWER_PAGE
from vitreous.server import exported, pages
from vitreous.server.engine import Engine, attended

needs_chromium = pytest.mark.skipif(find_chromium() is None, reason="no Chromium here")


def package(folder: Path, *, webgpu=True, name="onnxruntime-web") -> Path:
    """A package with the names of onnxruntime-web's files."""
    (folder / "dist").mkdir(parents=True)
    (folder / "package.json").write_text(json.dumps({"name": name, "version": "9.8.7"}))
    for _, theirs in (*WASM_FILES.values(), *(WEBGPU_FILES.values() if webgpu else ())):
        (folder / "dist" / theirs).write_bytes(b"\0asm")
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """(model, folder, parity) of a tiny ViT, written without a browser."""
    runtime = need_runtime()
    model = awake(VIT)
    model.labels = ("ash", "beech", "cedar", "date palm", "elm")
    folder = tmp_path_factory.mktemp("page") / "trees"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(web_target, "find_chromium", lambda: None)
        parity = vitreous.export(
            model, folder, to="web", images=4, page=PageOptions(name="<trees>", runtime=runtime.dist, wasm_only=True)
        )
    return model, folder, parity


# What lies in it ---------------------------------------------------------------------------------------------------


def test_the_folder_is_whole_and_asks_nobody_else(page):
    _, folder, parity = page
    assert parity.passed
    assert parity.forms[0].form == "tensor"
    assert "the page was not tried: there is no Chromium here" in parity.notes
    assert any(re.search(r"the runtime is onnxruntime-web .+ MB$", note) for note in parity.notes)
    about = json.loads((folder / "export.json").read_text())
    assert about["files"] == {"tensor": "tensor.onnx", "page": "index.html"}
    assert (folder / "labels.txt").read_text().splitlines()[3] == "date palm"
    assert "python -m http.server" in (folder / "CARD.md").read_text()
    assert len(list((folder / "vectors").glob("*.png"))) == 10
    html = (folder / "index.html").read_text()
    assert "<title>&lt;trees&gt; · vitreous</title>" in html
    for file in folder.rglob("*"):
        if file.suffix in (".html", ".css", ".js", ".json") and file.parent.name != "runtime":
            hosts = set(re.findall(r"https?://([\w.]+)", file.read_text("utf-8")))
            assert hosts <= {"127.0.0.1", "www.w3.org"}, file
    named = set(re.findall(r'(?:src|href)="\./([\w.-]+)"', html)) - {"lesson", "worksheet", "docs"}
    named |= {name for file in folder.glob("*.js") for name in re.findall(r'from "\./([\w.]+)"', file.read_text())}
    assert {name for name in named if not (folder / name).is_file()} == set()


def test_the_page_and_serve_are_one_source(page):
    """Every file that both have is the same file; what differs is who answers."""
    _, folder, _ = page
    shared = [file for file in ANSWER_PAGE.iterdir() if file.suffix in (".js", ".css", ".svg")]
    assert {file.name for file in shared} >= {"page.js", "drawing.js", "camera.js", "breaking.js", "answers.css"}
    for file in shared:
        assert (folder / file.name).read_bytes() == file.read_bytes()
        assert pages.PAGE_FILES[f"/{file.name}"] == file
    both = [page_folder.OWN_FILES / "api.js", pages.PAGE_FILES["/api.js"]]
    offers = [
        set(re.findall(r"^export (?:(?:async )?(?:const|function|class) |{ )(\w+)", file.read_text(), re.M))
        for file in both
    ]
    asked = {name for file in shared for names in re.findall(r'import {([^}]+)} from "./api.js"', file.read_text())
             for name in names.replace(" ", "").split(",")}  # fmt: skip
    assert asked <= offers[0] & offers[1]


def test_the_service_worker_changes_with_the_model(page, tmp_path):
    _, folder, _ = page
    names = [file.name for file in folder.iterdir() if file.suffix in (".html", ".js", ".css") and file.name != "sw.js"]
    versions = set()
    for content in (b"one", b"one", b"two"):
        for name in (*names, "model.json"):
            shutil.copyfile(folder / name, tmp_path / name)
        (tmp_path / "tensor.onnx").write_bytes(content)
        page_folder.write_service_worker(tmp_path, names)
        versions.add((tmp_path / "sw.js").read_text())
    assert len(versions) == 2
    kept = json.loads(re.search(r"const PAGE = (\[.*\]);", (folder / "sw.js").read_text())[1])
    assert all((folder / name).exists() for name in kept)
    assert "{{" not in (folder / "sw.js").read_text()


@pytest.mark.parametrize("pool", ["cls", "gap", "map", "cls-and-gap"])
def test_the_graph_has_where_the_answer_looks_for_every_pool(pool):
    model = ready_to_export(awake(VIT, pool=pool))
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        network = PageNetwork(model).eval()
        found = dict(zip(network.outputs, network(x), strict=True))
        of_pool = [None, None] if network.pool_tap is None else super(PageNetwork, network).forward(x)[3]
    torch.testing.assert_close(found["logits"], model(x))
    for i in range(2):
        layers = [layer[None] for layer in found["attention_weights"][i]]  # each 1 H N N
        asked = None if of_pool[i] is None else of_pool[i][None]
        wanted = attended(layers, model, None, asked)
        np.testing.assert_allclose(found["answer_maps"][i], wanted.heads, atol=1e-6)
        np.testing.assert_allclose(found["answer_rollout"][i], wanted.rollout, atol=1e-6)
        patch = attended(layers, model, 5)
        front = model.config.prefix
        np.testing.assert_allclose(found["rollout"][i, front + 5, front:], patch.rollout, atol=1e-6)


HYBRIDS = {
    "convolutions": {"stem": "convolutions", "pool": "gap", "image_size": 28, "patch": 8},
    "patches": {},
}


@pytest.mark.parametrize("kind", HYBRIDS)
def test_the_graph_has_what_the_lesson_shows(kind):
    """Tokens and maps are those that `vitreous serve` gives."""
    model = awake(VIT, **HYBRIDS[kind])
    pixels = np.random.default_rng(1).integers(0, 256, (*model.preprocess.size, 3), dtype=np.uint8)
    with torch.inference_mode():
        network = PageNetwork(ready_to_export(model)).eval()
        found = dict(zip(network.outputs, network(normalise(pixels, model.preprocess)[None]), strict=True))
    with Engine(model, torch.device("cpu")).at_work() as engine:
        np.testing.assert_allclose(found["tokens"][0], engine.tokens(pixels, 48), atol=2e-5)
        stem = engine.stem(pixels, 6) if kind == "convolutions" else []
    shapes = architecture.stem_shapes(model.config)
    assert [step["shape"] for step in stem] == shapes
    assert len(shapes) == sum(name.startswith("stem_") for name in found) == (3 if kind == "convolutions" else 0)
    for i, step in enumerate(stem):
        np.testing.assert_allclose(found[f"stem_{i}"][0].flatten(1), step["maps"], atol=2e-5)


def test_an_encoder_without_a_head_is_a_page_of_features(tmp_path):
    runtime, model = need_runtime(), awake(VIT, classes=0, pool="map", class_token=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(web_target, "find_chromium", lambda: None)
        page = PageOptions(name="eyes", runtime=runtime.dist, wasm_only=True)
        parity = vitreous.export(model, tmp_path / "out", to="web", images=4, page=page)
    assert parity.passed
    assert parity.forms[0].of == "features"
    about = json.loads((tmp_path / "out" / "model.json").read_text())
    assert (about["classes"], about["features"], about["answers"], about["labels"]) == (0, 16, "features", [])
    sheet = json.loads((tmp_path / "out" / "worksheet.json").read_text())
    assert any("16 numbers, its features" in row["question"] for row in sheet["questions"])
    assert "features" in sheet["words"]


@pytest.mark.parametrize("config", [VIT, BIT])
def test_smaller_weights_answer_nearly_the_same(tmp_path, config):
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason="the extra `export` is not installed")
    model = awake(config, **({"width": 64, "mlp": 96} if config is VIT else {}))
    whole, file = tmp_path / "whole.onnx", tmp_path / "tensor.onnx"
    onnx_files.write_network(make_parts(ready_to_export(model)), whole, 18)
    x = np.random.default_rng(0).normal(size=(2, 3, *model.config.image_size)).astype(np.float32)
    before = onnx_files.open_file(whole)(x)[0]
    for shrink, limit, share in ((halve_weights, 2e-2, 0.75), (quantise_weights, 0.25, 0.6)):
        shutil.copyfile(whole, file)
        shrink(file)
        after = onnx_files.open_file(file)(x)[0]
        assert 0 < np.abs(after - before).max() <= limit * np.abs(before).max()
        assert file.stat().st_size < share * whole.stat().st_size


def test_weights_beyond_float16_stay(tmp_path):
    onnx = pytest.importorskip("onnx", reason="the extra `export` is not installed")
    from onnx import TensorProto, helper, numpy_helper

    weight = np.full((64, 64), 1e5, np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])],
        [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "m.onnx")
    halve_weights(tmp_path / "m.onnx")
    kept = onnx.load(tmp_path / "m.onnx").graph.initializer[0]
    assert numpy_helper.to_array(kept).max() == np.float32(1e5)


# The gate ----------------------------------------------------------------------------------------------------------


@needs_chromium
@pytest.mark.parametrize(
    ("file", "before", "after", "fault"),
    [
        ("preprocess.js", "half + 1 : half", "half + 2 : half + 1", "grey levels off"),
        pytest.param("answers.js", "(z - top) / temp", "(top - z) / temp", "page form", marks=pytest.mark.slow),
    ],
    ids=["crop", "answer"],
)
def test_a_page_that_answers_otherwise_is_not_kept(tmp_path, monkeypatch, file, before, after, fault):
    own = tmp_path / "own"
    shutil.copytree(page_folder.OWN_FILES, own)
    text = (own / file).read_text()
    assert text.count(before) == 1
    (own / file).write_text(text.replace(before, after))
    monkeypatch.setattr(page_folder, "OWN_FILES", own)
    model = awake(VIT)
    model.preprocess = replace(model.preprocess, fit="crop", short_side=19, interpolation="bicubic", antialias=True)
    page = PageOptions(runtime=need_runtime().dist, wasm_only=True)
    parity = vitreous.export(model, tmp_path / "out", to="web", images=8, page=page)
    assert any(fault in line for line in parity.faults)
    assert any(re.match(r"the page answered in Chromium \d+ by wasm, 1 thread, \d+ ms", note) for note in parity.notes)
    assert not (tmp_path / "out").exists()


# Refusals ----------------------------------------------------------------------------------------------------------


def test_the_runtime_is_the_nearest_or_the_one_that_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    deep = tmp_path / "site" / "a" / "b"
    deep.mkdir(parents=True)
    package(tmp_path / "site" / "node_modules" / "onnxruntime-web")
    found = find_runtime(None, deep)
    assert (found.version, found.origin, found.has_webgpu) == ("9.8.7", "node_modules", True)
    other = package(tmp_path / "other", webgpu=False)
    for name in (other, other / "dist"):
        found = find_runtime(name, deep)
        assert found.dist == other / "dist"
        assert not found.has_webgpu
    assert find_runtime(tmp_path / "site").dist == tmp_path / "site/node_modules/onnxruntime-web/dist"
    package(tmp_path / "cache" / f"onnxruntime-web-{FETCHED_VERSION}")
    (tmp_path / "empty").mkdir()
    assert find_runtime(None, tmp_path / "empty").origin == "npm"  # fetched before


def test_without_a_runtime_one_line_names_three_ways_out(tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ConfigError) as error:
        find_runtime(None, tmp_path)
    line_of(error.value, "npm install onnxruntime-web", "--runtime FOLDER", "--runtime npm")
    with pytest.raises(ConfigError) as error:
        find_runtime(tmp_path)
    line_of(error.value, tmp_path, "ort-wasm-simd-threaded.wasm", "--runtime npm")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError) as error:
        find_runtime("npm")
    line_of(error.value, "needs npm, which is not here", "--runtime FOLDER")
    broken = tmp_path / "npm"
    broken.write_text("#!/bin/sh\necho 'npm error code ENOTFOUND' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin{os.pathsep}/usr/bin")
    with pytest.raises(ConfigError) as error:
        find_runtime("npm")
    line_of(error.value, "npm could not fetch onnxruntime-web (npm error code ENOTFOUND)", "--runtime FOLDER")
    assert not (tmp_path / "cache").exists()


def test_all_that_a_page_lacks_is_said_at_once(tmp_path, monkeypatch):
    """No extra, no runtime, no npm: one refusal, before any work."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for runtime, words in (
        (None, ("install Node.js for npm", "npm install onnxruntime-web", "--runtime npm", "--runtime FOLDER")),
        ("npm", ("--runtime npm needs npm", "install Node.js", "--runtime FOLDER")),
        (tmp_path / "none", (tmp_path / "none", "has no onnxruntime-web")),
    ):
        with pytest.raises(ConfigError) as error:
            vitreous.export(awake(VIT), tmp_path / "out", to="web", page=PageOptions(runtime=runtime))
        line_of(error.value, "export to web needs the extra 'export'; pip install 'vitreous[export]'; and ", *words)
    assert list(tmp_path.iterdir()) == []


def test_operators_that_the_runtime_lacks_are_named(tmp_path):
    onnx = pytest.importorskip("onnx", reason="the extra `export` is not installed")
    from onnx import TensorProto, helper

    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Twist", ["x"], ["y"], domain="my.own")], "g", value[:1], value[1:])
    ops = [helper.make_opsetid("", 18), helper.make_opsetid("my.own", 1)]
    onnx.save(helper.make_model(graph, opset_imports=ops), tmp_path / "m.onnx")
    with pytest.raises(ConfigError) as error:
        web_target.check_operators(tmp_path / "m.onnx")
    line_of(error.value, "my.own.Twist", "onnxruntime-web does not have")


def test_serve_says_how_to_open_a_page(page):
    _, folder, _ = page
    with pytest.raises(ConfigError) as error:
        exported.read(folder)
    line_of(error.value, folder, "python -m http.server --directory")


@pytest.mark.slow
def test_a_browser_that_does_not_start_is_a_note(tmp_path, monkeypatch):
    false = tmp_path / "chromium"
    false.write_text("#!/bin/sh\nexit 3\n")
    false.chmod(0o755)
    monkeypatch.setattr(web_target, "find_chromium", lambda: str(false))
    page = PageOptions(runtime=need_runtime().dist, wasm_only=True)
    parity = vitreous.export(awake(VIT), tmp_path / "out", to="web", images=2, page=page)
    assert parity.passed
    assert "the page was not tried: Chromium ended with exit 3" in parity.notes


class Hidden(Pool):
    def forward(self, z):
        return z[:, -1]


def test_what_a_page_cannot_show_is_said(monkeypatch):
    assert web_target._why_closed(awake(VIT)) == ""
    assert web_target._why_closed(awake(BIT)) == ""
    monkeypatch.setitem(POOLS.parts, "hidden", Hidden)
    assert "does not say which tokens it reads" in web_target._why_closed(awake(VIT, pool="hidden"))
    monkeypatch.setattr(web_target, "MAX_ATTENTION_BYTES", 1000)
    assert "too much for a page" in web_target._why_closed(awake(VIT))


@pytest.mark.slow
def test_the_command_ends_with_how_to_open_the_page(tmp_path):
    vitreous.save(awake(VIT), tmp_path / "m.safetensors")
    words = ("--to", "web", "--runtime", need_runtime().dist, "--images", "2", "--anyway")
    before = "from vitreous.exports.web import web_target; web_target.find_chromium = lambda: None"
    (done,) = commands.run_all([("export", tmp_path / "m.safetensors", tmp_path / "my page", *words)], before=before)
    assert done.code == 0
    assert f"python -m http.server 8000 --directory '{tmp_path / 'my page'}'" in done.stdout


def test_bad_input_is_one_line(tmp_path):
    model = awake(VIT)
    vitreous.save(model, tmp_path / "m.safetensors")
    package(tmp_path / "r")
    calls = {
        ("--to", "web", "--runtime", tmp_path / "none"): "has no onnxruntime-web",
        ("--to", "web", "--runtime", tmp_path / "r", "--attention"): "web shows attention by itself",
        ("--to", "onnx", "--runtime", tmp_path / "r"): "are of pages; choose --to web",
        ("--to", "onnx", "--examples"): "are of pages; choose --to web",
        ("--to", "web", "--runtime", tmp_path / "r", "--examples"): "name them: --data DATA",
        ("--to", "web", "--runtime", tmp_path / "r", "--int8"): "name them: --data DATA",
    }
    done = commands.run_all([("export", tmp_path / "m.safetensors", tmp_path / "out", *words) for words in calls])
    for each, line in zip(done, calls.values(), strict=True):
        assert line in each.line
    assert not (tmp_path / "out").exists()
