"""A folder for another runtime: what lies in it, and that it says what the model says."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import forks
import numpy as np
import pytest
import torch
from picture_files import photo
from PIL import Image
from small_runs import image_set, picture_folder
from tiny_models import BIT, VIT, awake, images, line_of

import vitreous
from vitreous.errors import CheckpointError, ConfigError, DataError, ExistsError, MissingExtraError
from vitreous.evaluation import learned_images
from vitreous.exports import export, vectors
from vitreous.exports.card import card, steps, terms_of
from vitreous.exports.graphs import ready_to_export
from vitreous.exports.target import make_parts
from vitreous.images.pixels.preprocess import apply
from vitreous.models.preprocess import Preprocess
from vitreous.models.track_record import TrackRecord
from vitreous.server import exported


def has(*packages):
    for package in packages:
        pytest.importorskip(package, reason=f"{package} is not installed")


def torch_answer(model, picture):
    """(probabilities, the answer of `predict`)."""
    (answer,) = vitreous.predict(model, picture, top=model.config.readout.classes)
    shares = dict(zip(answer.classes, answer.probabilities, strict=True))
    return [shares[k] for k in range(len(shares))], answer


def outside(folder: Path, *words, code=0):
    """run.py in a process that has no torch."""
    return outside_process(folder, *words, code=code).stdout


def outside_process(folder: Path, *words, code=0):
    program = "import sys; sys.modules['torch'] = None; sys.argv = sys.argv[1:]; import runpy; "
    program += "runpy.run_path(sys.argv[0], run_name='__main__')"
    call = [sys.executable, "-c", program, str(folder / "run.py"), *map(str, words)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done


# What lies in it --------------------------------------------------------------------------------------------------


def test_the_folder_is_whole_and_says_what_it_is(onnx_export):
    folder, parity = onnx_export
    assert parity.passed
    assert [form.form for form in parity.forms] == ["tensor", "fixed", "image"]
    assert all(form.agreement == 1 for form in parity.forms)
    assert parity.grey_levels <= 1
    files = {file.name for file in folder.iterdir()}
    assert files == {
        *("image.onnx", "tensor.onnx", "fixed.onnx", "labels.txt", "export.json", "parity.json"),
        *("CARD.md", "run.py", "vectors"),
    }
    assert (folder / "labels.txt").read_text().splitlines() == ["ash", "beech", "cedar", "date palm", "elm"]
    assert json.loads((folder / "parity.json").read_text())["passed"] is True
    told = (folder / "CARD.md").read_text()
    for words in ("opset ai.onnx 18", "short side is 18", "T = 1.7", "score below 0.5", "attention_map", "agrees with"):
        assert words in told
    assert not list(folder.parent.glob(".*"))  # nothing half-written beside it


def test_the_terms_of_what_the_weights_learned_from_go_with_the_folder(onnx_export):
    folder, _ = onnx_export
    about = json.loads((folder / "export.json").read_text())
    assert about["terms"] == "for learning <only>, not for sale"
    told = (folder / "CARD.md").read_text()
    assert "## Terms of what the weights have learned from\n\nfor learning &lt;only&gt;, not for sale\n" in told


def test_a_card_without_terms_has_no_heading_for_them(vit, onnx_export):
    _, parity = onnx_export
    about = json.loads((onnx_export[0] / "export.json").read_text()) | {"terms": ""}
    details = {form: {"bytes": 1, "operators": {}} for form in ("image", "tensor", "fixed")}
    assert "Terms" not in card(vit, export.TARGETS["onnx"], parity, about, details)
    assert terms_of(awake()) == ""


def test_the_files_name_no_path_of_this_machine(onnx_export):
    folder, _ = onnx_export
    for file in folder.glob("*.onnx"):
        assert b"site-packages" not in file.read_bytes()
        assert b"/src/vitreous" not in file.read_bytes()


def test_the_fixed_form_suits_phones(onnx_export):
    import onnx

    graph = onnx.load(onnx_export[0] / "fixed.onnx").graph
    assert [d.dim_value for d in graph.input[0].type.tensor_type.shape.dim] == [1, 3, 16, 16]
    assert all(d.dim_value for value in graph.output for d in value.type.tensor_type.shape.dim)
    assert not {node.op_type for node in graph.node} & {"Resize", "Shape", "If", "Loop"}


def test_the_image_form_has_no_resize(onnx_export):
    """OpenVINO silently ignores an antialiased one."""
    import onnx

    assert "Resize" not in {node.op_type for node in onnx.load(onnx_export[0] / "image.onnx").graph.node}


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Preprocess(size=(32, 32)), "to 32 rows and 32 columns, whatever its shape: bilinear, sampled at half-pixel"),
        (Preprocess(size=(24, 40), fit="crop", short_side=30), "so that it just covers 30 rows and 50 columns;"),
        (Preprocess(size=(8, 8), fit="squash-crop", short_side=9, antialias=True), "to 9 rows and 9 columns, whatever"),
        (Preprocess(mean=(0.5,), std=(0.5,)), "make it grey: 0.299 R + 0.587 G + 0.114 B"),
    ],
)
def test_preprocessing_is_told_in_at_most_ten_lines(rule, words):
    lines = steps(rule)
    assert len(lines) <= 10
    assert words in " ".join(lines)


# That it says the same ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (40, 32), (90, 20), (16, 16)])
def test_an_image_of_any_size_has_the_answer_of_predict(onnx_export, vit, shape):
    run = export.TARGETS["onnx"].open(onnx_export[0] / "image.onnx")
    picture = np.asarray(photo(3, (shape[1], shape[0])))
    probabilities, answer = torch_answer(vit, picture)
    found, score, attention = run(picture)
    assert found == pytest.approx(probabilities, abs=2e-3)
    assert float(score) == pytest.approx(answer.score, abs=0.02)
    assert attention.shape == (4, 4)


def test_attention_is_that_of_the_taps(onnx_export, vit):
    x = images(vit, 3)
    with torch.inference_mode(), vitreous.taps(vit, "blocks.*.attention.weights") as seen:
        vit(x)
    logits, score, weights = export.TARGETS["onnx"].open(onnx_export[0] / "tensor.onnx")(x.numpy())
    assert logits.shape == (3, 5)
    assert score == pytest.approx(logits.max(1))
    assert weights == pytest.approx(torch.stack(list(seen.values()), 1).numpy(), abs=1e-5)


@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
def test_the_script_runs_without_torch_from_the_file_to_the_label(runtime, vit, request, tmp_path):
    folder, _ = request.getfixturevalue(f"{runtime}_export")
    turned = Image.Exif()
    turned[0x0112] = 6
    photo(1).save(tmp_path / "turned.jpg", exif=turned, quality=90)
    photo(2).convert("RGBA").save(tmp_path / "clear.png")
    rows = [json.loads(line) for line in outside(folder, *sorted(tmp_path.iterdir()), "--json").splitlines()]
    answers = list(vitreous.predict(vit, sorted(tmp_path.iterdir())))
    assert [row["top"][0]["label"] for row in rows] == [answer.labels[0] for answer in answers]
    assert [row["said"] for row in rows] == [list(answer.said) for answer in answers]
    for row, answer in zip(rows, answers, strict=True):
        assert [each["probability"] for each in row["top"]] == pytest.approx(answer.probabilities, abs=2e-3)


BROKEN = {  # name -> why
    "a-gone.jpg": "No such file or directory; copy it again",
    "b-empty.png": "it is not an image; give JPEG, PNG, ",
    "c-words.jpg": "it is not an image; give JPEG, PNG, ",
    "d-cut.jpg": "it is broken; copy it again",
    "e-cut.png": "it is broken; copy it again",
    "f-folder": "it is not a regular file; name an image",
    "g-deep.png": "it has more than 8 bits a channel; save it as 8-bit PNG or JPEG",
}


def test_the_script_skips_what_it_cannot_read_with_a_line_and_goes_on(onnx_export, tmp_path):
    folder, _ = onnx_export
    (tmp_path / "b-empty.png").write_bytes(b"")
    (tmp_path / "c-words.jpg").write_text("these are no pixels")
    for name in ("d-cut.jpg", "e-cut.png"):
        photo(1, (300, 200)).save(tmp_path / name)
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:3000])
    (tmp_path / "f-folder").mkdir()
    Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40)).save(tmp_path / "g-deep.png")
    photo(1).save(tmp_path / "z.png")
    asked = [tmp_path / name for name in [*BROKEN, "z.png"]]
    done = outside_process(folder, *asked, code=1)
    lines = done.stderr.splitlines()
    assert len(lines) == len(BROKEN)
    for line, path, why in zip(lines, asked, BROKEN.values(), strict=False):
        assert line.startswith(f"{path}: skipped: {why}")
    assert [line.partition(": ")[0] for line in done.stdout.splitlines()] == [str(tmp_path / "z.png")]
    rows = [json.loads(line) for line in outside(folder, *asked, "--json", code=1).splitlines()]
    assert ["error" in row for row in rows] == [True] * len(BROKEN) + [False]
    assert outside(folder, tmp_path / "z.png", code=0)


def test_openvino_agrees_and_its_fixed_form_is_fixed(openvino_export):
    import openvino as ov

    folder, parity = openvino_export
    assert parity.passed
    fixed = ov.Core().read_model(folder / "fixed.xml")
    assert list(fixed.input(0).shape) == [1, 3, 16, 16]


@pytest.mark.slow
def test_weights_of_a_large_network_lie_beside_its_graph(vit, tmp_path, monkeypatch):
    """A graph's file ends at 2 GiB; image and tensor form share one file of weights."""
    has("onnx", "onnxscript", "onnxruntime")
    monkeypatch.setattr("vitreous.exports.onnx.MAX_WEIGHTS_IN_GRAPH", 0)
    parity = vitreous.export(vit, tmp_path / "out", to="onnx", images=5)
    assert parity.passed
    assert {"tensor.onnx.data", "fixed.onnx.data"} < set(parity.files)
    assert parity.files["image.onnx"] < 200_000


@pytest.mark.slow
def test_pt2_agrees(tmp_path):
    model = awake(VIT)  # by Google's rule, which is quicker to trace
    parity = vitreous.export(model, tmp_path / "out", to="pt2", images=10)
    assert parity.passed
    assert not (tmp_path / "out" / "run.py").exists()
    program = torch.export.load(tmp_path / "out" / "tensor.pt2").module()
    x = images(model, 5)
    with torch.inference_mode():
        torch.testing.assert_close(program(x)[0], model(x), atol=1e-5, rtol=0)  # then the score


HYBRID = {"stem": "resnet", "units": (1, 1), "resnet_width": 0.25, "patch": 1, "root": "small"}
VARIANTS = {
    "gap-registers-rectangle": (VIT, {"pool": "gap", "registers": 2, "image_size": (16, 24), "class_token": False}),
    "hybrid": (VIT, HYBRID),
    "BiT": (BIT, {}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_kind_of_network_agrees_in_both_runtimes(name, tmp_path):
    has("onnx", "onnxscript", "onnxruntime", "openvino")
    from vitreous.exports import onnx, openvino

    config, changes = VARIANTS[name]
    model = awake(config, **changes)
    path = tmp_path / "network.onnx"
    onnx.write_network(make_parts(ready_to_export(model)), path, 18)
    x = images(model, 3)
    with torch.inference_mode():
        ours = model(x).numpy()
    for runtime in (onnx, openvino):
        theirs = runtime.open_file(path)(x.numpy())[0]
        assert np.abs(theirs - ours).max() <= 1e-4 * max(1, np.abs(ours).max()), runtime.__name__


@pytest.mark.slow
def test_openvino_survives_a_cap_on_vector_instructions(tmp_path):
    """On a CPU with AVX-512 its convolutions ended the process."""
    has("onnx", "onnxscript", "openvino")
    from vitreous.exports import onnx

    model = awake(BIT)
    path = tmp_path / "network.onnx"
    onnx.write_network(make_parts(ready_to_export(model)), path, 18)
    np.save(tmp_path / "x.npy", images(model, 3).numpy())
    code = (
        "import sys, pathlib, numpy; from vitreous.exports import openvino;"
        "openvino.open_file(pathlib.Path(sys.argv[1]))(numpy.load(sys.argv[2]))"
    )
    for cap in ("AVX2", "ALL"):
        call = [sys.executable, "-c", code, str(path), str(tmp_path / "x.npy")]
        done = subprocess.run(call, env=os.environ | {"ONEDNN_MAX_CPU_ISA": cap}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_labels_by_several_classes_are_sigmoids(vit):
    from vitreous.exports.graphs import AnswerGraph

    model = awake(VIT)
    model.answers, model.temperature = "several", 2.0
    z = torch.tensor([[-2.0, 0.0, 2.0, 4.0, 6.0]])
    p, score = AnswerGraph(model)(z, z.amax(1))
    torch.testing.assert_close(p, torch.sigmoid(z[0] / 2))
    assert float(score) == 6


# int8 and fp16 ------------------------------------------------------------------------------------------------------


def test_int8_of_a_network_is_near_it_and_smaller(onnx_export, vit, tmp_path):
    from vitreous.exports import onnx

    path = tmp_path / "tensor.onnx"
    path.write_bytes((onnx_export[0] / "tensor.onnx").read_bytes())
    small, x = onnx.quantise(path), images(vit, 8)
    off = np.abs(onnx.open_file(small)(x.numpy())[0] - onnx.open_file(path)(x.numpy())[0]).max()
    assert 1e-4 < off < 0.2
    assert "MatMulInteger" in onnx.describe(small)["operators"]


AFTERWARDS = """
import ctypes, sys
from pathlib import Path
import numpy as np, openvino as ov
from vitreous.exports import openvino
def stack():
    found = openvino._Stack()
    ctypes.CDLL(None).sigaltstack(None, ctypes.byref(found))
    return found.start, found.flags, found.size
path, before = Path(sys.argv[1]), stack()
x = np.zeros((4, 3, *map(int, sys.argv[2:])), np.float32)
first = openvino.open_file(path)
second = openvino.open_file(path)
del first
openvino.quantise(ov.Core().read_model(path), x)
del second
assert stack() == before, (stack(), before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only there")
def test_signals_after_openvino_are_taken_where_they_were_before(openvino_export, vit):
    """It frees the stack that it wants signals on: the process ended there, with no word."""
    has("nncf")
    size = map(str, vit.preprocess.size)
    call = [sys.executable, "-c", AFTERWARDS, str(openvino_export[0] / "tensor.xml"), *size]
    done = forks.run(call, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]


def test_openvino_calibrates_its_int8_on_images(openvino_export, vit, tmp_path):
    has("nncf")
    import openvino as ov

    from vitreous.exports import openvino

    path, x = openvino_export[0] / "tensor.xml", images(vit, 8)
    ov.save_model(openvino.quantise(ov.Core().read_model(path), x.numpy()), tmp_path / "int8.xml")
    off = np.abs(openvino.open_file(tmp_path / "int8.xml")(x.numpy())[0] - openvino.open_file(path)(x.numpy())[0]).max()
    assert 1e-4 < off < 0.5
    assert "FakeQuantize" in openvino.describe(tmp_path / "int8.xml")["operators"]


class Stop(Exception):
    """Enough was seen."""


@pytest.mark.parametrize("has_test", [True, False])
def test_int8_is_calibrated_on_the_training_images(has_test, tmp_path, monkeypatch):
    """What it is judged on must not have shaped it; more than 300 training images would be a sample of them."""
    seen, data = [], image_set(12, test=6 if has_test else 0)

    def write(parts, folder, scratch, options):
        seen.append(options.calibration)
        raise Stop

    monkeypatch.setitem(export.TARGETS.parts, "onnx", replace(export.TARGETS["onnx"], write=write, packages=()))
    with pytest.raises(Stop):
        vitreous.export(awake(VIT, classes=4), tmp_path / "out", to="onnx", int8=True, data=data)
    model, train = awake(VIT, classes=4), data.split("train")
    wanted = [apply(train.read(i), model.preprocess) for i in range(len(train))]
    torch.testing.assert_close(torch.from_numpy(seen[0]), torch.stack(wanted))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_int8_is_judged_on_the_test_images(to, tmp_path):
    has("onnx", "onnxscript", "onnxruntime", *(["openvino", "nncf"] if to == "openvino" else []))
    model, data = awake(VIT, classes=4), image_set(24, test=12)
    parity = vitreous.export(model, tmp_path / "out", to=to, int8=True, data=data, anyway=True)
    assert parity.precision == "int8"
    assert parity.accuracy.images == 12
    assert "12 images of shapes (test)" in str(parity)
    assert 1e-4 < parity.forms[0].difference < 0.2


def test_an_export_that_disagrees_is_not_kept_unless_told(tmp_path, monkeypatch):
    monkeypatch.setitem(export.TOLERANCES, "float16", replace(export.TOLERANCES["float16"], difference=1e-9))
    parity = vitreous.export(awake(VIT), tmp_path / "out", to="pt2", fp16=True, images=4)
    assert all(form.difference < 0.01 for form in parity.forms)  # half precision all the same
    assert parity.faults[0].startswith("tensor form: max difference")
    assert parity.folder is None
    assert list(tmp_path.iterdir()) == []


# Images that are not new ---------------------------------------------------------------------------------------------

ALL = "the model has learned from these very images: accuracy says nothing about new ones"
PART = "the model has learned from 3 of these 7 images: accuracy is too high"
UNKNOWN = "which images the model learned from is not known here; if some are these, accuracy is too high"


def shapes(*, was_made=True):
    """18 images, 6 of them test."""
    return replace(image_set(18, test=6), about={"split": {"made": was_made}})


@pytest.mark.parametrize(
    ("learned_from", "was_made", "name", "caution"),
    [
        ("all", True, "6 images of shapes", ALL),  # cross-validated
        ("train", True, "6 images of shapes (test)", ""),  # training left this split out
        ("train", False, "6 images of shapes (test)", ""),
        (None, True, "6 images of shapes", UNKNOWN),  # the split was made here: it is no test of this model
        (None, False, "6 images of shapes (test)", UNKNOWN),
    ],
)
def test_a_split_is_named_if_it_is_one_and_accuracy_told_if_the_images_are_new(learned_from, was_made, name, caution):
    model, data = awake(VIT, classes=4), shapes(was_made=was_made)
    model.source = {} if learned_from is None else {"data": data.content_id, "learned_from": learned_from}
    told, _, why = export._samples(model, data, 100)
    assert (told, why) == (name, caution)


@pytest.mark.parametrize(("count", "caution"), [(7, ALL), (3, PART), (0, "")])
def test_images_are_known_by_their_files_whatever_the_set_is_called(count, caution, tmp_path):
    """`fit` left digests of the files in its run."""
    data = vitreous.images.open(picture_folder(tmp_path / "photos", 30))
    model, known = awake(VIT, classes=4), data.split("test").take(np.arange(count))
    model.read_from = tmp_path / "model.safetensors"
    learned_images.write(known if count else data.split("train"), tmp_path, None)
    told, _, why = export._samples(model, data, 100)
    assert (told, why) == ("7 images of photos", caution)


def test_terminal_card_and_json_tell_no_accuracy_on_images_that_the_model_has_learned_from(tmp_path):
    model, data = awake(VIT, classes=4), shapes()
    model.source = {"data": data.content_id, "learned_from": "all"}
    parity = vitreous.export(model, tmp_path / "out", to="pt2", data=data)
    assert parity.passed
    for text in (str(parity), (tmp_path / "out" / "CARD.md").read_text(encoding="utf-8")):
        assert "agrees with PyTorch, on 6 images of shapes\n" in text
        assert f"accuracy is unchanged on 6 images; {ALL}" in text
        assert not re.search(r"accuracy \d", text)
    assert json.loads((tmp_path / "out" / "parity.json").read_text())["accuracy"]["caution"] == ALL


# vectors ------------------------------------------------------------------------------------------------------------


def outputs_of(folder):
    """What a runtime of its own would write: both forms, from the files in vectors/ alone."""
    runs = {form: export.TARGETS["onnx"].open(folder / f"{form}.onnx") for form in ("image", "tensor")}
    found = {"image": {}, "tensor": {}}
    for picture in sorted((folder / "vectors").glob("*.png")):
        found["image"][picture.stem] = runs["image"](np.asarray(Image.open(picture)))[0].tolist()
        found["tensor"][picture.stem] = runs["tensor"](np.load(picture.with_suffix(".npy")))[0][0].tolist()
    return found


def test_outputs_for_the_vectors_are_verified(onnx_export, tmp_path):
    folder, _ = onnx_export
    found, file = outputs_of(folder), tmp_path / "outputs.json"
    assert len(found["image"]) == 10
    file.write_text(json.dumps(found))
    assert vectors.verify(file, folder).passed
    found["tensor"]["03"][0] += 0.1
    file.write_text(json.dumps(found))
    wrong = vectors.verify(file, folder)
    assert [fault.split(":")[0] for fault in wrong.faults] == ["tensor form"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "holds a list"),
        ("{}", "has none of tensor, fixed, image"),
        ('{"tensor": {"00": [1, 2]}}', "give the outputs of every vector"),
    ],
)
def test_outputs_that_are_none_are_named(onnx_export, tmp_path, text, words):
    file = tmp_path / "outputs.json"
    file.write_text(text)
    with pytest.raises(DataError) as error:
        vectors.verify(file, onnx_export[0])
    line_of(error.value, "outputs.json", words)


def test_outputs_without_vectors_are_named(tmp_path):
    (tmp_path / "outputs.json").write_text("{}")
    with pytest.raises(DataError) as error:
        vectors.verify(tmp_path / "outputs.json")
    line_of(error.value, "holds no vectors/expected.json", "vitreous export FOLDER")


# Bad input ----------------------------------------------------------------------------------------------------------

BAD = {
    "target": ({"to": "tflite"}, "there is no export to 'tflite'; choose onnx, openvino, pt2, web"),
    "opset": ({"to": "onnx", "opset": 9}, "opset 9 cannot be written; choose 18 to 23"),
    "opset of pt2": ({"to": "pt2", "opset": 18}, "pt2 has no opset; leave it out"),
    "two precisions": ({"to": "onnx", "int8": True, "fp16": True}, "int8 and fp16 are two precisions"),
    "int8 of pt2": ({"to": "pt2", "int8": True}, "there is no int8 for pt2; choose --to onnx or openvino or web"),
    "int8 of nothing": ({"to": "onnx", "int8": True}, "name them: --data DATA"),
    "no images": ({"to": "pt2", "images": 0}, "images=0 compares nothing; give 1 or more"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_said_before_any_work(name, vit, tmp_path):
    options, words = BAD[name]
    with pytest.raises(ConfigError) as error:
        vitreous.export(vit, tmp_path / "out", **options)
    line_of(error.value, words)
    assert list(tmp_path.iterdir()) == []


CLIP = {"representation": 6, "representation_kind": "linear", "norm_before_blocks": True, "patch_bias": False}
ENCODERS = {"projection": CLIP, "map": {"pool": "map", "class_token": False}}


@pytest.mark.parametrize("kind", ENCODERS)
def test_an_encoder_without_a_head_exports_its_features(kind, tmp_path):
    model = awake(VIT, classes=0, activation="quick-gelu", **ENCODERS[kind])
    found = vitreous.export(model, tmp_path / "out", to="pt2", attention=kind == "map", images=8)
    assert found.passed, found.faults
    assert {form.of for form in found.forms} == {"features"}
    about = json.loads((tmp_path / "out" / "export.json").read_text())
    assert (about["classes"], about["answers"]) == (0, "features")
    assert about["features"] == (6 if kind == "projection" else 16)
    assert not (tmp_path / "out" / "labels.txt").exists()
    assert "features, no head" in (tmp_path / "out" / "CARD.md").read_text()
    expected = json.loads((tmp_path / "out" / "vectors" / "expected.json").read_text())
    assert vectors.verify(tmp_path / "out" / "vectors" / "expected.json").passed
    turned = {name: [-value for value in row] for name, row in expected["tensor"].items()}
    (tmp_path / "given.json").write_text(json.dumps({"tensor": turned}))
    assert not vectors.verify(tmp_path / "given.json", tmp_path / "out").passed


def test_an_encoder_without_a_head_has_no_int8_and_its_folder_is_not_served(tmp_path):
    model = awake(VIT, classes=0)
    with pytest.raises(ConfigError) as error:
        vitreous.export(model, tmp_path / "out", to="openvino", int8=True, data=tmp_path)
    line_of(error.value, "has no head", "leave --int8 out")
    pytest.importorskip("onnxruntime")
    vitreous.export(model, tmp_path / "onnx", to="onnx", images=8)
    with pytest.raises(ConfigError) as error:
        exported.read(tmp_path / "onnx")
    line_of(error.value, tmp_path / "onnx", "without a head", "vitreous fit DATA --weights MODEL")
    photo = tmp_path / "onnx" / "vectors" / "00.png"
    call = [sys.executable, tmp_path / "onnx" / "run.py", photo, "--json"]
    said = subprocess.run(call, capture_output=True, text=True, check=True)
    wanted = json.loads((tmp_path / "onnx" / "vectors" / "expected.json").read_text())["image"]["00"]
    assert json.loads(said.stdout)["features"] == pytest.approx(wanted, abs=1e-4)


def test_an_export_marks_unsure_answers_and_an_older_folder_marks_none(tmp_path):
    pytest.importorskip("onnxruntime")
    model = awake(VIT)
    model.track_record = TrackRecord(right=0.8, low=0.7, high=0.9, images=50, sure_from=1.0)
    folder = tmp_path / "onnx"
    vitreous.export(model, folder, to="onnx", images=8)
    photo = folder / "vectors" / "00.png"
    assert ": unsure: " in outside(folder, photo)
    assert json.loads(outside(folder, photo, "--json"))["is_unsure"] is True
    assert "Right on 80.0 % of images that it had not seen" in (folder / "CARD.md").read_text(encoding="utf-8")
    engine = exported.FileEngine(exported.read(folder))
    assert engine.answer("x", np.zeros(6, np.float32), 5).is_unsure
    body = json.loads((folder / "export.json").read_text())
    (folder / "export.json").write_text(json.dumps(body | {"track_record": {"right": 7}}))
    with pytest.raises(CheckpointError) as error:
        exported.read(folder)
    line_of(error.value, "export.json does not fit")
    del body["track_record"]
    (folder / "export.json").write_text(json.dumps(body))
    assert exported.read(folder).about.track_record is None
    assert ": unsure: " not in outside(folder, photo)


def test_run_py_says_none_of_these_without_a_confidence(onnx_export, tmp_path):
    folder = shutil.copytree(onnx_export[0], tmp_path / "onnx")
    body = json.loads((folder / "export.json").read_text())
    (folder / "export.json").write_text(json.dumps(body | {"threshold": 1e6}))
    photo = folder / "vectors" / "00.png"
    found = json.loads(outside(folder, photo, "--json"))
    nearest = found["top"][0]
    assert outside(folder, photo) == f"{photo}: none of these (nearest: {nearest['label']})\n"
    assert found["is_unlike"]
    assert nearest["probability"] >= 1 / 5


def test_a_network_without_attention_exports_none(tmp_path):
    with pytest.raises(ConfigError, match="a BiT has no attention to export"):
        vitreous.export(awake(BIT), tmp_path / "out", to="pt2", attention=True)


def test_what_exists_is_not_overwritten(vit, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ExistsError, match="--force"):
        vitreous.export(vit, tmp_path, to="pt2")
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize(("to", "extra"), [("onnx", "export"), ("openvino", "export,openvino")])
def test_a_missing_extra_is_named_with_its_command(vit, tmp_path, monkeypatch, to, extra):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError) as error:
        vitreous.export(vit, tmp_path / "out", to=to)
    line_of(error.value, f"export to {to}", f"pip install 'vitreous[{extra}]'")
