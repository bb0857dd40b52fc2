"""Generated digits under shift: an MLP on the flattened image against the same MLP on every patch (question Q05)."""

from functools import cache
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.catalog import parse
from vitreous.models.vit import MLP, patchify

from .measuring import noise, randomise

SIDE, PATCH = 16, (4, 4)
SHIFTS = range(9)  # pixels to the right

# Digit 0 to 9: five rows, each three pixels as a binary number. The 2 has a diagonal: as BLOCK_TWO it would be the same
# bag of patches as the 5, and the mean over patches could not tell them apart.
GLYPHS = ["75557", "26227", "61247", "71717", "55711", "74717", "74757", "71111", "75757", "75717"]
BLOCK_TWO = "71747"


class FlatMLP(nn.Module):
    """The whole image is one item: pixels to one vector, one MLP, one answer."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = encoder_mlp(width=SIDE * SIDE, hidden=32)
        self.head = nn.Linear(SIDE * SIDE, len(GLYPHS))

    def items(self, images: Tensor) -> Tensor:  # B h w -> B 1 h·w
        return images.flatten(1)[:, None]

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.mlp(self.items(images)).mean(1))


class PatchMLP(FlatMLP):
    """Each patch is an item: the same MLP on all of them, and the mean of what it says."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = encoder_mlp(width=PATCH[0] * PATCH[1], hidden=64)
        self.head = nn.Linear(PATCH[0] * PATCH[1], len(GLYPHS))

    def items(self, images: Tensor) -> Tensor:  # B h w -> B N P·P
        return patchify(images[:, None], PATCH)


def encoder_mlp(width: int, hidden: int) -> MLP:
    return MLP(parse("Ti/16").change(width=width, heads=1, mlp=hidden), drop_path=0.0)


def drawn(glyphs: list[str], top: int = 3) -> Tensor:
    """Twice as large as the glyph, on an empty image.  B h w."""
    pixels = [[int(bit) for row in glyph for bit in f"{int(row):03b}"] for glyph in glyphs]
    shapes = torch.tensor(list(chain(*pixels)), dtype=torch.float64).view(-1, 5, 3)
    shapes = shapes.repeat_interleave(2, 1).repeat_interleave(2, 2)  # B 10 6
    return F.pad(shapes, (5, 5, top, SIDE - 10 - top))


def digits(each: int, seed: int) -> tuple[Tensor, Tensor]:
    """Every digit some times, always at one place, with noise on all pixels.  B h w, B."""
    images = drawn(GLYPHS).repeat_interleave(each, 0)
    return images + 0.05 * noise(*images.shape, seed=seed), torch.arange(len(GLYPHS)).repeat_interleave(each)


def trained(model: FlatMLP, steps: int = 120) -> FlatMLP:
    """All images at once, Adam: nothing is drawn."""
    images, classes = digits(10, seed=1)
    randomise(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(images), classes).backward()
        optimizer.step()
    return model.eval()


@cache
def models() -> tuple[FlatMLP, PatchMLP]:
    return trained(FlatMLP()), trained(PatchMLP())


@torch.no_grad()
def accuracy_by_shift(model: FlatMLP) -> list[float]:
    """On new images of the same digits, moved right; what leaves comes in at the left, as background does anyway."""
    images, classes = digits(20, seed=2)
    return [float((model(images.roll(s, 2)).argmax(1) == classes).double().mean()) for s in SHIFTS]
