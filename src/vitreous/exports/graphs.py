"""The modules to export: preprocessing, the network, and the calibrated answer.

tensor form   images B C H W, float        -> logits B K, score B [, attention_weights B L H N N [, pool_weights …]]
fixed form    the same, one image: 1 C H W
image form    image h w C, uint8, any size -> probabilities K, score [, attention_map rows columns]

pool_weights are B H 1 P. An encoder without a head gives features (B D, or D in the image form) in place of answer and
score.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial

import PIL
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import ConfigError
from vitreous.exports.resampling import before_crop, first_line, fixed_point, line_matrix, pillow_bytes
from vitreous.measures.rollout import ATTENTION, read_patches, rollout
from vitreous.models.architecture import stem_shapes, stem_taps
from vitreous.models.convolutions import StandardisedConv
from vitreous.models.model import Model
from vitreous.models.pooling import find_pool
from vitreous.models.preprocess import Preprocess
from vitreous.models.taps import taps
from vitreous.models.vit import ViT

# Pillow 13 and later shrink the rows first if they lose more than twice as much as the columns (its request 9549).
PILLOW_MAY_SHRINK_ROWS_FIRST = int(PIL.__version__.partition(".")[0]) >= 13
# Pads a max pool in place of 0: ONNX Runtime mistakes a frame of zeros for the pool's own padding, which is −∞.
ALMOST_ZERO = 2.0**-23
MAX_MAP_SIDE, STEM_MAPS, TOKEN_NUMBERS = 28, 6, 48  # what a lesson shows of maps and tokens


def ready_to_export(model: Model, *, half: bool = False) -> Model:
    """A copy on the CPU in evaluation mode. What is the same for every image is computed once."""
    model = copy.deepcopy(model).to("cpu").float().eval()
    model.gradient_checkpointing = False
    for module in model.modules():
        if isinstance(module, StandardisedConv):
            with torch.no_grad():
                module.weight.copy_(module.standardised())
            module.standardised = lambda conv=module: conv.weight  # type: ignore[method-assign,misc]
        if getattr(module, "beyond", None) == 0:
            module.beyond = ALMOST_ZERO  # type: ignore[assignment]
    return model.half() if half else model


class Preprocessing(nn.Module):
    """`images.decode.finish` and `images.preprocess.normalise`, as a graph."""

    mean: Tensor
    std: Tensor

    def __init__(self, rule: Preprocess):
        super().__init__()
        if len(rule.mean) not in (1, 3):
            raise ConfigError(
                f"the model reads {len(rule.mean)} channels; only models of 1 (grey) or 3 (RGB) can be exported"
            )
        self.rule = rule
        self.register_buffer("mean", torch.tensor(rule.mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(rule.std).view(-1, 1, 1))

    def forward(self, image: Tensor) -> Tensor:  # h w C, uint8
        x = self.pixels(image.permute(2, 0, 1).float())  # C H W of 0 … 255
        return ((x / 255 - self.mean) / self.std)[None]  # 1 C H W

    def pixels(self, x: Tensor) -> Tensor:  # C h w
        (rows, columns), rule = self.rule.size, self.rule
        tall, wide = before_crop(x.shape[1], x.shape[2], rule)
        across = line_matrix(x.shape[2], wide, first_line(wide, columns, rule), columns, rule)  # W w
        down = line_matrix(x.shape[1], tall, first_line(tall, rows, rule), rows, rule)  # H h
        if not rule.antialias or rule.resized_by == "torch":
            return (down.float() @ (x @ across.float().mT)).round().clamp(0, 255)  # C H W
        passes = x, torch.cat(fixed_point(across)).mT.contiguous(), torch.cat(fixed_point(down))
        if not PILLOW_MAY_SHRINK_ROWS_FIRST:
            return _columns_first(*passes)
        lost = x.shape[1] - tall
        is_tall = (lost > 0) & (lost > 2 * (x.shape[2] - wide))
        if torch.compiler.is_compiling():
            return torch.cond(is_tall, _rows_first, _columns_first, passes)
        return _rows_first(*passes) if is_tall else _columns_first(*passes)


def _columns_first(x: Tensor, across: Tensor, down: Tensor) -> Tensor:  # C h w, w 2W, 2H h
    x = pillow_bytes(*(x @ across).chunk(2, 2))  # C h W
    return pillow_bytes(*(down @ x).chunk(2, 1))  # C H W


def _rows_first(x: Tensor, across: Tensor, down: Tensor) -> Tensor:
    x = pillow_bytes(*(down @ x).chunk(2, 1))  # C H w
    return pillow_bytes(*(x @ across).chunk(2, 2))  # C H W


class Network(nn.Module):
    """Images to logits, score and, if asked, the attention weights of all layers and of the pool."""

    def __init__(self, model: Model, *, attention: bool = False):
        super().__init__()
        self.model, self.attention = model, attention
        self.pool_tap = find_pool(model)[1] if attention else None

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:  # B C H W, float32
        if not self.attention:
            return self.answers(images)
        answers, weights, of_pool, _ = self.looked_at(images)
        return *answers, weights, *([] if of_pool is None else [of_pool])

    def looked_at(
        self, images: Tensor, others: Sequence[str] = ()
    ) -> tuple[tuple[Tensor, ...], Tensor, Tensor | None, list[Tensor]]:
        """Answers, attention weights B L H N N, those of the pool B H 1 P, and what other taps saw."""
        more = [*([self.pool_tap] if self.pool_tap else []), *others]
        with taps(self.model, [ATTENTION, *more]) as seen:
            answers = self.answers(images)
        found = {name: seen.pop(name).float() for name in more}
        of_pool = found.get(self.pool_tap or "")
        return answers, torch.stack(list(seen.values()), 1).float(), of_pool, [found[name] for name in others]

    @property
    def outputs(self) -> list[str]:
        """Names of what `forward` returns."""
        of_pool = ["pool_weights"] if self.pool_tap else []
        return [*self.answer_names, *(["attention_weights", *of_pool] if self.attention else [])]

    @property
    def answer_names(self) -> list[str]:
        return ["logits", "score"] if self.model.config.readout.classes else ["features"]

    def answers(self, images: Tensor) -> tuple[Tensor, ...]:
        """B K, B; without a head B D alone."""
        features = self.model.features(images.to(next(self.model.parameters()).dtype))
        if not self.model.config.readout.classes:
            return (features.float(),)
        logits = self.model.logits(self.model.head(features)).float()
        return logits, self.model.score(images, features, logits)


class PageNetwork(Network):
    """A ViT with all that a page draws: where the answer looks, in every layer and head, and through all layers.

    For the lesson: the first numbers of each token, and some maps of each convolution of a hybrid.
    """

    def __init__(self, model: ViT):
        super().__init__(model, attention=True)
        self.read = partial(read_patches, find_pool(model)[0])
        self.steps = stem_taps(model)
        self.shrinks = [[_mean_matrix(side) for side in sides] for _, *sides in stem_shapes(model.config)]

    @property
    def outputs(self) -> list[str]:
        maps = ["attention_weights", "rollout", "answer_maps", "answer_rollout"]
        return [*self.answer_names, *maps, "tokens", *(f"stem_{i}" for i in range(len(self.steps)))]

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:  # B C H W
        answers, weights, pool, (tokens, *stem) = self.looked_at(images, ["embedding.tokens", *self.steps])
        whole = rollout(weights.unbind(1))  # B N N
        layers, heads = weights.shape[1:3]
        flow = weights.flatten(0, 2)  # BLH N N
        each = None if pool is None else pool[:, None].expand(-1, layers * heads, -1, -1, -1).flatten(0, 1)
        maps = self.read(flow, each).unflatten(0, (-1, layers, heads))  # B L H P
        small = [down @ x[:, :STEM_MAPS] @ across.mT for x, (down, across) in zip(stem, self.shrinks, strict=True)]
        return *answers, weights, whole, maps, self.read(whole, pool), tokens[:, :, :TOKEN_NUMBERS], *small


def _mean_matrix(side: int) -> Tensor:
    """Reduces a map's side to at most MAX_MAP_SIDE means of neighbours, as adaptive pooling does.  small side."""
    return F.adaptive_avg_pool1d(torch.eye(side)[None], min(side, MAX_MAP_SIDE))[0].mT.contiguous()


class AnswerGraph(nn.Module):
    """Logits and score of one image to calibrated probabilities and the score to compare with the threshold."""

    def __init__(self, model: Model, *, attention: bool = False):
        super().__init__()
        self.temperature, self.answers, self.attention = model.temperature, model.answers, attention
        if attention:
            assert isinstance(model, ViT)
            self.grid = model.grid
            self.read = partial(read_patches, find_pool(model)[0])  # not as a submodule: this graph has no parameters

    def forward(
        self, logits: Tensor, score: Tensor, weights: Tensor | None = None, of_pool: Tensor | None = None
    ) -> tuple[Tensor, ...]:  # 1 K, 1, 1 L H N N, 1 H 1 P
        z = logits[0] / self.temperature
        p = z.sigmoid() if self.answers == "several" else z.softmax(-1)
        if weights is None:
            return p, score[0]  # K, one number
        return p, score[0], self.map(weights, of_pool)

    def map(self, weights: Tensor, of_pool: Tensor | None) -> Tensor:  # 1 L H N N, 1 H 1 P
        """The share of each patch in the pooled vector, by rollout.  Returns rows columns."""
        return self.read(rollout(weights.unbind(1)), of_pool)[0].unflatten(0, self.grid)


class FeatureGraph(AnswerGraph):
    """The features of one image, from an encoder without a head."""

    def forward(  # type: ignore[override]
        self, features: Tensor, weights: Tensor | None = None, of_pool: Tensor | None = None
    ) -> tuple[Tensor, ...]:  # 1 D, 1 L H N N, 1 H 1 P
        return (features[0],) if weights is None else (features[0], self.map(weights, of_pool))  # D, rows columns


class ImageForm(nn.Module):
    """An image of any size to its answer."""

    def __init__(self, preprocessing: Preprocessing, network: Network, answer: AnswerGraph):
        super().__init__()
        self.preprocessing, self.network, self.answer = preprocessing, network, answer

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:  # h w C, uint8
        return self.answer(*self.network(self.preprocessing(image)))
