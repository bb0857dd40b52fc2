"""Models as web pages in Chromium.   python benchmarks/web.py [--toy] [--out FILE] [NAME=MODEL=DATA …]

For each model and precision: whether the page gives PyTorch's own first answer (the gate of `vitreous export --to web`,
on real images of DATA, decoded and prepared by the browser), how far pixels are off, and the size of the folder. For
float32 also times: from opening the page to its first answer with the attention drawn (a first visit; a second visit,
from the browser's own store, with threads), and for one photograph after the other. The same page and photographs are
then given to `vitreous serve`, so what differs is who answers. All comes from this machine: no network is in the times.
Medians with the fastest and the slowest; load is the machine's, before and after, which should be near 0. Models that
are in FILE already stay there.
"""

import argparse
import functools
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
from PIL import Image

import vitreous
from vitreous.exports.target import PageOptions
from vitreous.exports.web.chromium import find_chromium
from vitreous.machine import record

ASK = """async ([photos]) => {  // milliseconds for each photograph, through the page's own transport
  const { send } = await import("./api.js");
  const times = [];
  for (const bytes of photos) {
    const file = new File([Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0))], "photo.jpg", { type: "image/jpeg" });
    const start = performance.now();
    await send("/api/predict", file);
    times.push(performance.now() - start);
  }
  return times;
}"""


def photographs(count: int, side: int) -> list[bytes]:
    """Files as cameras write them: smooth scenes with some noise."""
    found = []
    for i in range(count):
        rng = np.random.default_rng(i)
        scene = Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).resize((side, side * 3 // 4), 3)
        noisy = np.asarray(scene, np.int16) + rng.integers(-12, 13, (side * 3 // 4, side, 3))
        stream = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(stream, "JPEG", quality=90)
        found.append(stream.getvalue())
    return found


def exported(model: str, data: str | None, folder: Path, images: int, runtime: str, precision: str) -> dict:
    page = PageOptions(name="model", runtime=runtime)
    asked = {} if precision == "float32" else {precision: True}
    loaded = vitreous.load(model)
    parity = vitreous.export(loaded, folder, to="web", data=data, images=images, page=page, anyway=True, **asked)
    sizes = {file.relative_to(folder).as_posix(): file.stat().st_size for file in folder.rglob("*") if file.is_file()}
    return {
        "passed": parity.passed,
        "faults": parity.faults,
        "images": parity.forms[-1].images,
        "forms": {form.form: {"same_answer": form.agreement, "difference": form.difference} for form in parity.forms},
        "grey_levels": parity.grey_levels,
        "accuracy": None if parity.accuracy is None else str(parity.accuracy),
        "notes": parity.notes,
        "megabytes": {
            "model": round(sizes["tensor.onnx"] / 1e6, 2),
            "folder": round(sum(sizes.values()) / 1e6, 1),
            "folder, wasm only": round(sum(n for name, n in sizes.items() if "webgpu" not in name) / 1e6, 1),
        },
    }


@contextmanager
def hosted(folder: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()


@contextmanager
def served(model: str) -> Iterator[str]:
    command = [sys.executable, "-m", "vitreous", "serve", model, "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = ""
    while not told.endswith("}\n"):
        told += process.stdout.readline()
    try:
        yield f"http://127.0.0.1:{json.loads(told)['port']}/"
    finally:
        process.terminate()
        process.wait(30)


def first_answer(page, url: str, photo: Path) -> float:
    """Seconds from opening the page to an answer with its picture drawn; retries while the server is busy."""
    start = time.perf_counter()
    page.goto(url)
    page.wait_for_selector("#privacy:not(:text-is('\\u00a0'))")  # the page listens
    answered = (
        "!document.getElementById('result').hidden && document.getElementById('stage-says').textContent.length > 5"
    )
    while True:
        page.set_input_files("#file", photo)
        page.wait_for_function(f"() => ({answered}) || !document.getElementById('message').hidden", timeout=120_000)
        if page.evaluate(answered):
            return time.perf_counter() - start


def spread(values: list[float], digits: int = 0) -> dict:
    return {
        "median": round(statistics.median(values), digits),
        "from": round(min(values), digits),
        "to": round(max(values), digits),
        "of": len(values),
    }


def timed(browser, url: str, photos: list[bytes], rounds: int) -> dict:
    import base64

    encoded = [base64.b64encode(raw).decode() for raw in photos]
    firsts, seconds, one, two = [], [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        photo = Path(scratch) / "photo.jpg"
        photo.write_bytes(photos[0])
        for _ in range(rounds):
            context = browser.new_context()
            page = context.new_page()
            firsts.append(first_answer(page, url, photo))
            one += page.evaluate(ASK, [encoded])
            page.wait_for_timeout(300)
            seconds.append(first_answer(page, url, photo))
            two += page.evaluate(ASK, [encoded])
            ready = page.evaluate("document.documentElement.dataset.ready")
            context.close()
    return {
        "first_visit_s": spread(firsts, 2),
        "second_visit_s": spread(seconds, 2),
        "image_ms": spread(one),
        "image_second_visit_ms": spread(two),
        "second_visit": ready,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="NAME=MODEL=DATA; DATA may be empty")
    parser.add_argument("--toy", action="store_true", help="few images and one round: does it run?")
    parser.add_argument("--runtime", default="npm", help="onnxruntime-web's folder; npm fetches it")
    parser.add_argument("--images", type=int, default=200, help="to compare on")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", help="write the JSON there too")
    args = parser.parse_args()
    from playwright.sync_api import sync_playwright

    if args.toy:
        args.images, args.rounds = 4, 1
    photos = photographs(4 if args.toy else 12, 640)
    found: dict[str, dict] = {}
    before = json.loads(Path(args.out).read_text())["models"] if args.out and Path(args.out).exists() else {}
    for words in args.models or ["starter=starter="]:
        name, model, data = words.split("=", 2)
        with tempfile.TemporaryDirectory() as scratch:
            row = found[name] = {"load": [round(os.getloadavg()[0], 1)]}
            for precision in ("float32", "fp16", *(["int8"] if data else [])):
                folder = Path(scratch) / precision
                row[precision] = exported(model, data or None, folder, args.images, args.runtime, precision)
            with sync_playwright() as play:
                flags = ["--no-sandbox", "--disable-gpu"]
                browser = play.chromium.launch(executable_path=find_chromium(), args=flags)
                with hosted(Path(scratch) / "float32") as url:
                    row["page"] = timed(browser, url, photos, args.rounds)
                with served(model) as url:
                    row["serve"] = timed(browser, url, photos, args.rounds)
                browser.close()
            row["load"].append(round(os.getloadavg()[0], 1))
    result = {
        "benchmark": "web",
        "photographs": "640 x 480, JPEG",
        "rounds": args.rounds,
        "models": before | found,
        **record(),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        Path(args.out).write_text(text + "\n")


if __name__ == "__main__":
    main()
