"""A room's table of parts: our own, and those that other packages bring by an entry point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from vitreous.errors import ConfigError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Names to parts. An entry point `NAME = module:VALUE` in the group `vitreous.KIND` adds a line from outside."""

    def __init__(self, kind: str, parts: dict[str, T]):
        self.kind, self.parts = kind, parts
        self.searched = False

    def _all(self) -> dict[str, T]:
        if not self.searched:
            self.searched = True
            for found in entry_points(group=f"vitreous.{self.kind}"):
                if found.name not in self.parts:  # ours cannot be replaced from outside
                    self.parts[found.name] = found.load()
        return self.parts

    def __getitem__(self, name: str) -> T:
        if name not in self.parts and name not in self._all():
            raise ConfigError(f"{self.kind} {name!r} is not one of {', '.join(self)}")
        return self.parts[name]

    def __setitem__(self, name: str, part: T) -> None:
        self.parts[name] = part  # a part of this process alone, such as a notebook's

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())
