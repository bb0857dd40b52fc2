"""What a ViT cuts its patches from: the image, a ResNet's feature map (section 3.1, hybrid), or a few convolutions.

A stem is a module B C H W -> B `channels` h w, with `patch` (the patch on its map) and `grid(image_size)`.
"""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import ConfigError, ImageSizeError
from vitreous.models.config import ResNetConfig, Size, ViTConfig
from vitreous.models.convolutions import StandardisedConv, group_norm, halved, make_stages, pad_same, root_width
from vitreous.models.taps import Tap, tapped


class ImageStem(nn.Module):
    """No stem: patches are cut from the image itself."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.channels, self.patch = config.channels, config.embedding.patch

    def grid(self, image_size: Size) -> Size:
        return cut(image_size, self.patch, "image")

    def forward(self, images: Tensor) -> Tensor:                                # B C H W
        return images


class Unit(nn.Module):
    """A bottleneck with the ReLU after the sum (ResNet v1): 1×1, 3×3, 1×1, each standardised, each with its norm."""

    def __init__(self, channels_in: int, middle: int, stride: int, config: ResNetConfig):
        super().__init__()
        out = 4 * middle
        self.conv1 = tapped(StandardisedConv(channels_in, middle, 1, 1, config, "same"))
        self.norm1 = group_norm(middle, config)
        self.conv2 = tapped(StandardisedConv(middle, middle, 3, stride, config, "same"))
        self.norm2 = group_norm(middle, config)
        self.conv3 = tapped(StandardisedConv(middle, out, 1, 1, config, "same"))
        self.norm3 = group_norm(out, config)
        self.shortcut: nn.Module = nn.Identity()
        self.shortcut_norm: nn.Module = nn.Identity()
        if channels_in != out or stride != 1:
            self.shortcut = StandardisedConv(channels_in, out, 1, stride, config, "same")
            self.shortcut_norm = group_norm(out, config)
        self.branch, self.skip, self.output = Tap(), Tap(), Tap()

    def start(self) -> None:
        nn.init.zeros_(self.norm3.weight)  # each unit starts as its skip

    def forward(self, x: Tensor) -> Tensor:                                     # B C h w
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.branch(self.norm3(self.conv3(y)))
        return self.output(F.relu(self.skip(self.shortcut_norm(self.shortcut(x))) + y))


class Root(nn.Module):
    """7×7 stride 2, norm, ReLU, 3×3 pool stride 2; for small images 3×3 stride 1, norm, ReLU."""

    is_tap = True

    def __init__(self, channels: int, width: int, config: ResNetConfig):
        super().__init__()
        self.is_small = config.root == "small"
        kernel, stride = (3, 1) if self.is_small else (7, 2)
        self.conv = tapped(StandardisedConv(channels, width, kernel, stride, config, "same"))
        self.norm = tapped(group_norm(width, config))
        self.beyond = float("-inf") if config.root_pad == "infinity" else 0.0

    def forward(self, x: Tensor) -> Tensor:                                     # B C H W
        x = F.relu(self.norm(self.conv(x)))
        return x if self.is_small else F.max_pool2d(pad_same(x, 3, 2, self.beyond), 3, 2)


class ResNetStem(nn.Module):
    """The ResNet of the official hybrids; with empty `units`, the root alone."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        r = config.resnet
        self.is_small, self.patch = r.root == "small", config.embedding.patch
        self.root = Root(config.channels, root_width(r), r)
        self.stages, self.channels = make_stages(Unit, r)

    def grid(self, image_size: Size) -> Size:
        h, w = image_size
        halvings = max(len(self.stages) - 1, 0) + (0 if self.is_small else 2)
        feature_map = halved(h, halvings), halved(w, halvings)
        return cut(feature_map, self.patch, f"feature map of a {h}x{w} image", 2**halvings)

    def forward(self, images: Tensor) -> Tensor:                                # B C H W
        x = self.root(images)
        for stage in self.stages:
            x = stage(x)
        return x                                                                # B C h w


class SmallConvolution(nn.Module):
    """3×3 stride 2, group norm, ReLU."""

    def __init__(self, channels_in: int, channels_out: int, config: ResNetConfig):
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, 2, 1, bias=False)
        self.norm = group_norm(channels_out, config)

    def start(self) -> None:
        nn.init.kaiming_normal_(self.conv.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:                                     # B C h w
        return F.relu(self.norm(self.conv(x)))


class ConvolutionStem(nn.Module):
    """log₂ P times 3×3 stride 2, group norm, ReLU, channels doubling to the width: for small images and little data."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        p, width = config.embedding.patch, config.encoder.width
        steps = p[0].bit_length() - 1
        if p[0] != p[1] or p[0] != 2**steps or steps < 1:
            raise ConfigError(f"stem=convolutions halves the image, so patch must be 2, 4, 8 or 16, not {p[0]}x{p[1]}")
        if width % 2 ** (steps - 1):
            raise ConfigError(
                f"stem=convolutions doubles its channels up to width: {width} must be divisible by {2 ** (steps - 1)}"
            )
        widths = [config.channels, *(width // 2 ** (steps - 1 - i) for i in range(steps))]
        self.layers = nn.ModuleList(tapped(SmallConvolution(a, b, config.resnet)) for a, b in pairwise(widths))
        self.channels, self.patch, self.steps = widths[-1], (1, 1), steps

    def grid(self, image_size: Size) -> Size:
        return halved(image_size[0], self.steps), halved(image_size[1], self.steps)

    def forward(self, images: Tensor) -> Tensor:                                # B C H W
        for layer in self.layers:
            images = layer(images)
        return images                                                           # B D h w


Stem = ImageStem | ResNetStem | ConvolutionStem
STEMS: dict[str, type[Stem]] = {"patch": ImageStem, "resnet": ResNetStem, "convolutions": ConvolutionStem}


def make_stem(config: ViTConfig) -> Stem:
    kind = config.embedding.stem
    if kind not in STEMS:
        raise ConfigError(f"stem={kind!r} is not one of {', '.join(STEMS)}")
    return STEMS[kind](config)


def cut(size: Size, patch: Size, what: str, pixels: int = 1) -> Size:
    """The grid of patches on a map or image; refuses a remainder.  pixels: image pixels per map pixel."""
    (h, w), (p, q) = size, patch
    if p < 1 or q < 1:
        raise ConfigError(f"patch {p}x{q} is not a size; give positive numbers")
    if h % p or w % q or h < p or w < q:
        raise ImageSizeError(
            f"H={h}, W={w} of the {what} cannot be cut into patches of P={p}x{q}; "
            f"take an image_size that is a multiple, such as {max(h // p, 1) * p * pixels}"
            f"x{max(w // q, 1) * q * pixels}"
        )
    return h // p, w // q
