"""The navigation: sections and pages of docs/README.md, and the pages that are made."""

import json
import os
import re
from pathlib import Path
from typing import Any

from website import reference
from website.places import DOCS, MAP, ROOT, place_on_site

SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
ROW = re.compile(r"^\| \[([^\]]+)\]\(([^)]+\.(?:md|ipynb))\) \|", re.MULTILINE)
PROJECT = {"Contributing": "CONTRIBUTING.md", "Changelog": "CHANGELOG.md", "Notes": "NOTES.md"}


def sections() -> dict[str, list[dict[str, str]]]:
    """From the map: title of a section -> its pages, each as title and place on the site."""
    _, *parts = SECTION.split(MAP.read_text("utf-8"))
    return {
        title: [{name: place_on_site((DOCS / target).resolve())} for name, target in ROW.findall(text)]
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def nav() -> list[Any]:
    """The navigation, as the generator takes it."""
    found = {title: list[Any](pages) for title, pages in sections().items()}
    found["Reference"] += [{"Commands": reference.command_nav()}, {"Python": reference.python_nav()}]
    project = [{title: place_on_site(ROOT / name)} for title, name in PROJECT.items()]
    seen = [{"Gallery": ["gallery/index.md"]}, {"Live": ["live/index.md"]}]
    parts = [{title: pages} for title, pages in found.items()]
    return [
        {"Home": "index.md"},
        *parts[:2],
        *seen,
        *parts[2:],
        {"Project": [{"The map": place_on_site(MAP)}, *project]},
    ]


def config(pages: Path, out: Path, where: Path) -> str:
    """The generator's file for these folders, to lie in `where`."""
    own = {
        "docs_dir": os.path.relpath(pages, where),
        "site_dir": os.path.relpath(out, where),
        "nav": nav(),
    }
    lines = "\n".join(f"{key} = {toml(value)}" for key, value in own.items())
    text = (ROOT / "website" / "zensical.toml").read_text("utf-8")
    paths = f"[project.plugins.mkdocstrings.handlers.python]\npaths = {toml([str(ROOT / 'src')])}\n"
    return text.replace("[project]\n", f"[project]\n{lines}\n", 1) + "\n" + paths


def toml(value: Any) -> str:
    """Words, lists and tables in one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)
