"""A room's table of parts: our own, and those that other packages bring by an entry point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from vitreous.errors import ConfigError
from vitreous.words import one_line

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Names to parts. An entry point `NAME = module:VALUE` in the group `vitreous.KIND` adds a line from outside."""

    def __init__(self, kind: str, parts: dict[str, T]):
        self.kind, self.parts = kind, parts
        self.broken: dict[object, str] = {}  # parts from outside that cannot be loaded, and why
        self.searched = False

    def _all(self) -> dict[str, T]:
        if not self.searched:
            self.searched = True
            for found in entry_points(group=f"vitreous.{self.kind}"):
                if found.name not in self.parts:  # ours cannot be replaced from outside
                    try:
                        self.parts[found.name] = found.load()
                    except (Exception, SystemExit) as error:
                        package = found.dist.name if found.dist else found.module
                        why = f"({type(error).__name__}: {one_line(error)}); mend or uninstall {package}"
                        self.broken[found.name] = f"{self.kind} {found.name!r} of {package} cannot be loaded {why}"
        return self.parts

    def __getitem__(self, name: str) -> T:
        if name not in self.parts and name not in self:
            raise ConfigError(f"{self.kind} {name!r} is not one of {', '.join(self)}")
        return self.parts[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self._all().get(name, default)

    def __setitem__(self, name: str, part: T) -> None:
        self.parts[name] = part  # a part for this process only, such as a notebook's

    def __contains__(self, name: object) -> bool:
        """Asking for a part that cannot be loaded raises an error that says why."""
        if name not in self._all() and name in self.broken:
            raise ConfigError(self.broken[name])
        return name in self.parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())
