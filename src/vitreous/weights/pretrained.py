"""Short names for good weights: `deit-tiny` instead of timm:deit_tiny_patch16_224.fb_in1k.

All classify ImageNet's 1,000 classes. Nothing is fetched until a user names one; the hub's cache keeps it.

Size, licence, commit and SHA-256 are those of the file's page on the hub; a digest is left out if we could not read
that page. Then the file is checked against the digest that the hub states when it is fetched. top1: timm's own
results/results-imagenet.csv, of the 50,000 validation images.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vitreous.errors import HubError, MissingExtraError, ModelNameError, advice
from vitreous.files import cache_folder, digest
from vitreous.weights import hub
from vitreous.words import one_line

WEIGHTS_FILE = "model.safetensors"
FILES = ("config.json", WEIGHTS_FILE)


@dataclass(frozen=True)
class Pretrained:
    """Weights with a short name."""

    name: str
    source: str  # on the hub; with a commit, the very files we know
    network: str  # as the catalog names it
    megabytes: float  # of the file to fetch
    pixels: int  # side of the images it takes
    top1: float  # per cent of ImageNet's validation images
    learned_from: str
    sha256: str | None = None  # of the file of weights; None: the hub states it when it is fetched
    licence: str = "Apache-2.0"

    @property
    def page(self) -> str:
        """Where its files can be downloaded by hand."""
        repository, commit = hub.repository(self.source)
        return f"https://huggingface.co/{repository}/tree/{commit or 'main'}"


IN1K, IN21K, IN22K = "ImageNet-1k", "ImageNet-21k, 1k", "ImageNet-22k, 1k"
PRETRAINED = {
    row.name: row
    for row in (
        Pretrained(
            "deit-tiny", "timm:deit_tiny_patch16_224.fb_in1k@457c7aea80b608b44786bd3193556c727028bd6d",
            "Ti/16", 22.9, 224, 72.2, IN1K, "21d4764d94f6c3ffdb6da3581115a0a1ee2d505537d96883b540e54766407c9e",
        ),
        Pretrained(
            "vit-tiny", "timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k", "Ti/16", 22.9, 224, 75.5, IN21K
        ),
        Pretrained(
            "deit-small", "timm:deit_small_patch16_224.fb_in1k@38e0e3a79073772ea54733b87885d3d7f6348e8a",
            "S/16", 88.2, 224, 79.8, IN1K,
        ),
        Pretrained(
            "vit-small", "timm:vit_small_patch16_224.augreg_in21k_ft_in1k", "S/16", 88.2, 224, 81.4, IN21K
        ),
        Pretrained(
            "deit3-small", "timm:deit3_small_patch16_224.fb_in22k_ft_in1k@0c14598baba9dff214e388f4ea18a1ccf40f3981",
            "S/16", 88.3, 224, 83.1, IN22K,
        ),
        Pretrained(
            "deit-base", "timm:deit_base_patch16_224.fb_in1k@4c8c236981c8902ea7af4e83b6fe0270812e03d4",
            "B/16", 346, 224, 82.0, IN1K,
        ),
        Pretrained(
            "vit-base", "timm:vit_base_patch16_224.augreg2_in21k_ft_in1k@3feba41e737e1b28af8e1fd7dca8eed073385972",
            "B/16", 346, 224, 85.1, IN21K,
        ),
        Pretrained(
            "deit3-base", "timm:deit3_base_patch16_224.fb_in22k_ft_in1k", "B/16", 346, 224, 85.7, IN22K
        ),
        Pretrained(
            "bit-r50", "timm:resnetv2_50x1_bit.goog_in21k_ft_in1k@2954bbd0ccd7b328b612473a24a15783e1fcd205",
            "BiT-R50x1", 102, 448, 80.3, IN21K,
        ),
    )
}  # fmt: skip


def get(name: str) -> Pretrained:
    """The weights of this name."""
    if name not in PRETRAINED:
        raise ModelNameError(f"no weights are called {one_line(name)!r}; {advice(name, PRETRAINED)}")
    return PRETRAINED[name]


def place(known: Pretrained) -> Path:
    """The folder for files that a user brings by hand; it wins over the hub's cache."""
    return cache_folder() / "weights" / known.name


def is_here(known: Pretrained) -> bool:
    """True if nothing has to be fetched."""
    try:
        return (place(known) / WEIGHTS_FILE).is_file() or hub.cached(known.source) is not None
    except (HubError, MissingExtraError):
        return False


def fetch(known: Pretrained) -> Path:
    """A folder with these weights: brought by hand, in the cache, or fetched now. A wrong file is refused."""
    brought = place(known)
    bring = f"bring {' and '.join(FILES)} of {known.page} into the folder {brought}"
    if brought.is_dir():
        if missing := [name for name in FILES if not (brought / name).is_file()]:
            raise HubError(f"the folder {brought} lacks {' and '.join(missing)}; bring them from {known.page}")
        if known.sha256 not in (None, own := digest(brought / WEIGHTS_FILE)):
            raise HubError(
                f"{brought / WEIGHTS_FILE} is another file than {known.name}'s: its SHA-256 is {own[:12]}…, not "
                f"{str(known.sha256)[:12]}…; bring that of {known.page}, or name yours by its path"
            )
        return brought
    try:
        digests = {} if known.sha256 is None else {WEIGHTS_FILE: known.sha256}
        return hub.fetch(known.source, called=known.name, instead=bring, digests=digests)
    except MissingExtraError as error:
        raise HubError(
            f"{known.name} is not here yet; pip install 'vitreous[{error.extra}]' to fetch it, or {bring}"
        ) from None
