"""The exported page in a real Chromium: images go in, and the page's answers come back.

Chromium is started as a program and talks to a server on this machine that gives it the folder's files and one image
after another, and takes the answers. So the gate needs no driver, and its images go the way that a visitor's go:
decoded by the browser, prepared by the page's JavaScript, answered by the runtime in WebAssembly.
"""

from __future__ import annotations

import io
import json
import os
import queue
import re
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.errors import ConfigError, VitreousError
from vitreous.images.pixels.preprocess import normalise
from vitreous.models.preprocess import Preprocess
from vitreous.words import counted

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
CHROMIUM_FLAGS = (
    "--headless=new", "--disable-gpu", "--no-first-run", "--no-default-browser-check", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio",
)  # fmt: skip
OPENING_SECONDS, ANSWER_SECONDS, END_SECONDS = 180, 120, 30
FILE_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".wasm": "application/wasm"}
FILE_TYPES |= {".json": "application/json", ".svg": "image/svg+xml", ".png": "image/png"}
GATE_PAGE = b'<!doctype html><meta charset="utf-8"><title>gate</title><script type="module" src="./gate.js"></script>'
GATE_SCRIPT = Path(__file__).parent / "page" / "gate.js"
KEEPER = Path(__file__).parent / "browser_keeper.py"


class NoBrowserError(VitreousError):
    """Chromium does not start, ends, or is silent. If it never opened the page, the export continues without it."""


def find_chromium() -> str | None:
    return next((path for name in CHROMIUM_NAMES if (path := shutil.which(name))), None)


class PageInBrowser:
    """One page, opened in Chromium.  about: what the page must know besides its own files."""

    def __init__(self, folder: Path, about: dict[str, Any], rule: Preprocess):
        self.folder, self.about, self.rule = folder, about, rule
        self.opened: dict[str, Any] = {}
        self.milliseconds: list[float] = []
        self._images: queue.Queue[bytes | None] = queue.Queue()
        self._answers: queue.Queue[bytes | Exception] = queue.Queue()
        self._seen: NDArray[np.uint8] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, image: NDArray[np.uint8]) -> list[NDArray[Any]]:
        """The image form, by the page: H W C -> probabilities K, score."""
        self._images.put(_png(image))
        head, _, seen = self._next(ANSWER_SECONDS).partition(b"\n")
        found = json.loads(head)
        rows, columns = self.rule.size
        self._seen = np.frombuffer(bytearray(seen), np.uint8).reshape(rows, columns, -1)
        self.milliseconds.append(found["milliseconds"])
        return [np.array(found["probabilities"]), np.array(found["score"])]

    def prepare(self, image: NDArray[np.uint8]) -> list[NDArray[Any]]:
        """The tensor that the page made of the image it answered last, 1 C H W."""
        assert self._seen is not None
        return [normalise(self._seen, self.rule)[None].numpy()]

    @property
    def in_words(self) -> str:
        found = re.search(r"Chrom\w*/(\d+)", self.opened.get("agent", ""))
        browser = f"Chromium {found[1]}" if found else "the browser"
        threads = counted(self.opened.get("threads", 1), "thread")
        speed = f", {statistics.median(self.milliseconds):.0f} ms an image (median)" if self.milliseconds else ""
        return f"the page answered in {browser} by {self.opened.get('provider')}, {threads}{speed}"

    def _next(self, seconds: float) -> bytes:
        """The next message of the page."""
        for _ in range(int(seconds * 4)):
            try:
                found = self._answers.get(timeout=0.25)
            except queue.Empty:
                if self._process is not None and self._process.poll() is not None:
                    raise NoBrowserError(f"Chromium ended with exit {self._process.returncode}; export again") from None
                continue
            if isinstance(found, Exception):
                raise found
            return found
        raise NoBrowserError(f"Chromium gave no answer within {seconds:.0f} s; export again")

    @contextmanager
    def at_work(self, chromium: str) -> Iterator[PageInBrowser]:
        """Chromium and the server, for as long as this context lasts."""
        word = secrets.token_urlsafe(16)
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, f"/{word}/"))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            self._process = _started(chromium, f"http://127.0.0.1:{server.server_address[1]}/{word}/gate.html")
            try:
                self.opened = json.loads(self._next(OPENING_SECONDS))
                yield self
            finally:
                self._images.put(None)
                _end(self._process)
        finally:
            server.shutdown()
            server.server_close()


def _started(chromium: str, address: str) -> subprocess.Popen[bytes]:
    """Chromium under a keeper, which ends it and removes its profile when this process closes the pipe or is killed."""
    profile = tempfile.mkdtemp(prefix="vitreous-chromium-")
    command = [chromium, *CHROMIUM_FLAGS, f"--user-data-dir={profile}"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--no-sandbox")  # as root, Chromium refuses to run with one
    keeper = [sys.executable, "-I", "-S", str(KEEPER), profile]
    return subprocess.Popen(
        [*keeper, *command, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches this process alone, which then closes the pipe
    )


def _end(keeper: subprocess.Popen[bytes]) -> None:
    assert keeper.stdin is not None
    keeper.stdin.close()
    try:
        keeper.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        keeper.kill()
        keeper.wait()


def _png(image: NDArray[np.uint8]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def _handler(page: PageInBrowser, root: str) -> type[BaseHTTPRequestHandler]:
    """Files of the folder, images, and a place for answers; under an address that only our Chromium knows."""

    class Gate(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == f"{root}gate/next":
                image = page._images.get()
                return self._give(204, b"") if image is None else self._give(200, image, "image/png")
            own = {"gate.html": GATE_PAGE, "gate.json": json.dumps(page.about).encode()}
            name = path.removeprefix(root)
            if not path.startswith(root) or ".." in name:
                return self._give(404, b"")
            if name in own:
                return self._give(200, own[name], FILE_TYPES[Path(name).suffix])
            file = GATE_SCRIPT if name == "gate.js" else page.folder / name
            if not file.is_file():
                return self._give(404, b"")
            return self._give(200, file.read_bytes(), FILE_TYPES.get(file.suffix, "application/octet-stream"))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if self.path in (f"{root}gate/opened", f"{root}gate/answer"):
                page._answers.put(body)
            elif self.path == f"{root}gate/failed":
                line = " ".join(body.decode("utf-8", "replace").split())[:300]
                page._answers.put(ConfigError(f"the page cannot answer in Chromium: {line}"))
            self._give(204, b"")

        def _give(self, status: int, body: bytes, kind: str = "text/plain") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the terminal belongs to the command."""

    return Gate
