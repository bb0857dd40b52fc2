"""Does an image resemble what a model learned? If not, the answer is "none of these".

    score = max over k of  cos(features, mean of class k)          −1 for a blank image

A head tells classes apart and says little about anything else: the largest logit finds 3 % of strangers among photos of
five cat breeds, this score 70 % (NOTES, "Which score finds strangers?").

B images   D features   K classes
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.errors import ConfigError

BLANK_SCORE = -1.0  # the lowest cosine


class Familiarity(nn.Module):
    """The score of an image: larger is more like what the model learned.

    means: K D, of the features of each class, at unit length; zeros for a class without images.
    least_contrast: an image is blank if every normalised channel has a smaller range; 0 if blank images were learned.
    """

    means: Tensor

    def __init__(self, means: Tensor, least_contrast: float = 0.0):
        super().__init__()
        unit = F.normalize(means.detach().float(), dim=1)
        self.register_buffer("means", unit.half().float(), persistent=False)  # as a file holds them
        self.least_contrast = float(least_contrast)

    def forward(self, images: Tensor, features: Tensor) -> Tensor:  # B C H W, B D -> B
        cosine = F.normalize(features.float(), dim=1) @ self.means.float().T  # B K
        contrast = (images.amax((2, 3)) - images.amin((2, 3))).amax(1)  # B
        return torch.where(contrast < self.least_contrast, BLANK_SCORE, cosine.amax(1))

    def to_json(self) -> dict[str, Any]:
        numbers = self.means.detach().cpu().numpy().astype("<f2")
        held = base64.b64encode(numbers.tobytes()).decode("ascii")
        return {"shape": list(numbers.shape), "means": held, "least_contrast": self.least_contrast}


def from_json(record: Any) -> Familiarity:
    """What `to_json` wrote; an error says what is wrong with it."""
    try:
        assert isinstance(record, Mapping)
        rows, columns = map(int, record["shape"])
        numbers = np.frombuffer(base64.b64decode(record["means"], validate=True), "<f2").reshape(rows, columns)
        contrast = float(record["least_contrast"])
    except (AssertionError, KeyError, TypeError, ValueError, OverflowError, binascii.Error):
        raise ConfigError("familiarity does not hold the means of classes") from None
    if not np.isfinite(numbers).all() or not math.isfinite(contrast):
        raise ConfigError("familiarity holds numbers that are not finite")
    return Familiarity(torch.from_numpy(numbers.astype(np.float32)), contrast)
