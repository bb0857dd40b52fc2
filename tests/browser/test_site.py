"""The built site in real Chromium: nothing from another host, no error, no page wider than a phone.

It is built by `make docs`, which takes minutes; without it these tests are skipped.
"""

import functools
import http.server
import threading

import pytest
from browsing import CHROMIUM
from shared_files import ROOT

SITE = ROOT / "build" / "site"
PAGES = [
    *("index.html", "map.html", "start/photos.html", "guide/look.html", "gallery/index.html", "live/index.html"),
    *("notebooks/photos-to-model.html", "reference/commands/fit.html", "reference/python/functions.html"),
    *("evidence/measured.html", "project/notes.html"),
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here"),
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="no site is built; make docs"),
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def home():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=SITE)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize("place", PAGES)
def test_a_page_fits_a_phone_and_asks_nobody_else(watched, home, place):
    page = watched(home, viewport={"width": 390, "height": 800})
    page.goto(home + place, wait_until="networkidle")
    assert page.locator("h1").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_results_show_themselves_in_the_page_of_a_notebook(watched, home):
    page = watched(home, color_scheme="dark")
    page.goto(home + "notebooks/photos-to-model.html", wait_until="networkidle")
    assert page.locator(".cell-output .vitreous.fragment").count() == 5  # set, check, run, answers, look
    ground = page.locator(".cell-output .vitreous.fragment").first.evaluate("e => getComputedStyle(e).backgroundColor")
    assert ground == "rgb(18, 24, 30)"  # dark, as the site


def test_a_word_is_found(watched, home):
    page = watched(home)
    page.goto(home + "index.html", wait_until="networkidle")
    page.keyboard.press("/")
    page.keyboard.type("rollout")
    page.wait_for_selector("a[href*='look']:visible", timeout=60_000)
