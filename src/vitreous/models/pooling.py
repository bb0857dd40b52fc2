"""How the tokens become one vector (section 3.1, appendix D.3 of arXiv 2010.11929; the MAP head of big_vision).

To add a pool, write a class and a line in POOLS, or an entry point in the group `vitreous.pools`. Its method `reads`
tells report, look, serve and export which tokens the answer came from.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import ConfigError
from vitreous.models.config import ViTConfig
from vitreous.models.layers import Activation, Linear, make_norm, start_linear, xavier
from vitreous.models.taps import Tap
from vitreous.registry import Registry


class Pool(nn.Module):
    """All tokens, B N D -> one vector, B `width(config)`."""

    needs_class_token = False
    vectors = 1  # of the encoder's width, joined

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.prefix = config.prefix
        self.left_out = 0 if config.readout.pool_tokens == "all" else config.prefix  # of gap, max and map

    def __init_subclass__(cls, **options: Any) -> None:
        """A subclass with its own `forward` must define `reads` again: its parent's may be wrong."""
        super().__init_subclass__(**options)
        if "forward" in vars(cls) and "reads" not in vars(cls):
            cls.reads = Pool.reads  # type: ignore[method-assign]

    @classmethod
    def width(cls, config: ViTConfig) -> int:
        return cls.vectors * config.encoder.width

    def reads(self, flow: Tensor, weights: Tensor | None = None) -> Tensor:     # B N N
        """How much each input token contributes to the pooled vector: rows of `flow`, mixed as the pool mixes tokens.

        flow: row i holds each input token's share in token i, as in rollout.  weights: the pool's tap `weights`,
        B H 1 P, if it has one.  Returns B N.
        """
        raise ConfigError(f"{self.silence}; give the class a method `reads`, see vitreous.models.pooling.Pool")

    @property
    def silence(self) -> str:
        """Why the tokens behind the answer are unknown; empty if `reads` is defined."""
        kind = type(self)
        return f"the pool {kind.__name__} does not say which tokens it reads" if kind.reads is Pool.reads else ""

    @property
    def attends(self) -> bool:
        """True if the pool weighs tokens by attention, visible at its tap `weights`."""
        return isinstance(self._modules.get("weights"), Tap)


class ClassToken(Pool):
    """z⁰: the state of the class token."""

    needs_class_token = True

    def forward(self, z: Tensor) -> Tensor:                                     # B N D
        return z[:, 0]                                                          # B D

    def reads(self, flow: Tensor, weights: Tensor | None = None) -> Tensor:     # B N N
        return flow[:, 0]                                                       # B N


class MeanOfPatches(Pool):
    """Global average pooling over the patches; tokens in front are left out, unless pool_tokens=all."""

    def forward(self, z: Tensor) -> Tensor:                                     # B N D
        return z[:, self.left_out :].mean(1)                                      # B D

    def reads(self, flow: Tensor, weights: Tensor | None = None) -> Tensor:     # B N N
        return flow[:, self.left_out :].mean(1)                                   # B N


class MaxOfPatches(Pool):
    """The largest value of each feature over the patches."""

    def forward(self, z: Tensor) -> Tensor:                                     # B N D
        return z[:, self.left_out :].amax(1)                                      # B D

    def reads(self, flow: Tensor, weights: Tensor | None = None) -> Tensor:     # B N N
        """Any patch may hold the largest value, so all count equally."""
        return flow[:, self.left_out :].mean(1)                                   # B N


class MiddlePatch(Pool):
    """The state of the patch in the middle of the sequence: an ordinary token in the class token's place."""

    def forward(self, z: Tensor) -> Tensor:                                     # B N D
        return z[:, self._middle(z)]                                            # B D

    def reads(self, flow: Tensor, weights: Tensor | None = None) -> Tensor:     # B N N
        return flow[:, self._middle(flow)]                                      # B N

    def _middle(self, z: Tensor) -> int:
        return self.prefix + (z.shape[1] - self.prefix) // 2


class ClassTokenAndMean(Pool):
    """[z⁰; mean of the patches]: what DINOv2's linear classifier reads."""

    needs_class_token = True
    vectors = 2

    def forward(self, z: Tensor) -> Tensor:                                     # B N D
        return torch.cat([z[:, 0], z[:, self.prefix :].mean(1)], -1)            # B 2D

    def reads(self, flow: Tensor, weights: Tensor | None = None) -> Tensor:     # B N N
        return (flow[:, 0] + flow[:, self.prefix :].mean(1)) / 2                # B N


class ClassAndDistillation(Pool):
    """[z⁰; z¹]: what the two heads of a distilled DeiT read."""

    needs_class_token = True
    vectors = 2

    def forward(self, z: Tensor) -> Tensor:                                     # B N D
        return z[:, :2].flatten(1)                                              # B 2D

    def reads(self, flow: Tensor, weights: Tensor | None = None) -> Tensor:     # B N N
        return flow[:, :2].mean(1)                                              # B N


class ClassDistillationMean(Pool):
    """(z⁰ + z¹) / 2: a distilled DeiT without its heads."""

    needs_class_token = True

    def forward(self, z: Tensor) -> Tensor:                                     # B N D
        return z[:, :2].mean(1)                                                 # B D

    def reads(self, flow: Tensor, weights: Tensor | None = None) -> Tensor:     # B N N
        return flow[:, :2].mean(1)                                              # B N


class MapPool(Pool):
    """Multi-head attention pooling: one learned probe asks all patches, then x + MLP(LN(x))."""

    def __init__(self, config: ViTConfig):
        super().__init__(config)
        e = config.encoder
        self.head_count, hidden = config.readout.pool_heads or e.heads, config.readout.pool_mlp or e.mlp
        self.probe = nn.Parameter(torch.empty(1, e.width))
        self.query = Linear(e.width, e.width)
        self.key_value = Linear(e.width, 2 * e.width)
        self.weights = Tap()
        self.merge = Linear(e.width, e.width)
        self.norm = make_norm(config)
        self.expand = Linear(e.width, hidden)
        self.activation = Activation("gelu" if e.activation == "swiglu" else e.activation)
        self.contract = Linear(hidden, e.width)

    def start(self) -> None:
        xavier(self.probe, *self.probe.shape)
        for layer in (self.query, self.merge):
            start_linear(layer)
        start_linear(self.key_value, parts=2)
        for layer in (self.expand, self.contract):
            start_linear(layer, bias_std=1e-6)

    def forward(self, z: Tensor) -> Tensor:                                     # B N D
        z = z[:, self.left_out :]
        q = self.query(self.probe).expand(z.shape[0], -1, -1)                   # B 1 D
        q = q.unflatten(-1, (self.head_count, -1)).transpose(1, 2)              # B H 1 d
        k, v = self.key_value(z).unflatten(-1, (2, self.head_count, -1)).permute(2, 0, 3, 1, 4)  # each B H N d
        if self.weights.open:
            y = self.weights((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)) @ v  # B H 1 d
        else:
            y = F.scaled_dot_product_attention(q, k, v)                         # B H 1 d
        y = self.merge(y.transpose(1, 2).flatten(2))[:, 0]                      # B D
        return y + self.contract(self.activation(self.expand(self.norm(y))))   # B D

    def reads(self, flow: Tensor, weights: Tensor | None = None) -> Tensor:     # B N N, B H 1 P
        """The patches' rows, weighted as the probe weights them; the mean over heads."""
        assert weights is not None, "an attention pool reads by its weights"
        return (weights.mean(1) @ flow[:, self.left_out :])[:, 0]                 # B N


POOLS: Registry[type[Pool]] = Registry(
    "pools",
    {
        "cls": ClassToken,
        "gap": MeanOfPatches,
        "map": MapPool,
        "max": MaxOfPatches,
        "middle": MiddlePatch,
        "cls-and-gap": ClassTokenAndMean,
        "cls-and-distillation": ClassAndDistillation,
        "cls-distillation-mean": ClassDistillationMean,
    },
)


def find_pool(model: nn.Module) -> tuple[Pool, str | None]:
    """A ViT's pool, and the path of its tap `weights` if it has one."""
    path, pool = next((path, part) for path, part in model.named_modules() if isinstance(part, Pool))
    return pool, f"{path}.weights" if pool.attends else None


class PoolThenNorm(nn.Module):
    """`pool_order=mean-first`: the final norm sees the pooled vector (timm's fc_norm)."""

    def __init__(self, pool: nn.Module, norm: nn.Module):
        super().__init__()
        self.pool, self.norm = pool, norm

    def forward(self, z: Tensor) -> Tensor:                                     # B N D
        return self.norm(self.pool(z))                                          # B D
