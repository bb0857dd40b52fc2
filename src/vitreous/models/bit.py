"""The BiT ResNet-v2 (arXiv 1912.11370): pre-activation bottlenecks, standardised kernels, group norm.

B images   C channels   h w rows and columns of the map   K classes
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import ImageSizeError
from vitreous.models.checks import check_each
from vitreous.models.config import BiTConfig, ResNetConfig
from vitreous.models.convolutions import StandardisedConv, group_norm, make_stages, root_width
from vitreous.models.model import Model
from vitreous.models.taps import Tap, tapped


class Root(nn.Module):
    """7×7 stride 2 without norm, then 3×3 pool stride 2; for small images 3×3 stride 1 and no pool."""

    is_tap = True

    def __init__(self, channels: int, width: int, config: ResNetConfig):
        super().__init__()
        self.is_small = config.root == "small"
        kernel, stride = (3, 1) if self.is_small else (7, 2)
        self.conv = StandardisedConv(channels, width, kernel, stride, config, "symmetric")
        self.beyond = float("-inf") if config.root_pad == "infinity" else 0.0

    def forward(self, x: Tensor) -> Tensor:                                     # B C H W
        x = self.conv(x)
        return x if self.is_small else F.max_pool2d(F.pad(x, (1, 1, 1, 1), value=self.beyond), 3, 2)


class Unit(nn.Module):
    """x + conv3(a₃), a = ReLU(GN(·)) before each convolution; a shortcut reads the first a."""

    def __init__(self, channels_in: int, middle: int, stride: int, config: ResNetConfig):
        super().__init__()
        out = 4 * middle
        self.norm1 = group_norm(channels_in, config)
        self.conv1 = tapped(StandardisedConv(channels_in, middle, 1, 1, config, "symmetric"))
        self.norm2 = group_norm(middle, config)
        self.conv2 = tapped(StandardisedConv(middle, middle, 3, stride, config, "symmetric"))
        self.norm3 = group_norm(middle, config)
        self.conv3 = tapped(StandardisedConv(middle, out, 1, 1, config, "symmetric"))
        changes = channels_in != out or stride != 1
        self.shortcut = StandardisedConv(channels_in, out, 1, stride, config, "symmetric") if changes else None
        self.branch, self.skip, self.output = Tap(), Tap(), Tap()

    def forward(self, x: Tensor) -> Tensor:                                     # B C h w
        a = F.relu(self.norm1(x))
        skip = self.skip(x if self.shortcut is None else self.shortcut(a))
        y = self.conv1(a)
        y = self.conv2(F.relu(self.norm2(y)))
        y = self.branch(self.conv3(F.relu(self.norm3(y))))
        return self.output(skip + y)


class BiT(Model):
    """Images to class scores, at any image size."""

    config: BiTConfig

    def __init__(self, config: BiTConfig):
        super().__init__(config)
        check_each(config)
        r = config.resnet
        self.root = Root(config.channels, root_width(r), r)
        self.stages, channels = make_stages(Unit, r)
        self.last_norm = group_norm(channels, r)
        self.norm, self.pooled = Tap(), Tap()  # the map after norm and ReLU; its mean
        self.add_head(channels)

    def features(self, images: Tensor) -> Tensor:                               # B C H W
        if images.dim() != 4 or images.shape[1] != self.config.channels:
            wanted = f"B x {self.config.channels} x H x W"
            raise ImageSizeError(f"images of shape {tuple(images.shape)} do not fit; give {wanted}")
        x = self.root(images)                                                   # B C h w
        for stage in self.stages:
            x = self.run(stage, x)
        x = self.norm(F.relu(self.last_norm(x)))
        return self.pooled(x.mean((2, 3)))                                      # B C
