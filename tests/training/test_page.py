"""The page of a run and its card say what the numbers say, and nothing that nobody measured."""

import dataclasses
import json
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from html import escape, unescape

import finished_run
import numpy as np
import pytest
from pictures_in_memory import Arrays, Files
from tiny_models import line_of

from vitreous.errors import DataError, ExistsError
from vitreous.evaluation.accuracy import wilson
from vitreous.images.health import Case, Finding, Health
from vitreous.measures.explain import Explanation
from vitreous.report import page as pages
from vitreous.training import recipes
from vitreous.training.label_errors import suspects
from vitreous.training.run.events import known
from vitreous.training.tell import strangers
from vitreous.training.tell.card import card
from vitreous.training.tell.page import MAX_MISTAKES_SHOWN, page, write_report
from vitreous.training.tell.summary import Summary, happenings, places_to_look_at, stages

SOLVED = recipes.get("linear-probe", images=100, classes=3, image_size=(28, 28), model="Ti/7")
HOSTILE = "<script>alert(1)</script>|`*"


@pytest.fixture(scope="module")
def story() -> Summary:
    return finished_run.story()


@pytest.fixture(scope="module")
def html(story) -> str:
    return pages.render(page(story))


def plain(html: str) -> str:
    """What a reader sees, in one line."""
    html = re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<wbr>", "", html).replace("\u00a0", " ")).replace("&#39;", "'")


# One source of truth ---------------------------------------------------------------------------------------------


def test_every_number_comes_from_the_answers(story, html):
    right = int((story.probabilities.argmax(1) == story.judged.labels).sum())
    low, high = wilson(right, len(story.judged))
    text = plain(html)
    assert f"{right:,} of {len(story.judged):,} images right" in text
    assert f">{100 * right / len(story.judged):.1f} %<" in text
    assert f"between {100 * low:.1f} and {100 * high:.1f} (95 % interval)" in text
    assert f"about {100 * right / len(story.judged):.0f}." in text
    assert f"{len(story.judged) - right:,} mistakes" in text


def test_the_confidence_chosen_on_dev_is_judged_on_these_images(story, html):
    sure = story.probabilities.max(1) >= story.answer_above
    right = story.probabilities.argmax(1) == story.judged.labels
    share = f"{100 * sure.mean():.1f} % of the images are answered, and {100 * right[sure].mean():.1f} % of those"
    assert f"Answer only above 60 % confidence: {share}" in plain(html)


def test_page_and_card_agree(story):
    text = card(story).replace("\u00a0", " ")
    assert f"**{100 * story.result.top1:.1f} %**" in text
    assert f"{story.result.right:,} of {story.result.images:,}" in text
    assert f"value: {story.result.top1:.4f}" in text


# The page --------------------------------------------------------------------------------------------------------


def test_the_page_holds_everything_and_fetches_nothing(story, html, tmp_path):
    for heading in (
        "How good is it?", "Class by class", "What it mixes up", "Can its confidence be trusted?",
        "The most confident mistakes", "The most typical images", "Where it looks", "Labels that may be wrong",
        "The data", "How it was trained, and why so", "Do it again, and use it",
    ):  # fmt: skip
        assert f"<h2>{heading}" in html
    assert "<script" not in html
    assert not re.search(r"url\(|@import|<link|https?:", html.replace('"http://www.w3.org/2000/svg"', ""))
    assert all(address.startswith("data:image/") for address in re.findall(r'src="([^"]*)"', html))
    write_report(story, tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 1_000_000
    with pytest.raises(ExistsError):
        write_report(story, tmp_path / "report.html")
    write_report(story, tmp_path / "report.html", force=True)


def test_the_page_says_what_was_trained_why_and_how_to_repeat_it(story, html):
    text = plain(html)
    for reason in story.reasons:
        assert reason[1:] in text
    assert story.command in text
    assert story.how_judged in text
    assert f"{story.parameters:,} parameters" in text
    assert story.judged.content_id in text
    assert story.record["versions"]["torch"] in text
    for field in dataclasses.fields(story.recipe):
        if field.name not in ("augment", "name", "source"):
            assert f"<td>{field.name.replace('_', '_<wbr>')}</td>" in html


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium here")
def test_on_a_phone_nothing_sticks_out_and_charts_can_be_read(html, tmp_path):
    """390 pixels wide: the page does not scroll sideways, and no word of a chart is smaller than 8 pixels."""
    script = """<script>
      const letters = [...document.querySelectorAll("svg.chart:not(.wide) text")]
        .map(t => parseFloat(getComputedStyle(t).fontSize) * t.ownerSVGElement.getScreenCTM().a);
      const width = document.documentElement.scrollWidth;
      parent.document.title = JSON.stringify({width, least: Math.min(...letters)});
    </script></body>"""
    free = re.sub(r"<meta http-equiv=[^>]*>", "", html)  # the page's own policy forbids scripts
    inside = escape(free.replace("</body>", script))
    (tmp_path / "page.html").write_text(
        f'<iframe width="390" height="844" style="border: 0" srcdoc="{inside}"></iframe>'
    )
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    flags += [
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        f"--user-data-dir={tmp_path}/chromium",
    ]
    done = subprocess.run(
        ["chromium", *flags, "--dump-dom", f"file://{tmp_path}/page.html"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    seen = json.loads(re.search(r"<title>(.*?)</title>", done.stdout)[1])
    assert seen["width"] <= 390
    assert seen["least"] >= 8


def test_mistakes_come_with_the_surest_first(story, html):
    part = plain(html).split("The most confident mistakes</h2>")[1].split("<section")[0]
    answers = story.probabilities.argmax(1)
    wrong = np.flatnonzero(answers != story.judged.labels)
    wrong = wrong[np.argsort(-story.probabilities.max(1)[wrong], kind="stable")][:MAX_MISTAKES_SHOWN]
    names = re.findall(r"· (test/\d+)<", part)
    assert names == [story.judged.name(int(i)) for i in wrong]
    first = wrong[0]
    assert f"says {story.classes[answers[first]]}" in part
    assert f"labelled {story.classes[story.judged.labels[first]]}" in part


def test_the_matrix_has_labels_down_and_answers_across(story, html):
    part = plain(html).split("What it mixes up</h2>")[1].split("<section")[0]
    told = re.findall(r"<title>([^<]+), answered ([^<]+): ([\d,]+) \(", part)
    pairs = zip(story.judged.labels.tolist(), story.probabilities.argmax(1).tolist(), strict=True)
    counts = Counter((story.classes[i], story.classes[j]) for i, j in pairs)
    assert any(counts[i, j] != counts[j, i] for i, j in counts)
    assert {(unescape(i), unescape(j)): int(n.replace(",", "")) for i, j, n in told} == counts


def test_the_fewer_it_must_answer_the_more_is_right():
    """Of a model that is surest where it is right, all answers are right until none but wrong ones are left."""
    count, wrong = 200, 80
    labels, sure = np.arange(count) % 2, np.linspace(0.55, 0.95, count)
    answers = np.where(np.arange(count) < wrong, 1 - labels, labels)  # the least sure are wrong
    probabilities = np.where(np.eye(2, dtype=bool)[answers], sure[:, None], 1 - sure[:, None])
    html = pages.render(page(finished_run.invented(count, 2, probabilities=probabilities)))
    chart = html.split('aria-label="right against answered"')[1].split("</svg>")[0]
    (line,) = re.findall(r'<path d="M([^"]*)"[^>]* stroke-width="2"', chart)
    heights = np.array([float(point.split(" ")[1]) for point in line.split("L")])  # pixels grow downwards
    assert (heights == heights[0]).mean() == pytest.approx(1 - wrong / count, abs=0.05)
    assert (np.diff(heights) >= 0).all()
    assert heights[-1] > heights[0]


NAMES = ("ant", "bee", "cat")
COUNTS = np.array([[6, 4, 0], [0, 20, 0], [3, 0, 27]])  # labels down, answers across


@pytest.fixture(scope="module")
def told() -> Summary:
    """60 images whose answers are COUNTS; of each kind of answer, those that come later are surer."""
    labels, answers = (np.repeat(k, COUNTS.ravel()) for k in np.divmod(np.arange(9), 3))
    sure = np.linspace(0.5, 0.95, len(labels))
    probabilities = np.where(np.eye(3, dtype=bool)[answers], sure[:, None], (1 - sure[:, None]) / 2)
    data = dataclasses.replace(finished_run.invented(len(labels), 3).judged, labels=labels, classes=NAMES)
    return finished_run.invented(len(labels), 3, judged=data, probabilities=probabilities, temperature=1.5)


def blocks(story: Summary, heading: str, kind: str) -> list:
    """Of one section of the page, the blocks of a kind, columns opened."""
    (section,) = (section for section in page(story).sections if section.heading == heading)
    inner = [one for block in section.blocks for one in (block.blocks if block.kind == "columns" else [block])]
    return [block for block in inner if block.kind == kind]


def cells(table) -> list[list[str]]:
    return [[getattr(cell, "text", cell).replace("\u00a0", " ") for cell in row] for row in table.rows]


def test_the_weakest_class_comes_first_with_what_was_found_and_what_can_be_trusted(told):
    """Found is a share of the images of the class, trusted a share of the answers."""
    (table,) = blocks(told, "Class by class", "table")
    assert [row[:4] for row in cells(table)] == [
        ["ant", "60.0 %", "66.7 %", "6 / 10"],
        ["cat", "90.0 %", "100.0 %", "27 / 30"],
        ["bee", "100.0 %", "83.3 %", "20 / 20"],
    ]


def test_the_commonest_mistakes_name_what_it_is_then_what_was_answered(told):
    (table,) = blocks(told, "What it mixes up", "table")
    assert cells(table) == [["ant", "bee", "4", "40.0 %"], ["cat", "ant", "3", "10.0 %"]]


def test_of_many_classes_the_matrix_shows_those_with_most_mistakes():
    labels = np.arange(303) % 101
    answers = np.where((labels == 7) | (labels == 90), 3, labels)
    probabilities = np.where(np.eye(101, dtype=bool)[answers], 0.9, 0.001)
    (drawing,) = blocks(finished_run.invented(303, 101, probabilities=probabilities), "What it mixes up", "drawing")
    assert {"class 3", "class 7", "class 90"} <= set(re.findall(r">(class \d+)<", drawing.svg))


def test_the_chart_of_confidence_has_what_it_says_across_and_what_is_right_up(story):
    confidence, right = story.probabilities.max(1), story.probabilities.argmax(1) == story.judged.labels
    (drawings,) = blocks(story, "Can its confidence be trusted?", "drawings")
    told = re.findall(r"<title>says ([\d.]+) %, right ([\d.]+) %, ([\d,]+) images", drawings.drawings[0].svg)
    bins = np.ceil(confidence * 15).astype(int)
    wanted = [(confidence[bins == b].mean(), right[bins == b].mean(), (bins == b).sum()) for b in np.unique(bins)]
    found = [(float(says) / 100, float(is_so) / 100, int(n)) for says, is_so, n in told[::2]]
    assert found == [pytest.approx(row, abs=0.006) for row in wanted]


@pytest.mark.parametrize(
    ("temperature", "words"), [(1.5, "where it was overconfident"), (0.5, "where it was underconfident")]
)
def test_a_temperature_above_one_corrects_overconfidence(told, temperature, words):
    text = blocks(dataclasses.replace(told, temperature=temperature), "Can its confidence be trusted?", "text")[0]
    assert words in text.text


def test_the_simplest_rival_always_says_the_commonest_class(told):
    (drawings,) = blocks(told, "How good is it?", "drawings")
    assert "always saying “cat”" in drawings.drawings[0].svg
    assert "50.0 %" in drawings.drawings[0].svg


def test_typical_images_are_the_surest_right_ones(told):
    (shelf,) = blocks(told, "The most typical images", "shelf")
    assert [strip.name for strip in shelf.strips] == list(NAMES)
    for k, strip in enumerate(shelf.strips):
        right = np.flatnonzero((told.judged.labels == k) & (told.probabilities.argmax(1) == k))
        assert [picture.title for picture in strip.pictures] == [told.judged.name(int(i)) for i in right[::-1][:5]]


def collapsed(**changes) -> Summary:
    """Every image is called class 1, which 4 of 10 are."""
    labels = np.repeat([0, 1, 2], [30, 40, 30])
    data = dataclasses.replace(finished_run.invented(100, 3).judged, labels=labels)
    sure = np.linspace(0.4, 0.9, 100)[:, None]
    probabilities = np.hstack([(1 - sure) / 2, sure, (1 - sure) / 2])
    return finished_run.invented(100, 3, judged=data, probabilities=probabilities, **changes)


def test_a_model_that_is_no_better_than_one_answer_is_called_so_first_and_in_red(told):
    bad = page(collapsed())
    assert (bad.answer, bad.tone) == ("No better than always answering class 1.", "bad")
    first = bad.top[0]
    assert first.tone == "bad"
    assert first.text.startswith("It answers nothing else. Start from trained weights (--weights starter)")
    assert first.text.endswith("Or look at the images and their labels: vitreous check noise")
    assert bad.top[1].numbers[0].tone == "bad"
    assert '<p class="answer bad">No better than always answering class 1.</p>' in pages.render(bad)
    assert "**No better than always answering class 1. Start from trained weights" in card(collapsed())
    good = page(told)
    assert (good.tone, good.top[0].numbers[0].tone) == ("plain", "plain")
    assert "No better than" not in pages.render(good)
    assert "No better than" not in card(told)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"beginning": "from scratch"},
            "Start from trained weights (--weights starter), or train longer (--epochs N).",
        ),
        ({"beginning": "from the starter"}, "Train longer (--epochs N), or try other learning rates (--sweep)."),
        ({"recipe": SOLVED}, "start from other weights (--weights deit-tiny), or add images."),
    ],
)
def test_what_helps_depends_on_how_it_was_trained(changes, words):
    assert words in collapsed(**changes).alarm


def test_a_model_that_learned_nothing_doubts_no_label(told):
    run = collapsed()
    assert run.suspects == []
    assert "Not asked: a model that is no better than one answer knows nothing about labels." in plain(
        pages.render(page(run))
    )
    assert "Not asked" not in pages.render(page(told))


def test_answers_that_differ_are_called_mistakes_unless_labels_are_likely_wrong(told):
    """Seven answers of `told` are not the label."""
    text = plain(pages.render(page(told)))
    assert "No label is doubted: for each, a mistake of the model is likelier than a wrong label." in text
    share = f"{700 / told.result.images:.1f} %"
    assert f"But it is wrong about {share} of the images, so it misses wrong labels too" in text


@pytest.mark.parametrize(("length", "is_same"), [("12 epochs", True), ("90 seconds", False)])
def test_a_time_does_not_promise_the_same_numbers(length, is_same):
    text = plain(pages.render(page(finished_run.invented(30, 3, recipe=finished_run.RECIPE.change(length=length)))))
    assert ("The same numbers again:" in text) == is_same
    assert ("so the numbers will differ:" in text) == (not is_same)


@pytest.mark.parametrize(("by", "is_unused"), [("leave-one-out", True), ("cross-validation", True), ("test", False)])
def test_a_test_split_that_was_not_used_is_not_told(by, is_unused):
    """`open` makes one; a run that judges every image does without it."""
    run = finished_run.invented(30, 3, judged_by=by, folds=5, splits={"train": 30 if is_unused else 24, "test": 0})
    notes = ("no test split was given: 20 % of each class were set aside as test (seed 0)", "2 files cannot be read")
    data = dataclasses.replace(run.judged, notes=notes, about={"split": {"made": True}})
    run = dataclasses.replace(run, judged=data)
    for text in (plain(pages.render(page(run))), card(run)):
        assert ("set aside as test" in text) == (not is_unused)
        assert "2 files cannot be read" in text
        assert ("30 images, each judged and each learned from" in text) == is_unused
        assert ("24 learned from (train)" in text) == (not is_unused)


def test_a_doubted_label_is_named_with_the_likelier_class():
    labels = np.arange(100) % 2
    sure = np.linspace(0.6, 0.999, 100)[:, None]
    probabilities = np.where(np.eye(2, dtype=bool)[labels], sure, 1 - sure)
    probabilities[[10, 11, 12]] = [[0.02, 0.98], [0.997, 0.003], [0.005, 0.995]]  # labelled class 0, 1, 0
    (pictures,) = blocks(
        finished_run.invented(100, 2, probabilities=probabilities), "Labels that may be wrong", "pictures"
    )
    (picture,) = pictures.groups[2].pictures
    assert picture.title.startswith("perhaps class 1 (98")
    assert picture.about.startswith("labelled class 0 (2")


def test_curves_of_dev_are_drawn_from_dev(story):
    """In this run dev's loss falls while its share of right answers grows."""
    section = blocks(story, "How it was trained, and why so", "drawings")[0]
    heights = {}
    for drawing in section.drawings:
        line = re.findall(r'<path d="M([^"]*)"[^>]* stroke-width="2"', drawing.svg)[0]  # dev comes first
        heights[drawing.heading] = np.array([float(point.split(" ")[1]) for point in line.split("L")])
    assert len(heights["Loss"]) == len(heights["Right answers"]) == len(story.stages[0].dev_epochs)
    assert (np.diff(heights["Loss"]) > 0).all()  # pixels grow downwards
    assert (np.diff(heights["Right answers"]) < 0).all()


def test_hostile_names_stay_text(tmp_path):
    run = finished_run.invented(30, 3, name=HOSTILE, reasons=[HOSTILE], command=HOSTILE, model=HOSTILE, notes=[HOSTILE])
    names = (HOSTILE, "b" * 300, "c\n\u202e")
    run = dataclasses.replace(run, judged=dataclasses.replace(run.judged, classes=names, notes=(HOSTILE,)))
    html = pages.render(page(run))
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    text = card(run)
    assert "<script" not in "".join(text.split("---", 2)[2].split("```")[::2])  # code is shown as it is


@pytest.mark.parametrize("classes", [2, 11, 60, 130])
def test_any_number_of_classes_makes_a_page(classes):
    run = finished_run.invented(4 * classes, classes, right=0.6)
    html = pages.render(page(run))
    assert len(html) < 2_000_000
    assert ("among the first five" in html) == (classes > 10)
    assert (re.search(r"The other [\d,]+ classes", html) is not None) == (classes > 20)
    assert ("the 40 with most mistakes" in html) == (classes > 100)
    assert ("others are left out" in html) == (classes > 20)


def test_a_model_without_mistakes_has_no_list_of_them():
    run = finished_run.invented(40, 4, right=1.0)
    p = 0.9 * np.eye(4)[run.judged.labels] + 0.025
    html = plain(pages.render(page(dataclasses.replace(run, probabilities=p))))
    assert "Nothing: every image judged was named rightly." in html
    assert "The most confident mistakes" not in html
    assert "No label is doubted." in html
    assert "misses wrong labels" not in html
    assert "for about 100." in html


def test_images_without_a_label_are_not_judged():
    run = finished_run.invented(40, 4)
    labels = run.judged.labels.copy()
    labels[:7] = -1
    run = dataclasses.replace(run, judged=dataclasses.replace(run.judged, labels=labels))
    assert run.result.images == 33
    assert "7 images have no label and were not judged" in pages.render(page(run))


def test_pictures_that_cannot_be_read_leave_a_frame():
    run = finished_run.invented(20, 2, right=0.5)
    source = Files([f"{i}.jpg" for i in range(20)], [b"broken"] * 20)
    html = pages.render(page(dataclasses.replace(run, judged=dataclasses.replace(run.judged, source=source))))
    assert "cannot be shown" in html


def test_several_labels_have_average_precision_and_no_matrix():
    run = finished_run.invented(50, 4)
    labels = (np.random.default_rng(0).random((50, 4)) < 0.4).astype(np.int64)
    p = np.clip(0.8 * labels + 0.15, 0.01, 0.99)
    p[:5] = 1 - p[:5]
    run = dataclasses.replace(run, judged=dataclasses.replace(run.judged, labels=labels), probabilities=p)
    html = plain(pages.render(page(run)))
    assert "names all labels of about 90 exactly" in html
    assert "mean average precision" in html
    assert "What it mixes up" not in html
    assert "says " in html
    assert "mean average precision" in card(run)


@pytest.mark.parametrize(
    ("by", "words"),
    [
        ("test", "used neither for training nor for any choice"),
        ("cross-validation", "5 models were trained, each without one part of the images"),
        ("dev", "the number is somewhat too high"),
    ],
)
def test_how_it_was_judged_is_said(by, words):
    run = finished_run.invented(30, 3, judged_by=by, folds=5)
    assert words in plain(pages.render(page(run)))
    assert words in card(run)


@pytest.mark.parametrize(
    ("right", "words"),
    [
        (300, r"\d+\.\d points less than a coin, more than chance would explain"),
        (0, r"\d+\.\d points more than a coin, more than chance would explain"),
        (160, r"\d+\.\d points less than a coin, which chance could explain"),
        (140, r"\d+\.\d points more than a coin, which chance could explain"),
    ],
)
def test_rivals_are_shown_whoever_wins(right, words):
    labels = np.arange(300) % 3
    answers = np.where(np.arange(300) % 2 == 0, labels, (labels + 1) % 3)  # half of them right
    data = dataclasses.replace(finished_run.invented(300, 3).judged, labels=labels)
    coin = finished_run.Rival("a coin", right, 300)
    run = finished_run.invented(300, 3, judged=data, probabilities=0.2 + 0.4 * np.eye(3)[answers], rivals=[coin])
    assert run.result.right == 150
    assert re.search(words, plain(pages.render(page(run))))


@pytest.mark.parametrize(
    ("right", "from_starter", "helps"), [(250, True, True), (295, True, False), (250, False, False)]
)
def test_other_weights_are_advised_where_the_starter_leaves_many_wrong(right, from_starter, helps):
    labels = np.arange(300) % 3
    answers = np.where(np.arange(300) < right, labels, (labels + 1) % 3)
    data = dataclasses.replace(finished_run.invented(300, 3).judged, labels=labels)
    given = {"judged": data, "probabilities": 0.2 + 0.4 * np.eye(3)[answers], "begun_from_starter": from_starter}
    run = finished_run.invented(300, 3, **given)
    assert (run.better is not None) == helps
    assert ("Other weights usually help most" in plain(pages.render(page(run)))) == helps


@pytest.mark.parametrize(("sure_from", "never"), [(1.0, True), (0.8, False)])
def test_a_model_that_is_never_sure_is_called_so(sure_from, never):
    found = {strangers.LEFT_OUT: strangers.Caught(60, 300)}
    run = finished_run.invented(100, 3, unlike=7, strangers=found, sure_from=sure_from)
    html = plain(pages.render(page(run)))
    assert ("The model is never sure of an answer" in html) == never
    assert "of all get a sure answer" not in html


DRAWN, CLOTHES, BLANK = strangers.DRAWN, strangers.CLOTHES, strangers.BLANKS
NEAR = "images when each class was left out in turn: 80 % of the images of a class it never saw get the name of a class"
UNTRIED = "Images of a class near its own were not tried; expect that many get the name of a class it knows."
EASY = "Strangers that come with vitreous are easy: "


@pytest.mark.parametrize(
    ("counts", "told", "brief"),
    [
        (
            {DRAWN: (38, 40), CLOTHES: (40, 40), BLANK: (32, 32), strangers.LEFT_OUT: (60, 300)},
            [
                f"It noticed 60 of 300 {NEAR}",
                f"{EASY}drawings; small grey pictures of clothes; images of one colour, which a rule finds.",
            ],
            "80 % of a new class misnamed",
        ),
        (
            {DRAWN: (30, 40), BLANK: (31, 32)},
            [UNTRIED, f"{EASY}drawings; images of one colour."],
            "25 % of drawings misnamed",
        ),
        ({}, [UNTRIED], ""),
    ],
    ids=["a class left out", "blank images were taught", "nothing shown"],
)
def test_what_is_said_of_strangers_is_what_was_counted(counts, told, brief):
    found = {kind: strangers.Caught(*count) for kind, count in counts.items()}
    html = plain(pages.render(page(finished_run.invented(100, 3, unlike=7, strangers=found))))
    assert all(words in html for words in told)
    assert (EASY in html) == bool(counts)
    assert "It also says so of 7.0 % of the images judged; the threshold was set where about 95 % of" in html
    assert brief in html
    assert ("of drawings misnamed" in html) == brief.endswith("of drawings misnamed")
    assert "notice strangers" not in plain(pages.render(page(finished_run.invented(100, 3, unlike=None))))


def test_faults_of_the_data_are_told():
    finding = Finding("leak", tuple(Case((0, 1), (f"train/{i}.jpg", f"test/{i}.jpg"), "exact") for i in range(12)))
    health = Health(
        path="x", kind="folders", content_id="0", images=30, checked=30, sample_seed=None, splits={"test": 30},
        classes=("a",), counts=(30,), formats={}, sizes={}, findings=(finding,), rules={},
    )  # fmt: skip
    run = finished_run.invented(30, 3, health=health)
    html = plain(pages.render(page(run)))
    assert "The data has faults that can make these numbers wrong: 12 images lie in train and in test." in html
    assert "12 images lie in train and in test" in html
    assert "and 4 more" in html
    assert "The data has faults that can make the numbers wrong: 12 images lie in train and in test." in card(run)
    torn = replace(finding, kind="truncated")
    run = finished_run.invented(30, 3, health=replace(health, findings=(torn,)))
    html = plain(pages.render(page(run)))
    assert "make these numbers wrong" not in html, "they are left out"
    assert "make the numbers wrong" not in html + card(run)
    assert "The check found files that cannot be read. They are left out." in html


def test_what_is_said_of_the_surest_half_is_so():
    """Also where the surer answers are right less often."""
    run = finished_run.invented(60, 3)
    judged = run.result.judged
    order = np.argsort(-judged.confidence, kind="stable")
    half = 100 * judged.is_right[order][:30].mean()
    html = plain(pages.render(page(run)))
    assert f"surest of, {half:.1f} % are right; of all, {100 * judged.is_right.mean():.1f} %." in html


def test_a_network_without_attention_says_so():
    run = finished_run.invented(20, 2, attention=Explanation(why_not="No attention here."))
    assert "No attention here." in pages.render(page(run))
    assert "Where it looks" not in pages.render(page(finished_run.invented(20, 2)))


def test_answers_that_do_not_fit_are_refused():
    with pytest.raises(DataError) as caught:
        finished_run.invented(20, 2, probabilities=np.ones((20, 3)))
    line_of(caught.value, "(20, 3)", "(20, 2)", "noise")
    with pytest.raises(DataError) as caught:
        finished_run.invented(20, 2, probabilities=np.full((20, 2), np.nan))
    line_of(caught.value, "not all finite")
    with pytest.raises(DataError) as caught:
        finished_run.invented(20, 2, probabilities=np.full((20, 2), 3.0))
    line_of(caught.value, "not logits")


# Its parts -------------------------------------------------------------------------------------------------------


def test_a_swapped_label_is_suspected_and_the_right_one_suggested():
    labels = np.repeat(np.arange(4), 25)
    sure = np.random.default_rng(0).permutation(np.linspace(0.5, 0.99, 100))
    p = np.repeat((1 - sure[:, None]) / 3, 4, 1)
    p[np.arange(100), labels] = sure
    p[3], p[60] = [0.97, 0.01, 0.01, 0.01], [0.03, 0.03, 0.91, 0.03]
    wrong = labels.copy()
    wrong[[3, 60]] = [2, 1]
    found = suspects(p, wrong)
    assert [(s.place, s.given, s.suggested) for s in found] == [(3, 2, 0), (60, 1, 2)]
    assert [s.confidence for s in found] == [0.97, 0.91]  # the most doubtful first
    assert suspects(p, labels) == []
    assert suspects(p, np.full(100, -1)) == []


def test_suspects_want_a_row_for_each_label():
    with pytest.raises(DataError) as caught:
        suspects(np.ones((3, 2)), np.zeros(4, int))
    line_of(caught.value, "(3, 2)", "(4,)", "give N×K and N")


def test_looked_at_are_right_and_wrong_ones_of_many_classes(story):
    places = places_to_look_at(story.result, 8)
    right = story.probabilities.argmax(1)[places] == story.judged.labels[places]
    assert len(set(places)) == 8
    assert right.tolist() == [True] * 4 + [False] * 4
    assert len(set(story.judged.labels[places[:4]].tolist())) == 4
    assert len(places_to_look_at(finished_run.invented(3, 2).result, 8)) == 3


def test_curves_are_read_from_events():
    events = [
        {"kind": "start"},
        {"kind": "step", "stage": "up", "step": 1, "epoch": 0.5, "loss": 2.0, "accuracy": None, "lr": 0.1},
        {"kind": "step", "stage": "up", "step": 2, "epoch": 1.0, "loss": 1.0, "accuracy": 0.5, "lr": 0.2},
        {"kind": "dev", "stage": "up", "step": 2, "epoch": 1.0, "loss": 1.5, "accuracy": 0.4, "best": True},
        {"kind": "dev", "stage": "up", "step": 4, "epoch": 2.0, "loss": 1.6, "accuracy": 0.3, "best": False},
        {"kind": "step", "stage": "down", "step": 1, "epoch": 1.0, "loss": 3.0, "accuracy": 0.1, "lr": 0.1},
    ]
    up, down = stages(known(events))
    assert (up.name, up.loss, up.dev_accuracy, up.kept, up.steps) == ("up", (2.0, 1.0), (0.4, 0.3), 1.0, 4)
    assert np.isnan(up.accuracy[0])
    assert (down.name, down.kept, down.dev_epochs) == ("down", None, ())
    html = plain(pages.render(page(finished_run.invented(20, 2, events=known(events)))))
    assert "up: Loss" in html
    assert "down: Learning rate" in html
    assert "up: Right answers" in html


def test_the_state_marked_as_kept_is_the_last_that_was_better():
    looks = [{"kind": "dev", "step": k, "epoch": float(k), "loss": 1.0, "accuracy": 0.1 * k} for k in range(1, 5)]
    events = [look | {"best": best} for look, best in zip(looks, (True, False, True, False), strict=True)]
    (stage,) = stages(known(events))
    assert stage.kept == 3.0


def test_what_happened_on_the_way_is_told():
    events = [
        {"kind": "steps", "steps": 1200, "budget": 60.0},
        {"kind": "memory", "parts": 4, "micro_batch": 128},
        {"kind": "nan", "step": 7, "stage": "fit"},
        {"kind": "nan", "step": 8, "stage": "rate-1", "what": "weights", "weight": "head.weight"},
        {"kind": "trial", "stage": "rate-1", "rate": 1.0, "failed": True},
        {"kind": "patience", "step": 90, "looks": 3},
        {"kind": "note", "text": "skipped a state"},
        {"kind": "step", "step": 1},
    ]
    told = happenings(known(events))
    assert len(told) == 6
    assert told[2] == "At step 7 the loss or gradient was not finite; that batch was passed over."
    assert told[3] == "At step 8 the weights were not finite; that rate was given up."
    assert told[0] == "The time of 60 seconds became 1,200 steps."
    assert "4 parts of 128 images" in told[1]


def test_the_models_of_cross_validation_stand_behind_a_line():
    events = [{**event, "stage": f"fold-{k}"} for k in (1, 2) for event in finished_run.events()]
    html = plain(pages.render(page(finished_run.invented(20, 2, events=known([*events, *finished_run.events()])))))
    inside = html.split("The curves of the 2 models that cross-validation trained</summary>")[1]
    assert "fold-2: Loss" in inside
    assert ">Loss<" in html.split("The curves of the 2 models")[0]
    assert "120 steps of 128 images" in html  # of the model that is kept


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("B/16", "B/16"),
        ("Ti/8 stem=convolutions width=64 pool=gap", "Ti/8 variant"),
        ("hf:facebook/deit-tiny", "hf:facebook/deit-tiny"),
        ("/home/me/runs/pets-1/model.safetensors", "pets-1"),
        ("ViT, 2 layers", "ViT, 2 layers"),
        ("", "a network"),
    ],
)
def test_a_model_has_a_short_name(model, said):
    assert finished_run.invented(4, 2, model=model).network == said


def test_splits_without_images_are_not_named():
    run = finished_run.invented(20, 2, splits={"train": 20, "dev": 0, "test": 0})
    assert "20 learned from (train)<" in pages.render(page(run))
    assert "| images | 20 learned from (train) |" in card(run)


def test_no_events_make_a_page_too():
    assert "How it was trained" in pages.render(page(finished_run.invented(20, 2, events=())))


# The card --------------------------------------------------------------------------------------------------------


def test_a_hub_reads_the_card(story):
    hub = pytest.importorskip("huggingface_hub")
    read = hub.ModelCard(card(story))
    assert read.data.library_name == "vitreous"
    assert read.data.pipeline_tag == "image-classification"
    assert read.data.license is None  # whoever publishes it chooses one
    [result] = read.data.eval_results
    assert result.metric_value == pytest.approx(story.result.top1, abs=1e-4)
    assert result.dataset_name == "fashion"


@pytest.mark.parametrize("name", ['a "b": c', "- x\n# y", "é ü \udcff", "---", ""])
def test_odd_names_do_not_break_the_card(name):
    hub = pytest.importorskip("huggingface_hub")
    text = card(finished_run.invented(30, 12, name=name))
    text.encode()
    read = hub.ModelCard(text)
    assert len(read.data.eval_results) == 2  # right, and right among five
    assert read.text.lstrip().startswith("#")


def test_the_card_names_limits(story):
    text = card(story)
    weakest = min(story.result.per_class, key=lambda row: row.recall)
    assert f"Weakest classes: {weakest.name} " in text
    assert "license: choose one" in text
    few = card(finished_run.invented(20, 4, unlike=None))
    assert "as few as 5 images" in few
    assert "whatever it is shown" in few


def test_noise_makes_pictures_of_its_own():
    """The example is what it says: pictures in memory."""
    run = finished_run.invented(4, 2)
    assert isinstance(run.judged.source, Arrays)


def test_a_class_name_is_escaped_once():
    """Markdown shows Maine_Coon without a backslash, in the table and in the limits."""
    run = finished_run.invented(20, 2)
    run = dataclasses.replace(run, judged=dataclasses.replace(run.judged, classes=("Maine_Coon", "a|b")))
    assert "| classes | Maine\\_Coon, a\\|b |" in card(run)
    assert "\\\\" not in card(run)
