"""What a client is told when it gets no answer: a status and one line."""

from __future__ import annotations

__all__ = ["Busy", "Refusal"]


class Refusal(Exception):
    """A request that is not served, and why: WHAT is wrong with WHICH thing; DO this."""

    def __init__(self, status: int, line: str, headers: dict[str, str] | None = None):
        super().__init__(line)
        self.status, self.line, self.headers = status, line, headers or {}


class Busy(Refusal):
    """Too much is waiting. after: seconds until it is worth asking again."""

    def __init__(self, line: str, after: int = 1):
        super().__init__(503, line, {"Retry-After": str(after)})
