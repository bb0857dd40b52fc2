"""The pages that `fit` and `eval` write, in real Chromium: phone, desk, dark and paper; whole in one file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from browsing import CHROMIUM, CONTRAST
from picture_files import class_folders
from small_runs import network, tinted_folder
from tiny_models import awake

import vitreous
from vitreous.evaluation import suite

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")

PHONE, DESK, PAPER = 390, 1280, 794  # CSS pixels wide; the last is A4
LEAST = """Math.min(...[...document.querySelectorAll("svg.chart:not(.wide) text")]
    .map((t) => parseFloat(getComputedStyle(t).fontSize) * t.ownerSVGElement.getScreenCTM().a))"""


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    """A run with dev, test, a check and doubted labels; a few-shot table; a suite of which a part failed."""
    root = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITREOUS_CACHE", str(root / "cache"))
        yield {"fit": _fit(root), "few-shot": _fewshot(root), "suite": _suite(root)}


def _fit(root):
    vitreous.save(network(classes=7), root / "weights.safetensors")
    data = replace(vitreous.images.open(tinted_folder(root / "tints", 160, strength=200)), about={})
    labels = data.labels.copy()
    labels[::16] = (labels[::16] + 1) % 4
    run = vitreous.fit(
        replace(data, labels=labels, content_id="7" * 32),
        weights=root / "weights.safetensors",
        device="cpu",
        workers=0,
        folds=0,
        length="4 epochs",
        batch=32,
        out=root / "run",
    )
    assert run.metrics["suspects"]["learned"]["count"]
    return Path(run.report).as_uri()


def _fewshot(root):
    counts = {f"{split}/{name}": n for split, n in (("train", 12), ("test", 6)) for name in ("ant", "bee")}
    folder = class_folders(root / "set", counts)
    vitreous.evaluate(awake(), folder, shots=(1, 5, 10), seeds=3, curve=True, workers=0, out=root / "few.html")
    return (root / "few.html").as_uri()


def _suite(root):
    """Of the sets that the few-shot table has made."""
    names = ("a-model-with-quite-a-long-name", "two")
    for seed, name in enumerate(names):
        vitreous.save(awake(classes=2, seed=seed), root / f"{name}.safetensors")
    asked = {
        "name": "small",
        "seeds": 2,
        "models": {name: str(root / f"{name}.safetensors") for name in (*names, "lost")},
        "data": {"set": str(root / "set")},
        "tasks": [{"kind": "few-shot", "shots": [1, 4]}, {"kind": "knn", "neighbours": 3}],
    }
    suite(asked, out=root / "suite", workers=0)
    return (root / "suite/suite.html").as_uri()


@pytest.fixture
def visit(watched, addresses):
    """Open a page, every fold of it."""

    def go(which, width, scheme="light", media="screen"):
        page = watched(addresses[which], viewport={"width": width, "height": 844}, color_scheme=scheme)
        page.emulate_media(media=media, color_scheme=scheme)
        page.goto(addresses[which])
        page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true })")
        return page

    return go


@pytest.mark.parametrize(
    ("which", "width", "scheme"),
    [
        ("fit", DESK, "light"),
        ("fit", DESK, "dark"),
        ("fit", PHONE, "dark"),
        ("few-shot", PHONE, "light"),
        ("few-shot", PHONE, "dark"),
        ("suite", PHONE, "light"),
        ("suite", PHONE, "dark"),
    ],
)
def test_nothing_sticks_out_and_words_can_be_read(visit, which, width, scheme):
    page = visit(which, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate(LEAST) >= 8  # pixels, of a chart's letters


@pytest.mark.parametrize("which", ["fit", "few-shot", "suite"])
def test_on_paper_it_is_dark_on_white_whatever_the_screen(visit, which):
    page = visit(which, PAPER, "dark", "print")
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(CONTRAST) == []
    assert page.locator("nav").is_hidden()
