"""The page of a look in real Chromium: block, head, patch and rollout are chosen by mouse and by keys alone."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import small_look
from browsing import CHROMIUM
from picture_files import photo
from tiny_models import VIT, awake

import vitreous
from vitreous.measures.page import write_page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


@pytest.fixture(scope="module")
def seen():
    return small_look.pair()


@pytest.fixture(scope="module")
def address(seen, tmp_path_factory):
    path = tmp_path_factory.mktemp("look") / "look.html"
    write_page(seen, path)
    return path.as_uri()


@pytest.fixture
def visit(watched, address):
    """Open the page."""

    def go(**how):
        page = watched(address, **how)
        page.goto(address)
        if how.get("java_script_enabled", True):
            page.wait_for_selector("#looker[data-ready]")
        return page

    return go


def said(page):
    return page.locator("#said0").inner_text()


def pixels(page):
    return page.evaluate("document.querySelector('#looker canvas').toDataURL()")


def expected(seen, image, layer, head, query):
    """Row, column and percent of the patch that a query looks at most, from the arrays."""
    kept = seen.arrays["attention-maps"]
    maps = kept["maps"][image, layer, :, query] / 255 * kept["peaks"][image, layer, :, query, None].astype(np.float64)
    row = maps.mean(0) if head is None else maps[head]
    most, columns = int(row.argmax()), seen["attention-maps"]["pooled_to"][1]
    return f"row {most // columns + 1}, column {most % columns + 1}", float(row[most])


def test_sliders_choose_block_and_head_and_a_click_a_patch(visit, seen):
    page = visit()
    where, share = expected(seen, 0, 2, None, 0)
    assert said(page).startswith(f"Block 3, mean of heads: the class token looks most at {where} (")
    assert float(re.search(r"\(([\d.]+) %\)", said(page))[1]) == pytest.approx(100 * share, abs=0.6)
    first = pixels(page)

    page.locator("[data-layer]").first.fill("0")
    page.locator("[data-head]").first.fill("3")
    where, _ = expected(seen, 0, 0, 3, 0)
    assert said(page).startswith(f"Block 1, head 4: the class token looks most at {where}")
    assert pixels(page) != first

    canvas = page.locator("#looker canvas").first
    box = canvas.bounding_box()
    canvas.click(position={"x": box["width"] * 0.6, "y": box["height"] * 0.1})  # row 0, column 2 of 4 × 4
    where, _ = expected(seen, 0, 0, 3, 3 + 2)  # three tokens stand in front
    assert said(page).startswith(f"Block 1, head 4: the patch at row 1, column 3 looks most at {where}")

    page.locator(".heads button").nth(1).click()
    assert "head 2: the patch at row 1, column 3" in said(page)
    page.locator("[data-images] button").nth(1).click()
    where, _ = expected(seen, 1, 0, 1, 5)
    assert where in said(page)
    page.get_by_role("button", name="register 2").click()
    assert "the register 2 looks most at" in said(page)
    assert page.locator("[data-layer-said]").inner_text() == "1 of 3"
    assert page.locator("[data-head-said]").inner_text() == "2 of 4"
    low, high = page.locator("[data-low]").inner_text(), page.locator("[data-high]").inner_text()
    assert f"({high})" in said(page)  # the bright end of the scale is the most that is looked at
    assert float(low.removesuffix(" %")) < float(high.removesuffix(" %"))


def test_the_veil_lies_over_what_the_model_sees_of_the_photo(watched, tmp_path):
    """A wide photo keeps its shape; its sides, which a crop leaves out, are no place to click."""
    photo(1, (120, 60)).save(tmp_path / "wide.png")
    model = awake(classes=3)
    model.preprocess = replace(model.preprocess, fit="crop", short_side=16)
    write_page(vitreous.look(model, tmp_path / "wide.png"), tmp_path / "look.html")
    page = watched((tmp_path / "look.html").as_uri())
    page.goto((tmp_path / "look.html").as_uri())
    page.wait_for_selector("#looker[data-ready]")
    box = page.locator("[data-photo]").bounding_box()
    assert box["width"] / box["height"] == pytest.approx(2, rel=0.02)
    assert page.locator("[data-images]").is_hidden()  # one image needs no choice
    for x, column in ((0.01, 1), (0.3, 1), (0.7, 4), (0.99, 4)):  # the model sees the middle half
        page.locator("[data-photo]").click(position={"x": x * box["width"], "y": 1})
        assert f"the patch at row 1, column {column} looks most at" in said(page)


def test_a_hybrid_without_tokens_in_front_has_places_and_gives_them_all(watched, tmp_path):
    photo(1, (120, 60)).save(tmp_path / "wide.png")
    model = awake(VIT.change(stem="convolutions", pool="gap", class_token=False))
    write_page(vitreous.look(model, tmp_path / "wide.png", only=["attention-maps", "rollout"]), tmp_path / "look.html")
    page = watched((tmp_path / "look.html").as_uri())
    page.goto((tmp_path / "look.html").as_uri())
    page.wait_for_selector("#looker[data-ready]")
    whole = r"Block 2, mean of heads: the place at row 3, column 3 looks most at row \d, column \d \([\d.]+ %\)\."
    assert re.fullmatch(whole, said(page))
    page.locator("[data-show]").select_option("rollout")
    assert said(page).startswith("Of all places, row ")
    assert "patch" not in page.locator("#looker").inner_text()


def test_coarser_maps_say_nearly_the_same(browser, seen, tmp_path):
    write_page(seen, tmp_path / "small.html", limit=1)
    page = browser.new_page()
    page.goto((tmp_path / "small.html").as_uri())
    page.wait_for_selector("#looker[data-ready]")
    assert "kept in 8 steps" in page.locator("[data-fine]").inner_text()
    _, share = expected(seen, 0, 2, None, 0)
    assert float(re.search(r"\(([\d.]+) %\)", said(page))[1]) == pytest.approx(100 * share, rel=0.15)
    page.close()


def test_keys_alone_suffice(visit, seen):
    page = visit()
    page.locator("[data-layer]").first.focus()
    page.keyboard.press("ArrowLeft")
    assert said(page).startswith("Block 2, mean of heads: the class token")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert "head 1" in said(page)
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    where, _ = expected(seen, 0, 1, 0, 3 + 5)
    assert said(page).startswith(f"Block 2, head 1: the patch at row 2, column 2 looks most at {where}")


def test_rollout_lies_over_the_image(visit, seen):
    page = visit()
    first = pixels(page)
    page.locator("[data-show]").select_option("rollout")
    heat = seen.arrays["attention-maps"]["rollout"][0].astype(np.float64)
    row, column = np.unravel_index(heat.argmax(), heat.shape)
    assert said(page).startswith(f"Of all patches, row {row + 1}, column {column + 1} gives the head most: ")
    assert page.locator("[data-layer]").first.is_disabled()
    assert pixels(page) != first
    page.locator("[data-show]").select_option("seen")
    page.locator("#looker canvas").first.focus()
    page.keyboard.press("ArrowRight")
    assert "is looked at most from" in said(page)


def test_a_cell_of_a_heatmap_says_its_number(visit, seen):
    page = visit()
    figure = page.locator("#similarity-across .scroll").first
    figure.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    found = seen["similarity-across"]
    words = page.locator("#similarity-across .cell").inner_text()
    assert words.startswith("block 1, norm1 and root: ")
    assert float(words.split(": ")[1]) == pytest.approx(found["cka"][1][0], abs=6e-4)
    page.locator("#similarity-across image").first.hover()
    assert page.locator("#similarity-across .cell").inner_text() != words


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_nothing_sticks_out_and_charts_can_be_read(visit, width, scheme):
    page = visit(viewport={"width": width, "height": 844}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    least = page.evaluate(
        """Math.min(...[...document.querySelectorAll("svg.chart text")]
            .map((t) => parseFloat(getComputedStyle(t).fontSize) * t.ownerSVGElement.getScreenCTM().a))"""
    )
    assert least >= 7.5
    beside = page.evaluate("document.querySelector('nav').getBoundingClientRect().right < 300")
    assert beside == (width == 1280)


def test_every_control_has_a_name(visit):
    page = visit()
    nameless = page.evaluate(
        """[...document.querySelectorAll("#looker :is(button, input, select, canvas)")]
            .filter((e) => !(e.getAttribute("aria-label") || e.innerText || e.labels?.[0]?.innerText
                             || e.querySelector("img")?.alt) && !e.closest("button:has(canvas)")).length"""
    )
    assert nameless == 0
    assert page.get_by_role("slider").count() == 2
    assert page.get_by_role("button", name="image ").count() == 4


def test_the_blocks_play_and_stop(visit):
    page = visit()
    page.click("[data-play]")
    seen = {said(page).partition(",")[0]}
    while len(seen) < 3:
        page.wait_for_function("(before) => document.getElementById('said0').innerText !== before", arg=said(page))
        seen.add(said(page).partition(",")[0])
    page.click("[data-play]")
    stands = pixels(page)
    page.wait_for_timeout(1200)  # more than a block is shown
    assert pixels(page) == stands


def test_for_less_motion_a_click_shows_the_next_block(visit):
    page = visit(reduced_motion="reduce")
    before = said(page)
    page.click("[data-play]")
    after = said(page)
    assert after != before
    page.wait_for_timeout(1200)
    assert said(page) == after


def test_both_models_are_drawn_whole(visit):
    page = visit()
    drawn = page.locator("#architecture svg")
    assert drawn.count() == 2
    assert "attention" in drawn.first.text_content()
    assert "stage 2" in drawn.last.text_content()


def test_without_scripts_the_figures_stand(visit):
    page = visit(java_script_enabled=False)
    assert page.locator("section svg").count() > 20
    assert "needs JavaScript" in page.locator("#looker").inner_text()
