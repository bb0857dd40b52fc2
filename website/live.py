"""What must be computed: models, a look, a report, a page in the browser. Their commands are run, and shown."""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from vitreous.measures import MEASURES, Measure
from website.places import ROOT
from website.sources import write

SCENES = "python benchmarks/scenes.py scenes"
FIT = "vitreous fit scenes"
LOOK = "vitreous look runs/scenes-1 scenes"
DEMO = "vitreous demo"
WEB = "vitreous export runs/demo demo-web --to web --wasm-only"
DRAW = 'vitreous models "S/16 depth=4" --draw s16.svg'
COMPUTED = (SCENES, FIT, f"{LOOK} --out looks/scenes-1", DEMO, DRAW)

Tell = Callable[[str], None]


def computed(cache: Path, tell: Tell) -> Path:
    """The folder with all of it; made once for each state of the code, about two minutes of CPU time."""
    folder = cache / digest()
    if not (folder / "done").exists():
        shutil.rmtree(cache, ignore_errors=True)
        folder.mkdir(parents=True)
        for command in COMPUTED:
            tell(f"run      {command}")
            run(command, folder)
        (folder / "done").touch()
    return folder


def digest() -> str:
    """A digest of all code that decides what is computed."""
    code = [*(ROOT / "src" / "vitreous").rglob("*"), ROOT / "benchmarks" / "scenes.py"]
    found = hashlib.sha256(repr(COMPUTED).encode())
    for file in sorted(each for each in code if each.is_file() and "__pycache__" not in each.parts):
        found.update(file.relative_to(ROOT).as_posix().encode() + file.read_bytes())
    return found.hexdigest()[:16]


def run(command: str, folder: Path) -> None:
    """One shown command, by this Python; it fails with the command's own words."""
    program, *words = shlex.split(command)
    words = ["-m", "vitreous", *words] if program == "vitreous" else [str(ROOT / words[0]), *words[1:]]
    paths = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{command}: {(done.stderr or done.stdout).strip().splitlines()[-1]}")


# The gallery ---------------------------------------------------------------------------------------------------------

GALLERY_HEAD = f"""# Gallery

Every figure here was drawn when this site was built, by the command under it. The model is the small network inside the
package, which learned 120 painted scenes; nothing was fetched. A click opens a figure by itself.

```sh
{SCENES:<42}# 24 landscapes of each of five kinds
{FIT:<42}# the model: runs/scenes-1
{LOOK:<42}# all of the figures below, as one page
```
"""
WHOLE_PAGES = """## Whole pages of other weights

Pages of `vitreous look`, to click into: sliders, patches, two models side by side.

| page | command |
|---|---|
"""
PAGES = {  # of docs/gallery, which benchmarks/gallery.py makes
    "deit-tiny": "DeiT-Ti, the whole page",
    "deit-tiny-against-vit-tiny": "DeiT-Ti against ViT-Ti of AugReg",
    "our-vit": "our ViT",
    "our-hybrid": "our hybrid, the starter",
    "our-bit": "our BiT, a ResNet",
    "our-vit-against-our-bit": "our ViT against our BiT",
}


def write_gallery(made: Path, out: Path) -> None:
    """The figures of the look, each with what it shows, what the papers saw and its command."""
    figures = out / "gallery" / "figures"
    figures.mkdir(parents=True)
    for file in [*(made / "looks" / "scenes-1" / "figures").glob("*.svg"), made / "s16.svg"]:
        shutil.copyfile(file, figures / file.name)
    parts = [GALLERY_HEAD]
    for measure in MEASURES.values():
        files = figures_of(measure.name, figures)
        if files:
            parts.append(f"## {measure.name.replace('-', ' ').capitalize()}\n\n{measure.sentence} {seen(measure)}")
            parts += [plate(file, measure.sentence, f"{LOOK} --only {measure.name}") for file in files]
    parts.append("## A model, drawn whole\n\n" + plate("s16.svg", "A small ViT, from image to answer.", DRAW))
    rows = [f"| [{title}]({name}.html) | `{page_command(name)}` |" for name, title in PAGES.items()]
    parts.append(WHOLE_PAGES + "\n".join(rows))
    write(out / "gallery" / "index.md", "\n\n".join(parts) + "\n")


def figures_of(name: str, folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob("*.svg") if file.stem == name or file.stem.endswith(f"-{name}"))


def seen(measure: Measure) -> str:
    """Where the figure stands in the papers, and what they saw."""
    is_theirs = measure.figure.startswith(("P1", "P2")) and measure.saw
    saw = f" They saw: {measure.saw[0].lower()}{measure.saw[1:]}" if is_theirs else ""
    return f"*{measure.figure[0].upper()}{measure.figure[1:]}.*{saw}"


def plate(file: str, words: str, command: str) -> str:
    """A figure, and the command that draws it."""
    picture = f'<img src="figures/{file}" alt="{words}" loading="lazy">'
    return f'<figure class="plate"><a href="figures/{file}">{picture}</a></figure>\n\n```sh\n{command}\n```'


def page_command(name: str) -> str:
    model, _, other = name.partition("-against-")
    files = {"our-vit": "our-vit.safetensors", "our-hybrid": "starter", "our-bit": "our-bit.safetensors"}
    files |= {"vit-tiny": "vit-tiny-augreg"}
    return f"vitreous look {files.get(model, model)}" + (f" --against {files.get(other, other)}" if other else "")


# Live pages ----------------------------------------------------------------------------------------------------------

WEB_FOLDER = "demo"  # beside live/index.html
LIVE_HEAD = """# Live pages

These are whole pages as the commands wrote them, not pictures of them. No server answers them.
"""


def write_live(made: Path, out: Path, *, with_web: bool) -> None:
    """The pages in frames. with_web: the model in the browser too, whose folder is laid into the built site."""
    pages = {
        "A report": ("report.html", FIT, "What `fit` writes: the number, how it was measured, what goes wrong."),
        "A look": ("look.html", LOOK, "What `look` writes: choose an image, a block and a head; click a patch."),
    }
    (out / "live").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(made / "runs" / "scenes-1" / "report.html", out / "live" / "report.html")
    shutil.copyfile(made / "looks" / "scenes-1" / "look.html", out / "live" / "look.html")
    if with_web:
        words = "The demo's model, in your browser: no server answers. It knows clothes, as small grey pictures."
        pages = {"A model": (f"{WEB_FOLDER}/index.html", f"{DEMO}\n{WEB}", words)} | pages
    parts = [LIVE_HEAD]
    for title, (file, command, words) in pages.items():
        frame = f'<iframe class="live" src="{file}" title="{title}" allow="camera" loading="lazy"></iframe>'
        link = f'<a href="{file}">Open it by itself</a>.'
        parts.append(f"## {title}\n\n{words} {link}\n\n{frame}\n\n```sh\n{command}\n```")
    write(out / "live" / "index.md", "\n\n".join(parts) + "\n")


def exported(made: Path, runtime: str | None, tell: Tell) -> Path | None:
    """The demo's model as a web page; None, with a line that says why, where that cannot be made."""
    if not (made / "demo-web" / "index.html").exists():
        try:
            run(WEB + (f" --runtime {shlex.quote(runtime)}" if runtime else ""), made)
        except RuntimeError as error:
            tell(f"left out the model in the browser: {error}")
            return None
    return made / "demo-web"
