"""vitreous convert"""

from __future__ import annotations

import re
from typing import Annotated

import typer

from vitreous.cli.show import Json, show
from vitreous.errors import ConfigError

EXAMPLE = "vitreous convert B_16.npz vit-b16 --to huggingface"


def run(
    source: Annotated[str, typer.Argument(metavar="IN", help="A file, a folder, hf:OWNER/NAME or timm:NAME.")],
    path: Annotated[str, typer.Argument(metavar="OUT", help="A file, a folder, or hf:ME/NAME to push (see --yes).")],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="The format to write; a wrong one is answered with all.")],
    format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="The format of IN, if the tensors cannot tell.")
    ] = None,
    image_size: Annotated[
        str | None, typer.Option(metavar="HxW", help="Resize the positions: 384, or 384x512 (rows x columns).")
    ] = None,
    classes: Annotated[int | None, typer.Option(metavar="N", help="A new, zero head of N classes; 0: none.")] = None,
    heads: Annotated[int | None, typer.Option(metavar="N", help="Attention heads, which tensors cannot tell.")] = None,
    activation: Annotated[str | None, typer.Option(metavar="A", help="gelu, gelu-tanh or relu.")] = None,
    norm_eps: Annotated[float | None, typer.Option(metavar="E", help="The norms' epsilon.")] = None,
    architecture: Annotated[
        str | None, typer.Option(metavar="NAME", help="Run IN as this name of timm's or type of transformers'.")
    ] = None,
    position_resize: Annotated[
        str, typer.Option(metavar="RULE", help="Whose rule resizes: paper, timm, huggingface or torchvision.")
    ] = "paper",
    anyway: Annotated[
        bool, typer.Option("--anyway", metavar="", help="Write even if the other library would run it differently.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", metavar="", help="Overwrite OUT.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", metavar="", help="Push to the hub; without it, only list what would go.")
    ] = False,
    json: Json = False,
) -> None:
    """Write anyone's checkpoint for another library."""
    import vitreous

    size = None if image_size is None else parse_image_size(image_size)
    converted = vitreous.convert(
        source, path, to=to, format=format, classes=classes, image_size=size, heads=heads,
        activation=activation, norm_eps=norm_eps, architecture=architecture,
        position_resize=position_resize, anyway=anyway, force=force, push=yes,
    )  # fmt: skip
    show("convert", converted, json=json)


def parse_image_size(text: str) -> int | tuple[int, int]:
    """`384` is a square, `384x512` is rows x columns."""
    if not (match := re.fullmatch(r"(\d+)(?:x(\d+))?", text.strip().lower().replace("×", "x"))):
        raise ConfigError(f"image size {text!r} is not a size; give 384, or 384x512 (rows x columns)")
    rows, columns = match.groups()
    return int(rows) if columns is None else (int(rows), int(columns))
