"""Options: fields of a frozen dataclass that state their meaning, words and range where they are declared.

    @dataclass(frozen=True, kw_only=True)
    class Recipe:
        batch: int = option(512, "images per step", at_least=1)
        augment: Augment = Augment()

A field that is itself such a dataclass is a group. The name of an option is unique over all groups, so a change needs
no path: `changed(recipe, {"batch": "64", "mixup": 0.2})`.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union

import msgspec

from vitreous.errors import ConfigError, advice

T = TypeVar("T")
Reader = Callable[[Any, str], Any]  # (value, the option's name) -> the value as the option's type


class Bounds(NamedTuple):
    """The range of a number, or of each number in a tuple. A number that is not finite is out of every range."""

    above: float = -math.inf
    at_least: float = -math.inf
    below: float = math.inf
    at_most: float = math.inf

    def hold(self, number: float) -> bool:
        return self.above < number < self.below and self.at_least <= number <= self.at_most

    def __str__(self) -> str:
        stated = {name: f"{bound:g}" for name, bound in self._asdict().items() if math.isfinite(bound)}
        if list(stated) == ["at_least"]:
            return f"{stated['at_least']} or more"
        return " and ".join(f"{name.replace('_', ' ')} {bound}" for name, bound in stated.items())


class Option(NamedTuple):
    """One option of a config, with its value."""

    group: str  # '' for the config itself
    name: str
    value: Any
    owner: type  # the dataclass that declares it
    meaning: str
    words: tuple[str, ...]  # the allowed values, if the list is fixed
    bounds: Bounds
    read: Reader | None

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types that it may have: int and None for `int | None`."""
        hint = _hints(self.owner)[self.name]
        return typing.get_args(hint) if typing.get_origin(hint) in (Union, UnionType) else (hint,)

    def parsed(self, value: Any) -> Any:
        """`value` as the option's type, or one line that says what to give."""
        if self.read:
            return self.read(value, self.name)
        kinds = self.kinds
        if NoneType in kinds and value in (None, "none"):
            return None
        try:
            if int in kinds and re.fullmatch(r"\s*[+-]?\d+\s*", str(value)):
                return int(value)  # msgspec stops at 64 bits
            for kind in kinds:
                if typing.get_origin(kind) is tuple:
                    parts = re.split(r"[,\s()x×]+|(?<=\d)-", value) if isinstance(value, str) else value
                    return msgspec.convert([part for part in parts if part != ""], kind, strict=False)
            return msgspec.convert(value, Union[*kinds], strict=not isinstance(value, str))
        except (msgspec.ValidationError, ValueError, TypeError):
            do = f"give {', '.join(self.words) or ' or '.join(map(_expected, kinds))}"
            raise ConfigError(f"{self.name}={value!r} does not fit; {do}") from None


def option(
    default: Any,
    meaning: str,
    *words: str,
    above: float = -math.inf,
    at_least: float = -math.inf,
    below: float = math.inf,
    at_most: float = math.inf,
    read: Reader | None = None,
) -> Any:
    """A field: its default, its meaning in one line, its allowed words, its range, its own reader."""
    bounds = Bounds(above, at_least, below, at_most)
    about = {"meaning": meaning, "words": words, "bounds": bounds, "read": read}
    return dataclasses.field(default=default, metadata=about)


def options_of(config: Any, group: str = "") -> Iterator[Option]:
    """Every option of a config and of its groups."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.metadata:
            yield Option(group, field.name, value, type(config), **field.metadata)
        elif dataclasses.is_dataclass(value):
            yield from options_of(value, group or field.name)


def changed(config: T, changes: Mapping[str, Any]) -> T:
    """`config` with options, or whole groups, replaced by name; words such as "4" are read as the option's type."""
    known = {each.name: each for each in options_of(config)}
    new: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        if name in known:
            group = known[name].group
            (inner.setdefault(group, {}) if group else new)[name] = known[name].parsed(value)
        elif dataclasses.is_dataclass(value) and type(getattr(config, name, None)) is type(value):
            new[name] = value
        else:
            check_known({name: value}, known)
    for group, values in inner.items():
        new[group] = dataclasses.replace(new.get(group, getattr(config, group)), **values)
    return dataclasses.replace(config, **new)  # type: ignore[type-var]


def check_known(
    changes: Mapping[str, Any],
    known: Collection[str],
    missing: str = "there is no option",
    *,
    theirs: Mapping[str, str] | None = None,
    otherwise: str | None = None,
    see: str = "",
) -> None:
    """Refuse a name that is not known, and say what may have been meant.

    theirs: other libraries' names -> ours.  otherwise: the advice if nothing is near.  see: where all are listed.
    """
    for name, value in changes.items():
        if name not in known:
            do = advice(name, known, theirs=theirs, value=value, otherwise=otherwise)
            raise ConfigError(f"{missing} {name!r}; {do}{see}")


def check_ranges(config: Any, subject: str = "") -> None:
    """Refuse the first number that is out of its range.  subject: begins the line."""
    for each in options_of(config):
        values = each.value if isinstance(each.value, tuple) else (each.value,)
        numbers = [value for value in values if isinstance(value, int | float)]
        if not all(map(each.bounds.hold, numbers)):
            must = "must each be" if isinstance(each.value, tuple) else "must be"
            finite = "" if all(map(math.isfinite, numbers)) else "finite"
            need = " and ".join(filter(None, [str(each.bounds), finite]))
            none = ", or none" if NoneType in each.kinds else ""
            raise ConfigError(f"{subject}{each.name}={','.join(map(str, numbers))} {must} {need}{none}")


def json_object(data: Any, what: str) -> dict[str, Any]:
    """A copy of `data`, which must be a JSON object."""
    if not isinstance(data, dict):
        raise ConfigError(f"{what} is a JSON object, not {type(data).__name__}; write one with to_json()")
    return dict(data)


def read_json(kind: type[T], data: Any, what: str) -> T:
    """The config of this kind that `data` describes; an error names the unknown field or the wrong type."""
    _refuse_unknown_fields(kind, data, what)
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{what} does not fit: {error}; write it with to_json()") from None


def their_words(table: Mapping[str, str]) -> dict[str, str]:
    """Other libraries' names -> ours, from ours -> all of theirs, separated by blanks."""
    return {word: ours for ours, words in table.items() for word in words.split()}


@cache
def _hints(owner: type) -> dict[str, Any]:
    return typing.get_type_hints(owner)


def _expected(kind: Any) -> str:
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return " | ".join(map(str, parts))
    if typing.get_origin(kind) is tuple:
        return "numbers with commas between" if ... in parts else f"{len(parts)} numbers with a comma between"
    return {int: "a whole number", float: "a number", str: "a word", bool: "true or false", NoneType: "none"}[kind]


def _refuse_unknown_fields(kind: type, data: Any, path: str) -> None:
    if not dataclasses.is_dataclass(kind) or not isinstance(data, dict):
        return  # msgspec's own message is better
    hints = typing.get_type_hints(kind)
    for name, value in data.items():
        if name not in hints:
            raise ConfigError(f"{path} has no field {name!r}; written by a newer vitreous?")
        _refuse_unknown_fields(hints[name], value, f"{path}.{name}")
