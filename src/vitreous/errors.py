"""The errors a user can meet. Each text is one line: WHAT is wrong with WHICH thing; DO this."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

LETTERS_A_MISTAKE = 3  # one typing mistake is allowed per this many letters
HIDDEN = "***"  # stands for a secret
_user = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/\s@]+@")
_query = re.compile(r"(https?://[^\s?'\"]*)\?[^\s'\"),;]*")


def without_secrets(text: str) -> str:
    """Text with the names, passwords and signatures of its addresses hidden.

    https://me:word@host/a.tar?signature=x becomes https://***@host/a.tar?***
    """
    return _query.sub(rf"\1?{HIDDEN}", _user.sub(rf"\1{HIDDEN}@", text))


class VitreousError(Exception):
    """Something the user can mend; a command that meets it exits with 2."""


class ModelNameError(VitreousError):
    """No model of the catalog has this name."""


class ConfigError(VitreousError):
    """A model option, or a pair of options, has no meaning."""


class DataError(VitreousError):
    """Images or labels are missing, unreadable or contradictory. Its text hides the secrets of addresses."""

    def __init__(self, text: object = ""):
        super().__init__(without_secrets(str(text)))


class ShardError(DataError):
    """A shard cannot be read: a run stops, unless it was told to skip bad shards."""


class TooLargeError(DataError):
    """An image has more pixels or bytes than we read, or than fit into memory."""


class RoomError(DataError):
    """The disk is full. What was saved before is whole."""


class ImageSizeError(VitreousError):
    """An image or a grid of patches does not have the size that the model was built for."""


class TapError(VitreousError):
    """A tap does not exist, never fired, or got the wrong thing back from an edit."""


class FormatError(VitreousError):
    """A weight format is unknown, or cannot hold this model."""


class CheckpointError(VitreousError):
    """A checkpoint is damaged, incomplete or hostile."""


class HubError(VitreousError):
    """A hub, or a thing on it, cannot be reached."""


class ExistsError(VitreousError):
    """Writing would destroy something that already exists."""


class BusyError(VitreousError):
    """Another process uses the resource."""


class RunError(VitreousError):
    """A training run cannot continue, or cannot be resumed."""


class ToldError(RunError):
    """Rank 0 reports this error; the other ranks exit without a message."""


class NotFiniteError(RunError):
    """A loss or gradient is not finite; the state before it is saved."""


class MissingExtraError(VitreousError):
    """An optional part of vitreous is not installed."""

    def __init__(self, extra: str, purpose: str):
        super().__init__(extra, purpose)  # both, so that it survives pickling
        self.extra, self.purpose = extra, purpose

    def __str__(self) -> str:
        return f"{self.purpose} needs the extra {self.extra!r}; pip install 'vitreous[{self.extra}]'"


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM stopped a run, which is saved. A BaseException, as KeyboardInterrupt is."""

    def __init__(self, number: int, step: int):
        super().__init__(number, step)
        self.number, self.step = number, step


def advice(
    word: str,
    words: Collection[str],
    *,
    theirs: Mapping[str, str] | None = None,
    value: Any = "…",
    otherwise: str | None = None,
) -> str:
    """How an error about an unknown name ends: with the right word, the nearest ones, or all that exist.

        advice("learning_rate", ["peak_lr", "batch"], theirs={"learning_rate": "peak_lr={}"}, value=0.1)

    theirs: other libraries' names -> ours, with {} for the value.  otherwise: the advice if nothing is near.
    """
    theirs = theirs or {}
    known = word.lower().replace("-", "_")
    near = nearest(word, [*words, *theirs], 1)
    theirs_is_nearest = near and near[0] in theirs and near[0] not in words
    if known in theirs or theirs_is_nearest:
        return f"say {theirs[known if known in theirs else near[0]].format(value)}"
    near = nearest(word, words)
    return f"near: {', '.join(near)}" if near else otherwise or f"there are: {', '.join(words)}"


def nearest(word: str, words: Iterable[str], most: int = 3) -> list[str]:
    """The words that the user may have meant, most likely first: few typos away, or containing `word`."""
    found = []
    for place, other in enumerate(words):
        mistakes = _mistakes(word.lower(), other.lower())
        is_part = len(word) > 2 and word.lower() in other.lower()
        if mistakes <= max(len(word) // LETTERS_A_MISTAKE, 1) or is_part:
            found.append((mistakes, place, other))
    return [other for _, _, other in sorted(found)[:most]]


def _mistakes(word: str, other: str) -> int:
    """Letters left out, put in, changed, or swapped with their neighbours (Damerau and Levenshtein)."""
    if not word or not other:
        return max(len(word), len(other))
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(word):
        before, last, row = row, before, [i + 1]
        for j, b in enumerate(other):
            costs = [row[j] + 1, before[j + 1] + 1, before[j] + (a != b)]
            if i and j and a == other[j - 1] and word[i - 1] == b:
                costs.append(last[j - 1] + 1)
            row.append(min(costs))
    return row[-1]
