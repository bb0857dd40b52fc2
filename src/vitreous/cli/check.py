"""vitreous check"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitreous.cli.show import DATA, Json, progress, say_line, show
from vitreous.words import percent

if TYPE_CHECKING:
    from vitreous.evaluation.confident_learning import LabelErrors

EXAMPLE = "vitreous check photos --out health.html"


def run(
    data: Annotated[str, DATA],
    strict: Annotated[bool, typer.Option("--strict", metavar="", help="Exit with 1 if there are faults.")] = False,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a page with the offenders as pictures.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Suspect label errors, by what this model sees in the images.")
    ] = None,
    near: Annotated[
        int | None, typer.Option(metavar="BITS", help="Bits of 64 that near duplicates may differ in (6).")
    ] = None,
    sample: Annotated[int | None, typer.Option(metavar="N", help="Check N images drawn at random, not all.")] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Processes that read (2).")] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", metavar="", help="Read all anew; keep no facts for a later check.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", metavar="", help="Overwrite FILE.")] = False,
    json: Json = False,
) -> None:
    """Say what is wrong with a set of images: broken, double, leaking; with --weights also mislabelled."""
    import vitreous
    from vitreous.images.health.duplicates import DEFAULT_DISTANCE

    images: Any = data
    probabilities, found = None, None
    if weights is not None:
        model, images = vitreous.load(weights), vitreous.images.open(data)
        with progress("reading features") as tell:
            found = vitreous.evaluation.label_errors(model, images, workers=workers, cache=not fresh, progress=tell)
        probabilities = found.probabilities
    with progress("checking") as tell:
        health = vitreous.check(
            images, probabilities=probabilities, near=DEFAULT_DISTANCE if near is None else near, sample=sample,
            workers=workers, cache=not fresh, out=out, force=force, progress=tell,
        )  # fmt: skip
    show("check", health, json=json)
    if not json:
        say_line(f"labels: {_about_labels(found)}")
    if out and not json:
        say_line(f"page: {out}")
    if strict and health.faults:
        raise typer.Exit(1)


def _about_labels(found: LabelErrors | None) -> str:
    """Whether somebody looked for wrong labels, and how well."""
    if found is None:
        return "not looked at (after a fit: --weights last)"
    doubted = f"{len(found.names):,} doubted" if found.names else "none doubted; some may be wrong"
    return f"{doubted} (a quick classifier, right on {percent(found.right / max(found.images, 1), 0)})"
