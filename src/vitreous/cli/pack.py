"""vitreous pack"""

from __future__ import annotations

from typing import Annotated

import typer

from vitreous.cli.show import Json, progress, show
from vitreous.errors import ConfigError

EXAMPLE = "vitreous pack photos photos.pack"


def run(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A folder, a zip, shards or another set of images.")],
    out: Annotated[str | None, typer.Argument(metavar="OUT", help="The folder to make; none with --index.")] = None,
    short_side: Annotated[int, typer.Option(metavar="N", help="Pixels of a training image's short side.")] = 256,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Finish the test images for this checkpoint.")
    ] = None,
    index: Annotated[
        bool, typer.Option("--index", metavar="", help="Write one small index beside shards, and no pack.")
    ] = False,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Processes; by default one for each core.")] = None,
    force: Annotated[bool, typer.Option("--force", metavar="", help="Overwrite OUT.")] = False,
    json: Json = False,
) -> None:
    """Decode images once, so that every later run reads them fast."""
    import vitreous

    if index:
        if out is not None:
            raise ConfigError(f"the index goes beside the shards, not to {out}; leave OUT away")
        from vitreous.images.stores.disk import index as write_index

        with progress("indexing") as tell:
            written = write_index(data, force=force, progress=tell)
        show("pack", written, json=json)
        return
    if out is None:
        name = data.rstrip("/\\").replace("\\", "/").rpartition("/")[2].partition(".")[0] or "images"
        raise ConfigError(f"a pack needs a place; give OUT: vitreous pack {data} {name}.pack")
    with progress("looking for duplicates") as tell:
        found = vitreous.images.open(data, progress=tell)
    rule = None if model is None else vitreous.load(model).preprocess
    with progress("packing") as tell:
        packed = vitreous.pack(
            found, out, short_side=short_side, preprocess=rule, force=force, workers=workers, progress=tell
        )
    show("pack", packed, json=json)
