"""Pages of the repository as sources of the site: the same words; links that leave docs/ lead to copies."""

import os
import re
import shutil
from pathlib import Path

from website.places import DOCS, MOVED, ROOT, place_on_site

LINK = re.compile(r"(!?\[[^\]]*\])\(([^)#\s]*)(#[^)\s]+)?\)")
MARKER = re.compile(r"^<!-- (?:measured|end): .*-->$", re.MULTILINE)  # tests/doc_blocks.py writes between them
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
SHOWN_AS_TEXT = {".py", ".toml", ".jsonl"}  # a browser would offer them as a download


def copy_pages(out: Path) -> None:
    """Everything under docs/, and the pages beside it."""
    for file in DOCS.rglob("*"):
        if file.is_file() and file.suffix not in (".md", ".ipynb"):
            (out / place_on_site(file)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, out / place_on_site(file))
    for page in [*DOCS.rglob("*.md"), *(page for page in MOVED if page != ROOT / "README.md")]:
        write(out / place_on_site(page), as_source(page, out))


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")


def as_source(page: Path, out: Path) -> str:
    """The page's text for the site. Files of the repository that it names are copied to `out`."""
    return rewritten(page.read_text("utf-8"), page, out)


def rewritten(text: str, page: Path, out: Path) -> str:
    """page: where the text stands in the repository, from which its links are read."""
    here = place_on_site(page)

    def turn(found: re.Match[str]) -> str:
        name, target, anchor = found[1], found[2], found[3] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        file = (page.parent / target).resolve()
        there = copied(file, out) if is_elsewhere(file) else place_on_site(file)
        return f"{name}({os.path.relpath(there, Path(here).parent)}{anchor})"

    parts = re.split(f"({FENCE.pattern})", MARKER.sub("", text), flags=FENCE.flags)
    return "".join(part if part.startswith("```") else LINK.sub(turn, part) for part in parts)


def is_elsewhere(file: Path) -> bool:
    return file not in MOVED and not file.is_relative_to(DOCS)


def copied(file: Path, out: Path) -> str:
    """A file or folder of the repository, copied into the site's sources; returns the path there."""
    there = place_on_site(file)
    if file.is_dir():
        rows = [f"- [{each.name}]({each.name}{text_ending(each)})" for each in sorted(file.glob("*.py"))]
        for each in file.glob("*.py"):
            copied(each, out)
        write(out / there / "index.md", f"# {file.name}\n\n" + "\n".join(rows) + "\n")
        return f"{there}/index.md"
    there += text_ending(file)
    (out / there).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, out / there)
    return there


def text_ending(file: Path) -> str:
    return ".txt" if file.suffix in SHOWN_AS_TEXT else ""
