"""Is a built site whole?   python -m website.check_site FOLDER

Every link and picture leads to a file that is there, and to an anchor that it has; nothing is loaded from another host.
"""

import re
import sys
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {"src", "srcset", "poster", "data"}  # attributes that make a browser fetch
LOADING_LINKS = {"stylesheet", "icon", "preload", "preconnect", "dns-prefetch", "manifest", "modulepreload", "prefetch"}
EXPORTED = "parity.json"  # beside the page of an exported model, whose script decides which of its links show
IN_STYLE = re.compile(r"url\(\s*['\"]?(https?:)?//|@import\s+['\"]?(https?:)?//")


@dataclass
class Found(HTMLParser):
    """What one page names."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.ids |= {given[name] for name in ("id", "name") if name in given and tag != "meta"}
        self.loads += [given[name] for name in LOADS & given.keys() if tag != "object" or name == "data"]
        if "href" in given and tag == "link":
            (self.loads if LOADING_LINKS & set(given.get("rel", "").split()) else []).append(given["href"])
        elif "href" in given:
            self.links.append(given["href"])


def faults(site: Path) -> list[str]:
    """A line for each link that leads nowhere and each thing that comes from elsewhere."""
    pages = [page for page in sorted(site.rglob("*.html")) if not (page.parent / EXPORTED).exists()]
    return [line for page in pages for line in faults_of(page, site)] + [
        f"{file.relative_to(site)}: a style loads from another host"
        for file in sorted(site.rglob("*.css"))
        if IN_STYLE.search(file.read_text("utf-8"))
    ]


def faults_of(page: Path, site: Path) -> list[str]:
    found, name = read(page), page.relative_to(site).as_posix()
    lines = [f"{name}: loads {each} from another host" for each in found.loads if is_outside(each)]
    if IN_STYLE.search(page.read_text("utf-8")):
        lines.append(f"{name}: a style loads from another host")
    inside = [each for each in [*found.links, *found.loads] if not is_outside(each) and not is_held(each)]
    lines += [f"{name}: {each} {why}" for each in inside if (why := fault(each, page, site))]
    return list(dict.fromkeys(lines))


def is_outside(address: str) -> bool:
    return bool(urlsplit(address).netloc)


def is_held(address: str) -> bool:
    """Whether the address leads to no file: data in the page itself, a mail."""
    return urlsplit(address).scheme in ("mailto", "data", "blob", "javascript")


def fault(address: str, page: Path, site: Path) -> str | None:
    parts = urlsplit(address)
    there = page if not parts.path else (page.parent / unquote(parts.path)).resolve()
    if page.name == "404.html" and parts.path.startswith("/"):  # it is shown at any depth, so it counts from the top
        there = site / unquote(parts.path).lstrip("/")
    there = there / "index.html" if there.is_dir() else there
    if not there.is_relative_to(site.resolve()) or not there.exists():
        return "is not there"
    anchor = unquote(parts.fragment)
    is_known = there.suffix != ".html" or not anchor or anchor in read(there).ids or anchor == "__top"
    return None if is_known else "has no such anchor"


@cache
def read(page: Path) -> Found:
    found = Found()
    found.feed(page.read_text("utf-8"))
    return found


def main() -> int:
    lines = faults(Path(sys.argv[1]).resolve())
    print("\n".join(lines) or "every link leads somewhere, and nothing comes from another host")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
