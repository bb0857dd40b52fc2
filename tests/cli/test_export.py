"""vitreous export, as a shell calls it."""

import importlib.util
import json

import pytest
from commands import run_all
from tiny_models import VIT, awake

import vitreous

HAS_ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "tiny.safetensors"
    vitreous.save(awake(VIT), path)
    return path


INT8 = ["--to", "openvino", "--int8"]


def test_bad_input_is_one_line_each(weights, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    cases = [
        (["export"], "name a model, a folder and a runtime: vitreous export MODEL OUT --to onnx|openvino|pt2|web"),
        (["export", weights], f"name a folder and a runtime: vitreous export {weights} OUT --to onnx|"),
        (["export", weights, tmp_path / "a"], f"name a runtime: vitreous export {weights} {tmp_path / 'a'} --to onnx|"),
        (["export", weights, "--to", "web"], f"name a folder: vitreous export {weights} OUT --to web"),
        (["export", weights, tmp_path / "a", "--to", "tflite"], "there is no export to 'tflite'"),
        (
            ["export", weights, tmp_path / "a", "--to", "onnx", "--opset", "7"],
            "opset 7 cannot be written; choose 18 to",
        ),
        (["export", weights, tmp_path / "taken", "--to", "pt2"], "exists already"),
        (["export", tmp_path / "none.safetensors", tmp_path / "a", "--to", "pt2"], "none.safetensors"),
        (["export", "Ti/16 classes=0", tmp_path / "a", *INT8, "--data", tmp_path], "the model has no head"),
        (["export", tmp_path, "--verify", tmp_path / "none.json"], "holds no vectors/expected.json"),
    ]
    for done, (words, line) in zip(run_all(words for words, _ in cases), cases, strict=True):
        assert line in done.line, words
    assert not (tmp_path / "a").exists()


@pytest.mark.skipif(not HAS_ONNX, reason="the extra `export` is not installed")
@pytest.mark.slow
def test_it_writes_says_what_it_found_and_verifies(weights, tmp_path):
    out = tmp_path / "out"
    first, again = run_all(
        [
            ["export", weights, out, "--to", "onnx", "--images", "5", "--json"],
            ["export", out, "--verify", out / "vectors" / "expected.json"],
        ]
    )
    assert first.code == 0, first.stderr
    said = json.loads(first.stdout)
    assert list(said)[:2] == ["schema", "passed"]
    assert said["schema"] == "vitreous.export/1"
    assert first.stderr == ""
    assert again.code == 0
    wrong = json.loads((out / "vectors" / "expected.json").read_text())
    wrong["tensor"]["00"][0] += 1
    (tmp_path / "outputs.json").write_text(json.dumps(wrong))
    (done,) = run_all([["export", out, "--verify", tmp_path / "outputs.json"]])
    assert done.code == 1
    assert "fault: tensor form" in done.stdout
