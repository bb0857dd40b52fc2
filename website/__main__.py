"""Build the site.   python -m website [--out build/site] [--runtime FOLDER]   (make docs)

Pages of docs/ are copied, pages on commands and Python are made, models are trained (once for each state of the code),
notebooks are run, and the whole is built and checked. --runtime: onnxruntime-web's folder, or npm to fetch it, for the
model in the browser; without it that page is left out.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from website import check_site, live, navigation, notebooks, reference, sources
from website.places import ROOT

WORK = ROOT / "build" / "website"
CELL_STYLE = (
    "pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font-size: 13px } "
    ".vitreous.fragment { max-height: none !important }"
)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    arguments.add_argument("--runtime", type=lambda name: name if name == "npm" else str(Path(name).resolve()))
    given = arguments.parse_args()
    made = live.computed(WORK / "computed", tell)
    web = live.exported(made, given.runtime, tell)
    shown = prepare(WORK / "pages", made, with_web=web is not None)
    build(WORK / "pages", given.out.resolve())
    finish(given.out, shown)
    if web is not None:  # after the build, which would take its Markdown for pages
        shutil.copytree(web, given.out / "live" / live.WEB_FOLDER)
    lines = check_site.faults(given.out.resolve())
    for line in lines:
        tell(f"fault    {line}")
    tell(f"site     {(given.out / 'index.html').resolve().as_uri()}")
    return 1 if lines else 0


def tell(line: str) -> None:
    print(line, file=sys.stderr)


def prepare(pages: Path, made: Path, *, with_web: bool) -> notebooks.Shown:
    """All sources of the site; what the notebooks show comes back, to be put in at the end."""
    shutil.rmtree(pages, ignore_errors=True)
    sources.copy_pages(pages)
    reference.write_commands(pages)
    reference.write_python(pages)
    for name in ("style.css", "favicon.svg"):
        shutil.copyfile(ROOT / "website" / name, pages / name)
    live.write_gallery(made, pages)
    live.write_live(made, pages, with_web=with_web)
    tell("run      the notebooks")
    scratch = WORK / "notebooks"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    return notebooks.write_notebooks(pages, scratch)


def build(pages: Path, out: Path) -> None:
    """Run the generator, which stops at a warning."""
    config, built = WORK / "zensical.toml", WORK / "site"
    config.write_text(navigation.config(pages, built, WORK), "utf-8")
    shutil.rmtree(built, ignore_errors=True)
    subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", config], cwd=ROOT, check=True
    )
    shutil.rmtree(out, ignore_errors=True)
    shutil.move(built, out)


def finish(out: Path, shown: notebooks.Shown) -> None:
    """Put in what the notebooks showed, and mend what the generator writes differently from code hosts."""
    for page in out.rglob("*.html"):
        text = page.read_text("utf-8")
        fresh = re.sub(r"<code[^>]*>[^<]*</code>", lambda found: found[0].replace("\\|", "|"), text)  # in tables
        fresh = re.sub(
            r'(<div class="cell-output" id="(output-\d+)">)', lambda found: found[1] + alone(shown[found[2]]), fresh
        )
        if fresh != text:
            page.write_text(fresh, "utf-8")


def alone(output: str) -> str:
    """What a cell shows, out of reach of the site's style: it looks as in a notebook."""
    sized = re.sub(r"([\d.]+)rem\b", lambda found: f"{16 * float(found[1]):g}px", output)  # the site's rem is larger
    return f'<template shadowrootmode="open"><style>{CELL_STYLE}</style>{sized}</template>'


if __name__ == "__main__":
    sys.exit(main())
