"""Small arrays to the device in one copy: numbers drawn on the host for a step, under names, at fixed places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Staging"]

ALIGNED = 64  # bytes: every array begins at a multiple
SLOTS = 4  # steps whose numbers may be on their way


class Staging:
    """Arrays of one set of shapes, again and again. `views` always lie at the same addresses of the device.

    So a captured step reads each step's numbers where it read the first one's.
    """

    def __init__(self, like: Mapping[str, NDArray[Any]], device: torch.device):
        self.device = device
        self.places: dict[str, tuple[int, int]] = {}
        end = 0
        for name, array in like.items():
            self.places[name] = end, end + array.nbytes
            end = -(-(end + array.nbytes) // ALIGNED) * ALIGNED
        self.shapes = {name: (array.shape, array.dtype) for name, array in like.items()}
        self.memory = torch.zeros(max(end, 1), dtype=torch.uint8, device=device)
        self.views = {name: self._view(self.memory, name) for name in like}
        is_gpu = device.type == "cuda"
        self.host = [torch.zeros(max(end, 1), dtype=torch.uint8, pin_memory=is_gpu) for _ in range(SLOTS)]
        self.sent: list[torch.cuda.Event | None] = [None] * SLOTS
        self.slot = 0

    def fits(self, arrays: Mapping[str, NDArray[Any]]) -> bool:
        return {name: (array.shape, array.dtype) for name, array in arrays.items()} == self.shapes

    def send(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Make `views` hold these, in the order of the device's queue."""
        slot, self.slot = self.slot, (self.slot + 1) % SLOTS
        if (event := self.sent[slot]) is not None:
            event.synchronize()  # four steps back: long done
        raw = self.host[slot].numpy()
        for name, array in arrays.items():
            begin, end = self.places[name]
            raw[begin:end] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.memory.copy_(self.host[slot], non_blocking=True)
        if self.device.type == "cuda":
            self.sent[slot] = torch.cuda.Event()
            self.sent[slot].record()  # type: ignore[union-attr]

    def _view(self, memory: Tensor, name: str) -> Tensor:
        shape, kind = self.shapes[name]
        begin, end = self.places[name]
        kinds = torch.from_numpy(np.empty(0, kind)).dtype
        return memory[begin:end].view(kinds).view(shape)
