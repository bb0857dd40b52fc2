"""One model inside the server: answers and attention, whole or with something broken. An encoder without a head answers
with its features.

Every worker has its own engine: the weights are shared, the modules are not, because an open tap or an edit belongs to
a module and must not show in another client's answer.

B images   H heads   N tokens   P patches
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitreous.evaluation.inference import at_work, ready, with_score
from vitreous.evaluation.predict import Prediction, answer_of, class_names
from vitreous.exports.facts import cells_of, grid_of
from vitreous.exports.graphs import MAX_MAP_SIDE
from vitreous.measures.rollout import ATTENTION, read_patches, rollout
from vitreous.models.architecture import stem_taps
from vitreous.models.model import Model, replica
from vitreous.models.pooling import find_pool
from vitreous.models.taps import taps
from vitreous.models.vit import ViT
from vitreous.server.interventions import Break, unplaced

Pixels = NDArray[np.uint8]  # H W C


@dataclass(frozen=True, eq=False)
class Attended:
    """Where one query looks: in every layer and head, and through all layers. query: a patch, or None for the answer.

    Each map sums to at most 1; the rest went to the tokens in front of the patches.
    """

    grid: tuple[int, int]
    query: int | None
    heads: NDArray[np.float32]  # layers H P
    rollout: NDArray[np.float32]  # P

    def to_json(self, layer: int | None = None, head: int | None = None) -> dict[str, Any]:
        """All layers and heads, or one of each."""
        maps = self.heads[:, [head]] if head is not None else self.heads
        maps = maps[[layer]] if layer is not None else maps
        return {
            "grid": list(self.grid),
            "query": "answer" if self.query is None else self.query,
            "layers": [layer] if layer is not None else list(range(len(self.heads))),
            "heads": [head] if head is not None else list(range(self.heads.shape[1])),
            "maps": _short(maps),
            "rollout": _short(self.rollout),
        }


def _short(x: NDArray[np.float32]) -> Any:
    """Lists of numbers, rounded to five decimals."""
    return np.round(x.astype(np.float64), 5).tolist()


class Engine:
    """A replica of the model on its device."""

    def __init__(self, model: Model, device: torch.device):
        self.model, self.device = replica(model), device
        self.names = class_names(model)
        self._unplaced: Model | None = None

    @contextmanager
    def at_work(self) -> Iterator[Engine]:
        """The engine answers inside this context."""
        has_head = self.model.config.readout.classes > 0
        answering = ready(self.model, self.device) if has_head else nullcontext(self._features)
        with answering as answers, at_work(self.model, self.device) as (normalised, cast):
            self._answers, self._normalised, self._cast = answers, normalised, cast
            yield self

    def answers_to(self, seen: list[Pixels]) -> NDArray[np.float32]:
        """Logits and score, B K + 1; without a head features, B D.  seen: images as the model sees them."""
        return self._answers(stacked(seen)).cpu().numpy()

    def answer(self, name: str, answer: NDArray[np.float32], top: int) -> Prediction:
        """The answer in words, with the calibrated confidence of `vitreous predict`."""
        return answer_of(self.model, self.names, name, answer, top)

    def attend(
        self, seen: Pixels, patch: int | None = None, broken: Break | None = None
    ) -> tuple[NDArray[np.float32], Attended | None]:
        """Answer and attention of one image; None for a ResNet, or if the pool does not say what it reads."""
        model = self.model if broken is None or not broken.positions else self._without_positions()
        x = self._normalised(stacked([seen]))
        edits = {}
        if broken is not None:
            x, edits = broken.shown(x, grid_of(model), cells_of(model)), broken.edits(model)
        tap = find_pool(model)[1] if isinstance(model, ViT) else None
        reads = [ATTENTION, *([tap] if tap else [])] if isinstance(model, ViT) else []
        with torch.inference_mode():
            if not reads and not edits:
                return self._answered(model, x), None
            with taps(model, reads, edit=edits) as found:
                answer = self._answered(model, x)
            if not isinstance(model, ViT):
                return answer, None
            weights = found.pop(tap).float() if tap else None  # 1 H 1 P
            return answer, attended(list(found.values()), model, patch, weights)

    def _answered(self, model: Model, x: Tensor) -> NDArray[np.float32]:
        """Logits and score, K + 1; without a head features, D."""
        with self._cast():
            features = model.features(x.to(next(model.parameters()).dtype))
        answer = with_score(model, x, features) if model.config.readout.classes else features.float()
        return answer[0].cpu().numpy()

    def tokens(self, seen: Pixels, numbers: int) -> Any:
        """The tokens that enter the first block: N rows of their first `numbers` numbers."""
        with torch.inference_mode(), self._cast(), taps(self.model, "embedding.tokens") as found:
            self.model.features(self._normalised(stacked([seen])))
        return _short(found["embedding.tokens"][0, :, :numbers].float().cpu().numpy())

    def stem(self, seen: Pixels, count: int) -> list[dict[str, Any]]:
        """What each convolution before the tokens makes: its shape, and the first `count` of its maps, made smaller."""
        steps = stem_taps(self.model)
        with torch.inference_mode(), self._cast(), taps(self.model, steps) as found:
            self.model.features(self._normalised(stacked([seen])))
        rows = []
        for step in steps:
            maps = found[step][0].float()  # C h w
            h, w = (min(side, MAX_MAP_SIDE) for side in maps.shape[1:])
            small = F.adaptive_avg_pool2d(maps[:count], (h, w)).flatten(1)
            rows.append({"shape": list(maps.shape), "size": [h, w], "maps": _short(small.cpu().numpy())})
        return rows

    def feature(self, seen: Pixels) -> NDArray[np.float32]:
        """The features of one image that the head reads, D."""
        return self._features(stacked([seen]))[0].cpu().numpy()

    def _features(self, images: Tensor) -> Tensor:
        """Bytes B C H W -> B D."""
        with torch.inference_mode(), self._cast():
            kind = next(self.model.parameters()).dtype
            return self.model.features(self._normalised(images).to(kind)).float()

    def _without_positions(self) -> Model:
        if self._unplaced is None:
            self._unplaced = unplaced(replica(self.model))
        return self._unplaced


def attended(layers: list[Tensor], model: ViT, patch: int | None, asked: Tensor | None = None) -> Attended | None:
    """Where the answer, or a patch, looks; None for the answer if the pool does not say which tokens it reads.

    layers: of one image, 1 H N N.  asked: the weights of an attention pool, 1 H 1 P.
    """
    pool = find_pool(model)[0]
    if patch is None and pool.silence:
        return None
    weights = torch.stack([layer[0].float() for layer in layers])  # L H N N
    whole = rollout(list(weights[:, None]))  # 1 N N

    def row(flow: Tensor) -> Tensor:  # B N N -> B P
        if patch is not None:
            return flow[:, pool.prefix + patch, pool.prefix :]
        each = None if asked is None else asked.expand(len(flow), -1, -1, -1)
        return read_patches(pool, flow, each)

    heads = row(weights.flatten(0, 1)).unflatten(0, weights.shape[:2])  # L H P
    return Attended(model.grid, patch, heads.cpu().numpy(), row(whole)[0].cpu().numpy())


def stacked(seen: list[Pixels]) -> Tensor:
    """Images as one batch, B C H W."""
    return torch.from_numpy(np.stack(seen)).permute(0, 3, 1, 2).contiguous()
