"""An exported folder is served: its file answers, what it cannot show is said, and a bad folder is one line."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import serving
from commands import run_all
from serving import LABELS, encoded, picture, tiny
from tiny_models import line_of
from torch.testing import assert_close

import vitreous
from vitreous.errors import CheckpointError
from vitreous.evaluation.calibration import softmax
from vitreous.images.pixels import decode
from vitreous.images.pixels.preprocess import normalise

pytest.importorskip("onnxscript", reason="needs the extra export")

from vitreous.server.exported import FileEngine, find, read

CLOSED = (
    "this server answers from an exported file, which cannot be looked into; for attention, breaking and similar "
    "images serve the model that it was made of"
)


TERMS = "for learning only"


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for i in range(24):
        place = folder / ("train" if i % 2 else "test") / LABELS[i % 5]
        place.mkdir(parents=True, exist_ok=True)
        picture(i).save(place / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def int8(photos, tmp_path_factory):
    """As `vitreous export MODEL OUT --to openvino --int8 --data photos` leaves it."""
    pytest.importorskip("openvino", reason="needs the extra openvino")
    pytest.importorskip("nncf", reason="needs the extra openvino")
    folder = tmp_path_factory.mktemp("exports") / "tiny-int8"
    model = tiny()
    model.source = {"terms": TERMS}
    assert vitreous.export(model, folder, to="openvino", int8=True, data=photos).passed
    return folder


@pytest.fixture(scope="module")
def server(int8):
    with serving.process(int8) as caller:
        yield caller


def answers_as_its_file(caller, folder):
    """Labels and calibrated confidence are those of the tensor form, near those of the model."""
    from vitreous.exports.export import TARGETS

    model = tiny()
    target = TARGETS[json.loads((folder / "export.json").read_text())["target"]]
    run = target.open(folder / f"tensor{target.suffix}")
    files = [picture(seed) for seed in range(100, 116)]
    rows = caller.form("/api/predict", [(f"{i}.png", encoded(file)) for i, file in enumerate(files)]).json["images"]
    for file, row in zip(files, rows, strict=True):
        x = normalise(decode.finish(np.array(file), model.preprocess), model.preprocess)[None]
        p = softmax(run(x.numpy())[0][0], model.temperature)
        best = np.argsort(-p)
        assert [each["label"] for each in row["top"]] == [LABELS[k] for k in best]
        assert_close([each["probability"] for each in row["top"]], p[best].tolist(), rtol=1e-3, atol=1e-4)
        assert row["said"] == [LABELS[best[0]]]
    ours = [each.labels[0] for each in vitreous.predict(model, files, top=1)]
    assert sum(row["said"] == [label] for row, label in zip(rows, ours, strict=True)) >= 15


def test_an_int8_folder_answers_as_its_file_does(server, int8):
    answers_as_its_file(server, int8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "more"), [("onnx", {"int8": True}), ("onnx", {"fp16": True}), ("openvino", {"attention": True})], ids=str
)
def test_every_runtime_and_precision_is_served(photos, tmp_path, to, more):
    pytest.importorskip({"onnx": "onnxruntime"}.get(to, to), reason=f"needs {to}")
    assert vitreous.export(tiny(), tmp_path / "out", to=to, data=photos, **more).passed
    with serving.process(tmp_path / "out", "--runtime", to, "--workers", 2) as caller:
        answers_as_its_file(caller, tmp_path / "out")


def spoil(folder, run, x):
    """Overwrite the files of the tensor form in place and cut them: what has opened them says the same."""
    before = run(x)
    for file in folder.glob("tensor.*"):
        with file.open("r+b") as same:
            same.write(bytes(range(256)) * (1 + file.stat().st_size // 256))
    np.testing.assert_allclose(run(x), before, rtol=1e-5, atol=1e-6)
    for file in folder.glob("tensor.*"):
        with file.open("r+b") as same:
            same.truncate(0)
    np.testing.assert_allclose(run(x), before, rtol=1e-5, atol=1e-6)


IMAGES = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)


def test_a_served_folder_does_not_change_with_its_files(int8, tmp_path):
    folder = shutil.copytree(int8, tmp_path / "mine")
    spoil(folder, FileEngine(read(folder)).of_tensors, IMAGES)


@pytest.mark.slow
@pytest.mark.parametrize("beside", [False, True])
def test_nor_does_one_of_onnx(tmp_path, monkeypatch, beside):
    """beside: weights in a file of their own, as those of a large model are."""
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra export")
    if beside and not hasattr(runtime.SessionOptions, "add_external_initializers_from_files_in_memory"):
        pytest.skip("this ONNX Runtime maps weights that lie beside their graph")
    if beside:
        monkeypatch.setattr("vitreous.exports.onnx.MAX_WEIGHTS_IN_GRAPH", 0)
    folder = tmp_path / "mine"
    assert vitreous.export(tiny(), folder, to="onnx", images=4).passed
    assert (folder / "tensor.onnx.data").exists() == beside
    spoil(folder, FileEngine(read(folder)).of_tensors, IMAGES)


def test_a_folder_between_its_two_renames_is_found(int8, tmp_path):
    """As a kill leaves it where the system cannot exchange two folders."""
    shutil.copytree(int8, tmp_path / ".mine.replaced")
    assert find(tmp_path / "mine") == tmp_path / "mine"
    assert read(tmp_path / "mine").labels == LABELS


def test_the_model_is_told_as_the_export_it_is(server):
    told = server.get("/api/model").json
    assert (told["name"], told["runtime"], told["labels"]) == ("tiny-int8", "openvino", list(LABELS))
    assert told["image_size"] == [16, 16]
    assert told["attention"] is False
    assert told["grid"] is told["parameters"] is told["similar"] is None
    exported = told["exported"]
    assert (exported["precision"], exported["agrees"], exported["faults"]) == ("int8", True, [])
    assert exported["same_answers"] >= 0.9
    assert exported["compared_images"] == 12
    assert exported["closed"] == CLOSED
    assert "photos" not in json.dumps(told)  # folders are the server's own affair


@pytest.mark.parametrize("path", ["attention", "attention?layer=0&head=0", "break?hide=3", "tokens", "stem", "similar"])
def test_what_an_export_cannot_show_is_refused_with_the_reason(server, path):
    reply = server.send(f"/api/{path}", encoded(picture(1)))
    assert (reply.status, reply.error) == (501, CLOSED)


@pytest.mark.parametrize("path", ["architecture", "worksheet"])
def test_an_export_is_not_drawn_and_has_no_worksheet(server, path):
    reply = server.get(f"/api/{path}")
    assert (reply.status, reply.error) == (501, CLOSED)


def test_what_the_model_sees_is_there_and_no_clothes_are_shown_for_other_classes(server):
    assert server.get("/api/examples").json["examples"] == []
    (row,) = server.send("/api/predict", encoded(picture(1))).json["images"]
    assert server.get(f"/api/seen?image={row['image']}").status == 200


def test_the_terms_are_told_and_older_folders_have_none(server, int8, tmp_path):
    assert server.get("/api/model").json["terms"] == TERMS
    _page_says(server, "#terms", f"Terms of what the weights have learned from: {TERMS}")
    older = shutil.copytree(int8, tmp_path / "older")
    body = json.loads((older / "export.json").read_text())
    del body["terms"]
    (older / "export.json").write_text(json.dumps(body))
    assert read(older).about.terms == ""


# Bad folders ---------------------------------------------------------------------------------------------------------


def _edit(folder, name, **changes):
    body = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(body | changes))


def _fail(folder):
    """As `vitreous export --anyway` keeps a folder that the gate refused."""
    body = json.loads((folder / "parity.json").read_text())
    body["forms"][0]["agreement"] = 0.5
    body |= {"passed": False, "faults": ["tensor form: 50.0 % the same answer, below 95 %"]}
    (folder / "parity.json").write_text(json.dumps(body))


def _blank(file, start=None):
    """As a copy that broke off leaves a file whose room was taken first.  start: from this part of it on."""
    whole = file.read_bytes()
    kept = len(whole) // start if start else 0
    file.write_bytes(whole[:kept] + bytes(len(whole) - kept))


def _negate(folder):
    expected = json.loads((folder / "vectors" / "expected.json").read_text())["tensor"]
    _edit(folder, "vectors/expected.json", tensor={name: [-z for z in row] for name, row in expected.items()})


DAMAGE = {
    "no about": (
        lambda f: (f / "export.json").unlink(),
        "has exported files but no export.json; copy the whole folder",
    ),
    "about is junk": (lambda f: (f / "export.json").write_text("{"), "export.json is not JSON: "),
    "about of the future": (
        lambda f: _edit(f, "export.json", schema="vitreous.exported/9"),
        "export.json does not fit: Invalid enum value 'vitreous.exported/9'",
    ),
    "no temperature": (lambda f: _edit(f, "export.json", temperature=0), "export.json does not fit: Expected"),
    "for torch": (
        lambda f: _edit(f, "export.json", target="pt2"),
        "is written for pt2, and only folders for onnx and openvino are served; serve the model that it was made of",
    ),
    "no parity": (
        lambda f: (f / "parity.json").unlink(),
        "has no parity.json, so the export is incomplete; copy the whole folder",
    ),
    "failed the gate": (
        _fail,
        "does not agree with PyTorch (tensor form: 50.0 % the same answer, below 95 %); export it again, or serve it "
        "anyway with --anyway",
    ),
    "labels lost": (lambda f: (f / "labels.txt").write_text("ant\nbee\n"), "labels.txt has 2 lines for 5 classes"),
    "no labels": (lambda f: (f / "labels.txt").unlink(), "has no readable labels.txt"),
    "file lost": (lambda f: (f / "tensor.bin").unlink(), "is damaged: tensor.bin is missing; copy the folder again"),
    "file cut": (
        lambda f: (f / "tensor.bin").write_bytes((f / "tensor.bin").read_bytes()[:1000]),
        "is damaged: tensor.bin has 1,000 bytes and had ",
    ),
    "graph overwritten": (
        lambda f: _blank(f / "tensor.xml"),
        "is damaged: tensor.xml is not a file of openvino; copy the folder again",
    ),
    "graph half there": (
        lambda f: _blank(f / "tensor.xml", start=2),
        "is damaged: openvino cannot open tensor.xml; copy the folder again, or export again",
    ),
    "weights blank": (lambda f: _blank(f / "tensor.bin"), "is damaged: "),
    "of another model": (
        _negate,
        "is damaged: tensor.xml answers vectors/ differently from the model (",
    ),
    "vectors lost": (lambda f: shutil.rmtree(f / "vectors"), "is damaged: vectors/ cannot be read; copy the folder"),
}
WORDS = {
    "another runtime": (["--runtime", "onnx"], "tiny-int8 is written for openvino, not onnx; leave --runtime out"),
    "torch": (["--runtime", "torch"], "tiny-int8 is written for openvino, not torch; leave --runtime out"),
    "gpu": (["--device", "cuda"], "tiny-int8 is an exported folder, which answers on the CPU; leave --device out"),
    "data": (["--data", "fashion"], "which cannot find similar images; leave --data out"),
}


@pytest.fixture(scope="module")
def done(int8, tmp_path_factory):
    """All calls that end by themselves, in one process."""
    place = tmp_path_factory.mktemp("bad")
    (place / "empty").mkdir()
    calls = {"empty": ["serve", place / "empty"], "one file": ["serve", int8 / "tensor.xml"]}
    for name, (damage, _) in DAMAGE.items():
        folder = place / name.replace(" ", "-")
        shutil.copytree(int8, folder)
        damage(folder)
        calls[name] = ["serve", folder]
    calls |= {name: ["serve", int8, *words] for name, (words, _) in WORDS.items()}
    return dict(zip(calls, run_all(calls.values()), strict=True)) | {"place": place}


@pytest.mark.parametrize("which", [*DAMAGE, *WORDS])
def test_each_bad_folder_is_one_line(done, which):
    assert (DAMAGE | WORDS)[which][1] in done[which].line


def test_a_folder_without_an_export_and_a_file_without_its_folder_are_one_line(done, int8):
    assert "empty holds no weights" in done["empty"].line
    assert done["one file"].line.endswith(f"is one file of an export; name its folder: vitreous serve {int8}")


def test_what_else_is_asked_of_an_export_is_told_who_answers(int8):
    with pytest.raises(CheckpointError) as error:
        vitreous.load(int8)
    line_of(error.value, "is an exported folder", "vitreous serve", "run.py", "the model that it was made of")


def test_without_the_runtime_the_line_names_its_extra(int8):
    (missing,) = run_all([["serve", int8]], before="sys.modules['openvino'] = None")
    assert missing.line == (
        "vitreous: tiny-int8 is written for openvino and needs the extra 'openvino'; pip install 'vitreous[openvino]'"
    )


@pytest.mark.slow
def test_a_folder_that_failed_the_gate_is_served_when_somebody_insists_and_says_so(done):
    with serving.process(done["place"] / "failed-the-gate", "--anyway") as caller:
        told = caller.get("/api/model").json["exported"]
        assert told["agrees"] is False
        assert told["faults"] == ["tensor form: 50.0 % the same answer, below 95 %"]
        assert caller.send("/api/predict", encoded(picture(1))).json["images"][0]["top"]
        _page_says(caller, "#disagrees", "Beware: this export does not answer as its model does (tensor form: 50.0 %")


# The page ------------------------------------------------------------------------------------------------------------


def _page_says(caller, selector, *texts, path="/"):
    """In real Chromium, where there is one; and nothing went wrong on the page."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        return
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    wrong = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: wrong.append(line.text) if line.type in ("error", "warning") else None)
        page.goto(caller.url + path)
        for text in texts:
            sync_api.expect(page.locator(selector)).to_contain_text(text)
        if path == "/":
            assert page.locator("#examples").is_hidden()
            sync_api.expect(page.locator("#drop")).to_contain_text("Drop a picture here")
            page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": encoded(picture(1))})
            sync_api.expect(page.locator("#top li").first).to_be_visible()
            page.locator("#view").click()  # nothing to pick, and nothing breaks
            sync_api.expect(page.locator("body:not([aria-busy])")).to_be_visible()
            for gone in ("#controls", "#break", "#similar", "#to-lesson"):
                assert not page.locator(gone).is_visible()
        browser.close()
    assert wrong == []


def test_the_page_answers_and_says_what_is_off(server):
    _page_says(server, "#no-attention", f"{CLOSED[0].upper()}{CLOSED[1:]}.")
    _page_says(server, "#about", "16 × 16 pixels, an exported file (int8, openvino).")


def test_the_lesson_says_why_there_is_none(server):
    _page_says(server, "#message", CLOSED, path="/lesson")
