"""What a GPU and torch load once in a process, loaded beside the check of the images instead of after it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch.nn import functional as F

__all__ = ["preload_kernels"]


@contextmanager
def preload_kernels(device: torch.device) -> Iterator[None]:
    """Beside what is done within it, a tiny step runs on a GPU in a thread; at the end that is over.

    On one H200's host such first times were 9 s of a run's 75. A step that is captured must not meet it.
    """
    thread = threading.Thread(target=_work, args=(device,), name="vitreous-preload_kernels")
    if device.type == "cuda":
        thread.start()
    yield  # an error within it is told at once; the process then waits for the thread
    if device.type == "cuda":
        thread.join()


def _work(device: torch.device) -> None:
    """Whatever goes wrong here goes wrong again, and is told, where it matters."""
    with suppress(Exception):
        import torch._dynamo  # torch's optimisers want it, and its import takes seconds

        x = torch.zeros(4, 3, 32, 64, device=device, requires_grad=True)
        w = torch.zeros(64, 64, device=device, requires_grad=True)
        b = torch.zeros(64, device=device, requires_grad=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=torch.cuda.is_bf16_supported()):
            y = F.gelu(F.linear(F.layer_norm(x, (64,), b, b), w, b))
            y = F.scaled_dot_product_attention(y, y, y).float().mean((1, 2))
        torch.autograd.grad(F.cross_entropy(y, torch.zeros(4, dtype=torch.int64, device=device)), (x, w, b))
        torch.cuda.synchronize(device)
