"""A real server to call: in a process of its own, or in a thread where its limits are to be small."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import forks
import numpy as np
import torch
from PIL import Image
from tiny_models import awake

LABELS = ("ant", "bee", "cat", "dog", "eel")
GREY = (("grey", np.full((20, 20, 3), 90, np.uint8)),)  # (label, picture): to begin with


def tiny(**changes: Any) -> Any:
    """A model whose answers differ from picture to picture."""
    model = awake(**changes)
    model.labels, model.temperature, model.threshold = LABELS, 1.7, -1e6
    return model


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The one line of a refusal."""
        assert self.status >= 400, self.body
        assert list(self.json) == ["error"]
        line = self.json["error"]
        assert len(line.splitlines()) == 1
        assert "Traceback" not in line
        assert "site-packages" not in line
        return line


@dataclass(frozen=True)
class Caller:
    """Calls one server. token: sent with every call."""

    port: int
    token: str | None = None
    process: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, timeout=30
    ) -> Reply:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        own = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            connection.request(method, path, body, {**own, **(headers or {})})
            reply = connection.getresponse()
            return Reply(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.call("GET", path, headers=headers)

    def send(self, path: str, raw: bytes) -> Reply:
        """One image as the body."""
        return self.call("POST", path, raw, {"Content-Type": "image/any"})

    def form(self, path: str, files: Sequence[tuple[str, bytes]], **headers: str) -> Reply:
        body = form(files)
        return self.call("POST", path, body, {"Content-Type": "multipart/form-data; boundary=EDGE", **headers})


def form(files: Sequence[tuple[str, bytes]]) -> bytes:
    parts = [
        f'--EDGE\r\nContent-Disposition: form-data; name="images"; filename="{name}"\r\n'
        f"Content-Type: image/any\r\n\r\n".encode()
        + raw
        + b"\r\n"
        for name, raw in files
    ]
    return b"".join(parts) + b"--EDGE--\r\n"


@contextmanager
def process(*words: object, folder: Path | None = None) -> Iterator[Caller]:
    """`vitreous serve` as a shell starts it, on a free port."""
    command = [sys.executable, "-m", "vitreous", "serve", *map(str, words), "--port", "0", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = forks.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=environment
    )
    try:
        told = ""
        while not told.endswith("}\n"):  # one JSON object on several lines
            line = started.stdout.readline()
            assert line, started.stderr.read()
            told += line
        address = json.loads(told)
        yield Caller(address["port"], address["token"], started)
    finally:
        if started.poll() is None:
            started.send_signal(signal.SIGTERM)
        try:
            started.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            started.kill()
            started.communicate()


@contextmanager
def thread(
    model: Any = None,
    *,
    access: Any = None,
    limits: Any = None,
    workers: int = 1,
    examples: Any = GREY,
    **more: Any,
) -> Iterator[Any]:
    """The same application in a thread; yields (caller, served, server)."""
    import uvicorn

    from vitreous.server.app import make_app
    from vitreous.server.guard import Access
    from vitreous.server.limits import Limits
    from vitreous.server.queue import WorkQueue
    from vitreous.server.served import Served

    model, limits = model or tiny(), limits or Limits()
    queue = WorkQueue(model, torch.device("cpu"), limits.queue, cores=1, workers=workers)
    queue.open()
    served = Served(queue, model, name="tiny", examples=list(examples), **more)
    config = uvicorn.Config(
        make_app(served, access or Access(), limits),
        port=0,
        log_level="critical",
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=10,
    )
    server = uvicorn.Server(config)
    runner = threading.Thread(target=server.run, daemon=True)
    runner.start()
    until(lambda: server.started)
    try:
        token = None if access is None else access.token
        yield Caller(server.servers[0].sockets[0].getsockname()[1], token), served, server
    finally:
        server.should_exit = True
        runner.join(20)


def until(true: Any, seconds: float = 20) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def picture(seed: int = 0, size: tuple[int, int] = (40, 30), mode: str = "RGB") -> Image.Image:
    """Slow waves with some noise. size: columns, rows."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8))
    return small.resize(size, Image.Resampling.BICUBIC).convert(mode)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()
