"""The kinds of data that we open: one file each, and one line here."""

from vitreous.images.imageset import ImageSet
from vitreous.images.sources.arrays import ARRAYS
from vitreous.images.sources.fashion import FASHION
from vitreous.images.sources.folders import FOLDERS
from vitreous.images.sources.idx import IDX
from vitreous.images.sources.parquet import PARQUET
from vitreous.images.sources.paths import Place
from vitreous.images.sources.shards import SHARDS
from vitreous.images.sources.source import SourceKind
from vitreous.images.sources.tables import TABLES
from vitreous.images.sources.zips import ZIP
from vitreous.registry import Registry

PACK_INDEX_FILE = "index.safetensors"


def _is_pack(place: Place) -> bool:
    return place.folder is not None and (place.folder / PACK_INDEX_FILE).is_file()


def _open_pack(place: Place) -> ImageSet:
    from vitreous.images.stores.disk import Pack  # needs torch, unlike other sources

    assert place.folder is not None
    return Pack.open(place.folder)


SOURCES: Registry[SourceKind] = Registry(
    "sources",
    {  # asked in this order; class folders last of all, since every folder might be one
        "fashion": FASHION,
        "pack": SourceKind("pack", "a folder that `vitreous pack` made", _is_pack, _open_pack),
        "shards": SHARDS,
        "parquet": PARQUET,
        "idx": IDX,
        "arrays": ARRAYS,
        "zip": ZIP,
        "tables": TABLES,
        "folders": FOLDERS,
    },
)
