"""Where there is no PyTorch: a fresh environment, and real weights in int8. Minutes, so `make test` leaves them out."""

import json
import os
import subprocess
import sys

import pytest
from shared_files import needs_shared

import vitreous

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
def test_a_fresh_environment_without_torch_gives_the_same_label(runtime, vit, request, tmp_path):
    from picture_files import photo

    folder, _ = request.getfixturevalue(f"{runtime}_export")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    package = "onnxruntime" if runtime == "onnx" else "openvino"
    command = [str(python), "-m", "pip", "install", "--quiet", "numpy", "pillow", package]
    if (done := subprocess.run(command, capture_output=True, text=True)).returncode:
        pytest.skip(f"no index to install from: {done.stderr.splitlines()[-1]}")
    photo(1, (400, 300)).save(tmp_path / "photo.jpg", quality=85)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    assert subprocess.run([str(python), "-c", "import torch"], capture_output=True, env=environment).returncode
    words = [str(python), str(folder / "run.py"), str(tmp_path / "photo.jpg"), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    (answer,) = vitreous.predict(vit, tmp_path / "photo.jpg")
    assert json.loads(done.stdout)["top"][0]["label"] == answer.labels[0]


@needs_shared
@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_int8_of_real_weights_passes_the_gate_on_real_photographs(to, shared, tmp_path):
    pytest.importorskip("onnxscript", reason="the extra `export` is not installed")
    pytest.importorskip("nncf" if to == "openvino" else "onnxruntime", reason="an extra is not installed")
    model = vitreous.load(shared / "weights" / "deit-tiny")
    data = shared / "data" / "imagenet-sample-1000.zip"
    parity = vitreous.export(model, tmp_path / "out", to=to, int8=True, data=data, images=400)
    assert parity.passed, str(parity)
    assert parity.accuracy.images == 400
