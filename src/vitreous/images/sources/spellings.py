"""The words by which people name their splits and label their columns."""

from __future__ import annotations

import re

TRAIN, VAL, TEST = "train", "val", "test"
SPLIT_WORDS = {
    TRAIN: ("train", "training", "trainval", "trn"),
    VAL: ("val", "valid", "validation", "validate", "validating", "dev", "devel", "development", "eval", "evaluation"),
    TEST: ("test", "testing", "tests", "tst", "t10k"),
}
SPLIT_OF_WORD = {word: split for split, words in SPLIT_WORDS.items() for word in words}
DECORATION = {"set", "data", "dataset", "images", "image", "img", "imgs", "split", "pictures", "photos", "files"}
_glued = re.compile(rf"({'|'.join(sorted(SPLIT_OF_WORD, key=len, reverse=True))})(set|data|images|imgs|split)?s?\d*")

PATH_COLUMNS = (
    "path",
    "file",
    "filename",
    "filepath",
    "image",
    "imagepath",
    "imagefile",
    "img",
    "imgpath",
    "imageid",
    "id",
)
LABEL_COLUMNS: tuple[str, ...] = ("label", "labels", "class", "classes", "classname", "category", "categories", "y")
LABEL_COLUMNS += ("target", "targets", "tag", "tags", "cls", "species", "breed", "finelabel", "classid", "labelid")
SPLIT_COLUMNS = ("split", "set", "subset", "partition", "phase", "usage")


def split_of(folder: str) -> str | None:
    """The split that a folder's whole name means: `Training_Set`, `val2017`, `images-test`; None for any other name."""
    words = [
        word for word in re.split(r"[^a-z0-9]+", folder.casefold()) if word not in DECORATION and not word.isdigit()
    ]
    found = _glued.fullmatch(words[0]) if len(words) == 1 else None
    return SPLIT_OF_WORD[found[1]] if found else None


def split_in(stem: str) -> str | None:
    """The split named by a word of a file's name: `imagenette-128-train`, `data_val_003`; the last one counts."""
    words = re.split(r"[^a-z0-9]+", stem.casefold())
    found = [match for word in words if (match := _glued.fullmatch(word))]
    return SPLIT_OF_WORD[found[-1][1]] if found else None


def without_split(stem: str) -> str:
    """A file's name without split and number: the set that it belongs to."""
    words = [word for word in re.split(r"[^a-z0-9]+", stem.casefold()) if word]
    while words and (re.fullmatch(r"\d+|[a-z]|of|part\d*", words[-1]) or _glued.fullmatch(words[-1])):
        words.pop()
    return "-".join(word for word in words if not _glued.fullmatch(word))


def column(name: str) -> str:
    """A column's name in the spelling of the lists here."""
    return re.sub(r"[^a-z0-9]", "", name.casefold())
