"""Where things lie in the repository, and what the site calls them."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
MAP = DOCS / "README.md"
HOME = ROOT / "website" / "home.md"

# Pages from outside docs/: where they lie on the site. The front page stands for the README, which says the same.
MOVED = {
    MAP: "map.md",
    HOME: "index.md",
    ROOT / "README.md": "index.md",
    ROOT / "CONTRIBUTING.md": "project/contributing.md",
    ROOT / "CHANGELOG.md": "project/changelog.md",
    ROOT / "NOTES.md": "project/notes.md",
}
COPIED = "repository"  # the site's folder for files that pages name: results, scripts, tests


def place_on_site(file: Path) -> str:
    """The path of a file of the repository within the site's sources."""
    if file in MOVED:
        return MOVED[file]
    if not file.is_relative_to(DOCS):
        return f"{COPIED}/{file.relative_to(ROOT).as_posix()}"
    place = file.relative_to(DOCS)
    if file.suffix == ".ipynb":
        place = place.with_suffix(".md")
    elif file.suffix == ".html" and file.with_suffix(".md").exists():  # both would be the same page
        place = place.with_stem(f"{file.stem}-page")
    return place.as_posix()
