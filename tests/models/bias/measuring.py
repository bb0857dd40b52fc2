"""How an assumption of a layer is measured: what an output listens to, and what happens when the input is moved.

A layer here maps places to places, N D -> N D, with N places in raster order on a grid of 5 × 6. All numbers are
float64, so that a law either holds to rounding or fails by far more; `holds` refuses anything between.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

Layer = Callable[[Tensor], Tensor]
M = TypeVar("M", bound=nn.Module)

GRID = (5, 6)  # rows, columns: unequal, so that one taken for the other shows
PLACES = GRID[0] * GRID[1]
WIDTH = 4  # features of a place


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomise(module: M, seed: int = 1) -> M:
    """Every parameter drawn anew, biases and zero heads too, so that nothing holds by a lucky first value."""
    module.double().eval()
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            fan_in = parameter[0].numel() if parameter.dim() > 1 else 1
            parameter.copy_(noise(*parameter.shape, seed=100 * seed + i) / fan_in**0.5)
    return module


def any_order(n: int, seed: int = 5) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def influence(layer: Layer, x: Tensor) -> Tensor:
    """Whether output place i listens to input place j: the Jacobian's block is not zero.  Returns N N, boolean."""
    jacobian = torch.autograd.functional.jacobian(layer, x)  # N D N D
    return (jacobian != 0).any(3).any(1)


def shift(x: Tensor, rows: int, columns: int, grid: tuple[int, int] = GRID) -> Tensor:
    """The whole picture moved; what leaves at one side comes in at the other.  N D."""
    return x.unflatten(0, grid).roll((rows, columns), (0, 1)).flatten(0, 1)


def delay(x: Tensor, steps: int) -> Tensor:
    """The sequence later by some steps, silence before it.  N D."""
    return torch.cat([torch.zeros_like(x[:steps]), x[:-steps]])


def apart(a: Tensor, b: Tensor) -> float:
    """‖a − b‖ / ‖b‖."""
    return float(((a - b).norm() / b.norm()).detach())


def holds(gap: float) -> bool:
    assert gap < 1e-10 or gap > 1e-3, f"neither a law nor its failure: {gap:.1e}"
    return gap < 1e-10


def window(kernel: int) -> Tensor:
    """Which places lie in the kernel × kernel window round each place, the grid being a torus.  N N, boolean."""
    rows, columns = (torch.arange(n) for n in GRID)
    places = torch.cartesian_prod(rows, columns)
    steps = (places[:, None] - places).abs()  # N N 2
    steps = torch.minimum(steps, torch.tensor(GRID) - steps)
    return steps.amax(-1) <= kernel // 2
