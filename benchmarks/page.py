"""How soon the page of `vitreous serve` shows, and attention after its answer.   python benchmarks/page.py --out FILE

Ti/16 with random weights on this machine's CPU, the server a process of its own, Chromium (Debian's, through
Playwright) another on the same cores. Every visit is a new one, without a cache. Times in milliseconds: from the
start of the visit to first contentful paint; from the answer on the page to the attention over the image, at first (an
embedded image) and for a photograph that was chosen. Medians, with the least and the most.
"""

import argparse
import json
import shutil
import statistics
import tempfile
from pathlib import Path

from serve import free_port, photographs, running

import vitreous
from vitreous.machine import record

WATCH = """
window.seen = {};
new MutationObserver(() => {
  const said = document.querySelector("#said"), stage = document.querySelector("#stage-says");
  const now = performance.now(), answer = said && said.textContent.trim();
  if (answer && answer !== window.before && !window.seen.answer) window.seen.answer = now;
  const done = stage && stage.textContent.includes("most: ") && !document.body.hasAttribute("aria-busy");
  if (window.seen.answer && done && !window.seen.overlay) window.seen.overlay = now;
}).observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
"""
AGAIN = """() => { window.seen = { begun: performance.now() }; window.before = null; }"""
IS_DONE = "() => window.seen.overlay"
PAINT = """() => performance.getEntriesByName("first-contentful-paint")[0].startTime"""


def visits(browser, url: str, photograph: Path, count: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"first_paint": [], "overlay_after_answer": [], "overlay_after_answer_chosen": []}
    for _ in range(count):
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.add_init_script(WATCH)
        page.goto(url)
        page.wait_for_function(IS_DONE)
        seen = page.evaluate("() => window.seen")
        found["first_paint"].append(page.evaluate(PAINT))
        found["overlay_after_answer"].append(seen["overlay"] - seen["answer"])
        page.evaluate(AGAIN)
        page.locator("input[type=file]").first.set_input_files(photograph)
        page.wait_for_function(IS_DONE)
        seen = page.evaluate("() => window.seen")
        found["overlay_after_answer_chosen"].append(seen["overlay"] - seen["answer"])
        context.close()
    return found


def main() -> None:
    from playwright.sync_api import sync_playwright

    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--visits", type=int, default=15)
    arguments.add_argument("--model", default="Ti/16")
    arguments.add_argument("--out", type=Path)
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, photograph, port = Path(folder) / "model.safetensors", Path(folder) / "photo.jpg", free_port()
        vitreous.save(vitreous.build(asked.model, seed=0), path)
        photograph.write_bytes(photographs(1, 800)[0])
        command = ["-m", "vitreous", "serve", str(path), "--port", str(port)]
        with running("ours", command, port, None), sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            found = visits(browser, f"http://127.0.0.1:{port}/", photograph, asked.visits)
            browser.close()
    body = {"benchmark": "page", "model": asked.model, "bars_milliseconds": {"first_paint": 1000, "overlay": 300}}
    body |= {name: [round(f(times), 1) for f in (min, statistics.median, max)] for name, times in found.items()}
    text = json.dumps(body | record(), indent=2)
    print(text)
    if asked.out:
        asked.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
