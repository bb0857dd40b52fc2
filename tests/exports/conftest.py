"""Exports of tiny real models, each made once for all tests that look at it."""

from pathlib import Path

import pytest
from tiny_models import VIT, awake

import vitreous
from vitreous.models.preprocess import Preprocess

RULE = Preprocess(size=(16, 16), fit="crop", short_side=18, interpolation="bicubic", antialias=True, source="tests")


def tiny_vit():
    model = awake(VIT)
    model.preprocess, model.temperature, model.threshold = RULE, 1.7, 0.5
    model.labels = ("ash", "beech", "cedar", "date palm", "elm")
    model.source = {"terms": "for learning <only>,\nnot for sale"}
    return model


@pytest.fixture(scope="session")
def vit():
    return tiny_vit()


@pytest.fixture(scope="session")
def onnx_export(vit, tmp_path_factory):
    """(folder, parity) of a ViT whose attention is exported too."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="the extra `export` is not installed")
    folder: Path = tmp_path_factory.mktemp("exports") / "onnx"
    return folder, vitreous.export(vit, folder, to="onnx", attention=True, images=20)


@pytest.fixture(scope="session")
def openvino_export(vit, tmp_path_factory):
    for package in ("onnx", "onnxscript", "openvino"):
        pytest.importorskip(package, reason="the extras `export` and `openvino` are not installed")
    folder: Path = tmp_path_factory.mktemp("exports") / "openvino"
    return folder, vitreous.export(vit, folder, to="openvino", images=20)
