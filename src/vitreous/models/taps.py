"""Read or change any activation of a model while it runs.

A tap is a module whose path is its name: either a `Tap`, an identity put where nothing else stands, or a real part
(a norm, say) marked by `tapped`. An unopened tap costs nothing; opening one layer's attention weights takes that layer
alone off the fused kernel.
"""

from __future__ import annotations

import difflib
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vitreous.errors import TapError
from vitreous.words import few

Edit = Callable[[Tensor], Tensor]
M = TypeVar("M", bound=nn.Module)


class Tap(nn.Module):
    """An identity with a name."""

    is_tap = True

    def forward(self, x: Tensor) -> Tensor:
        return x

    @property
    def open(self) -> bool:
        """True while a hook reads or edits this tap."""
        return bool(self._forward_hooks)


def tapped(module: M) -> M:
    """Mark a real part as a tap: its output can be read and edited under the part's own path."""
    module.is_tap = True  # type: ignore[assignment]
    return module


def looked_into(part: nn.Module) -> bool:
    """True while any tap of this part is open."""
    return any(module._forward_hooks for module in part.modules())


def tap_names(model: nn.Module) -> list[str]:
    """Every name that `taps` accepts for this model, in the order of the modules."""
    return list(_points(model))


def matching(model: nn.Module, pattern: str) -> list[str]:
    """The taps that match a pattern, in module order; an error with the nearest names if none does."""
    return _match(_points(model), [pattern])


@contextmanager
def taps(
    model: nn.Module, patterns: str | Iterable[str] = (), *, edit: Mapping[str, Edit] | None = None
) -> Iterator[dict[str, Tensor]]:
    """Read activations by name, and change them.

        with vitreous.taps(model, "blocks.*.attention.weights") as seen:
            model(images)
        seen["blocks.3.attention.weights"]                      # B H N N

        with vitreous.taps(model, edit={"blocks.3.skip1": torch.zeros_like}):
            model(images)                                       # block 3 without its first skip

    patterns: shell globs over `tap_names(model)`; `*` stays between two dots, `**` crosses them.  edit: pattern ->
    function of the activation; its result replaces the activation, and is what you read. Tensors are live, from the
    last forward: gradients flow through them. A compiled model runs eagerly inside. A pattern without a match, or a tap
    that never fires, is an error.
    """
    points = _points(model)
    edits = dict(edit or {})
    reading = _match(points, [patterns] if isinstance(patterns, str) else list(patterns))
    changing = {pattern: _match(points, [pattern]) for pattern in edits}
    if not reading and not changing:
        raise TapError(
            "nothing to read or edit; give a pattern, such as 'blocks.*.output', or edit={pattern: function}"
        )
    seen: dict[str, Tensor] = {}
    silent = dict.fromkeys([*reading, *(name for names in changing.values() for name in names)])
    with ExitStack() as stack:
        stack.enter_context(_eager())
        for pattern, names in changing.items():
            for name in names:
                stack.callback(
                    points[name].register_forward_hook(_editor(name, edits[pattern], silent), prepend=True).remove
                )
        for name in reading:
            stack.callback(points[name].register_forward_hook(_reader(name, seen, silent)).remove)
        yield seen
    if silent:
        raise TapError(f"{few(silent)} never fired; call the model, whole, inside `with taps(...)`")


_lock = threading.Lock()
_inside: list[None] = []  # one for each open `taps`, in any thread
_stance: list[Any] = []  # torch's, once it is set


@contextmanager
def _eager() -> Iterator[None]:
    """Run eagerly: a compiled forward ignores hooks. All threads share torch's stance; the last one restores it."""
    with _lock:
        _inside.append(None)
        if not _stance and "torch._dynamo" in sys.modules:  # else nothing is compiled, and its import takes a second
            _stance.append(torch.compiler.set_stance("force_eager"))
            _stance[0].__enter__()
    try:
        yield
    finally:
        with _lock:
            _inside.pop()
            if not _inside and _stance:
                _stance.pop().__exit__(None, None, None)


def _points(model: nn.Module) -> dict[str, nn.Module]:
    found = plain(model).named_modules()
    return {path.replace(COMPILED_PREFIX, ""): module for path, module in found if getattr(module, "is_tap", False)}


COMPILED_PREFIX = "_orig_mod."  # torch.compile inserts it into the paths of wrapped parts


def plain(model: nn.Module) -> nn.Module:
    """The model inside the wrappers of torch.compile and data parallelism."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner


def _match(points: Mapping[str, nn.Module], patterns: list[str]) -> list[str]:
    rules = {pattern: _rule(pattern) for pattern in patterns}
    for pattern, rule in rules.items():
        if not any(rule.fullmatch(name) for name in points):
            near = difflib.get_close_matches(pattern, points, 3, 0) if points else []
            wider = (
                f"; `*` stays between two dots, `{pattern.replace('*', '**')}` crosses them"
                if "*" in pattern and "**" not in pattern
                else ""
            )
            raise TapError(
                f"no tap matches {pattern!r}; near: {', '.join(near)}{wider} (all: vitreous.tap_names(model))"
            )
    return [name for name in points if any(rule.fullmatch(name) for rule in rules.values())]


def _rule(pattern: str) -> re.Pattern[str]:
    """A shell glob over names whose parts are joined by dots: `*` stays in one part, `**` crosses dots."""
    wild = {"**": ".*", "*": "[^.]*", "?": "[^.]"}
    pieces = re.split(r"(\*\*|\*|\?|\[[^].]+\])", pattern)  # plain text and wildcards in turn
    parts = [wild.get(p, p.replace("[!", "[^", 1)) if i % 2 else re.escape(p) for i, p in enumerate(pieces)]
    try:
        return re.compile("".join(parts))
    except re.error:
        raise TapError(f"{pattern!r} is not a shell pattern; write one such as blocks.[0-3].output") from None


def _reader(name: str, seen: dict[str, Tensor], silent: dict[str, None]) -> Callable:
    def read(module: nn.Module, inputs: tuple, output: Tensor) -> None:
        seen[name] = output
        silent.pop(name, None)

    return read


def _editor(name: str, change: Edit, silent: dict[str, None]) -> Callable:
    def edit(module: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        silent.pop(name, None)
        new = change(output)
        if not isinstance(new, Tensor) or new.shape != output.shape:
            got = tuple(new.shape) if isinstance(new, Tensor) else type(new).__name__
            raise TapError(f"the edit of {name} returned {got}; return a tensor of shape {tuple(output.shape)}")
        return new

    return edit
