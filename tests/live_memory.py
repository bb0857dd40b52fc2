"""A training step that allocates nothing: every tensor is a shape, and the bytes that would live are counted.

What a step holds at its worst moment is exact for any network and batch, on any machine.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vitreous.models.catalog import blueprint
from vitreous.models.model import materialise


@dataclass
class Held:
    """Bytes beside the weights: after the forward pass, and at the worst moment of the step."""

    forward: int
    peak: int


class LiveBytes(TorchDispatchMode):
    """Counts the storages that any operation made and nobody has dropped."""

    def __init__(self):
        super().__init__()
        self.now, self.peak, self.seen = 0, 0, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.hold(tensor)
        self.peak = max(self.peak, self.now)
        return made

    def hold(self, tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in self.seen:
            self.seen.add(storage._cdata)
            self.now += storage.nbytes()
            weakref.finalize(storage, self._drop, storage._cdata, storage.nbytes())

    def _drop(self, place, size):
        self.seen.discard(place)
        self.now -= size


@contextmanager
def norms_in_float32() -> Iterator[None]:
    """CUDA's autocast computes norms in float32; the CPU's does not."""
    plain = {kind: kind.forward for kind in (nn.LayerNorm, nn.GroupNorm)}

    def layer_norm(self, x):
        with torch.autocast("cpu", enabled=False):
            return F.layer_norm(x.float(), self.normalized_shape, self.weight, self.bias, self.eps)

    def group_norm(self, x):
        with torch.autocast("cpu", enabled=False):
            return F.group_norm(x.float(), self.num_groups, self.weight, self.bias, self.eps)

    nn.LayerNorm.forward, nn.GroupNorm.forward = layer_norm, group_norm
    try:
        yield
    finally:
        for kind, forward in plain.items():
            kind.forward = forward


def step_of(config, batch: int, *, half: bool, checkpointing: bool) -> Held:
    """What a forward and a backward pass hold, as on a GPU without compiling."""
    with FakeTensorMode(), LiveBytes() as live, norms_in_float32():
        model = blueprint(config)
        materialise(model)
        model.train().gradient_checkpointing = checkpointing
        for parameter in model.parameters():
            live.hold(parameter)
        x, y = torch.empty(batch, 3, *config.image_size), torch.empty(batch, config.readout.classes)
        before, live.peak = live.now, 0
        with torch.autocast("cpu", torch.bfloat16, enabled=half, cache_enabled=False):
            loss = F.cross_entropy(model(x), y)
        forward = live.now - before
        loss.backward()
        return Held(forward, live.peak - before)
