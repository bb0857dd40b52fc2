"""Train the small model of shapes that tests augment for; write Google's npz.   python benchmarks/train_shapes.py

About three minutes on two cores. Prints one JSON object: accuracy on pictures it never saw, losses, machine.
"""

import json
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import vitreous
from vitreous.images.embedded import shapes
from vitreous.machine import record

OUT = Path(__file__).parent.parent / "tests/golden/shapes"
STEPS, BATCH, PEAK = 1500, 128, 2e-3


def tensors(indices: range, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    pictures, kinds = shapes.batch(indices, seed)
    return (torch.from_numpy(pictures).permute(0, 3, 1, 2).float() - 127.5) / 127.5, torch.from_numpy(kinds)


def main() -> None:
    torch.manual_seed(0)
    model = vitreous.build(
        "Ti/4", image_size=shapes.SIZE, classes=len(shapes.SHAPE_NAMES), width=64, depth=4, heads=4, mlp=128, seed=0
    )
    x, y = tensors(range(20_000), seed=1)
    held_out, answers = tensors(range(2_000), seed=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.98), weight_decay=0.05)
    losses = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = PEAK * min((step + 1) / 100, 0.5 + 0.5 * math.cos(math.pi * step / STEPS))
        pick = torch.randint(0, len(x), (BATCH,))
        loss = F.cross_entropy(model(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % 250 == 249:
            print(step + 1, round(float(np.mean(losses[-50:])), 4), flush=True)
    model.eval()
    with torch.inference_mode():
        accuracy = (model(held_out).argmax(1) == answers).float().mean().item()
    model.labels = shapes.SHAPE_NAMES
    files = vitreous.save(model, OUT / "shapes.npz", format="google", force=True)
    figures = {
        "accuracy_on_2000_unseen": accuracy,
        "last_50_losses": float(np.mean(losses[-50:])),
        "steps": STEPS,
        "batch": BATCH,
    }
    print(json.dumps({"benchmark": "train_shapes", **record(), **figures, "files": [f.name for f in files]}, indent=2))


if __name__ == "__main__":
    main()
