"""A local HTTP server of files that knows ranges, counts what it is asked for, and fails as it is told."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread


class RangeServer(ThreadingHTTPServer):
    """files: content by path.  fault: from the number of a GET and its path to 503, 404, "cut" or None."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.fault: Callable[[int, str], int | str | None] = lambda number, path: None
        self.has_ranges, self.token = True, ""
        self.asked: list[tuple[str, str | None]] = []  # path and range of each GET
        self.sent = 0  # bytes
        self.lock = Lock()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RangeServer

    def do_HEAD(self) -> None:
        self._answer(is_head=True)

    def do_GET(self) -> None:
        self._answer(is_head=False)

    def _answer(self, *, is_head: bool) -> None:
        path, _, query = self.path.lstrip("/").partition("?")
        raw = self.server.files.get(path)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        fault = None
        if not is_head:
            with self.server.lock:
                self.server.asked.append((path, self.headers.get("Range")))
                fault = self.server.fault(len(self.server.asked), path)
        if self.server.token not in query:
            return self._send(403, b"", is_head)
        if isinstance(fault, int) or raw is None:
            return self._send(fault if isinstance(fault, int) else 404, b"", is_head)
        if wanted is None or not self.server.has_ranges:
            return self._send(200, raw, is_head)
        part = raw[int(wanted[1]) : int(wanted[2]) + 1]
        if fault == "cut":  # half of what was promised
            self._head(206, len(part))
            self.wfile.write(part[: len(part) // 2])
            self.close_connection = True
            return None
        return self._send(206, part, is_head, f"bytes {wanted[1]}-{int(wanted[1]) + len(part) - 1}/{len(raw)}")

    def _send(self, status: int, body: bytes, is_head: bool, span: str | None = None) -> None:
        self._head(status, len(body), span)
        if not is_head:
            with self.server.lock:
                self.server.sent += len(body)
            self.wfile.write(body)

    def _head(self, status: int, length: int, span: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        if self.server.has_ranges:
            self.send_header("Accept-Ranges", "bytes")
        if span is not None:
            self.send_header("Content-Range", span)
        self.end_headers()

    def log_message(self, *words: object) -> None:
        pass


@contextmanager
def serving(files: dict[str, bytes]):
    with RangeServer(files) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
