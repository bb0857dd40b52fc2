"""Build the site.   python -m website [--out build/site] [--runtime FOLDER]   (make docs)

Pages of docs/ are copied, commands and Python pages are made, models are trained (once for each state of the code), notebooks
are run, and the whole is built and checked. --runtime: files of onnxruntime-web for the model in the browser.
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


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    arguments.add_argument("--runtime")
    given = arguments.parse_args()
    shown = prepare(WORK / "pages", given.runtime)
    build(WORK / "pages", given.out.resolve())
    finish(given.out, shown)
    lines = check_site.faults(given.out.resolve())
    for line in lines:
        tell(f"fault    {line}")
    tell(f"site     {(given.out / 'index.html').resolve().as_uri()}")
    return 1 if lines else 0


def tell(line: str) -> None:
    print(line, file=sys.stderr)


def prepare(pages: Path, runtime: str | None) -> notebooks.Shown:
    """All sources of the site; what the notebooks show comes back, to be put in at the end."""
    shutil.rmtree(pages, ignore_errors=True)
    sources.copy_pages(pages)
    reference.write_commands(pages)
    reference.write_python(pages)
    shutil.copyfile(ROOT / "website" / "style.css", pages / "style.css")
    made = live.computed(WORK / "computed", tell)
    live.write_gallery(made, pages)
    live.write_live(made, pages, live.exported(made, runtime, tell))
    tell("run      the notebooks")
    scratch = WORK / "notebooks"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    return notebooks.write_notebooks(pages, scratch)


def build(pages: Path, out: Path) -> None:
    """By the generator, which stops at a warning."""
    config, built = WORK / "zensical.toml", WORK / "site"
    config.write_text(navigation.config(pages, built, WORK), "utf-8")
    shutil.rmtree(built, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", config], cwd=ROOT, check=True)
    shutil.rmtree(out, ignore_errors=True)
    shutil.move(built, out)


def finish(out: Path, shown: notebooks.Shown) -> None:
    """Put in what the notebooks showed, and mend what the generator writes otherwise than code hosts do."""
    for page in out.rglob("*.html"):
        text = page.read_text("utf-8")
        fresh = re.sub(r"<code[^>]*>[^<]*</code>", lambda found: found[0].replace("\\|", "|"), text)  # in tables
        fresh = re.sub(r'(<div class="cell-output" id="(output-\d+)">)', lambda found: found[1] + shown[found[2]], fresh)
        if fresh != text:
            page.write_text(fresh, "utf-8")


if __name__ == "__main__":
    sys.exit(main())
