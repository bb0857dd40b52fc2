"""A pack: a set that `vitreous pack` decoded once, opened with the splits, groups and names it was packed with."""

from __future__ import annotations

from vitreous.images.imageset import ImageSet
from vitreous.images.sources.finding import Place, SourceKind

PACK_INDEX_FILE = "index.safetensors"


def recognises(place: Place) -> bool:
    return place.folder is not None and (place.folder / PACK_INDEX_FILE).is_file()


def open_pack(place: Place) -> ImageSet:
    from vitreous.images.stores.disk import Pack  # needs torch, unlike other sources

    assert place.folder is not None
    return Pack.open(place.folder)


PACK = SourceKind("pack", "a folder that `vitreous pack` made", recognises, open_pack)
