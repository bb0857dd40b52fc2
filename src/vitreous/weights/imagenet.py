"""The 1,000 classes of ImageNet (ILSVRC 2012), and which checkpoints answer with them.

imagenet.tsv has a line for each class, in the order of the sorted WordNet ids, which every published classifier keeps:
the id, then WordNet's names. No two first names are equal: `crane (bird)`, `crane (machine)`, `Cardigan Welsh corgi`
and `tank suit` stand where WordNet begins with a word that two classes share.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from vitreous.files import digest
from vitreous.weights.tensor_files import RawCheckpoint

CLASSES_FILE = Path(__file__).with_name("imagenet.tsv")
TIMM_TAG = re.compile(r"(.*_)?in1k(_\d+)?")  # fb_in1k, augreg_in21k_ft_in1k, in1k_384: the last training was on these
TIMM_REPOSITORY = re.compile(r"(?:timm:|hf:timm/)(?:timm/)?[\w-]+\.([\w.-]+)(?:@.*)?")
GOOGLE_FILE = re.compile(r".*--imagenet2012-.*\.npz")  # vision_transformer's names of fine-tuned files
TORCH_HUB_FILE = re.compile(r"(?:deit_\w+|vit_[blh]_\d\d(?:_\w+)?)-([0-9a-f]{8})\.pth")  # the number begins its SHA-256


@cache
def classes() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """WordNet id and names of each class, in order."""
    lines = CLASSES_FILE.read_text("utf-8").splitlines()
    return tuple((number, tuple(names.split(", "))) for number, names in (line.split("\t") for line in lines))


@cache
def labels() -> tuple[str, ...]:
    """One name for each class, all different."""
    return tuple(names[0] for _, names in classes())


def are_classes(labels: Sequence[str]) -> bool:
    """True if these labels are ImageNet's 1,000 classes in their order, by whichever of their names."""
    return len(labels) == len(classes()) and all(
        not {number, *names}.isdisjoint({label, *label.split(", ")})
        for label, (number, names) in zip(labels, classes(), strict=True)
    )


def are_ids(names: Sequence[str]) -> bool:
    """True if these are WordNet ids of ImageNet's classes, of some or of all."""
    return bool(names) and {number for number, _ in classes()}.issuperset(names)


def is_stated(found: RawCheckpoint) -> bool:
    """True if config, hub name or published file name say that 1,000 classes are ImageNet's."""
    pretrained = found.config.get("pretrained_cfg")
    tag = pretrained.get("tag") if isinstance(pretrained, dict) else None
    name = found.config.get("architecture")
    repository = TIMM_REPOSITORY.fullmatch(found.path)
    tags = [tag, name.partition(".")[2] if isinstance(name, str) else None, repository and repository[1]]
    if any(isinstance(one, str) and TIMM_TAG.fullmatch(one) for one in tags):
        return True
    file = found.file
    if file is None:
        return False
    torch_hub = TORCH_HUB_FILE.fullmatch(file.name)
    return bool(GOOGLE_FILE.fullmatch(file.name) or (torch_hub and digest(file).startswith(torch_hub[1])))
