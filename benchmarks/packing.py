"""What packing costs the real DeiT-Ti, and how many weights 3.9 MB hold.

    python benchmarks/packing.py --weights deit-tiny --data imagenet-sample-1000.zip --out FILE

fineness     ours: step = rms / fineness, nothing cut off, Huffman-coded
bits         the usual: a fixed number of bits, the step of least squared error for them, larger weights cut off

Both by row, the same tensors, the rest in full precision. For each: right answers, answers that stayed the same, mean
Kullback-Leibler divergence from the model before packing, and bits per weight as entropy, Huffman, xz and packed bits.
"""

import argparse
import json
import lzma
import math
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from torch import Tensor

import vitreous
from vitreous.evaluation import inference
from vitreous.machine import record
from vitreous.models.model import Model
from vitreous.weights import starter
from vitreous.weights.quantised import HALF_PRECISION_BELOW, as_rows, quantise, restore

FINENESS = (16.0, 8.0, 6.0, 5.0, 4.0, 3.0, 2.0)
BITS = (8, 7, 6, 5, 4)
XZ = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 0, "lp": 0, "pb": 0}]

Way = Callable[[Tensor], tuple[Tensor, Tensor]]


def fixed_bits(rows: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Codes and steps of a fixed number of bits: of many steps, each row's best."""
    most = 2 ** (bits - 1) - 1
    w = rows.double()
    whole = w.abs().amax(1) / most
    best, least = whole, torch.full_like(whole, math.inf)
    for share in np.linspace(0.3, 1.0, 36):
        step = (whole * share).half().double().clamp(min=2.0**-24)
        codes = (w / step[:, None]).round().clamp(-most, most)
        error = (w - codes * step[:, None]).square().sum(1)
        best, least = torch.where(error < least, step, best), torch.minimum(error, least)
    return (w / best[:, None]).round().clamp(-most, most).to(torch.int8), best.half()


def bits_each(codes: list[Tensor]) -> dict[str, float]:
    """Bits per weight by each way to write codes; every tensor has a code of its own."""
    total, spent = 0, dict.fromkeys(("entropy", "huffman", "xz", "packed"), 0.0)
    for tensor in codes:
        raw = (tensor.to(torch.int16) + 128).to(torch.uint8).numpy()
        share = np.bincount(raw.ravel(), minlength=256) / raw.size
        coder = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
        spent["entropy"] -= raw.size * float((share * np.log2(share, where=share > 0, out=np.zeros(256))).sum())
        spent["huffman"] += 8 * len(coder.compress(raw.tobytes()) + coder.flush())
        spent["xz"] += 8 * len(lzma.compress(raw.tobytes(), format=lzma.FORMAT_RAW, filters=XZ))
        spent["packed"] += raw.size * math.ceil(math.log2(2 * int(tensor.abs().max()) + 1))
        total += raw.size
    return {name: bits / total for name, bits in spent.items()}


def answers(model: Model, data: Any) -> Tensor:
    return torch.from_numpy(inference.logits(model, data, batch=50).values)


def packed(model: Model, way: Way) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The state after packing and reading back, and the codes in between."""
    state, codes = dict(model.state_dict()), []
    for name, tensor in state.items():
        if tensor.ndim > 1 and tensor.numel() >= HALF_PRECISION_BELOW:
            code, step = way(tensor.reshape(as_rows(tensor.shape)))
            state[name] = restore(code, step).view(tensor.shape)
            codes.append(code)
    return state, codes


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--weights", required=True)
    arguments.add_argument("--data", required=True)
    arguments.add_argument("--out", type=Path)
    asked = arguments.parse_args()
    data = vitreous.images.open(asked.data)
    model = vitreous.load(asked.weights)
    labels, before = torch.from_numpy(data.labels), answers(model, data)
    ways: list[tuple[dict[str, Any], Way]] = [({"fineness": k}, lambda rows, k=k: quantise(rows, k)) for k in FINENESS]
    ways += [({"bits": b}, lambda rows, b=b: fixed_bits(rows, b)) for b in BITS]
    rows = []
    for title, way in ways:
        state, codes = packed(model, way)
        other = vitreous.load(asked.weights)
        other.load_state_dict(state)
        after, each = answers(other, data), bits_each(codes)
        p, q = before.log_softmax(1), after.log_softmax(1)
        found = {
            **title,
            "right": int((after.argmax(1) == labels).sum()),
            "same_answers": int((after.argmax(1) == before.argmax(1)).sum()),
            "divergence": float((p.exp() * (p - q)).sum(1).mean()),
            "bits_per_weight": each,
            "weights_in_room": int(8 * starter.MAX_STARTER_BYTES / each["huffman"]),
        }
        rows.append(found)
        print(json.dumps(found), flush=True)
    body = {
        "benchmark": "packing",
        "images": len(data),
        "right_before": int((before.argmax(1) == labels).sum()),
        "weights": sum(tensor.numel() for tensor in model.state_dict().values()),
        "weights_packed": sum(code.numel() for code in codes),
        "rows": rows,
        **record(),
    }
    if asked.out:
        asked.out.write_text(json.dumps(body, indent=2) + "\n")


if __name__ == "__main__":
    main()
