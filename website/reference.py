"""Reference pages that are made: one for each command, from its options; and Python, from names and docstrings."""

import os
import re
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

import vitreous
from vitreous.cli import COMMANDS, _application
from website.places import DOCS
from website.sources import write

COMMAND_PAGES, PYTHON_PAGES = "reference/commands", "reference/python"
THINGS = {  # what the functions take and return
    "A set of images": ["vitreous.images.open", "vitreous.images.ImageSet"],
    "A check": ["vitreous.images.health.findings.Health"],
    "A run": ["vitreous.training.tell.write.Run", "vitreous.training.recipe.Recipe"],
    "Answers": ["vitreous.evaluation.predict.Answers", "vitreous.evaluation.predict.Prediction"],
    "A judgement": ["vitreous.evaluation.accuracy.Result"],
    "A look": ["vitreous.measures.inspection.Inspection", "vitreous.measures.measure.Measure"],
    "A model": [f"vitreous.models.{name}" for name in ("model.Model", "config.ViTConfig", "preprocess.Preprocess")],
    "An export": ["vitreous.exports.parity.Parity"],
}  # fmt: skip


def command_nav() -> list[Any]:
    return [f"{COMMAND_PAGES}/index.md", *({f"vitreous {name}": f"{COMMAND_PAGES}/{name}.md"} for name in COMMANDS)]


def write_commands(out: Path) -> None:
    """A page for each command, and one that lists them."""
    commands = _application().commands
    for name, command in commands.items():
        write(out / COMMAND_PAGES / f"{name}.md", command_page(name, command))
    rows = [f"| [`vitreous {name}`]({name}.md) | {about(commands[name])[0]} |" for name in COMMANDS]
    head = "# Commands\n\nEvery page here is made from `vitreous COMMAND --help`.\n\n| command | does |\n|---|---|\n"
    write(out / COMMAND_PAGES / "index.md", head + "\n".join(rows) + "\n" + EXIT_CODES)


EXIT_CODES = """
| exit code | means |
|---|---|
| 0 | done |
| 1 | done, and the answer is no |
| 2 | could not; one line on stderr says why, and what to do |
| 130, 143 | stopped by Ctrl-C or SIGTERM; what was saved is whole |
"""


def about(command: Any) -> list[str]:
    """The paragraphs of its help; the last is the example."""
    return [" ".join(each.split()) for each in command.help.split("\n\n")]


def command_page(name: str, command: Any) -> str:
    *words, example = about(command)
    context = typer.Context(command, info_name=f"vitreous {name}")
    usage = " ".join([f"vitreous {name}", *command.collect_usage_pieces(context)])
    parts = [f"# vitreous {name}", *words, f"```sh\n{example.removeprefix('Example: ').strip()}\n```"]
    guide = DOCS / "guide" / f"{'evaluation' if name == 'eval' else name}.md"
    if guide.exists():
        parts.append(f"With words and pictures: [the guide]({os.path.relpath(guide, DOCS / COMMAND_PAGES)}).")
    parts.append(f"```text\n{usage}\n```")
    panels: dict[str, list[str]] = {}
    for each in command.params:
        if each.name != "help" and not getattr(each, "hidden", False):
            default = "Arguments" if each.param_type_name == "argument" else "Options"
            panels.setdefault(getattr(each, "rich_help_panel", None) or default, []).append(row(each, context))
    for title, rows in panels.items():
        parts.append(f"## {title}\n\n| name | meaning |\n|---|---|\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def row(each: Any, context: typer.Context) -> str:
    """One argument or option, as a row."""
    value = (each.metavar or "").strip()
    names = [] if each.param_type_name == "argument" else each.opts
    called = ", ".join(f"`{name}`" for name in names) + (f" `{value}`" if value else "")
    is_shown = isinstance(each.default, int | float | str) and not isinstance(each.default, bool)
    meaning = re.sub(r"\[/?\w+\]", "", each.help or "")  # colours of the terminal
    default = f" Default: `{each.default}`." if is_shown else ""
    return f"| {_cell(called)} | {_cell(meaning)}{default} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def python_nav() -> list[Any]:
    return [{title: python_place(title)} for title in python_pages()]


def python_place(title: str) -> str:
    return f"{PYTHON_PAGES}/{title.lower()}.md"


def python_pages() -> dict[str, tuple[str, dict[str, list[str]]]]:
    """Title -> words, and names in groups."""
    measures, evaluation = vitreous.measures, vitreous.evaluation
    functions = [name for name in measures.__all__ if name.islower()]
    return {
        "Functions": ("What `import vitreous` gives.", {"": [f"vitreous.{name}" for name in vitreous.HOME]}),
        "Things": ("What the functions take and return. In a notebook they show themselves.", THINGS),
        "Evaluation": (evaluation.__doc__, {"": [f"vitreous.evaluation.{name}" for name in evaluation.HOME]}),
        "Measures": (
            "Pure functions on arrays, which `look` calls.",
            {"": [address(measures, name) for name in functions]},
        ),
        "Errors": (vitreous.errors.__doc__, {"": ["vitreous.errors"]}),
    }


def address(room: ModuleType, name: str) -> str:
    """A function's dotted name; within its own file if that has its name."""
    short = f"{room.__name__}.{name}"
    return f"{short}.{name}" if find_spec(short) else short


def write_python(out: Path) -> None:
    """Pages of names; the generator fills in signatures and docstrings without running the code."""
    for title, (words, groups) in python_pages().items():
        body = [part for group, names in groups.items() for part in _group(group, names)]
        write(out / python_place(title), "\n\n".join([f"# {title}", words, *body]) + "\n")


def _group(title: str, names: list[str]) -> list[str]:
    level = 3 if title else 2
    blocks = [f"::: {name}\n    options:\n      heading_level: {level}" for name in names]
    return [f"## {title}", *blocks] if title else blocks
