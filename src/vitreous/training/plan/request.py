"""What a run is asked for, and whether a resumed run is asked for the same."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitreous.errors import ConfigError, without_secrets
from vitreous.images.imageset import ImageSet
from vitreous.models.model import Model
from vitreous.training.recipe import Recipe
from vitreous.training.run.folder import differences
from vitreous.training.run.network import fingerprint

THEN = "then"  # prefix of the options of the second of two runs
PATH_OPTIONS = ("weights", "teacher", THEN)

Rates = bool | tuple[float, ...]  # of a sweep: False is no sweep, True the usual rates


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of one run."""

    data: str | os.PathLike[str] | ImageSet
    model: str | None = None
    weights: str | None = None
    recipe: str | Recipe = "auto"
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the recipe's fields
    rates: Rates = False
    check: bool = True
    folds: int | None = None
    group_by: str | None = None  # what tells series apart
    skip_bad_shards: bool = False
    then: Mapping[str, Any] = field(default_factory=dict)  # options of the run that follows, to compare on resume
    command: str = ""  # of the first of two runs, for the second
    network: Model | None = None  # in memory, to start from
    as_new: bool = False  # that network trains like a new one: `model=`, not `weights=`

    def words(self) -> dict[str, Any]:
        """The options that were given, as plain words."""
        given = {"model": self.model, "weights": self.weights, "recipe": _plain(self.recipe)}
        if self.network is not None:
            given["model" if self.as_new else "weights"] = fingerprint(self.network)
        given |= {name: str(value) for name, value in self.changes.items()}
        given |= {"sweep": str(self.rates) if self.rates else None, "folds": self.folds}
        given |= {"group_by": self.group_by}
        given |= {"check": None if self.check else False, **self.then}
        return {name: value for name, value in given.items() if value is not None}

    def words_for_first(self) -> dict[str, Any]:
        """What the first of two runs records about the second, which is planned only after it."""
        images = self.data.path if isinstance(self.data, ImageSet) else os.fspath(self.data)
        images = str(Path(images).absolute()) if Path(images).exists() else images  # the same from any folder
        given = {"recipe": _plain(self.recipe)} | {name: str(value) for name, value in self.changes.items()}
        return {THEN: without_secrets(images)} | {
            f"{THEN}_{name}": value for name, value in given.items() if value is not None
        }


def refuse_other_options(where: Path, config: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Refuse to resume with an option that differs from the run's, as given or as chosen."""
    given, chosen = config.get("asked", {}), _options_of(config)
    changed: list[str] = []
    for name, now in asked.items():
        then = [known[name] for known in (given, chosen) if name in known]
        if not then and (not given or (name.startswith(THEN) and THEN not in given)):
            continue  # an older version did not record it
        if not any(_is_same(name, now, value) for value in then):
            changed += _lines(name, then[0] if then else None, now)
    if changed:
        raise ConfigError(f"{where} began with other options ({'; '.join(changed)}); leave them out to go on")


def _options_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run by name, whether given or chosen."""
    recipe = config.get("recipe", {})
    found = {**recipe.get("augment", {}), **recipe, "recipe": recipe.get("name")}
    if "rates" in config:
        found["sweep"] = str(tuple(config["rates"])) if config["rates"] else "False"
    if "weights" in config:
        found["weights"] = config["weights"] or "none"
    if config.get("model"):
        found["model"] = config["model"]
    own = {"folds": config.get("folds"), "check": config.get("checked")}
    return found | {name: value for name, value in own.items() if value is not None}


def _is_same(name: str, now: Any, then: Any) -> bool:
    """Whether two words mean the same: `3 step` and `3 steps`, 3e-3 and 0.003, a relative and an absolute path."""
    if not differences({name: then}, {name: now}):
        return True
    field_name = name.removeprefix(f"{THEN}_")
    if field_name in PATH_OPTIONS:
        return isinstance(then, str) and Path(now).resolve() == Path(then).resolve()
    try:
        return Recipe().change(**{field_name: now}) == Recipe().change(**{field_name: then})
    except ConfigError:  # no field, or a field that needs another with it
        return False


def _lines(name: str, then: Any, now: Any) -> list[str]:
    """How they differ; a whole recipe and a name are compared by name."""
    if isinstance(then, dict) != isinstance(now, dict):
        then, now = (value.get("name") if isinstance(value, dict) else value for value in (then, now))
    return differences({name: then}, {name: now})


def _plain(recipe: str | Recipe) -> Any:
    how = recipe.to_json() if isinstance(recipe, Recipe) else recipe
    return None if how == "auto" else how
