"""A look at few images says what `predict` says of them, shows what the model gets, and speaks of one image as one."""

import base64
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from picture_files import photo
from picture_sets import arrays
from PIL import Image
from tiny_models import BIT, VIT, awake

import vitreous
from vitreous.images.pixels import decode
from vitreous.measures.drawing import share_of_look
from vitreous.measures.figures import draw
from vitreous.measures.page import page
from vitreous.measures.shown import how_changed
from vitreous.models.preprocess import Preprocess
from vitreous.models.track_record import TrackRecord
from vitreous.report import page as pages
from vitreous.report.marks import Words
from vitreous.words import sentence

NAMES = ("coat", "trouser", "bag")
RECORD = TrackRecord(right=0.8, low=0.7, high=0.9, images=50, sure_from=1.0)
ANSWERS = {
    "sure": {},
    "unsure": {"track_record": RECORD},
    "none of these": {"threshold": 1e9},
    "several": {"answers": "several", "temperature": 3.0},
}
QUICK = ["attention-maps", "rollout", "logit-lens", "shift", "skip-removal"]
GREY_28 = Preprocess(size=(28, 28), mean=(0.5,), std=(0.5,))
CUT = Preprocess(size=(224, 224), fit="crop", short_side=256)


def network(config=VIT, **about):
    model = awake(config, classes=3)
    model.labels = NAMES
    for name, value in about.items():
        setattr(model, name, value)
    return model


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    path = tmp_path_factory.mktemp("one") / "scene.png"
    photo(1, (150, 100)).save(path)
    return path


@pytest.fixture(scope="module")
def hybrid(image):
    """One image through a network like that of the demo: convolutions, grey, no class token."""
    model = awake(VIT.change(stem="convolutions", pool="gap", class_token=False, channels=1, classes=3))
    model.labels, model.threshold = NAMES, 1e9
    return vitreous.look(model, image)


def html_of(found):
    return pages.render(page(found)).replace("\u00a0", " ")


@pytest.mark.parametrize("about", ANSWERS.values(), ids=ANSWERS)
def test_terminal_page_and_json_give_the_answer_of_predict(about, image):
    model = network(**about)
    (answer,) = vitreous.predict(model, image)
    words = str(answer).removeprefix(f"{answer.name}: ")
    found = vitreous.look(model, image, only=QUICK)
    assert dict(found.rows())["answer"] == words
    assert re.search(rf"^answer +{re.escape(words)}$", str(found), re.MULTILINE)
    html = html_of(found)
    assert f'<p class="answer">scene.png: {words}</p>' in html
    assert found.to_json()["shown"][0]["models"][0]["answer"]["top"] == answer.to_json()["top"]
    assert (f"Below, the answer is the nearest class: {answer.labels[0]}." in html) == (not answer.said)
    assert (sentence(RECORD.about_unsure) in html) == answer.is_unsure
    leader = answer.labels[0]
    for name in ("logit-lens", "shift", "skip-removal"):
        assert leader in found.says(name, found[name])
        (caption,) = {figure.caption for figure in draw(found)[name, 0]}
        assert answer.phrase in caption
    last = found["logit-lens"]["rows"][-1]["chance_of_answer"]
    assert last == pytest.approx(answer.probabilities[0], abs=1e-4)  # the lens ends where predict stands


def test_the_page_shows_what_the_model_gets(hybrid, image):
    """Pixel by pixel, beside the photo; and says in words how the photo was changed."""
    html = html_of(hybrid)
    shots = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="what the model gets" class="small">', html)
    drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(shots[0]))))
    given = decode.finish(vitreous.images.open(image).read(0), Preprocess(size=(16, 16), mean=(0.5,), std=(0.5,)))
    assert (drawn == given).all()
    assert 'alt="scene.png"' in html
    assert "The model gets the image squashed from 150 × 100 to 16 × 16 pixels and made grey." in html
    assert dict(hybrid.rows())["image"].endswith("squashed from 150 × 100 to 16 × 16 pixels and made grey")


@pytest.mark.parametrize(
    ("size", "rule", "words"),
    [
        ((300, 450), GREY_28, "squashed from 450 × 300 to 28 × 28 pixels and made grey"),
        ((300, 300), replace(CUT, fit="squash"), "shrunk from 300 × 300 to 224 × 224 pixels"),
        ((28, 28), Preprocess(size=(28, 28)), "as it is"),
        ((14, 14), Preprocess(size=(28, 28)), "enlarged from 14 × 14 to 28 × 28 pixels"),
        ((480, 640), CUT, "shrunk from 640 × 480 to 341 × 256 pixels and cut to the middle 224 × 224"),
        (
            (480, 640),
            replace(CUT, fit="squash-crop", mean=(0.5,), std=(0.5,)),
            "squashed from 640 × 480 to 256 × 256 pixels, cut to the middle 224 × 224 and made grey",
        ),
        ((256, 256), CUT, "cut to the middle 224 × 224"),
        ((16, 16), replace(CUT, size=(24, 24), short_side=16), "framed in black to 24 × 24"),
    ],
)
def test_what_was_done_to_an_image_in_words(size, rule, words):
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    assert how_changed(image, rule) == words
    is_same = decode.finish(image, rule).shape == image.shape and (decode.finish(image, rule) == image).all()
    assert is_same == (words == "as it is")


def test_a_grey_image_is_not_made_grey():
    assert how_changed(np.full((28, 28, 3), 7, np.uint8), GREY_28) == "as it is"


def test_of_a_few_images_each_has_its_answer_and_of_many_none(image):
    model, data = network(), arrays(4, side=16)
    answers = [str(answer).partition(": ")[2] for answer in vitreous.predict(model, data.take(range(3)))]
    found = vitreous.look(model, data.take(range(3)), only=["positions"])
    html = html_of(found)
    assert '<p class="answer">' not in html
    for shown in found.shown:
        assert f"{shown.name}: {shown.given[0].said}" in str(found)
        assert f"The model says: {shown.given[0].said}" in html
    assert sorted(shown.given[0].said for shown in found.shown) == sorted(answers)
    assert not vitreous.look(model, arrays(5, side=16), only=["positions"]).shown


def test_two_models_each_get_the_image_and_answer_it_their_own_way(image):
    one, other = network(), network(BIT.change(image_size=(32, 24)), threshold=1e9)
    found = vitreous.look(one, image, against=other, only=["shift"])
    rows, html = dict(found.rows()), html_of(found)
    for side, (model, ending) in enumerate(((one, ""), (other, " (against)"))):
        (answer,) = vitreous.predict(model, image)
        assert rows[f"answer{ending}"] == found.shown[0].given[side].said == str(answer).partition(": ")[2]
        assert f"{found.names[side]} says: {rows[f'answer{ending}']}." in html
    assert rows["image (against)"].endswith("to 24 × 32 pixels")


def test_without_training_or_head_there_is_no_answer(image):
    for model in (vitreous.build(VIT, seed=0), awake(VIT, classes=0)):
        found = vitreous.look(model, image, only=["attention-maps"])
        assert "answer" not in dict(found.rows())
        assert "what the model gets" in html_of(found)


def test_an_image_that_cannot_be_read_is_not_shown():
    broken = arrays(3, side=16)
    whole = broken.source.read

    def fail(i):
        if i == 1:
            raise vitreous.errors.DataError("1 cannot be read")
        return whole(i)

    broken.source.read = fail
    assert len(vitreous.look(network(), broken, only=["shift"]).shown) == 2


# What the papers saw, and of whom ----------------------------------------------------------------------------------


def test_the_papers_speak_of_trained_models_and_say_so(image):
    untrained = html_of(vitreous.look(vitreous.build(VIT, seed=0), image, only=["attention-maps", "positions"]))
    assert untrained.count("the papers saw in trained models") == 2
    trained = html_of(vitreous.look(network(), image, only=["rollout"]))
    assert "a trained ViT attends to the parts that matter" in trained
    assert "in trained models" not in trained


# Words -------------------------------------------------------------------------------------------------------------


PAPERS_WORDS = r"<td>(the papers saw|files)</td>\s*<td>.*?</td>"
PATCHES_OF_PIXELS = "patch.filters|patch projection|the patch of the image it came from"


def test_a_hybrid_has_places_and_a_vit_patches(hybrid, image):
    """But for what the papers say, for filters, which are called so, and for the likeness of tokens with pixels."""
    html = re.sub(r"<(script|svg|details|style).*?</\1>", "", html_of(hybrid), flags=re.DOTALL)
    text = re.sub(PATCHES_OF_PIXELS, "", re.sub(PAPERS_WORDS, "", html), flags=re.IGNORECASE)
    assert "of 16 places" in text
    assert not re.findall(r".*\bpatch(?:es)?\b.*", text)
    panels = [panel for figures in draw(hybrid).values() for figure in figures for panel in figure.panels]
    drawn = [mark.text for panel in panels for mark in panel.chart.marks if isinstance(mark, Words)]
    assert not [words for words in (*drawn, *(panel.heading for panel in panels)) if "patch" in words]
    plain = vitreous.look(network(), image, only=["rollout", "attention-maps"])
    assert "of 16 patches" in str(plain)
    assert "Click a patch" in html_of(plain)


def test_grey_is_told_only_where_something_is_grey(hybrid, image):
    words = "Grey is what the model does not see"
    assert words not in html_of(hybrid)
    cut = network(preprocess=Preprocess(size=(16, 16), fit="crop", short_side=20))
    assert words in html_of(vitreous.look(cut, image, only=["attention-maps"]))


@pytest.mark.parametrize(("size", "is_few"), [(16, True), (24, True), (28, False)])
def test_on_few_places_distances_tell_little(size, is_few, image):
    model = awake(VIT, classes=3, image_size=size)
    model.preprocess = Preprocess(size=(size, size))
    found = vitreous.look(model, image, only=["attention-distance", "receptive-field"])
    places = f"; on {size // 4} × {size // 4} places that tells little"
    assert all(text.endswith(places) == is_few for text in found.lines())


@pytest.mark.parametrize(
    ("share", "words"),
    [(1.0, "100 %"), (0.9996, "100 %"), (0.38, "38 %"), (0.0995, "10 %"), (0.004, "0.4 %"), (1e-7, "0.0 %")],
)
def test_a_share_of_a_look_is_a_percentage_without_powers(share, words):
    assert share_of_look(share) == words


# One image ---------------------------------------------------------------------------------------------------------


def test_the_curves_of_one_image_are_chances_and_not_shares_of_images(hybrid):
    drawn = draw(hybrid)
    leader = hybrid["logit-lens"]["leader"]
    assert leader in NAMES
    for name in ("logit-lens", "shift", "skip-removal"):
        ((panel,),) = [figure.panels for figure in drawn[name, 0]]
        words = [mark.text for mark in panel.chart.marks if isinstance(mark, Words)]
        assert f"chance given to {leader}" in words
        assert "same answer" not in words
        assert panel.heading != "Share of images"
    assert not any("standard errors" in figure.method for figures in drawn.values() for figure in figures)


def test_the_curves_of_several_images_stay_shares():
    found = vitreous.look(network(), arrays(6, side=16), only=["logit-lens", "shift", "skip-removal"])
    assert all(found[name]["leader"] is None for name in found.found)
    drawn = [figure for figures in draw(found).values() for figure in figures]
    words = [mark.text for figure in drawn for p in figure.panels for mark in p.chart.marks if isinstance(mark, Words)]
    assert words.count("same answer") == 3
    assert "bands are two standard errors over images" in drawn[0].method


def test_the_chances_of_one_image_are_those_of_its_answer(image):
    """Under a shift, and without a block's skips: what predict would say of that class."""
    model = network(temperature=2.0)
    found = vitreous.look(model, image, only=["shift", "skip-removal"])
    (answer,) = vitreous.predict(model, image)
    assert found["skip-removal"]["chance_of_answer"] == pytest.approx(answer.probabilities[0], abs=1e-4)
    got = decode.finish(vitreous.images.open(image).read(0), model.preprocess)
    moved = np.concatenate([np.repeat(got[:, :1], 2, 1), got[:, :-2]], 1)
    (shifted,) = vitreous.predict(model, moved, top=3)
    told = dict(zip(shifted.labels, shifted.probabilities, strict=True))[answer.labels[0]]
    row = next(row for row in found["shift"]["rows"] if row["shift_px"] == 2)
    assert row["chance_of_answer"] == pytest.approx(told, abs=1e-4)
