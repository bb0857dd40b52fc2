"""Refusals that a client gets instead of an answer: a status and one line."""

from __future__ import annotations


class Refusal(Exception):
    """A refused request. The line says WHAT is wrong with WHICH thing; DO this."""

    def __init__(self, status: int, line: str, headers: dict[str, str] | None = None):
        super().__init__(line)
        self.status, self.line, self.headers = status, line, headers or {}


class Busy(Refusal):
    """The server is overloaded. after: seconds to wait before trying again."""

    def __init__(self, line: str, after: int = 1):
        super().__init__(503, line, {"Retry-After": str(after)})
