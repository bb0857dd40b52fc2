"""A page of `vitreous export --to web` in real Chromium: the model answers there as it does in Python."""

from __future__ import annotations

import base64
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from browsing import CHROMIUM, CONTRAST, FLAGS
from PIL import Image
from serving import LABELS, encoded, picture
from tiny_models import BIT, awake
from web_hosting import hosted, need_runtime

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")

import vitreous  # noqa: E402
from vitreous.exports.facts import model_facts  # noqa: E402
from vitreous.exports.graphs import PILLOW_MAY_SHRINK_ROWS_FIRST  # noqa: E402
from vitreous.exports.target import PageOptions  # noqa: E402
from vitreous.images.pixels import decode, preprocess  # noqa: E402
from vitreous.models.familiarity import Familiarity  # noqa: E402
from vitreous.models.preprocess import Preprocess  # noqa: E402
from vitreous.models.track_record import TrackRecord  # noqa: E402
from vitreous.server.engine import Engine  # noqa: E402

RULE = Preprocess(size=(16, 16), fit="crop", short_side=18, interpolation="bicubic", antialias=True, source="tests")
BLANK = 0.05  # contrast below which an image is blank


def tiny():
    """A ViT that knows what a blank image is."""
    model = awake()
    model.labels, model.temperature, model.preprocess = LABELS, 1.7, RULE
    means = torch.randn(5, 16, generator=torch.Generator().manual_seed(3))
    model.familiarity, model.threshold = Familiarity(means, least_contrast=BLANK), -0.99
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tiny ViT as a page, with images of a set to begin with."""
    root = tmp_path_factory.mktemp("web")
    for i in range(6):
        (root / "photos" / LABELS[i % 2]).mkdir(parents=True, exist_ok=True)
        picture(i).save(root / "photos" / LABELS[i % 2] / f"{i}.png")
    page = PageOptions(name="tiny", runtime=need_runtime().dist, wasm_only=True, examples=True)
    parity = vitreous.export(tiny(), root / "page", to="web", data=root / "photos", page=page)
    assert parity.passed, parity.faults
    assert [form.form for form in parity.forms] == ["tensor", "page"]
    for name in ("parity.json", "CARD.md", "model.json"):
        assert str(root) not in (root / "page" / name).read_text()  # the folder goes to other people
    return root / "page"


@pytest.fixture(scope="module")
def address(folder):
    with hosted(folder) as url:
        yield url


@pytest.fixture
def visit(watched, address):
    def go(*, url=None, **how):
        page = watched(url or address, **how)
        page.goto(url or address)
        return page

    return go


def words(page, selector):
    return page.locator(selector).inner_text()


def says(page, selector, text):
    sync_api.expect(page.locator(selector)).to_contain_text(text, timeout=20_000)


def shown(page):
    says(page, "#stage-says", "most: ")
    page.wait_for_selector("body:not([aria-busy])")


def give(page, path):
    """Choose a file after an example, and wait for its answer."""
    page.set_input_files("#file", path)
    page.wait_for_selector("#examples button[aria-pressed=true]", state="detached")
    page.wait_for_selector("body:not([aria-busy])")


def pixels(page, selector="#view"):
    return page.evaluate("(selector) => document.querySelector(selector).toDataURL()", selector)


# The other pages ---------------------------------------------------------------------------------------------------


def test_the_lesson_and_the_worksheet_are_there_too(visit, tmp_path):
    page = visit(reduced_motion="reduce")
    shown(page)
    page.click("#to-lesson")
    page.wait_for_selector("#words p")
    for step in range(2, 7):
        page.keyboard.press("ArrowRight")
        assert words(page, "#count") == f"Step {step} of 6"
        assert words(page, "#caption").strip()
    assert page.locator("#more .top li").count() == 5
    sync_api.expect(page.locator("#architecture svg")).to_be_visible()
    picture(9, (61, 260)).save(tmp_path / "mine.png")
    page.set_input_files("#file", tmp_path / "mine.png")
    page.wait_for_selector("#examples button[aria-pressed=true]", state="detached")
    page.click("#steps li:nth-child(4) button")
    page.locator("#stage").click(position={"x": 10, "y": 10})
    says(page, "#caption", "Where the patch at row 1, column 1 looks")
    assert page.evaluate(CONTRAST) == []
    page.click("#to-worksheet")
    page.check("#with-answers")
    says(page, "#results li:last-child", "The model's answer is")
    sync_api.expect(page.locator("#architecture svg")).to_be_visible()
    assert page.locator("#questions > li").count() == page.locator("#results > li").count() > 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["encoder", "hybrid encoder"])
def test_an_encoder_answers_with_its_features(watched, tmp_path, kind):
    """The gate in Chromium passes, and the page shows features, attention and the lesson."""
    hybrid = {"stem": "convolutions", "pool": "gap", "image_size": 28, "patch": 8}
    model = awake(classes=0, **(hybrid if kind == "hybrid encoder" else {}))
    page = PageOptions(name="eyes", runtime=need_runtime().dist, wasm_only=True)
    parity = vitreous.export(model, tmp_path / "out", to="web", images=6, page=page)
    assert parity.passed, parity.faults
    assert [(form.form, form.of) for form in parity.forms] == [("tensor", "features"), ("page", "features")]
    picture(4).save(tmp_path / "mine.png")
    with hosted(tmp_path / "out") as url, Engine(model, torch.device("cpu")).at_work() as engine:
        page = watched(url, reduced_motion="reduce")
        page.goto(url)
        page.set_input_files("#file", tmp_path / "mine.png")
        says(page, "#features", "Its 16 features: ")
        says(page, "#about", "An exported file (float32, in your browser).")
        seen = decode.finish(np.asarray(picture(4)), model.preprocess)
        first = re.findall(r"[−\d.]+(?=,)", words(page, "#features p >> nth=0").partition(": ")[2])
        found = [float(each.replace("−", "-")) for each in first]
        assert found == pytest.approx(engine.feature(seen)[: len(found)].tolist(), abs=0.02)
        page.click("#hide-most")
        says(page, "#broken-says", "squares covered: the features have a similarity of ")
        page.goto(f"{url}lesson.html")
        page.set_input_files("#file", tmp_path / "mine.png")
        page.wait_for_selector("#words p")
        page.click("#steps li:nth-child(2) button")
        assert page.locator(".maps").count() == (3 if kind == "hybrid encoder" else 0)
        page.click("#steps li:nth-child(6) button")
        assert page.locator("#more .mosaic").count() == 1


# The same answers --------------------------------------------------------------------------------------------------


def test_a_first_visit_shows_an_example_with_its_answer(visit):
    page = visit()
    shown(page)
    assert words(page, "#title") == "What does tiny see?"
    assert page.locator("#examples button").count() == 2  # of the test split
    assert words(page, "#said").strip() in LABELS
    assert page.locator("#top li").count() == 5
    assert words(page, "#about").endswith("An exported file (float32, in your browser).")  # that nobody measured
    assert "%" not in words(page, "header"), "agreement with PyTorch reads like accuracy"
    assert "It stays on this device" in words(page, "#privacy")
    assert page.locator("#to-lesson").is_visible()
    assert page.locator("#to-api").is_hidden()
    assert page.locator("#loading").is_hidden()


def turned(image):
    exif = image.getexif()
    exif[0x0112] = 6
    return exif


FILES = {
    "small.png": (picture(7), {}),
    "wide.png": (picture(8, (301, 97)), {}),
    "tall.jpg": (picture(9, (61, 260)), {"quality": 95}),
    "grey.png": (picture(10, mode="L"), {}),
    "turned.jpg": (picture(11, (90, 50)), {"quality": 95, "exif": turned(picture(11))}),
    "shot.webp": (picture(12, (200, 150)), {"lossless": True}),
    "one-pixel.png": (picture(13, (1, 1)), {}),
}


def test_every_file_is_answered_as_predict_answers_it(visit, tmp_path):
    page = visit()
    shown(page)
    for name, (image, how) in FILES.items():
        image.save(tmp_path / name, **how)
        (wanted,) = vitreous.predict(tiny(), tmp_path / name)
        page.click("#examples button")
        page.wait_for_selector("#examples button[aria-pressed=true]")
        give(page, tmp_path / name)
        told = re.findall(r"(\w+)\s+([\d.]+) %", words(page, "#top"))
        rows = [] if wanted.is_unlike else list(zip(wanted.labels, wanted.probabilities, strict=True))
        assert [label for label, _ in told] == [label for label, _ in rows], name
        assert [float(share) for _, share in told] == pytest.approx([100 * p for _, p in rows], abs=0.4), name
        assert words(page, "#said").split("\n")[0] == wanted.phrase, name


def test_an_unsure_answer_is_marked_and_the_page_tells_how_often_the_model_is_right(folder, visit, tmp_path):
    """The same page, with the facts of a model that somebody measured."""
    model = tiny()
    for sure_from, is_unsure in ((1.0, True), (0.0, False)):
        model.track_record = TrackRecord(right=0.817, low=0.771, high=0.856, images=312, sure_from=sure_from)
        copy = tmp_path / str(sure_from)
        shutil.copytree(folder, copy)
        facts = json.loads((copy / "model.json").read_text())
        (copy / "model.json").write_text(json.dumps(facts | {"record": model_facts(model)["record"]}))
        with hosted(copy) as url:
            page = visit(url=url)
            shown(page)
            assert ("(unsure)\nUnsure: " in words(page, "#said")) == is_unsure
            about = "The model is right on 81.7 % of images that it had not seen."
            assert words(page, "#about").endswith(f"An exported file (float32, in your browser). {about}")
            assert "right on 81.7 % of images that it had not seen (77.1 to 85.6" in words(page, "#record")


def test_an_image_of_one_colour_is_none_of_these(visit, tmp_path):
    Image.new("RGB", (40, 30), (90, 120, 30)).save(tmp_path / "plain.png")
    page = visit()
    shown(page)
    give(page, tmp_path / "plain.png")
    assert words(page, "#said").startswith("none of these (nearest: ")
    assert page.locator("#top").is_hidden()


RULES = [
    Preprocess(
        size=(32, 32), fit=fit, short_side=side, interpolation=mode, antialias=antialias, resized_by=by, centre=at
    )
    for fit, side, at in (
        ("squash", None, "round"),
        ("crop", 40, "round"),
        ("crop", 37, "floor"),
        ("crop", 20, "round"),
    )
    for antialias, by, mode in (
        *((True, "pillow", mode) for mode in ("bilinear", "bicubic", "lanczos", "box")),
        *((True, "torch", mode) for mode in ("bilinear", "bicubic")),
        *((False, "pillow", mode) for mode in ("nearest", "bilinear", "bicubic")),
    )
] + [Preprocess(size=(24, 40), fit="squash-crop", short_side=30, interpolation="bicubic", antialias=True)]
SHAPES = [(1, 1), (30, 40), (16, 16), (7, 100), (97, 31), (200, 150), (480, 640), (3, 2)]
PREPARE = """async ([images, rules]) => {
  const { prepare, seenBox } = await import("./preprocess.js");
  const raw = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const text = (bytes) => btoa(Array.from(bytes, (b) => String.fromCharCode(b)).join(""));
  return rules.map((rule) => images.map(({ height, width, data }) => {
    const seen = prepare({ height, width, channels: 3, data: raw(data) }, rule);
    return [text(seen), seenBox(height, width, rule)];
  }));
}"""


def rough(rows, columns):
    rng = np.random.default_rng((rows, columns))
    scene = rng.integers(0, 256, (rows // 5 + 1, columns // 5 + 1, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(scene).resize((columns, rows), Image.Resampling.BICUBIC)).astype(int)
    return (smooth + rng.integers(-20, 20, smooth.shape)).clip(0, 255).astype(np.uint8)


def unrounded(image, rule):
    """What Python makes of an image, within 0 … 255; torch's antialias before its last rounding."""
    if not rule.antialias or rule.resized_by == "pillow":
        return preprocess.pixels(image, rule).clip(0, 255)
    x = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    size = preprocess.before_crop(image.shape[:2], rule)
    x = torch.nn.functional.interpolate(x, size, mode=rule.interpolation, antialias=True)
    return preprocess.crop_centre(x[0].permute(1, 2, 0).clamp(0, 255).numpy(), rule)


def test_javascript_prepares_every_image_as_python_does(visit):
    """To half a grey level, since JavaScript rounds; where Pillow resizes, to the byte."""
    images = [rough(*shape) for shape in SHAPES]
    sent = [{"height": i.shape[0], "width": i.shape[1], "data": base64.b64encode(i.tobytes()).decode()} for i in images]
    rules = [
        vars(Preprocess()) | vars(rule) | {"may_shrink_rows_first": PILLOW_MAY_SHRINK_ROWS_FIRST} for rule in RULES
    ]
    found = visit().evaluate(PREPARE, [sent, rules])
    for rule, row in zip(RULES, found, strict=True):
        for image, (text, box) in zip(images, row, strict=True):
            seen = np.frombuffer(base64.b64decode(text), np.uint8).reshape(*rule.size, 3).astype(float)
            off = np.abs(seen - unrounded(image, rule))
            is_bytes = rule.antialias and rule.resized_by == "pillow"
            assert off.max() <= (0 if is_bytes else 0.5 + 1e-3), (image.shape, rule)
            assert box == pytest.approx(preprocess.seen_box(image.shape[:2], rule))


# Inside ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def attended(folder):
    """Where the answer and patch 2 look in the first example, by PyTorch."""
    pixels = np.array(Image.open(folder / "examples" / "0.png"))
    with Engine(tiny(), torch.device("cpu")).at_work() as engine:
        return [engine.attend(decode.finish(pixels, RULE), patch)[1].to_json() for patch in (None, 2)]


def numbers(page):
    with page.expect_download() as saved:
        page.click("#numbers")
    return json.loads(saved.value.path().read_text())["attention"]


def test_attention_is_the_models_own_for_the_answer_and_for_a_clicked_patch(visit, attended):
    page = visit()
    shown(page)
    found = numbers(page)
    for name in ("maps", "rollout"):
        np.testing.assert_allclose(found[name], attended[0][name], atol=2e-5)
    before = pixels(page)
    page.locator("#stage").scroll_into_view_if_needed()
    box = page.locator("#stage").bounding_box()
    left, top, right, bottom = preprocess.seen_box((30, 40), RULE)
    x, y = left + 0.6 * (right - left), top + 0.1 * (bottom - top)  # row 1, column 3
    page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])
    says(page, "#stage-says", "into the patch at row 1, column 3 through")
    assert pixels(page) != before
    found = numbers(page)
    assert found["query"] == 2
    for name in ("maps", "rollout"):
        np.testing.assert_allclose(found[name], attended[1][name], atol=2e-5)
    page.click("#whole")
    says(page, "#stage-says", "into the answer")
    assert pixels(page) == before


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
    assert len(seen) >= 6
    page.check("input[name=show][value=seen]")
    assert words(page, "#stage-says") == "What the model gets: 16 × 16 pixels."


def test_patches_can_be_covered_and_shuffled(visit, folder):
    page = visit()
    shown(page)
    page.wait_for_selector("#after-top li")
    assert page.locator("#positions").is_hidden()
    assert page.locator("#no-block").is_hidden()
    before = words(page, "#before-top")
    assert words(page, "#after-top") == before
    page.locator("#before-stage").click(position={"x": 10, "y": 10})
    says(page, "#broken-says", "1 square covered")
    seen = decode.finish(np.array(Image.open(folder / "examples" / "0.png")), RULE)
    x = preprocess.normalise(seen, RULE)
    x[:, :4, :4] = 0
    with torch.inference_mode():
        share = (tiny()(x[None])[0] / 1.7).softmax(-1).max().item()
    assert float(re.search(r"([\d.]+) %", words(page, "#after-top"))[1]) == pytest.approx(100 * share, abs=0.06)
    page.check("#shuffle")
    says(page, "#broken-says", "patches shuffled, 1 square covered")


# Ways in -----------------------------------------------------------------------------------------------------------


def test_a_dropped_and_a_pasted_file_are_answered_as_a_chosen_one(visit, tmp_path):
    raw = encoded(picture(7))
    (tmp_path / "mine.png").write_bytes(raw)
    page = visit()
    shown(page)
    first = words(page, "#top")
    give(page, tmp_path / "mine.png")
    chosen = words(page, "#top")
    assert chosen != first
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


def test_the_camera_answers_live_and_takes_a_photo(browser, address):
    flags = [*FLAGS, "--use-fake-device-for-media-stream"]
    running = browser.browser_type.launch(executable_path=CHROMIUM, args=flags)
    wrong = []
    page = running.new_context(permissions=["camera"]).new_page()
    page.on("console", lambda line: wrong.append(line.text) if line.type in ("error", "warning") else None)
    page.goto(address)
    shown(page)
    assert page.locator("#live").is_checked()
    page.click("#film")
    page.wait_for_function("() => /%|none of these/.test(document.getElementById('live-says').textContent)")
    page.uncheck("#live")
    page.wait_for_function("() => !document.getElementById('live-says').textContent.trim()")
    page.click("#snap")
    page.wait_for_selector("#examples button[aria-pressed=true]", state="detached")
    shown(page)
    assert page.locator("#filming").is_hidden()
    assert wrong == []
    running.close()


# Offline, and where it cannot work ---------------------------------------------------------------------------------


def test_after_one_visit_it_answers_without_a_network_and_with_threads(folder, browser, tmp_path):
    picture(7).save(tmp_path / "mine.png")
    context = browser.new_context()
    page = context.new_page()
    with hosted(folder) as url:
        page.goto(url)
        shown(page)
        assert page.evaluate("document.documentElement.dataset.ready") == "wasm 1"  # no host sends the two headers
        give(page, tmp_path / "mine.png")
        told = words(page, "#top")
        manifest = page.evaluate("fetch('./manifest.json').then((answer) => answer.json())")
        assert manifest["display"] == "standalone"
    context.set_offline(True)  # and the host is gone
    page.reload()
    shown(page)
    assert page.evaluate("crossOriginIsolated")
    assert page.evaluate("document.documentElement.dataset.ready").startswith("wasm ")
    give(page, tmp_path / "mine.png")
    assert words(page, "#top") == told
    context.close()


def test_opened_as_a_file_it_says_how_to_open_it(browser, folder):
    page = browser.new_page()
    page.goto((folder / "index.html").as_uri())
    says(page, "#unopened", "This page was opened from a file")
    assert "python -m http.server 8000" in words(page, "#unopened")
    page.close()


def test_a_host_that_sends_scripts_with_a_wrong_type_is_told_so(browser, folder):
    kind = "application/octet-stream"
    with hosted(folder, {".js": kind}) as url:
        page = browser.new_page()
        page.goto(url)
        says(page, "#unopened", f"The host sends page.js as {kind}")
        assert "text/javascript" in words(page, "#unopened")
        page.close()


def test_other_types_do_not_matter(visit, folder):
    """A host that knows neither .wasm nor .onnx nor .json."""
    with hosted(folder, {".wasm": "text/plain", ".onnx": "text/html", ".json": "text/plain"}) as url:
        shown(visit(url=url))


def test_a_missing_or_cut_file_is_named(browser, folder, tmp_path):
    broken = tmp_path / "page"
    shutil.copytree(folder, broken)
    (broken / "tensor.onnx").write_bytes((folder / "tensor.onnx").read_bytes()[:-7])
    lines = ["tensor.onnx came with"]
    with hosted(broken) as url:
        page = browser.new_page()
        page.goto(url)
        says(page, "#message", lines[0])
        assert "upload the whole folder again" in words(page, "#message")
        page.close()
    (broken / "tensor.onnx").unlink()
    with hosted(broken) as url:
        page = browser.new_page()
        page.goto(url)
        says(page, "#message", "the host has no tensor.onnx (404); upload the whole folder")
        page.close()


def test_a_browser_without_simd_is_told_so(browser, address):
    page = browser.new_page()
    page.add_init_script("WebAssembly.validate = () => false")
    page.goto(address)
    says(page, "#message", "this browser's WebAssembly has no SIMD")
    page.close()


LYING = """
  const real = OffscreenCanvasRenderingContext2D.prototype.getImageData;
  OffscreenCanvasRenderingContext2D.prototype.getImageData = function (...where) {
    const found = real.apply(this, where);
    found.data[8] ^= 1;
    return found;
  };
"""


def test_a_browser_that_changes_pixels_is_named(browser, address, folder):
    page = browser.new_page(service_workers="block")
    script = LYING + (folder / "worker.js").read_text()
    page.route("**/worker.js", lambda route: route.fulfill(body=script, content_type="text/javascript"))
    page.goto(address)
    says(page, "#loading", "This browser changes the pixels that a page reads")
    page.close()


SOFTWARE_GPU = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan"]


@pytest.mark.slow
def test_a_graphics_card_answers_if_it_answers_alike_and_wasm_otherwise(browser, tmp_path):
    flags = [*(flag for flag in FLAGS if flag != "--disable-gpu"), *SOFTWARE_GPU]
    running = browser.browser_type.launch(executable_path=CHROMIUM, args=flags)
    page = running.new_page()
    with hosted(need_runtime().dist) as url:
        page.goto(url)
        if not page.evaluate("(async () => Boolean(await navigator.gpu?.requestAdapter()))()"):
            pytest.skip("this Chromium has no WebGPU")
    options = PageOptions(name="gpu", runtime=need_runtime().dist)
    assert vitreous.export(tiny(), tmp_path / "page", to="web", images=4, page=options).passed
    facts = json.loads((tmp_path / "page" / "model.json").read_text())
    for limit, provider in ((facts["check"], "webgpu 1"), (0, "wasm 1")):  # nothing answers within 0
        (tmp_path / "page" / "model.json").write_text(json.dumps(facts | {"check": limit}))
        with hosted(tmp_path / "page") as url:
            page.goto(url)
            page.wait_for_selector("html[data-ready]")
            assert page.evaluate("document.documentElement.dataset.ready") == provider
    running.close()


HEIC = b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00heicmif1" + bytes(200)


UNREADABLE = {
    "IMG_1.heic": (HEIC, "is a HEIC image, which this browser cannot decode (Safari can); save it as JPEG"),
    "scan.tif": (b"II*\0" + bytes(50), "is a TIFF image, which this browser cannot decode; save it as JPEG or PNG"),
    "notes.png": (b"these are no pixels", "is not an image that this browser reads; choose JPEG"),
    "half.png": (encoded(picture(1))[:40], "is broken; choose it again, or another"),
    "none.jpg": (b"", "is empty (0 bytes); choose another"),
}


def test_a_file_that_cannot_be_decoded_is_one_line_and_the_page_goes_on(visit, tmp_path):
    page = visit()
    shown(page)
    for name, (raw, line) in UNREADABLE.items():
        (tmp_path / name).write_bytes(raw)
        page.set_input_files("#file", tmp_path / name)
        says(page, "#message", f"{name} {line}")
        assert page.locator("#result").is_hidden()
        page.click("#examples button")
        page.wait_for_selector("#message", state="hidden")
        shown(page)


# For everybody -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_sticks_out_and_words_can_be_read(visit, scheme):
    page = visit(viewport={"width": 390, "height": 844}, color_scheme=scheme, has_touch=True, is_mobile=True)
    shown(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate(CONTRAST) == []
    assert page.locator("#film").is_visible()  # a phone's camera answers live, too


def test_keys_alone_are_enough(visit):
    page = visit()
    shown(page)
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
        if "stage" in reached:
            break
    page.keyboard.press("ArrowRight")
    says(page, "#stage-says", "into the patch at row 3, column 3 through")
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    assert {"file", "film", "layer", "head", "save", "shuffle", "hide-most", "before-stage"} <= reached


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault(browser, address, scheme):
    axe = pytest.importorskip("axe_playwright_python", reason="needs axe-core: pip install axe-playwright-python")
    script = next(Path(axe.__path__[0]).rglob("axe.min.js")).read_text("utf-8")
    page = browser.new_page(color_scheme=scheme, bypass_csp=True)
    page.goto(address)
    shown(page)
    page.evaluate(script)
    found = page.evaluate("axe.run()")["violations"]
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == []
    page.close()


# Other networks ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_network_of_convolutions_has_a_page_too(watched, tmp_path):
    model = awake(BIT)
    model.labels = LABELS
    model.preprocess = replace(model.preprocess, mean=(0.5,) * 3, std=(0.5,) * 3)
    page = PageOptions(name="bit", runtime=need_runtime().dist, wasm_only=True)
    assert vitreous.export(model, tmp_path / "bit", to="web", images=4, page=page).passed
    picture(7).save(tmp_path / "mine.png")
    (wanted,) = vitreous.predict(model, tmp_path / "mine.png")
    with hosted(tmp_path / "bit") as url:
        opened = watched(url)
        opened.goto(url)
        opened.wait_for_selector("html[data-ready]")
        assert opened.locator("#result").is_hidden()  # no examples without data
        opened.set_input_files("#file", tmp_path / "mine.png")
        says(opened, "#stage-says", "The photo as it is.")
        assert words(opened, "#said").strip() == wanted.labels[0]
        assert words(opened, "#no-attention") == "A network of convolutions has no attention to show."
        opened.wait_for_selector("#after-top li")
        opened.click("#hide-most")
        says(opened, "#broken-says", "12 squares covered")
