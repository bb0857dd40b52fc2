"""The pictures of README.md and docs/guide/serve.md.   python benchmarks/readme_picture.py [--out docs/pictures]

Paints 120 scenes of five kinds (scenes.py), lets `vitreous fit` learn them and `vitreous serve` answer on new ones, and
takes pictures of both pages in Chromium. Without --out only the numbers of the run are printed. About a minute.
"""

import argparse
import io
import json
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright
from scenes import paint, paint_folder

import vitreous

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--force-color-profile=srgb"]
NEW = {"balloon": 4, "house": 5, "lighthouse": 4, "sailboat": 0, "tree": 6}  # seeds of scenes that it has not seen
PAPER, FRAME = (255, 255, 255), (214, 220, 226)
GAP = 18  # CSS pixels between two parts, and around them
SCALE = 1.5  # pixels of a CSS pixel, for screens that have them
REPORT_PARTS = ("header", "section:has(h2:text('The most typical images'))", "section:has(h2:text('Where it looks'))")
PAGE_PARTS = ("#title", ".stage-figure", "#said", "#top", "#neighbours")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path)
    out = arguments.parse_args().out
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        paint_folder(folder / "scenes")
        for kind, seed in NEW.items():
            paint(kind, seed).save(folder / f"new-{kind}.jpg", quality=92)
        run = vitreous.fit(folder / "scenes", out=folder / "scenes-1", device="cpu")
        answers = list(vitreous.predict(vitreous.load(run.path), sorted(folder.glob("new-*.jpg"))))
        judged = run.metrics["judged"] | {"new": {Path(each.name).stem: each.labels[0] for each in answers}}
        print(json.dumps({key: judged[key] for key in ("right", "images", "new")}, indent=2))
        if out is not None:
            take(folder, out)


def take(folder, out):
    """Both pictures."""
    with serving(folder) as home, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        report = panel(browser, (folder / "scenes-1" / "report.html").as_uri(), REPORT_PARTS)
        page = panel(browser, home, PAGE_PARTS, lambda page: give(page, folder / "new-sailboat.jpg"))
        save(beside(report, page), out / "report.png")
        save(whole(browser, home, lambda page: give(page, folder / "new-balloon.jpg")), out / "serve.png")
        browser.close()


@contextmanager
def serving(folder):
    """The address of `vitreous serve` on the run."""
    words = ["serve", folder / "scenes-1", "--data", folder / "scenes", "--port", "0", "--json"]
    command = [sys.executable, "-m", "vitreous", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        told = ""
        while not told.endswith("}\n"):
            told += process.stdout.readline()
        try:
            yield json.loads(told)["addresses"][0]
        finally:
            process.terminate()


def give(page, photo):
    """Show the page a photo, and wait until it has said everything."""
    page.wait_for_selector("#examples button")
    page.set_input_files("#file", photo)
    page.wait_for_selector("#examples [aria-pressed=true]", state="detached")
    page.wait_for_selector("#neighbours figure", timeout=120_000)
    page.wait_for_selector("body:not([aria-busy])")


def panel(browser, address, parts, begin=lambda page: None, width=560):
    """Parts of a page, one below the other, in a frame."""
    page = browser.new_page(viewport={"width": width, "height": 900}, device_scale_factor=SCALE)
    page.goto(address)
    begin(page)
    shots = [Image.open(io.BytesIO(page.locator(part).first.screenshot())) for part in parts]
    page.close()
    gap = round(GAP * SCALE)
    height = sum(shot.height for shot in shots) + gap * (len(shots) + 1)
    sheet = Image.new("RGB", (max(shot.width for shot in shots) + 2 * gap, height), PAPER)
    top = gap
    for shot in shots:
        sheet.paste(shot.convert("RGB"), (gap, top))
        top += shot.height + gap
    return sheet


def whole(browser, address, begin):
    page = browser.new_page(viewport={"width": 1100, "height": 900})
    page.goto(address)
    begin(page)
    page.check("#shuffle")
    page.wait_for_selector("#broken-says.good, #broken-says.bad")
    shot = Image.open(io.BytesIO(page.screenshot(full_page=True)))
    page.close()
    return shot.convert("RGB")


def beside(left, right):
    gap, height = round(GAP * SCALE), min(left.height, right.height)
    sheet = Image.new("RGB", (left.width + right.width + gap, height), FRAME)
    sheet.paste(left.crop((0, 0, left.width, height)), (0, 0))
    sheet.paste(right.crop((0, 0, right.width, height)), (left.width + gap, 0))
    return sheet


def save(picture, file):
    """256 colours, dithered, take a third of the bytes."""
    palette = picture.quantize(256, Image.Quantize.MEDIANCUT)
    picture.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG).save(file, optimize=True)
    print(f"{file}  {picture.width} x {picture.height}, {file.stat().st_size:,} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
