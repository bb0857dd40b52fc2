"""A static host for exported pages, as plain as people have them, and the runtime that such pages need."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from vitreous.errors import ConfigError
from vitreous.exports.web.runtime_files import RuntimeFiles, find_runtime


@functools.cache
def need_runtime() -> RuntimeFiles:
    """onnxruntime-web: from node_modules, from the cache, or by npm, once for this machine."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="the extra `export` is not installed")
    try:
        return find_runtime("npm")
    except ConfigError as error:
        pytest.skip(f"no onnxruntime-web here: {error}")


class Host(SimpleHTTPRequestHandler):
    types: Mapping[str, str] = {}  # ending -> content type that this host sends

    def log_message(self, format, *args):
        pass

    def guess_type(self, path):
        return self.types.get(Path(path).suffix) or super().guess_type(path)


@contextmanager
def hosted(folder: Path, types: Mapping[str, str] | None = None) -> Iterator[str]:
    """The address of a folder."""
    own = type("OwnHost", (Host,), {"types": types or {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(own, directory=str(folder)))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
