"""vitreous export"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from vitreous.cli.show import MODEL, Json, progress, say_line, show
from vitreous.errors import ConfigError

EXAMPLE = "vitreous export last birds-onnx --to onnx --data birds"


def run(
    model: Annotated[str | None, MODEL] = None,
    out: Annotated[str | None, typer.Argument(metavar="OUT", help="The folder to make.")] = None,
    to: Annotated[
        str | None, typer.Option(metavar="TARGET", help="The runtime, such as onnx; a wrong one is answered with all.")
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", metavar="", help="Compute in int8, calibrated and judged on --data.")
    ] = False,
    fp16: Annotated[bool, typer.Option("--fp16", metavar="", help="Half precision: half the file.")] = False,
    attention: Annotated[bool, typer.Option("--attention", metavar="", help="Attention as one more output.")] = False,
    data: Annotated[
        str | None, typer.Option(metavar="DATA", help="Images to compare on; by default generated and embedded ones.")
    ] = None,
    images: Annotated[int | None, typer.Option(metavar="N", help="How many images to compare on, at most.")] = None,
    opset: Annotated[int | None, typer.Option(metavar="N", help="The opset of ONNX; 18 by default.")] = None,
    runtime: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER|npm", help="Web: onnxruntime-web's folder; npm fetches it. By default node_modules."
        ),
    ] = None,
    wasm_only: Annotated[
        bool, typer.Option("--wasm-only", metavar="", help="Web: leave WebGPU out: a smaller folder.")
    ] = False,
    examples: Annotated[
        bool, typer.Option("--examples", metavar="", help="Web: 8 images of --data on the page, for all to see.")
    ] = False,
    verify: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Compare another runtime's outputs for vectors/ of an exported folder."),
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", metavar="", help="Keep the folder even if it does not agree with PyTorch.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", metavar="", help="Overwrite OUT.")] = False,
    json: Json = False,
) -> None:
    """Write a model for another runtime, its preprocessing inside, and prove that it answers the same there.

    Exit 1, and no folder, if it does not (--anyway keeps it).
    """
    if verify is not None:
        from vitreous.exports import vectors

        parity = vectors.verify(verify, out or model)
    else:
        import vitreous
        from vitreous.exports.export import TARGETS
        from vitreous.exports.target import PageOptions

        if model is None or out is None or to is None:
            raise ConfigError(_unnamed(model, out, to, list(TARGETS)))
        loaded = vitreous.load(model)
        page = None
        if runtime is not None or wasm_only or examples or (to in TARGETS and TARGETS[to].is_page):
            page = PageOptions(name=_name(model), runtime=runtime, wasm_only=wasm_only, examples=examples)
        with progress("comparing") as tell:
            parity = vitreous.export(
                loaded, out, to=to, int8=int8, fp16=fp16, attention=attention, data=data, images=images,
                opset=opset, page=page, anyway=anyway, force=force, progress=tell,
            )  # fmt: skip
    show("export", parity, json=json)
    if to == "web" and not json and parity.passed:
        say_line(f"to open it: python -m http.server 8000 --directory {shlex.quote(str(out))}")
        say_line("then, in a browser: http://127.0.0.1:8000/ (a page opened as a file cannot load a model)")
    if not parity.passed and not anyway:
        raise typer.Exit(1)


def _unnamed(model: str | None, out: str | None, to: str | None, targets: list[str]) -> str:
    """What is to be named still, and the whole command."""
    words = {"a model": model, "a folder": out, "a runtime": to}
    *others, last = [what for what, word in words.items() if word is None]
    missing = f"{', '.join(others)} and {last}" if others else last
    command = shlex.join(["vitreous", "export", model or "MODEL", out or "OUT", "--to"])
    return f"name {missing}: {command} {to or '|'.join(targets)}"


def _name(model: str) -> str:
    """What a page calls the model, without folders of this machine."""
    from vitreous.training.plan.starting_weights import one_run

    path = Path(one_run(model))
    return path.resolve().name if path.exists() else model
