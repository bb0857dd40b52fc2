"""The layers whose assumptions are compared, each as a function of N places with D features."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.catalog import build
from vitreous.models.vit import Attention, ViT

from .measuring import GRID, PLACES, WIDTH, Layer, any_order, noise, randomise


def on_map(layer: nn.Module, x: Tensor, grid: tuple[int, int] = GRID) -> Tensor:
    """A layer of feature maps applied to places.  N D -> N D."""
    return layer(x.T.unflatten(1, grid)[None])[0].flatten(1).T


def convolution(kernel: int = 3, stride: int = 1, grid: tuple[int, int] = GRID) -> Layer:
    """Circular border: the grid is a torus."""
    conv = randomise(nn.Conv2d(WIDTH, WIDTH, kernel, stride, kernel // 2, padding_mode="circular"))
    return lambda x: on_map(conv, x, grid)


class Untied(nn.Module):
    """A 3×3 convolution whose kernel is another one at every place (locally connected), circular border."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = nn.Parameter(noise(PLACES, WIDTH, 9 * WIDTH, seed=7) / 6)

    def tie(self) -> Tensor:
        """Every place takes the first place's kernel; returns it as a convolution's weight."""
        with torch.no_grad():
            self.kernels.copy_(self.kernels[:1].expand_as(self.kernels).clone())
        return self.kernels[0].detach().unflatten(1, (WIDTH, 3, 3))

    def forward(self, x: Tensor) -> Tensor:  # N D
        maps = x.T.unflatten(1, GRID)[None]  # 1 D h w
        seen = F.unfold(F.pad(maps, (1, 1, 1, 1), mode="circular"), 3)[0]  # 9D N
        return torch.einsum("noi,in->no", self.kernels, seen)  # N D


def fully_connected() -> Layer:
    linear = randomise(nn.Linear(PLACES * WIDTH, PLACES * WIDTH))
    return lambda x: linear(x.flatten()).view_as(x)


def recurrent(kind: type[nn.RNNBase] = nn.RNN, bias: bool = False) -> Layer:
    cell = randomise(kind(WIDTH, WIDTH, bias=bias))
    return lambda x: cell(x)[0]


class MessageLayer(nn.Module):
    """yᵢ = tanh(A xᵢ + Σ over edges j → i of B [xⱼ; the edge's own features])."""

    def __init__(self, edge_width: int = 2) -> None:
        super().__init__()
        self.own, self.message = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH + edge_width, WIDTH)

    def forward(self, x: Tensor, edges: Tensor, about: Tensor) -> Tensor:  # N D, 2 E, E F
        source, target = edges
        sent = self.message(torch.cat([x[source], about], -1))  # E D
        return torch.tanh(self.own(x).index_add(0, target, sent))  # N D


def some_graph(nodes: int = PLACES, count: int = 3 * PLACES) -> tuple[Tensor, Tensor]:
    """Edges drawn at random, none twice, none to itself, each with two features.  2 E, E 2."""
    pairs = torch.cartesian_prod(torch.arange(nodes), torch.arange(nodes))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return pairs[any_order(len(pairs))[:count]].T, noise(count, 2, seed=9)


def full_graph(nodes: int = PLACES) -> Tensor:
    return torch.cartesian_prod(torch.arange(nodes), torch.arange(nodes)).T


def attention_by_messages(attention: Attention, x: Tensor, edges: Tensor) -> Tensor:
    """Self-attention as a graph sees it: a weight for each edge, a softmax over the edges that enter a node, a sum."""
    source, target = edges
    q, k, v = attention.qkv(x).unflatten(-1, (3, attention.head_count, -1)).unbind(1)  # each N H d
    strength = (attention.scale * (q[target] * k[source]).sum(-1)).exp()  # E H
    whole = torch.zeros_like(strength[: len(x)]).index_add(0, target, strength)  # N H
    sent = (strength / whole[target])[..., None] * v[source]  # E H d
    return attention.merge(torch.zeros_like(v).index_add(0, target, sent).flatten(1))  # N D


def tiny_vit(grid: tuple[int, int] = GRID, patch: int = 4, **changes) -> ViT:
    """The default ViT, small: learned positions, class token, two blocks."""
    size = (patch * grid[0], patch * grid[1])
    options = {"width": 8, "depth": 2, "heads": 2, "mlp": 16, "patch": patch, "classes": 5, **changes}
    return randomise(build("Ti/16", image_size=size, **options), seed=2)
