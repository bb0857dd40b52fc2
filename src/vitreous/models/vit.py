"""The Vision Transformer: equations 1 to 4 of arXiv 2010.11929, in the paper's order.

B images   C channels   P patch   N tokens   D width   H heads   d = D / H   K classes
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import ImageSizeError
from vitreous.models.attention_bias import AttentionBias
from vitreous.models.checks import check
from vitreous.models.config import Size, ViTConfig
from vitreous.models.hybrid import make_stem
from vitreous.models.layers import (
    HIDDEN_WIDTHS_READ,
    Activation,
    KeysWithoutBias,
    Linear,
    branch_end,
    lecun,
    make_head_norm,
    make_norm,
    start_linear,
)
from vitreous.models.model import Model
from vitreous.models.pooling import POOLS, PoolThenNorm
from vitreous.models.positions import POSITION_KINDS, NoPositions
from vitreous.models.rotary import ROTATIONS, Rotate, Turn
from vitreous.models.taps import Tap, tapped


def patchify(images: Tensor, patch: Size) -> Tensor:
    """Cut images into patches, row by row, and flatten each.  B C H W -> B N C·P·P."""
    b, c, h, w = images.shape
    x = images.reshape(b, c, h // patch[0], patch[0], w // patch[1], patch[1])
    return x.permute(0, 2, 4, 1, 3, 5).reshape(b, -1, c * patch[0] * patch[1])


def unpatchify(patches: Tensor, patch: Size, image_size: Size) -> Tensor:
    """The images that `patchify` cut.  B N C·P·P -> B C H W."""
    h, w = image_size
    x = patches.reshape(patches.shape[0], h // patch[0], w // patch[1], -1, *patch)
    return x.permute(0, 3, 1, 4, 2, 5).reshape(patches.shape[0], -1, h, w)


class Embedding(nn.Module):
    """z₀ = [x_class; x₁E; …; x_N E] + E_pos (equation 1)."""

    def __init__(self, config: ViTConfig, channels: int, patch: Size, grid: Size):
        super().__init__()
        e, width = config.embedding, config.encoder.width
        self.patch, self.token_start = patch, e.token_start
        self.projection = Linear(channels * patch[0] * patch[1], width, bias=e.patch_bias)
        self.patch_norm = make_norm(config) if e.patch_norm else nn.Identity()
        self.patches = Tap()
        self.class_token = nn.Parameter(torch.empty(1, width)) if e.class_token else None
        self.distillation_token = nn.Parameter(torch.empty(1, width)) if e.distillation_token else None
        self.registers = nn.Parameter(torch.empty(e.registers, width)) if e.registers else None
        self.mask_token = nn.Parameter(torch.empty(1, width)) if e.mask_token else None
        kind = POSITION_KINDS[e.positions]
        at_stem = e.positions_at == "stem" and not kind.in_attention
        self.positions = (kind if at_stem else NoPositions)(config, grid)
        self.dropout = nn.Dropout(config.encoder.dropout)
        self.norm = make_norm(config) if e.norm_before_blocks else nn.Identity()
        self.tokens = Tap()

    def start(self) -> None:
        lecun(self.projection.weight, self.projection.in_features)
        if self.projection.bias is not None:
            nn.init.zeros_(self.projection.bias)
        for token in (self.class_token, self.distillation_token):
            if token is not None:
                nn.init.normal_(token, std=0.02) if self.token_start == "normal" else nn.init.zeros_(token)
        if self.mask_token is not None:
            nn.init.zeros_(self.mask_token)
        if self.registers is not None:
            nn.init.normal_(self.registers, std=0.02)  # registers that start equal would stay equal

    def forward(self, images: Tensor, grid: Size) -> Tensor:                    # B C H W
        return self.placed(self.embed(images), grid)                            # B N D

    def embed(self, images: Tensor) -> Tensor:                                  # B C H W
        x = self.projection(patchify(images, self.patch))                       # B N D, patches alone
        return self.patches(self.patch_norm(x))                                 # B N D

    def placed(self, x: Tensor, grid: Size) -> Tensor:                          # B N D, patches alone
        front = (self.class_token, self.distillation_token, self.registers)
        # in the type of the patches: under autocast the residual stream is bfloat16, as in big_vision
        given = [token.to(x.dtype).expand(x.shape[0], -1, -1) for token in front if token is not None]
        z = torch.cat([*given, x], 1)                                           # B N D, N with the tokens in front
        return self.tokens(self.norm(self.dropout(self.positions(z, grid))))    # B N D


class Places(NamedTuple):
    """What attention is told about the tokens' places: how queries and keys turn, and a bias on their products."""

    turn: Turn | None = None
    bias: Tensor | None = None                                                  # H N N


NOWHERE = Places()


class Attention(nn.Module):
    """softmax(q kᵀ / √d) v, all heads at once, then merged by U_msa (appendix A)."""

    def __init__(self, config: ViTConfig, grid: Size, drop_path: float):
        super().__init__()
        e = config.encoder
        self.head_count = e.heads
        self.scale = (e.width // e.heads) ** -0.5 if e.attention_scale is None else e.attention_scale
        self.dropout_rate = e.attention_dropout
        has_all = e.key_bias or not e.qkv_bias
        self.qkv = Linear(e.width, 3 * e.width, bias=e.qkv_bias) if has_all else KeysWithoutBias(e.width)
        self.query_norm, self.key_norm = make_head_norm(config), make_head_norm(config)
        self.query, self.key, self.value = Tap(), Tap(), Tap()
        self.rotate = Rotate(config) if config.rotation.rotary != "none" else None
        kind = POSITION_KINDS[config.embedding.positions]
        self.positions = kind(config, grid) if kind.in_attention else None
        self.weights = Tap()
        self.per_head = Tap()
        self.norm = make_norm(config) if e.inner_norm in ("attention", "both") else nn.Identity()
        self.merge = Linear(e.width, e.width, bias=e.branch_bias)
        self.end = branch_end(config, drop_path)
        self.output = Tap()

    def start(self) -> None:
        start_linear(self.qkv, parts=3)
        start_linear(self.merge)

    def forward(self, x: Tensor, places: Places = NOWHERE) -> Tensor:           # B N D
        qkv = self.qkv(x).unflatten(-1, (3, self.head_count, -1))               # B N 3 H d
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)                          # each B H N d
        q, k, v = self.query(self.query_norm(q)), self.key(self.key_norm(k)), self.value(v)
        if places.turn is not None and self.rotate is not None:
            q, k = self.rotate(q, k, places.turn)                               # each B H N d
        y = self.per_head(self.attend(q, k, v, places.bias))                    # B H N d
        y = self.merge(self.norm(y.transpose(1, 2).flatten(2)))                 # B N D
        return self.output(self.end(y))                                         # B N D

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:  # each B H N d, H N N
        if self.positions is not None:
            own = self.scale * self.positions(q)                                # B H N N
            bias = own if bias is None else own + bias
        if bias is not None:
            bias = bias.to(q.dtype)
        dropout = self.dropout_rate if self.training else 0.0
        if not self.weights.open:  # the fused path never forms B H N N
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=self.scale)
        logits = self.scale * (q @ k.mT)                                        # B H N N
        weights = self.weights((logits if bias is None else logits + bias).softmax(-1))
        return F.dropout(weights, dropout) @ v                                  # B H N d


class MLP(nn.Module):
    """Two linear maps with an activation between, on every token by itself."""

    def __init__(self, config: ViTConfig, drop_path: float):
        super().__init__()
        e = config.encoder
        self.halves = HIDDEN_WIDTHS_READ.get(e.activation, 1)
        self.expand = Linear(e.width, self.halves * e.mlp, bias=e.branch_bias)
        self.activation = Activation(e.activation)
        self.hidden = Tap()
        self.dropout = nn.Dropout(e.dropout)
        self.norm = make_norm(config, e.mlp) if e.inner_norm in ("mlp", "both") else nn.Identity()
        self.contract = Linear(e.mlp, e.width, bias=e.branch_bias)
        self.end = branch_end(config, drop_path)
        self.output = Tap()

    def start(self) -> None:
        start_linear(self.expand, parts=self.halves, bias_std=1e-6)
        start_linear(self.contract, bias_std=1e-6)

    def forward(self, x: Tensor) -> Tensor:                                     # B N D
        hidden = self.hidden(self.activation(self.expand(x)))                   # B N M
        return self.output(self.end(self.contract(self.norm(self.dropout(hidden)))))  # B N D


class CutSkip(Tap):
    """Replaces a skip connection by zero."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


class Block(nn.Module):
    """z′ = MSA(LN(z)) + z;  z = MLP(LN(z′)) + z′."""

    def __init__(self, config: ViTConfig, grid: Size, index: int):
        super().__init__()
        e = config.encoder
        drop_path = e.drop_path * index / max(e.depth - 1, 1)
        skip = CutSkip if index in e.skips else Tap
        is_at_end = e.norm == "branch"  # then the branch ends with its norm
        self.norm1 = tapped(nn.Identity() if is_at_end else make_norm(config))
        self.attention = Attention(config, grid, drop_path)
        self.skip1, self.residual1 = skip(), Tap()
        self.norm2 = tapped(nn.Identity() if is_at_end else make_norm(config))
        self.mlp = MLP(config, drop_path)
        self.skip2, self.output = skip(), Tap()

    def forward(self, x: Tensor, places: Places = NOWHERE) -> Tensor:           # B N D
        x = self.residual1(self.skip1(x) + self.attention(self.norm1(x), places))  # eq. 2
        return self.output(self.skip2(x) + self.mlp(self.norm2(x)))             # eq. 3


class PostNormBlock(Block):
    """The first Transformer's order: z′ = LN(MSA(z) + z);  z = LN(MLP(z′) + z′)."""

    def forward(self, x: Tensor, places: Places = NOWHERE) -> Tensor:           # B N D
        x = self.residual1(self.norm1(self.skip1(x) + self.attention(x, places)))
        return self.output(self.norm2(self.skip2(x) + self.mlp(x)))


class LayerPositions(nn.Module):
    """Positions added at the start of layers.  tables: none (added at the stem), one shared, or one per layer."""

    def __init__(self, config: ViTConfig, grid: Size):
        super().__init__()
        e = config.embedding
        count = {"stem": 0, "every-layer": config.encoder.depth, "every-layer-shared": 1}[e.positions_at]
        self.tables = nn.ModuleList(POSITION_KINDS[e.positions](config, grid) for _ in range(count))

    def forward(self, z: Tensor, layer: int, grid: Size) -> Tensor:             # B N D
        return self.tables[layer % len(self.tables)](z, grid) if self.tables else z


class AttentionPlaces(nn.Module):
    """What a layer's attention is told about places: a rotation, a bias, both or nothing."""

    def __init__(self, config: ViTConfig, grid: Size):
        super().__init__()
        rotary, has_bias = config.rotation.rotary, config.encoder.attention_bias != "none"
        self.rotation = ROTATIONS[rotary](config, grid) if rotary != "none" else None
        self.bias = AttentionBias(config, grid) if has_bias else None

    def forward(self, layer: int, grid: Size) -> Places:
        if self.rotation is None and self.bias is None:
            return NOWHERE
        turn = None if self.rotation is None else self.rotation(layer, grid)
        return Places(turn, None if self.bias is None else self.bias(layer, grid))


def make_readout(config: ViTConfig) -> tuple[nn.Module, nn.Module]:
    """The final norm and the pool: norm first, pool first, or no norm, as in every post-norm model."""
    pool = POOLS[config.readout.pool]
    if config.encoder.norm == "post" or config.readout.pool_order == "no-norm":
        return nn.Identity(), pool(config)
    if config.readout.pool_order == "norm-first":
        return tapped(make_norm(config)), pool(config)
    return nn.Identity(), PoolThenNorm(pool(config), tapped(make_norm(config, pool.width(config))))


class Representation(nn.Module):
    """tanh(y R + r), the hidden layer of the pre-training head; or y R, the projection of CLIP."""

    is_tap = True

    def __init__(self, width: int, size: int, kind: str):
        super().__init__()
        self.kind = kind
        self.linear = Linear(width, size, bias=kind == "tanh")

    def start(self) -> None:
        lecun(self.linear.weight, self.linear.in_features)
        if self.linear.bias is not None:
            nn.init.zeros_(self.linear.bias)

    def forward(self, y: Tensor) -> Tensor:                                     # B D
        y = self.linear(y)                                                      # B R
        return torch.tanh(y) if self.kind == "tanh" else y                      # B R


class TwoHeads(nn.Module):
    """A distilled DeiT's answer: the mean of one head on the class token and one on the distillation token."""

    def __init__(self, width: int, classes: int):
        super().__init__()
        self.class_head, self.distillation_head = Linear(width, classes), Linear(width, classes)

    def start(self) -> None:
        for head in (self.class_head, self.distillation_head):
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)

    def forward(self, y: Tensor) -> Tensor:                                     # B 2D
        first, second = self.both(y)
        return (first + second) / 2                                             # B K

    def both(self, y: Tensor) -> tuple[Tensor, Tensor]:                         # B 2D
        """Each token's own answer: what distillation trains."""
        first, second = y.chunk(2, -1)                                          # each B D
        return self.class_head(first), self.distillation_head(second)           # each B K


class ViT(Model):
    """Images to class scores; each config option plugs in a part."""

    config: ViTConfig

    def __init__(self, config: ViTConfig):
        super().__init__(config)
        check(config)
        self.stem = make_stem(config)
        self.grid = self.stem.grid(config.image_size)
        e, r = config.encoder, config.readout
        self.embedding = Embedding(config, self.stem.channels, self.stem.patch, self.grid)
        self.layer_positions = LayerPositions(config, self.grid)
        self.places = AttentionPlaces(config, self.grid)
        block = PostNormBlock if e.norm == "post" else Block
        self.blocks = nn.ModuleList(block(config, self.grid, i) for i in range(e.depth))
        self.norm, self.pool = make_readout(config)
        width = POOLS[r.pool].width(config)
        self.representation = (
            Representation(width, r.representation, r.representation_kind) if r.representation else Tap()
        )
        self.add_head(r.representation or width)
        if r.distillation_head:
            self.head = TwoHeads(e.width, r.classes)

    def features(self, images: Tensor) -> Tensor:                               # B C H W
        grid = self.grid_of(images)
        z = self.embedding(self.stem(images), grid)                             # B N D   eq. 1
        z = self.encode(z, grid)                                                # B N D   eq. 2, 3
        return self.representation(self.pool(self.norm(z)))                     # B D     eq. 4

    def encode(self, z: Tensor, grid: Size) -> Tensor:                          # B N D
        for i, block in enumerate(self.blocks):
            z = self.run(block, self.layer_positions(z, i, grid), self.places(i, grid))
        return z                                                                # B N D

    def grid_of(self, images: Tensor) -> Size:
        """Rows and columns of patches; refuses images that the model was not built for."""
        built = self.config.image_size
        if images.dim() != 4 or images.shape[1] != self.config.channels:
            wanted = f"B x {self.config.channels} x {built[0]} x {built[1]}"
            raise ImageSizeError(f"images of shape {tuple(images.shape)} do not fit; give {wanted}")
        h, w = images.shape[2:]
        if (h, w) == built:
            return self.grid
        if not self.config.dynamic_image_size:
            raise ImageSizeError(
                f"the image is {h}x{w} and the model was built for {built[0]}x{built[1]}; resize the image, "
                f"load with image_size=({h}, {w}), or build with dynamic_image_size=True"
            )
        return self.stem.grid((h, w))
