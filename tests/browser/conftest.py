"""What tests of pages begin with: one Chromium a module, and pages that are watched."""

import pytest
from browsing import CHROMIUM, FLAGS


@pytest.fixture(scope="module")  # a session would leave its event loop running in other tests
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    sync_api.expect.set_options(timeout=30_000)  # on a busy machine, too
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def watched(browser):
    """A new page that may ask `home` and nobody else; afterwards nothing was wrong.  how: of its context."""
    wrong: list[str] = []
    contexts = []

    def new(home, **how):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **how})
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("console", lambda line: wrong.append(line.text) if line.type in ("error", "warning") else None)
        page.on("request", lambda asked: asked.url.startswith((home, "blob:", "data:")) or wrong.append(asked.url))
        return page

    yield new
    for context in contexts:
        context.close()
    assert wrong == []
