""" "None of these": fitted on images left out, measured on strangers, told in report, card and numbers."""

from pathlib import Path

import numpy as np
import pytest
from picture_files import photo
from PIL import Image
from small_runs import MODEL, PLAIN, SIDE, picture_folder, tinted_folder

import vitreous
from vitreous.evaluation import calibration, inference
from vitreous.training.run.closed_form import solve
from vitreous.training.run.none_of_these import left_out_scores
from vitreous.training.tell.strangers import LEFT_OUT, Caught, blanks, easy, embedded

SMALL = PLAIN.change(image_size=SIDE, length="3 steps", dev=0.2)


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """A run from the starter on images of tints."""
    place = tmp_path_factory.mktemp("none")
    data = tinted_folder(place / "tints", 80)
    return vitreous.fit(data, out=place / "run", device="cpu", workers=0)


def test_each_image_is_scored_by_means_that_it_did_not_shape():
    draw = np.random.default_rng(0)
    rows, labels, part = draw.normal(size=(40, 6)), np.arange(40) % 4, np.arange(40) // 4 % 5
    known, unknown = left_out_scores(rows, labels, 4, part)
    for i in range(40):
        others = part != part[i]
        units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        means = np.stack([units[others & (labels == k)].mean(0) for k in range(4)])
        cosines = means @ units[i] / np.linalg.norm(means, axis=1)
        assert known[i] == pytest.approx(cosines.max(), abs=1e-5)
        assert unknown[i] == pytest.approx(np.delete(cosines, labels[i]).max(), abs=1e-5)


def test_several_labels_score_by_each_of_their_classes():
    rows = labels = np.array([[1, 1], [1, 0], [0, 1]])
    known, _ = left_out_scores(rows, labels, 2, np.array([0, 1, 2]))
    np.testing.assert_allclose(known, 2**-0.5, atol=1e-6)  # the first image is of both classes


def test_the_threshold_lets_ninety_five_percent_of_the_images_left_out_pass(solved):
    judged = solved.metrics["judged"]
    assert judged["unlike"] == round(0.05 * judged["images"])
    model = solved.load()
    assert model.threshold == solved.metrics["threshold"]
    assert model.familiarity is not None


def test_a_blank_image_is_never_a_class(solved):
    model = solved.load()
    assert model.familiarity.least_contrast > 0
    answers = list(vitreous.predict(model, blanks()))
    assert all(answer.is_unlike and not answer.said for answer in answers)
    assert all("none of these" in str(answer) for answer in answers)


def test_blank_images_that_were_taught_keep_their_name(tmp_path):
    """A set whose class "empty" is blank: a blank image is one of them."""
    data = tinted_folder(tmp_path / "tints", 60)
    (data / "empty").mkdir()
    for i in range(15):
        Image.new("RGB", (32, 32), (200 + i, 200 + i, 200 + i)).save(data / "empty" / f"{i}.png")
    model = vitreous.fit(data, out=tmp_path / "run", device="cpu", workers=0).load()
    assert model.familiarity.least_contrast == 0
    (answer,) = vitreous.predict(model, Image.new("RGB", (32, 32), (207, 207, 207)))
    assert answer.said == ("empty",)


def test_report_card_and_numbers_say_how_many_strangers_are_caught(solved):
    strangers = solved.metrics["strangers"]
    assert set(strangers) == {"drawn scenes", "blank images", "photos of clothes", LEFT_OUT}
    assert strangers["blank images"]["caught"] == strangers["blank images"]["seen"] == len(blanks())
    own = [strangers[kind] for kind in ("drawn scenes", "photos of clothes")]
    caught, seen = (sum(count[name] for count in own) for name in ("caught", "seen"))
    files = (Path(solved.path, name).read_text(encoding="utf-8") for name in ("report.html", "README.md"))
    page, card = (" ".join(text.split()) for text in files)
    near = strangers[LEFT_OUT]
    assert f"noticed {near['caught']} of {near['seen']} images when each class was left out in turn" in page
    assert page.index(LEFT_OUT) < page.index("drawn scenes (")
    assert f"to {near['caught']} of {near['seen']} images of a class it never saw" in card
    assert f"{caught} of {seen} easy strangers (drawings, clothes)" in card


def test_a_class_left_out_is_judged_by_a_head_that_never_saw_it():
    """Least squares on the rows of the other classes; the mean and deviation are those of all rows."""
    draw, l2 = np.random.default_rng(0), 4.0
    rows, labels = draw.normal(size=(40, 6)) + np.eye(4, 6).repeat(10, 0), np.arange(40) // 10
    found = solve(rows, labels, 4, [l2]).without_own_class(labels)
    z = (rows - rows.mean(0)) / (rows.std(0) + 1e-5)
    z = np.concatenate([z, np.full((40, 1), 100.0)], 1)
    for k in range(4):
        own, others = labels == k, labels != k
        targets = 2.0 * (labels[others, None] == np.arange(4)) - 1
        weight = np.linalg.solve(z[others].T @ z[others] + l2 * np.eye(7), z[others].T @ targets)
        named = np.arange(4) != k
        np.testing.assert_allclose(found[own][:, named], (z[own] @ weight)[:, named], atol=1e-5)
        assert (found[own, k] == -np.inf).all()


def test_an_answer_is_sure_only_if_it_is_given():
    is_unlike, confidence = np.array([True, True, False, False, False]), np.array([0.9, 0.2, 0.9, 0.8, 0.7])
    assert Caught.of(is_unlike, confidence, 0.8) == (2, 5, 2)
    assert Caught.of(is_unlike, confidence, 1.0) == (2, 5, 0), "nothing is sure"
    assert Caught.of(is_unlike, confidence, None) == (2, 5, None)


def test_sure_answers_to_strangers_are_counted_and_told(solved):
    """Every stranger is called none of these, or gets an answer that is sure or unsure."""
    model, strangers = solved.load(), solved.metrics["strangers"]
    for kind, images in embedded(has_clothes=False).items():
        answers = list(vitreous.predict(model, images, workers=0))
        sure = sum(bool(answer.said) and not answer.is_unsure for answer in answers)
        assert abs(sure - (strangers[kind]["sure"] or 0)) <= 1  # one may lie on the edge
    near = strangers[LEFT_OUT]
    page, card = (Path(solved.path, name).read_text(encoding="utf-8") for name in ("report.html", "README.md"))
    is_ever_sure = solved.metrics["sure_from"] != 1
    assert (near["sure"] is not None) == is_ever_sure
    assert ("of all get a sure answer." in page) == is_ever_sure
    assert ("got a sure answer." in card) == is_ever_sure
    assert ("The model is never sure of an answer" in page) != is_ever_sure


def test_the_counts_are_those_of_predict(solved):
    model = solved.load()
    for kind, images in embedded(has_clothes=False).items():
        found = sum(answer.is_unlike for answer in vitreous.predict(model, images, workers=0))
        assert abs(found - solved.metrics["strangers"][kind]["caught"]) <= 1  # one may lie on the edge


def test_clothes_are_no_strangers_to_a_model_of_clothes():
    assert "photos of clothes" not in embedded(has_clothes=True)
    counts = {LEFT_OUT: Caught(1, 9), "blank images": Caught(2, 3), "drawn scenes": Caught(1, 4)}
    assert easy(counts) == ("drawings", (1, 4))


def test_a_trained_network_is_fitted_on_dev(tmp_path):
    data = picture_folder(tmp_path / "shapes", 60)
    run = vitreous.fit(data, out=tmp_path / "run", model=MODEL, recipe=SMALL, device="cpu", workers=0, folds=0)
    model = run.load()
    dev = vitreous.images.splits.cut_dev(vitreous.images.open(data), 0.2, 0)[1]
    scores = inference.logits(model, dev, workers=0).scores
    assert model.threshold == pytest.approx(calibration.fit_threshold(scores), abs=1e-4)
    assert LEFT_OUT not in run.metrics["strangers"]
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "were not tried" in page


@pytest.fixture(scope="module")
def crossed(tmp_path_factory):
    """A cross-validated run of a small network."""
    place = tmp_path_factory.mktemp("crossed")
    data = picture_folder(place / "shapes", 48)
    options = {"model": MODEL, "recipe": PLAIN.change(image_size=SIDE, length="3 steps"), "device": "cpu"}
    return vitreous.fit(data, out=place / "run", folds=2, workers=0, **options)


def test_cross_validation_scores_each_image_by_a_model_that_has_not_seen_it(crossed):
    assert crossed.metrics["judged"]["unlike"] == 2  # 5 % of 48, rounded down
    assert crossed.load().familiarity is not None


def test_eval_and_export_use_the_same_score(crossed, tmp_path):
    pytest.importorskip("onnxruntime", reason="the extra `export` is not installed")
    pytest.importorskip("onnxscript", reason="the extra `export` is not installed")
    model = crossed.load()
    parity = vitreous.export(model, tmp_path / "onnx", to="onnx", images=20)
    assert parity.passed
    from vitreous.exports.export import TARGETS

    run = TARGETS["onnx"].open(tmp_path / "onnx" / "image.onnx")
    for image in (photo(1, (90, 70)), Image.new("RGB", (60, 50), "white")):
        (answer,) = vitreous.predict(model, image)
        assert float(run(np.array(image))[1]) == pytest.approx(answer.score, abs=2e-3)
