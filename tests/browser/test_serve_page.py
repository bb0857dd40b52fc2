"""The page in real Chromium: people get their answer, look closer and break it, with a mouse, a thumb or keys alone."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import serving
import torch
from browsing import CHROMIUM, CONTRAST, FLAGS
from PIL import Image
from serving import LABELS, encoded, picture
from tiny_models import BIT, awake

from vitreous.models.pooling import POOLS, Pool
from vitreous.models.track_record import TrackRecord
from vitreous.server.guard import Access

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    from vitreous.images import open_data
    from vitreous.models.model import replica
    from vitreous.server.images.similar import Neighbours

    folder = tmp_path_factory.mktemp("photos")
    for i in range(12):
        (folder / LABELS[i % 3]).mkdir(exist_ok=True)
        picture(100 + i).save(folder / LABELS[i % 3] / f"{i}.png")
    model = serving.tiny()
    neighbours = Neighbours(replica(model), open_data.open(folder))
    with serving.thread(model, neighbours=neighbours, workers=2) as (caller, served, _):
        served.neighbours.wait(30)
        yield caller


@pytest.fixture
def visit(watched, server):
    """Open an address of the server."""

    def go(path="/", *, url=None, **how):
        home = url or server.url
        page = watched(home, **how)
        page.goto(home + path)
        return page

    return go


def words(page, selector):
    return page.locator(selector).inner_text()


def says(page, selector, text):
    """Waits until it does."""
    sync_api.expect(page.locator(selector)).to_contain_text(text)


def pixels(page, selector="#view"):
    return page.evaluate("(selector) => document.querySelector(selector).toDataURL()", selector)


def shown(page):
    says(page, "#stage-says", "most: ")
    page.wait_for_selector("body:not([aria-busy])")


def test_a_first_visit_shows_an_answer_and_where_it_came_from(visit, server):
    page = visit()
    shown(page)
    (row,) = server.call("POST", "/api/predict?image=example-0").json["images"]
    assert words(page, "#said").strip() == row["said"][0]
    assert page.locator("#top li").count() == 5
    assert row["top"][0]["label"] in words(page, "#top li:first-child")
    assert f"{100 * row['top'][0]['probability']:.1f} %" in words(page, "#top li:first-child")
    assert words(page, "#stage-says").startswith("What came into the answer through all layers")
    assert page.locator("#neighbours figure").count() == 6


def test_a_chosen_a_dropped_and_a_pasted_file_are_answered_alike(visit, server, tmp_path):
    raw = encoded(picture(7))
    (tmp_path / "mine.png").write_bytes(raw)
    (row,) = server.send("/api/predict", raw).json["images"]
    page = visit()
    shown(page)
    first = words(page, "#top")
    page.set_input_files("#file", tmp_path / "mine.png")
    page.wait_for_function("(before) => document.getElementById('top').innerText !== before", arg=first)
    shown(page)
    chosen = words(page, "#top")
    assert f"{100 * row['top'][0]['probability']:.1f} %" in chosen
    for kind in ("drop", "paste"):
        page.click("#examples button")
        page.wait_for_function("(before) => document.getElementById('top').innerText === before", arg=first)
        page.evaluate(
            """([bytes, kind]) => {
                const data = new DataTransfer();
                data.items.add(new File([new Uint8Array(bytes)], "mine.png", { type: "image/png" }));
                const event = kind === "drop"
                  ? new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true })
                  : new ClipboardEvent("paste", { clipboardData: data, bubbles: true });
                document.getElementById("drop").dispatchEvent(event);
            }""",
            [list(raw), kind],
        )
        page.wait_for_function("(wanted) => document.getElementById('top').innerText === wanted", arg=chosen)


def test_sliders_show_every_layer_and_head(visit):
    page = visit()
    shown(page)
    seen = {pixels(page)}
    for layer in (1, 2):
        for head in (0, 1, 2):
            page.fill("#layer", str(layer))
            page.fill("#head", str(head))
            assert f"in layer {layer}, {f'head {head}' if head else 'mean of all heads'}" in words(page, "#stage-says")
            seen.add(pixels(page))
    assert page.locator("input[name=show][value=head]").is_checked()
    assert len(seen) >= 6
    assert page.locator("#scale").is_visible()
    page.check("input[name=show][value=plain]")
    assert words(page, "#stage-says") == "The photo as it is."
    assert page.locator("#scale").is_hidden()
    page.check("input[name=show][value=seen]")
    assert words(page, "#stage-says") == "What the model gets: 16 × 16 pixels."


def test_a_clicked_patch_shows_where_it_looks(visit, server):
    page = visit()
    shown(page)
    before = pixels(page)
    box = page.locator("#stage").bounding_box()
    page.mouse.click(box["x"] + 0.6 * box["width"], box["y"] + 0.1 * box["height"])  # row 1, column 3
    says(page, "#stage-says", "into the patch at row 1, column 3 through")
    assert pixels(page) != before
    row = server.call("POST", "/api/attention?image=example-0&patch=2").json["rollout"]
    best = row.index(max(row))
    assert f"most: row {best // 4 + 1}, column {best % 4 + 1}" in words(page, "#stage-says")
    page.click("#whole")
    says(page, "#stage-says", "into the answer")
    assert pixels(page) == before


def test_breaking_it_shows_before_and_after(visit, server):
    page = visit()
    shown(page)
    page.wait_for_selector("#after-top li")
    assert words(page, "#broken-says") == "Nothing is broken yet."
    before = pixels(page, "#after")
    page.check("#no-block")
    says(page, "#broken-says", "block 1 left out")
    found = server.call("POST", "/api/break?image=example-0&block=0").json
    assert f"{100 * found['after']['top'][0]['probability']:.1f} %" in words(page, "#after-top li:first-child")
    page.check("#shuffle")
    says(page, "#broken-says", "patches shuffled")
    assert pixels(page, "#after") != before
    page.click("#hide-most")
    says(page, "#broken-says", "4 squares covered")
    page.click("#hide-any")  # what any cover does
    says(page, "#broken-says", "4 squares covered")
    page.uncheck("#shuffle")
    page.uncheck("#no-block")
    page.click("#uncover")
    says(page, "#broken-says", "Nothing is broken yet.")
    whole, after = pixels(page, "#before"), pixels(page, "#after")
    page.click("#hide-most")
    says(page, "#broken-says", "4 squares covered")
    assert pixels(page, "#before") == whole, "the answer before is not of a covered picture"
    assert pixels(page, "#after") != after
    page.click("#uncover")
    page.locator("#before-stage").click(position={"x": 10, "y": 10})
    says(page, "#broken-says", "1 square covered")


@pytest.mark.parametrize("learned", [True, False])
def test_pictures_that_the_model_has_learned_from_are_called_so(visit, learned):
    with serving.thread(learned=learned) as (caller, _, _):
        page = visit(url=caller.url)
        shown(page)
        assert page.locator("#learned").is_visible() == learned


def test_a_hybrid_speaks_of_places_and_shuffles_them_after_its_convolutions(visit):
    with serving.thread(serving.tiny(**HYBRID)) as (caller, _, _):
        page = visit(url=caller.url)
        shown(page)
        assert "of the 4 × 4 places" in words(page, "#stage-says")
        assert "shuffle the places that its convolutions made" in words(page, "#breaks")
        page.check("#shuffle")
        says(page, "#broken-says", "places shuffled")
        page.locator("#break details").evaluate("each => each.open = true")
        assert "patch" not in words(page, "#break").lower()


def test_a_bad_file_shows_its_message_and_the_page_goes_on(browser, server, tmp_path):
    (tmp_path / "notes.png").write_bytes(b"these are no pixels")
    page = browser.new_page()
    page.goto(server.url)
    shown(page)
    page.set_input_files("#file", tmp_path / "notes.png")
    page.wait_for_selector("#message:not([hidden])")
    assert words(page, "#message").startswith("notes.png is not an image that this server reads; send JPEG")
    assert page.get_attribute("#message", "role") == "alert"
    for old in ("#result", "#similar", "#break", "#examples [aria-pressed=true]"):
        assert not page.locator(old).is_visible(), "an older answer stands beside a file that it is not about"
    page.click("#examples button")
    page.wait_for_selector("#message", state="hidden")
    shown(page)
    assert page.locator("#similar").is_visible()
    page.evaluate("dispatchEvent(new DragEvent('drop', { dataTransfer: new DataTransfer(), cancelable: true }))")
    says(page, "#message", "that was no file; save the picture first")
    assert page.locator("#result").is_hidden()
    page.goto(f"{server.url}/lesson")
    page.wait_for_selector("#words p")
    page.set_input_files("#file", tmp_path / "notes.png")
    says(page, "#message", "notes.png is not an image")
    assert page.locator("#step").is_hidden()
    page.click("#examples button")
    page.wait_for_selector("#step:not([hidden])")
    page.close()


def test_what_fails_after_the_answer_leaves_the_answer(browser, server):
    page = browser.new_page()
    page.route("**/api/similar*", lambda route: route.fulfill(status=503, json={"error": "the training images wait"}))
    page.goto(server.url)
    says(page, "#message", "the training images wait")
    assert page.locator("#result").is_visible()
    page.close()


BOARD = np.kron(np.indices((16, 24)).sum(0) % 2 * 255, np.ones((10, 10))).astype(np.uint8)  # 160 rows, 240 columns
FIELDS = BOARD[5::10, 5::10].ravel().tolist()
GREYS = """() => {  // of #view, at the middle of each field of the board
  const view = document.getElementById("view"), { width, height } = view;
  const copy = new OffscreenCanvas(width, height).getContext("2d");
  copy.drawImage(view, 0, 0);
  const { data } = copy.getImageData(0, 0, width, height);
  const row = (i) => Math.floor((Math.floor(i / 24) + 0.5) * height / 16);
  const column = (i) => Math.floor((i % 24 + 0.5) * width / 24);
  return [...Array(16 * 24).keys()].map((i) => data[4 * (row(i) * width + column(i))]);
}"""


def test_the_photo_is_shown_as_it_is_and_not_as_the_few_pixels_that_the_model_gets(visit, tmp_path):
    Image.fromarray(BOARD).save(tmp_path / "board.png")
    page = visit()
    shown(page)
    page.set_input_files("#file", tmp_path / "board.png")
    page.wait_for_selector("#examples button[aria-pressed=true]", state="detached")
    shown(page)
    page.check("input[name=show][value=plain]")
    assert page.evaluate(GREYS) == FIELDS
    page.check("input[name=show][value=seen]")
    assert page.evaluate(GREYS) != FIELDS, "16 columns of pixels do not show 24 fields"
    page.check("input[name=show][value=rollout]")
    veiled = page.evaluate(GREYS)
    light, dark = (np.array(veiled)[np.array(FIELDS) == grey] for grey in (255, 0))
    assert np.median(light) > np.median(dark) + 60, "the veil hides the photo"


def test_what_is_cut_off_before_the_model_looks_is_grey_and_cannot_be_picked(visit, tmp_path):
    model = serving.tiny()
    model.preprocess = replace(model.preprocess, fit="crop", short_side=16)
    Image.fromarray(BOARD).save(tmp_path / "board.png")
    with serving.thread(model) as (caller, _, _):
        page = visit("/", url=caller.url)
        shown(page)
        assert "grey margin" not in words(page, "#stage-says")  # a square example
        page.set_input_files("#file", tmp_path / "board.png")
        says(page, "#stage-says", "The grey margin is cut off before the model looks.")
        page.wait_for_selector("body:not([aria-busy])")
        assert {128 - 32, 128 + 32} >= set(page.evaluate(GREYS)[:2])  # three quarters of 128
        box = page.locator("#stage").bounding_box()
        assert box["width"] / box["height"] == pytest.approx(1.5, abs=0.02)
        page.mouse.click(box["x"] + 0.1 * box["width"], box["y"] + 0.5 * box["height"])  # left of the square
        page.mouse.click(box["x"] + 0.18 * box["width"], box["y"] + 0.02 * box["height"])  # its first patch
        says(page, "#stage-says", "into the patch at row 1, column 1 through")
        page.check("input[name=show][value=plain]")
        assert "grey margin" not in words(page, "#stage-says")


def test_similarity_is_a_cosine_and_no_chance(visit, server):
    page = visit()
    shown(page)
    page.wait_for_selector("#neighbours figure")
    first = server.call("POST", "/api/similar?image=example-0").json["similar"][0]
    assert f"similarity {first['likeness']:.3f}" in words(page, "#neighbours figure:first-child")
    assert "%" not in words(page, "#similar")
    assert "It is not a chance." in words(page, "#similar-says")


TRACKS = """() => {  // remember every track that the page opens
  const real = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
  window.tracks = [];
  navigator.mediaDevices.getUserMedia = async (asked) => {
    window.asked = asked;
    const stream = await real(asked);
    window.tracks.push(...stream.getTracks());
    return stream;
  };
}"""


@pytest.fixture(scope="module")
def filming(browser):
    """Chromium with a camera, and with a name for this machine that is not its own address."""
    flags = [*FLAGS, "--use-fake-device-for-media-stream", "--host-resolver-rules=MAP desk.test 127.0.0.1"]
    running = browser.browser_type.launch(executable_path=CHROMIUM, args=flags)
    yield running
    running.close()


def test_a_desk_takes_a_photo_with_its_camera_and_turns_it_off(filming, server):
    wrong = []
    context = filming.new_context(permissions=["camera"])
    page = context.new_page()
    page.on("console", lambda line: wrong.append(line.text) if line.type in ("error", "warning") else None)
    page.goto(server.url)
    shown(page)
    page.evaluate(TRACKS)
    states = "[...tracks.map((track) => track.readyState)]"
    page.click("#film")
    page.wait_for_selector("#video")
    page.wait_for_function("() => document.getElementById('video').videoWidth > 0")
    assert page.evaluate(states) == ["live"]
    assert page.evaluate("asked.audio") is False
    page.keyboard.press("Escape")
    assert page.locator("#filming").is_hidden()
    assert page.evaluate(states) == ["ended"]
    page.click("#film")
    page.wait_for_function("() => document.activeElement.id === 'snap'")
    page.keyboard.press("Enter")
    page.wait_for_selector("#examples button[aria-pressed=true]", state="detached")
    shown(page)
    assert page.evaluate(states) == ["ended", "ended"]
    assert page.evaluate("document.getElementById('video').srcObject") is None
    page.click("#film")
    page.wait_for_function("() => document.activeElement.id === 'snap'")
    page.click("#examples button")  # another picture: the camera is not needed any more
    page.wait_for_selector("#filming", state="hidden")
    assert page.evaluate(states) == ["ended"] * 3
    assert wrong == []
    context.close()


def test_a_camera_that_is_refused_or_absent_is_one_line(browser, filming, server):
    refused, absent = filming.new_context(permissions=[]), browser.new_context(permissions=["camera"])
    for context, line in (
        (refused, "the camera was refused; allow it for this page in the browser's settings, or choose a file"),
        (absent, "this machine has no camera; connect one, or choose a file"),
    ):
        page = context.new_page()
        page.goto(server.url)
        shown(page)
        page.click("#film")
        says(page, "#message", line)
        assert words(page, "#message") == line
        assert page.locator("#filming").is_hidden()
        assert page.locator("#result").is_visible()
        context.close()


def test_over_a_network_without_https_the_line_says_why_there_is_no_camera(filming):
    with serving.thread(access=Access(is_local=False, names=frozenset({"desk.test"}))) as (caller, _, _):
        page = filming.new_page()
        page.goto(f"http://desk.test:{caller.port}")
        shown(page)
        page.click("#film")
        says(page, "#message", "browsers open the camera only for https or for the machine's own address, 127.0.0.1;")
        page.close()


def test_hostile_names_stay_text(visit, tmp_path):
    name = "<img src=x onerror=alert(1)>.png"
    (tmp_path / name).write_bytes(encoded(picture(5)))
    page = visit()
    shown(page)
    page.set_input_files("#file", tmp_path / name)
    page.wait_for_selector("#examples button[aria-pressed=true]", state="detached")
    shown(page)
    assert page.locator("img[src=x]").count() == 0


def test_what_is_shown_can_be_saved(visit):
    page = visit()
    shown(page)
    with page.expect_download() as picture_file:
        page.click("#save")
    assert picture_file.value.suggested_filename == "grey-attention.png"
    with page.expect_download() as numbers:
        page.click("#numbers")
    saved = json.loads(numbers.value.path().read_text())
    assert saved["attention"]["grid"] == [4, 4]
    assert len(saved["answer"]["top"]) == 5


def test_keys_alone_are_enough(visit):
    page = visit()
    shown(page)
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "stage":
            break
    page.keyboard.press("ArrowRight")
    says(page, "#stage-says", "into the patch at row 3, column 3 through")
    page.keyboard.press("ArrowUp")
    says(page, "#stage-says", "into the patch at row 2, column 3 through")
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    assert {"layer", "head", "save", "shuffle", "block", "silent", "hide-most", "before-stage"} <= reached


def test_the_lesson_has_six_steps(visit, server):
    page = visit("/lesson")
    page.wait_for_selector("#words p")
    says(page, "#count", "Step 1 of 6")
    seen = [words(page, "#heading")]
    for step in range(2, 7):
        page.keyboard.press("ArrowRight")
        assert words(page, "#count") == f"Step {step} of 6"
        seen.append(words(page, "#heading"))
        assert words(page, "#caption").strip()
    assert len(set(seen)) == 6
    assert page.locator("#more .top li").count() == 5
    assert page.locator("#next").is_disabled()
    page.click("#steps li:nth-child(4) button")
    before = pixels(page)
    page.locator("#stage").click(position={"x": 10, "y": 10})
    says(page, "#caption", "Where the patch at row 1, column 1 looks")
    assert pixels(page) != before


def test_the_end_of_the_lesson_leads_to_breaking_the_same_picture(visit):
    page = visit("/lesson")
    page.wait_for_selector("#words p")
    page.click("#examples button:nth-child(1)")
    page.goto(page.url.partition("#")[0] + "#6")  # the address turns pages too
    says(page, "#count", "Step 6 of 6")
    page.click("#more a")
    page.wait_for_selector("#break:not([hidden])")
    assert "image=example-0" in page.url
    assert page.locator("#examples button[aria-pressed=true]").count() == 1


def test_a_step_of_the_lesson_fits_a_projector(visit):
    page = visit("/lesson", viewport={"width": 1280, "height": 720})
    page.wait_for_selector("#words p")
    for step in range(1, 7):
        page.click(f"#steps li:nth-child({step}) button")
        for part in ("#next", "#view"):
            box = page.locator(part).bounding_box()
            assert box["y"] >= 0, (step, part)
            assert box["y"] + box["height"] <= 720, (step, part)


def lesson(page):
    """The text of each step, and the lines of its formula."""
    page.wait_for_selector("#words p")
    told = []
    for step in range(1, 7):
        page.click(f"#steps li:nth-child({step}) button")
        says(page, "#count", f"Step {step} of 6")
        told.append((words(page, "#step"), page.locator(".formula span").all_inner_texts()))
    return told


HYBRID = {"stem": "convolutions", "pool": "gap", "image_size": 28, "patch": 8}


def test_the_lesson_of_a_plain_vit_tells_of_patches_and_its_class_token(visit):
    page = visit("/lesson", reduced_motion="reduce")
    told = lesson(page)
    assert words(page, "#title") == "How a Vision Transformer answers"
    everything = " ".join(text for text, _ in told)
    assert "16 pieces of 4 × 4 pixels" in told[1][0]
    assert "Here a word has 4 × 4 pixels" in told[1][0]
    assert "turns the 48 numbers of each patch into 16" in told[2][0]
    assert "In front stands a class token, which is no patch" in told[2][0]
    assert "where the class token looks" in told[4][0]
    assert "hybrid" not in everything
    assert "place " not in everything.replace("no name, no place", "")
    assert [lines for _, lines in told] == [
        [],
        [],
        ["z₀ = [class; x₁E; x₂E; …] + positions"],
        ["softmax(q kᵀ / √d) v", "d = 16 / 2 = 8"],
        ["z′ = attention(norm(z)) + z", "z = mlp(norm(z′)) + z′"],
        [],
    ]


def test_the_lesson_of_a_hybrid_tells_of_convolutions_and_no_class_token(visit):
    with serving.thread(serving.tiny(**HYBRID)) as (caller, _, _):
        page = visit("/lesson", url=caller.url, reduced_motion="reduce")
        told = lesson(page)
        assert words(page, "#title") == "How a hybrid answers: convolutions, then a Transformer"
        everything = " ".join(text for text, _ in told)
        assert "28 × 28 → 14 × 14 → 7 × 7 → 4 × 4" in told[1][0]
        assert "those of this place cover 15 × 15 pixels" in told[1][0]
        assert "mean of all places" in told[2][0]
        assert "where the places look, on average" in told[4][0]
        assert "class token" not in everything
        assert "patch" not in everything.replace("does not cut the image itself into patches", "")
        assert told[2][1] == ["z₀ = [x₁E; x₂E; …] + positions"]
        page.click("#steps li:nth-child(2) button")
        assert page.locator(".maps").count() == 3
        before = pixels(page)
        page.locator("#stage").click(position={"x": 10, "y": 10})
        says(page, "#caption", "what the windows of the place at row 1, column 1 cover")
        says(page, "#words", "those of this place cover 8 × 8 pixels")  # the rest of its window lies outside
        assert pixels(page) != before


BARE = {"positions": "none", "pool": "gap", "norm": "post", "layer_scale": 0.1}
CUT = {"registers": 3, "positions": "relative", "skips": (0, 1)}


@pytest.mark.parametrize(
    ("changes", "formulas"),
    [
        (
            BARE,
            {
                3: ["z₀ = [x₁E; x₂E; …]"],
                4: ["softmax(q kᵀ / √d) v", "d = 16 / 2 = 8"],
                5: ["z′ = norm(γ · attention(z) + z)", "z = norm(γ · mlp(z′) + z′)"],
            },
        ),
        (
            CUT,
            {
                3: ["z₀ = [class; registers; x₁E; x₂E; …]"],
                4: ["softmax((q kᵀ + q rᵀ) / √d) v", "d = 16 / 2 = 8"],
                5: ["z′ = attention(norm(z))", "z = mlp(norm(z′))"],
            },
        ),
        ({"positions_cover": "patches"}, {3: ["z₀ = [class; x₁E + p₁; x₂E + p₂; …]"]}),
    ],
    ids=["bare", "cut", "patches placed"],
)
def test_formulas_are_those_of_the_model(visit, changes, formulas):
    with serving.thread(serving.tiny(**changes)) as (caller, _, _):
        page = visit("/lesson", url=caller.url, reduced_motion="reduce")
        page.wait_for_selector("#words p")
        for step, lines in formulas.items():
            page.click(f"#steps li:nth-child({step}) button")
            assert page.locator(".formula span").all_inner_texts() == lines
            tops = page.evaluate("[...document.querySelectorAll('.formula span')].map((e) => e.offsetTop)")
            assert tops == sorted(set(tops))  # each on a line of its own


SPELLED = {
    "class",
    "distillation",
    "register",
    "registers",
    "positions",
    "attention",
}  # words of a formula, not letters
MODELS = {
    "plain": {},
    "bare": BARE,
    "cut": CUT,
    "patches placed": {"positions_cover": "patches", "norm_before_blocks": True},
    "normed queries": {"qk_norm": True, "attention_scale": 0.5},
    "rotary": {"positions": "none", "rotary": "axial"},
}


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
def test_each_letter_of_a_formula_is_explained_below_it(visit, changes):
    with serving.thread(serving.tiny(**changes)) as (caller, _, _):
        page = visit("/lesson", url=caller.url, reduced_motion="reduce")
        page.wait_for_selector("#words p")
        for step in (3, 4, 5):
            page.click(f"#steps li:nth-child({step}) button")
            says(page, "#count", f"Step {step} of 6")
            lines = page.locator(".formula span").all_inner_texts()
            prose = [line for line in lines if re.match(r"R turns|b: ", line)]
            told = " ".join([words(page, "#words .hint"), *prose])
            formula = " ".join(line for line in lines if line not in prose)
            letters = set(re.findall(r"softmax|norm|mlp|[a-zA-Zγ]+(?=[₀₁₂ᵀ′ ;,)\]·/(]|$)", formula)) - SPELLED
            letters |= {pair[0] for pair in re.findall(r"[a-z]E\b", formula)} if step == 3 else set()
            missing = {letter for letter in letters if not re.search(rf"(?<![a-z]){letter}(?![a-z])", told)}
            assert missing - {"x₁E", "E"} == set(), (step, lines, told)


def test_what_a_confidence_promises_is_told_of_a_model_whose_answers_were_counted(visit, server):
    page = visit("/lesson#6")
    says(page, "#words", "How many of such answers are right, nobody has counted.")
    model = serving.tiny()
    model.track_record = TrackRecord(right=0.817, low=0.771, high=0.856, images=312, sure_from=0.0)
    with serving.thread(model) as (caller, _, _):
        (row,) = caller.call("POST", "/api/predict?image=example-0").json["images"]
        share = 100 * row["top"][0]["probability"]
        page = visit("/lesson#6", url=caller.url)
        says(page, "#words", f"It says {row['said'][0]}, at {share:.1f} %: of 100 such answers")
        told = re.search(r"about (\d+) should be right", words(page, "#words"))
        assert abs(int(told[1]) - share) <= 0.5


def test_of_several_labels_none_may_reach_one_half(visit):
    model = serving.tiny()
    model.answers, model.temperature = "several", 1.0
    with torch.no_grad():
        model.head.bias.fill_(-9.0)
    with serving.thread(model) as (caller, _, _):
        page = visit("/lesson#6", url=caller.url)
        says(page, "#words", "It says: none of these (nearest: ")
        says(page, "#words", "). No class reaches one half.")
        page.goto(f"{caller.url}/")
        shown(page)
        assert words(page, "#said").endswith(")\nNone of the classes reaches one half.")
        assert page.locator("#top li").count() == 5


def test_step_one_shows_the_numbers_of_the_square_that_is_marked(visit, server, tmp_path):
    raw = encoded(picture(7))
    (tmp_path / "mine.png").write_bytes(raw)
    (row,) = server.send("/api/predict", raw).json["images"]
    seen = np.array(Image.open(io.BytesIO(server.get(f"/api/seen?image={row['image']}").body)))  # 16 16 3
    page = visit("/lesson")
    page.wait_for_selector("#words p")
    page.set_input_files("#file", tmp_path / "mine.png")
    page.wait_for_selector("#examples button[aria-pressed=true]", state="detached")

    def numbers():
        return [[int(cell) for cell in line.split()] for line in words(page, "table.pixels tbody").splitlines()]

    assert numbers() == seen[8:12, 8:12, 0].tolist()
    page.click("#more button:has-text('blue')")
    assert numbers() == seen[8:12, 8:12, 2].tolist()
    page.locator("#stage").click(position={"x": 10, "y": 10})
    says(page, "table.pixels caption", "Rows 1 to 4, columns 1 to 4: blue")
    assert numbers() == seen[:4, :4, 2].tolist()


def test_the_film_runs_through_the_layers_and_can_be_stopped(visit):
    page = visit("/lesson#5")
    says(page, "#more", "all layers")  # the last frame
    page.click("#more button")
    assert words(page, "#more button") == "play"
    stands = pixels(page)
    page.fill("#more input", "1")
    says(page, "#caption", "Layer 1: where the class token looks")
    assert pixels(page) != stands
    page.click("#steps li:nth-child(6) button")
    says(page, "#caption", "The same picture")
    stands = pixels(page)
    page.wait_for_timeout(300)
    assert pixels(page) == stands  # a film that was left paints no more


def test_the_film_stands_still_for_people_who_asked_for_less_motion(visit):
    page = visit("/lesson#5", reduced_motion="reduce")
    says(page, "#caption", "Layer 1")
    assert words(page, "#more button") == "play"
    page.wait_for_timeout(1500)  # more than a frame lasts
    says(page, "#caption", "Layer 1")
    page.click("#more button")
    says(page, "#caption", "Layer 2")


def test_the_whole_model_is_drawn_below_the_lesson(visit, server):
    page = visit("/lesson")
    svg = page.locator("#architecture svg")
    sync_api.expect(svg).to_be_visible()
    assert "patches to tokens" in svg.text_content()
    about = server.get("/api/model").json
    assert f"{about['parameters']:,} parameters" in words(page, "#whole-says")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_worksheet_asks_and_its_answers_are_on_pages_of_their_own(visit, server, scheme):
    page = visit("/lesson", viewport={"width": 390, "height": 844}, color_scheme=scheme)
    page.wait_for_selector("#words p")
    page.click("#to-worksheet")
    page.check("#with-answers")
    page.wait_for_selector("#architecture svg")
    rows = server.get("/api/worksheet").json["questions"]
    asked, answered = (page.locator(f"#{name} > li") for name in ("questions", "results"))
    assert asked.count() == answered.count() == len(rows) + 1  # one more, with a picture
    assert rows[0]["question"] in asked.first.inner_text()
    assert rows[0]["answer"] in answered.first.inner_text()
    assert "The model's answer is" in answered.last.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate(CONTRAST) == []

    def printed():
        return len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4")))

    with_answers = printed()
    page.uncheck("#with-answers")
    assert page.locator("#answers").is_hidden()
    assert 1 <= printed() < with_answers
    page.emulate_media(media="print")
    assert page.locator("#tools").is_hidden()
    assert page.locator(".fill").is_visible()


def test_words_are_explained_where_they_stand(visit, server):
    told = server.get("/api/worksheet").json["words"]
    page = visit("/lesson")
    page.wait_for_selector("#glossary dt")
    rows = zip(
        page.locator("#glossary dt").all_inner_texts(), page.locator("#glossary dd").all_inner_texts(), strict=True
    )
    assert dict(rows) == told
    page.click("#to-worksheet")
    page.wait_for_selector("#words dt")
    asked = words(page, "#questions").lower()
    listed = set(page.locator("#words dt").all_inner_texts())
    assert listed == {word for word in told if any(part in asked for part in word.lower().split(", "))}
    assert listed >= {"token", "patch", "head", "MLP", "class token"}
    page.goto(f"{server.url}/")
    shown(page)
    page.click(".explained summary")
    explained = words(page, ".explained p").lower()
    for word in ("patches", "positions", "block", "attention", "heads", "mlp", "skip"):
        assert word in explained
        assert word.removesuffix("s") in words(page, "#breaks").lower()


PAPER = 680  # pixels between the margins of A4


@pytest.mark.parametrize("path", ["/", "/lesson", "/worksheet"])
def test_on_paper_it_is_dark_on_white_whatever_the_screen(visit, path):
    page = visit(path, viewport={"width": PAPER, "height": 1000}, color_scheme="dark", reduced_motion="reduce")
    page.wait_for_selector({"/": "#top li", "/lesson": "#glossary dt", "/worksheet": "#tools"}[path])
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER
    assert page.locator(".buttons:visible, .ways:visible, .over:visible").count() == 0


PRINTED = """() => {
  const style = (name) => getComputedStyle(document.querySelector(name));
  const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]);
  return {
    margin: rules.filter((rule) => rule instanceof CSSPageRule).map((rule) => rule.style.margin),
    pages: [style("#answers").breakBefore, style("#architecture").breakBefore],
    whole: [style(".questions li").breakInside, style(".results li").breakInside],
    columns: style("#words").gridTemplateColumns.split(" ").length,
    drawing: document.querySelector("#architecture svg").getBoundingClientRect().height,
    names: [...document.querySelectorAll(".fill span")].map((e) => [e.textContent, e.offsetWidth > 90]),
  };
}"""


def test_the_worksheet_is_made_for_paper(visit):
    """Margins, a line for the name, answers and drawing each on a page of its own, which they fit."""
    page = visit("/worksheet", viewport={"width": PAPER, "height": 1000})
    page.check("#with-answers")
    page.wait_for_selector("#architecture svg")
    assert page.locator(".fill").is_hidden()
    page.emulate_media(media="print")
    found = page.evaluate(PRINTED)
    assert found["margin"] == ["15mm"]
    assert found["pages"] == ["page", "page"]
    assert found["whole"] == ["avoid", "avoid"]
    assert found["columns"] == 2  # a word beside its meaning, on narrow paper too
    assert 500 < found["drawing"] < (297 - 2 * 15) / 25.4 * 96
    assert found["names"] == [["Name", True], ["Date", True]]


def test_without_examples_pages_wait_for_a_picture(visit, tmp_path):
    picture(7).save(tmp_path / "mine.png")
    with serving.thread(examples=()) as (caller, _, _):
        page = visit("/", url=caller.url)
        says(page, "#title", "What does tiny see?")
        says(page, "#drop", "Drop a picture here")
        assert page.locator("#examples").is_hidden()
        assert page.locator("#terms").is_hidden()
        page.set_input_files("#file", tmp_path / "mine.png")
        shown(page)
        page.goto(f"{caller.url}/lesson#2")
        says(page, "#give", "choose a picture and follow it through the model.")
        page.keyboard.press("ArrowRight")
        assert page.locator("#step").is_hidden()
        page.set_input_files("#file", tmp_path / "mine.png")
        says(page, "#count", "Step 2 of 6")
        assert page.locator("#invite").is_hidden()


@pytest.mark.parametrize("path", ["/", "/lesson", "/worksheet", "/docs"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_sticks_out_and_words_can_be_read(visit, path, scheme):
    page = visit(path, viewport={"width": 390, "height": 844}, color_scheme=scheme, has_touch=True, is_mobile=True)
    if path == "/":
        shown(page)
        assert page.locator(".button.phone").is_visible()
        assert page.locator("#film").is_hidden()
    if path == "/lesson":
        page.wait_for_selector("#words p")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    small = page.evaluate(
        """() => [...document.querySelectorAll("button, .button, input[type=range]")]
            .filter((e) => e.offsetParent && e.getBoundingClientRect().height < 28).map((e) => e.id || e.textContent)"""
    )
    assert small == []
    assert page.evaluate(CONTRAST) == []


NAMELESS = """() => [...document.querySelectorAll("button, input, canvas[role], [role=application], img, a")]
  .filter((e) => !["aria-label", "aria-labelledby", "aria-describedby", "alt"].some((name) => e.hasAttribute(name)))
  .filter((e) => !e.textContent.trim() && !e.labels?.length)
  .map((e) => e.outerHTML)"""


def test_everything_has_a_name_for_a_screen_reader(visit):
    page = visit()
    shown(page)
    assert page.evaluate(NAMELESS) == []
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((e) => Number(e.tagName[1]))")
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    assert page.evaluate("document.documentElement.lang") == "en"
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))


def test_what_is_unlike_anything_learned_is_said_so(visit):
    model = serving.tiny()
    model.threshold = 1e9
    with serving.thread(model) as (caller, _, _):
        page = visit("/", url=caller.url)
        shown(page)
        (row,) = caller.call("POST", "/api/predict?image=example-0").json["images"]
        assert row["is_unlike"]
        assert row["top"][0]["probability"] > 0  # programs get it all
        phrase = f"none of these (nearest: {row['top'][0]['label']})"
        assert words(page, "#said") == f"{phrase}\nIt resembles nothing that the model learned."
        assert page.locator("#top").is_hidden()
        assert page.locator("#similar").is_hidden()
        says(page, "#before-top", phrase)
        page.check("#shuffle")
        says(page, "#broken-says", "With patches shuffled: it still says none of these (nearest: ")
        assert "%" not in words(page, "#break")
        page.goto(f"{caller.url}/lesson#6")
        says(page, "#words", f"It says: {phrase}. The image resembles no class that it learned.")
        assert page.locator("#more .top").count() == 0
        page.click("#to-worksheet")
        says(page, "#results li:last-child", f"The model's answer is {phrase}. Most came into it from ")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_encoder_shows_where_it_looks_and_names_nothing(visit, scheme):
    with serving.thread(awake(classes=0)) as (caller, _, _):
        page = visit("/", url=caller.url, color_scheme=scheme, reduced_motion="reduce")
        says(page, "#stage-says", "What came into the features through all layers; most: ")
        says(page, "#about", "An encoder without a head: it names nothing, and makes 16 numbers of a picture")
        says(page, "#features", "Its 16 features: ")
        assert words(page, "#result-title") == "Where it looks"
        assert page.locator("#top li").count() == page.locator("#similar:visible").count() == 0
        assert words(page, "#said").strip() == ""
        before = pixels(page)
        page.locator("#stage").click(position={"x": 10, "y": 10})
        says(page, "#stage-says", "What came into the patch at row 1, column 1 through all layers")
        assert pixels(page) != before
        says(page, "#whole", "back to the features")
        page.check("#shuffle")
        says(page, "#broken-says", "With patches shuffled: the features have a similarity of ")
        assert page.evaluate(CONTRAST) == []
        page.goto(f"{caller.url}/lesson")
        told = lesson(page)
        assert words(page, "#title") == "How a Vision Transformer sees"
        assert "answer" not in " ".join(text for text, _ in told)
        assert "16 numbers, the features of the picture" in told[5][0]
        assert page.locator("#more .mosaic").count() == 1
        page.click("#to-worksheet")
        says(page, "#results li:last-child", "Most came into its features from row")
        assert page.evaluate(CONTRAST) == []


def test_an_unsure_answer_is_marked_and_the_page_tells_how_often_the_model_is_right(visit):
    model = serving.tiny()
    model.track_record = TrackRecord(right=0.817, low=0.771, high=0.856, images=312, sure_from=1.0)
    with serving.thread(model) as (caller, _, _):
        page = visit("/", url=caller.url)
        shown(page)
        assert "(unsure)\nUnsure: " in words(page, "#said")
        assert "right on 81.7 % of images that it had not seen (77.1 to 85.6" in words(page, "#record")
    page = visit()
    shown(page)
    assert "unsure" not in words(page, "#said").lower(), "nobody measured this model"
    assert page.locator("#record").is_hidden()


def test_a_network_without_attention_has_a_page_and_no_lesson(visit):
    with serving.thread(awake(BIT)) as (caller, _, _):
        page = visit("/", url=caller.url)
        says(page, "#stage-says", "The photo as it is.")
        assert page.locator("#controls").is_hidden()
        assert words(page, "#no-attention") == "A network of convolutions has no attention to show."
        page.wait_for_selector("#after-top li")
        assert page.locator("#shuffle").is_hidden()
        page.click("#hide-most")
        says(page, "#broken-says", "12 squares covered")
        page.goto(f"{caller.url}/lesson")
        says(page, "#message", "this model is a network of convolutions; the lesson is about Vision Transformers")
        assert page.locator("#step").is_hidden()
        page.click("#to-worksheet")  # it is drawn, and has its questions, all the same
        says(page, "#questions", "After stage 2 there are")
        page.check("#with-answers")
        sync_api.expect(page.locator("#architecture svg")).to_be_visible()


class Silent(Pool):
    """A pool from outside the tree that does not say what it reads."""

    def forward(self, z):
        return z[:, -1]


def test_a_pool_that_does_not_say_what_it_reads_is_named_and_no_network_of_convolutions(visit, monkeypatch):
    monkeypatch.setitem(POOLS.parts, "silent", Silent)
    with serving.thread(serving.tiny(pool="silent")) as (caller, _, _):
        page = visit("/", url=caller.url)
        says(page, "#no-attention", "This model's pool does not say which tokens it reads")
        says(page, "#about", "2 layers of 2 heads")
        page.goto(f"{caller.url}/lesson")
        says(page, "#message", "this model's pool does not say which tokens it reads")
        page.wait_for_selector("#whole")  # the drawing comes, then the server may go


@pytest.mark.parametrize("path", ["/", "/lesson#1", "/lesson#4", "/worksheet", "/docs"])
def test_axe_finds_no_fault(browser, server, path):
    axe = pytest.importorskip("axe_playwright_python", reason="needs axe-core: pip install axe-playwright-python")
    script = next(Path(axe.__path__[0]).rglob("axe.min.js")).read_text("utf-8")
    for scheme in ("light", "dark") if path == "/" else ("dark",):
        page = browser.new_page(color_scheme=scheme, bypass_csp=True)
        page.goto(server.url + path)
        if path == "/":
            shown(page)
        page.wait_for_selector("h2")
        if path.startswith("/lesson"):
            page.wait_for_function("() => document.getElementById('heading').textContent.trim().length > 1")
            page.wait_for_selector("#view[aria-label]")
        page.evaluate(script)
        found = page.evaluate("axe.run()")["violations"]
        assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == []
        page.close()


def test_the_token_behind_the_address_opens_the_page_and_leaves_it(browser, visit):
    with serving.thread(access=Access(token="correct-horse")) as (caller, _, _):
        page = visit("/#token=correct-horse", url=caller.url)
        shown(page)
        assert page.url == f"{caller.url}/"
        closed = browser.new_page()
        closed.goto(caller.url)
        closed.wait_for_selector("#message:not([hidden])")
        assert re.match("this server wants its token", words(closed, "#message"))
        closed.close()
