"""The kinds of data that we open: one file each, and one line here."""

from vitreous.images.sources.arrays import ARRAYS
from vitreous.images.sources.fashion import FASHION
from vitreous.images.sources.folders import FOLDERS, PACK
from vitreous.images.sources.idx import IDX
from vitreous.images.sources.parquet import PARQUET
from vitreous.images.sources.shards import SHARDS
from vitreous.images.sources.source import SourceKind
from vitreous.images.sources.tables import TABLES
from vitreous.images.sources.zips import ZIP
from vitreous.registry import Registry

SOURCES: Registry[SourceKind] = Registry(
    "sources",
    {  # asked in this order; class folders last of all, since every folder might be one
        "fashion": FASHION,
        "pack": PACK,
        "shards": SHARDS,
        "parquet": PARQUET,
        "idx": IDX,
        "arrays": ARRAYS,
        "zip": ZIP,
        "tables": TABLES,
        "folders": FOLDERS,
    },
)
