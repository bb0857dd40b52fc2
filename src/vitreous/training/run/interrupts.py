"""Ctrl-C and SIGTERM are obeyed between two steps, when a state can be saved."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["catch_signals"]


@contextmanager
def catch_signals() -> Iterator[list[int]]:
    """The signals caught within the block; a second signal is obeyed at once."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def catch(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        if len(caught) > 1:
            os._exit(128 + number) if number == signal.SIGTERM else signal.default_int_handler(number, frame)

    for number in before:
        signal.signal(number, catch)
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
