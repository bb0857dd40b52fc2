"""How much of a GPU's arithmetic a training uses (MFU)."""

from __future__ import annotations

import re

# Dense bfloat16 products with float32 sums, in TFLOP/s (half of "with sparsity"): data-sheet figures, from memory.
PEAKS = {
    r"B200": 2250,
    r"GH200|H200": 989,
    r"H100 NVL": 835,
    r"H100 PCIe": 756,
    r"H100": 989,
    r"A100": 312,
    r"A30\b": 165,
    r"L40S": 362,
    r"L40\b": 181,
    r"L4\b": 121,
    r"RTX 6000 Ada": 364,
    r"RTX A6000": 155,
    r"RTX 4090": 165,
    r"RTX 3090\b": 71,
}


def peak_flops(device_name: str) -> float | None:
    """FLOP/s of bfloat16 products by the data sheet; None for an unknown device."""
    return next((1e12 * peak for name, peak in PEAKS.items() if re.search(name, device_name, re.I)), None)


def share_of_peak(flops_per_second: float, device_name: str, ceiling: float | None = None) -> float | None:
    """The share of `ceiling` in FLOP/s, else of the data sheet's peak; None for an unknown device."""
    peak = peak_flops(device_name) if ceiling is None else ceiling
    return None if peak is None else flops_per_second / peak
