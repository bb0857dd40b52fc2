"""The files around the model: the page that `vitreous serve` shows, with a transport that answers by itself."""

from __future__ import annotations

import hashlib
import html
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from vitreous.evaluation.predict import class_names
from vitreous.exports.facts import model_facts
from vitreous.exports.graphs import PILLOW_MAY_SHRINK_ROWS_FIRST
from vitreous.exports.worksheet import questions, words
from vitreous.models import architecture
from vitreous.models.model import Model
from vitreous.report.page import ANSWER_PAGE, TEMPLATES

OWN_FILES = Path(__file__).parent / "page"
OWN_SCRIPTS = ("answers.js", "api.js", "opened.js", "orders.js", "preprocess.js", "worker.js")
PAGE_POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'"
)
HEAD = f"""<meta http-equiv="Content-Security-Policy" content="{PAGE_POLICY}">
<meta name="theme-color" content="#14707f">
<link rel="manifest" href="./manifest.json">
<link rel="apple-touch-icon" href="./icon-192.png">
<script src="./opened.js"></script>
"""
ICON_SIDES = (192, 512)
TEAL, TILES = (20, 112, 127), ((6, 6, 0.55), (17, 6, 1.0), (6, 17, 0.8), (17, 17, 0.3))  # of icon.svg, on 32 pixels
PAGE_LIMITS = {"upload": 200 * 2**20, "pixels": 100_000_000}  # bytes, pixels
CHECKED_WITHIN = 0.02  # difference of logits, as a share of the largest, that a graphics card may have


def write_page(folder: Path, model: Model, name: str) -> list[str]:
    """Write the page, the lesson and the worksheet; returns the names of their files."""
    for file in ANSWER_PAGE.iterdir():
        if file.suffix == ".html":
            page = file.read_text("utf-8").replace("<title>", f"{HEAD}<title>", 1)
            page = page.replace("<title>vitreous<", f"<title>{html.escape(name)} · vitreous<")
            (folder / file.name).write_text(page, "utf-8")
        if file.suffix in (".js", ".css", ".svg"):
            shutil.copyfile(file, folder / file.name)
    for script in OWN_SCRIPTS:
        shutil.copyfile(OWN_FILES / script, folder / script)
    shutil.copyfile(TEMPLATES / "page.css", folder / "house.css")
    for side in ICON_SIDES:
        _icon(side).save(folder / f"icon-{side}.png")
    (folder / "manifest.json").write_text(json.dumps(_manifest(name), indent=1, ensure_ascii=False), "utf-8")
    (folder / "architecture.svg").write_text(architecture.drawing(model.config, name).to_svg(), "utf-8")
    sheet = {"questions": [asdict(row) for row in questions(model)], "words": words(model)}
    (folder / "worksheet.json").write_text(json.dumps(sheet, ensure_ascii=False), "utf-8")
    kinds = (".html", ".js", ".css", ".svg", ".png")
    own = sorted(file.name for file in folder.iterdir() if file.suffix in kinds)
    return ["manifest.json", "worksheet.json", *own]


def write_facts(
    folder: Path,
    model: Model,
    name: str,
    runtime: dict[str, Any],
    examples: list[dict[str, str]],
    why_closed: str,
    *,
    learned: bool,
) -> None:
    """model.json: what the page knows about the model and its files."""
    facts = model_facts(model)
    if why_closed:
        facts["attention"] = False
    del facts["preprocess"]  # its record may leave defaults out, which JavaScript does not know
    rule = asdict(model.preprocess) | {"may_shrink_rows_first": PILLOW_MAY_SHRINK_ROWS_FIRST}
    rows, columns = facts["grid"]
    is_cut = facts["transformer"] is not None and facts["transformer"]["stem"] == "patch"  # no convolution sees edges
    is_even = is_cut and model.preprocess.size[0] % rows == 0 and model.preprocess.size[1] % columns == 0
    facts["breaks"] = [each for each in facts["breaks"] if each == "hide" or (each == "shuffle" and is_even)]
    facts["labels"] = list(class_names(model))
    own = {
        "schema": "vitreous.page/1",
        "name": name,
        "rule": rule,
        "runtime": runtime,
        "files": {
            file: (folder / file).stat().st_size
            for file in ("tensor.onnx", *(part["wasm"] for part in (runtime["wasm"], runtime["webgpu"]) if part))
        },
        "limits": PAGE_LIMITS,
        "check": CHECKED_WITHIN,
        "closed": why_closed or None,
        "stem": [] if why_closed else architecture.stem_shapes(model.config),
        "examples": examples,
        "learned": learned,
        "similar": None,
    }
    (folder / "model.json").write_text(json.dumps(facts | own, ensure_ascii=False), "utf-8")


def write_examples(folder: Path, examples: list[tuple[str, NDArray[np.uint8]]]) -> list[dict[str, str]]:
    """Images that the page begins with, in a folder of their own."""
    if not examples:
        return []
    (folder / "examples").mkdir()
    rows = []
    for i, (label, pixels) in enumerate(examples):
        Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(folder / "examples" / f"{i}.png")
        rows.append({"image": f"example-{i}", "label": label, "picture": f"./examples/{i}.png"})
    return rows


def write_service_worker(folder: Path, page: list[str]) -> None:
    """sw.js, whose version changes with the page and the model. It keeps the other files when they are first asked for.

    page: names of the page's own files.
    """
    content = hashlib.sha256()
    for name in sorted([*page, "model.json", "tensor.onnx"]):
        with (folder / name).open("rb") as file:
            content.update(name.encode() + hashlib.file_digest(file, "sha256").digest())
    text = (OWN_FILES / "sw.js").read_text("utf-8")
    others = [file.relative_to(folder).as_posix() for file in sorted(folder.glob("examples/*"))]
    kept = ["", *(name for name in page if name != "index.html"), "model.json", "export.json", "parity.json", *others]
    text = text.replace("{{version}}", content.hexdigest()[:16])
    text = text.replace("{{page}}", json.dumps([f"./{name}" for name in kept]))
    (folder / "sw.js").write_text(text, "utf-8")


def _manifest(name: str) -> dict[str, Any]:
    icons = [{"src": "./icon.svg", "sizes": "any", "type": "image/svg+xml"}]
    icons += [{"src": f"./icon-{n}.png", "sizes": f"{n}x{n}", "type": "image/png"} for n in ICON_SIDES]
    return {
        "name": f"What does {name} see?",
        "short_name": name[:24],
        "start_url": "./",
        "scope": "./",
        "display": "standalone",
        "background_color": "#ffffff",
        "theme_color": "#14707f",
        "icons": icons,
    }


def _icon(side: int) -> Image.Image:
    """icon.svg in pixels, for home screens."""
    image, unit = Image.new("RGB", (side, side), TEAL), side / 32
    paint = ImageDraw.Draw(image)
    for x, y, share in TILES:
        colour = tuple(round(255 * share + base * (1 - share)) for base in TEAL)
        paint.rectangle((x * unit, y * unit, (x + 9) * unit - 1, (y + 9) * unit - 1), fill=colour)
    return image
