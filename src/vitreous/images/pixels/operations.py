"""Augmentation operations: pure functions of whole batches, with parameters for every sample.

B images   C channels (1 or 3)   H rows   W columns; uint8 in, uint8 out, on the batch's device.

All arithmetic is in integers, so the same parameters give the same bytes on every device, in every batch, compiled or
not, and Pillow's bytes if Pillow has the operation. Each operation has identity parameters, so one pass of each serves
a batch whose samples want different operations.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import DataError
from vitreous.models.config import Size

UNIT_FACTOR = 1024  # a factor of 1: factors are whole multiples of 1 / 1024
FILL_LEVEL = 128  # fills what rotation, shear and translation uncover
WEIGHT_BITS = 11  # of interpolation weights
NUMBERS_IN_CACHE = 400_000  # of one core
MIRROR_TOGETHER_BELOW = 64 * 64  # pixels; larger images are mirrored one at a time, up to 6 times as fast as together
BLUR_TAPS = 13  # three deviations of the widest blur, 2 pixels, to each side
BLUR_UNIT = 4096  # the sum of a blur's taps


def crop_and_resize(x: Tensor, boxes: Tensor, flip: Tensor, size: Size) -> Tensor:
    """Cut a box out of each image and resize it to `size`: bilinear, half-pixel centres, no antialias; then mirror it.

    Output pixel i of S looks at (i + ½) h / S − ½ inside a box of h pixels, between two pixels whose weights are whole
    multiples of 1 / 2048; the sum is rounded once.
    x: B C H W.  boxes: B 4 of top, left, height, width, inside the image.  flip: B.
    """
    b, c, _, w = x.shape
    rows, columns = size
    block = max(NUMBERS_IN_CACHE // (c * rows * w), 1)
    if is_eager_cpu(x) and b > block:  # a few at a time, so intermediate results stay in the cache
        parts = zip(x.split(block), boxes.split(block), flip.split(block), strict=True)
        return torch.cat([crop_and_resize(*part, size) for part in parts])
    low, high, weight = _taps(boxes[:, 0], boxes[:, 2], rows)                   # each B rows
    start = torch.arange(b, device=x.device)[:, None] * x.shape[2]
    lines = x.permute(0, 2, 1, 3).reshape(-1, c * w)                            # B·H C·W
    top, bottom = (lines.index_select(0, (start + t).flatten()).to(torch.int32) for t in (low, high))
    y = (top << WEIGHT_BITS) + (bottom - top) * weight.view(-1, 1)              # B·rows C·W, in 1 / 2048 levels
    y = y.view(b, rows * c, w)
    low, high, weight = _taps(boxes[:, 1], boxes[:, 3], columns)                # each B columns
    low, high, weight = (torch.where(flip[:, None], t.flip(1), t)[:, None] for t in (low, high, weight))
    left, right = (y.gather(2, t.expand(b, rows * c, columns)) for t in (low, high))
    y = (left << WEIGHT_BITS) + (right - left) * weight                         # B rows·C columns
    y = (y + (1 << 2 * WEIGHT_BITS - 1)) >> 2 * WEIGHT_BITS
    return y.to(torch.uint8).view(b, rows, c, columns).permute(0, 2, 1, 3)      # B C rows columns


def _taps(first: Tensor, length: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The two pixels that each of `size` output pixels lies between, and the second one's weight in 1 / 2048."""
    i = torch.arange(size, device=first.device)
    first, length = first[:, None], length[:, None]
    place = (2 * i + 1) * length - size                                         # B size, in 1 / 2·size pixels
    low = torch.div(place, 2 * size, rounding_mode="floor")
    weight = ((place - low * 2 * size << WEIGHT_BITS) + size) // (2 * size)
    return first + low.clamp(min=0), first + torch.minimum(low + 1, length - 1), weight.to(torch.int32)


def shift(x: Tensor, offsets: Tensor, flip: Tensor, margin: int, reflect: bool = False) -> Tensor:
    """Move each image by up to `margin` pixels, filling in black or the mirrored edge; then mirror it.

    x: B C H W.  offsets: B 2, rows and columns of 0 … 2 · margin; `margin` moves nothing.  flip: B.
    """
    b, c, h, w = x.shape
    if reflect:
        rows, columns = (_reflected(n, margin, x.device) for n in (h, w))
        x = x[:, :, rows][:, :, :, columns]
    else:
        x = F.pad(x, (margin,) * 4)
    x = x.contiguous()
    h_wide, w_wide = h + 2 * margin, w + 2 * margin
    windows = x.as_strided((x.numel() - w + 1, w), (1, 1))                      # every run of w bytes
    channel = torch.arange(b * c, device=x.device).view(b, c, 1)
    row = offsets[:, 0, None, None] + torch.arange(h, device=x.device)          # B 1 H
    start = (channel * h_wide + row) * w_wide + offsets[:, 1, None, None]       # B C H
    return mirror(windows.index_select(0, start.flatten()).view(b, c, h, w), flip)


def _reflected(n: int, margin: int, device: torch.device) -> Tensor:
    i = torch.arange(-margin, n + margin, device=device).abs()
    return torch.minimum(i, 2 * (n - 1) - i)


def mirror(x: Tensor, flip: Tensor) -> Tensor:
    """Mirror the images with `flip`.  flip: B."""
    if is_eager_cpu(x):
        y = x.clone()
        if x.shape[2] * x.shape[3] < MIRROR_TOGETHER_BELOW:
            y.numpy()[flip.numpy()] = x.numpy()[flip.numpy()][..., ::-1]
        else:
            for i in flip.nonzero()[:, 0].tolist():
                y[i] = x[i].flip(2)
        return y
    return torch.where(flip[:, None, None, None], x.flip(3), x)


def affine(x: Tensor, matrix: Tensor) -> Tensor:
    """Output pixel (column i, row j) shows input pixel (a i + b j + c, d i + e j + f) >> 16; what lies outside is grey.

    matrix: B 6 of a b c d e f in 1 / 65536 pixels, Pillow's own fixed point; c and f include half a pixel.
    """
    b, channels, h, w = x.shape
    i, j = torch.arange(w, device=x.device), torch.arange(h, device=x.device)[:, None]
    m = matrix.view(b, 6, 1, 1).unbind(1)
    column, row = (m[0] * i + m[1] * j + m[2]) >> 16, (m[3] * i + m[4] * j + m[5]) >> 16        # B H W
    inside = (column >= 0) & (column < w) & (row >= 0) & (row < h)
    place = row.clamp(0, h - 1) * w + column.clamp(0, w - 1)
    y = x.reshape(b, channels, h * w).gather(2, place.view(b, 1, h * w).expand(-1, channels, -1))
    return torch.where(inside[:, None], y.view_as(x), FILL_LEVEL).to(torch.uint8)


def look_up(x: Tensor, table: Tensor) -> Tensor:
    """Each value replaced by its entry.  table: B C 256."""
    return table.to(torch.uint8).gather(2, x.flatten(2).long()).view(x.shape)


def levels(x: Tensor) -> Tensor:
    """0 … 255, to be replaced: 1 1 256."""
    return torch.arange(256, device=x.device, dtype=torch.int32).view(1, 1, 256)


def blend(a: Tensor, b: Tensor, factor: Tensor) -> Tensor:
    """a at factor 0, b at 1, beyond b above 1; truncated, not rounded, as in Pillow.  factor: in 1 / 1024."""
    return (a * UNIT_FACTOR + factor * (b - a)).clamp(0, 255 * UNIT_FACTOR) >> 10


def stretched(x: Tensor) -> Tensor:
    """autocontrast: the darkest value becomes 0, the brightest 255, each channel alone.  B C 256."""
    low, high = (t.to(torch.int32)[..., None] for t in (x.flatten(2).amin(2), x.flatten(2).amax(2)))
    v = levels(x)
    return torch.where(high > low, ((v - low) * 255 // (high - low).clamp(min=1)).clamp(0, 255), v)


def equalised(x: Tensor) -> Tensor:
    """equalise: make all values about equally frequent, for each channel alone.  B C 256."""
    b, c = x.shape[:2]
    values = x.flatten(2).long()
    start = 256 * torch.arange(b * c, device=x.device).view(b, c, 1)
    counts = torch.zeros(b * c * 256, dtype=torch.int32, device=x.device)
    counts = counts.scatter_add(0, (values + start).flatten(), torch.ones_like(values, dtype=torch.int32).flatten())
    counts = counts.view(b, c, 256)
    step = (values.shape[2] - counts.gather(2, values.amax(2, keepdim=True))) // 255            # B C 1
    below = counts.cumsum(2, dtype=torch.int32) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table, levels(x))


def grey(x: Tensor) -> Tensor:
    """Luma, 0.299 red + 0.587 green + 0.114 blue, as Pillow rounds it.  Returns B 1 H W, int32."""
    if x.shape[1] == 1:
        return x.to(torch.int32)
    if x.shape[1] != 3:
        raise DataError(f"the images have {x.shape[1]} channels; colour is changed in images of 1 or 3")
    r, g, b = x.to(torch.int32).split(1, 1)
    return (19595 * r + 38470 * g + 7471 * b + 0x8000) >> 16


def mean_grey(x: Tensor) -> Tensor:
    """The mean luma, rounded: B 1 1, int32."""
    total = grey(x).flatten(2).sum(2, keepdim=True)
    pixels = x.shape[2] * x.shape[3]
    return ((2 * total + pixels) // (2 * pixels)).to(torch.int32)


def saturate(x: Tensor, factor: Tensor) -> Tensor:
    """Grey at factor 0, unchanged at 1.  factor: B, in 1 / 1024."""
    return blend(grey(x), x.to(torch.int32), factor.view(-1, 1, 1, 1)).to(torch.uint8)


def sharpen(x: Tensor, factor: Tensor) -> Tensor:
    """Smoothed at factor 0, unchanged at 1, sharper beyond; the outermost pixels stay.  factor: B, in 1 / 1024.

    Smooth: the pixel five times, its eight neighbours once.
    """
    y = x.to(torch.int32)
    if min(x.shape[2:]) < 3:
        return x
    lines = y[:, :, :-2] + y[:, :, 1:-1] + y[:, :, 2:]                          # B C H−2 W
    total = lines[..., :-2] + lines[..., 1:-1] + lines[..., 2:] + 4 * y[:, :, 1:-1, 1:-1]
    smooth = F.pad((2 * total + 13) // 26, (1, 1, 1, 1))                        # B C H W
    inner = F.pad(torch.ones_like(smooth[:1, :1, 1:-1, 1:-1], dtype=torch.bool), (1, 1, 1, 1))
    return blend(torch.where(inner, smooth, y), y, factor.view(-1, 1, 1, 1)).to(torch.uint8)


def blur(x: Tensor, taps: Tensor) -> Tensor:
    """Weighted mean of 13 × 13 pixels, the edge repeated.  taps: B 13, adding up to 4096."""
    half = BLUR_TAPS // 2
    weights = taps.to(torch.int32).view(-1, BLUR_TAPS, 1, 1, 1).unbind(1)
    h, w = x.shape[2:]
    rows, columns = (torch.arange(-half, n + half, device=x.device).clamp(0, n - 1) for n in (h, w))
    y = x[:, :, rows].to(torch.int32)                                           # B C H+12 W
    y = sum((y[:, :, k : k + h] * tap for k, tap in enumerate(weights)), torch.zeros_like(y[:, :, :h])) >> 4
    y = y[..., columns]                                                         # B C H W+12, in 1 / 256 levels
    y = sum((y[..., k : k + w] * tap for k, tap in enumerate(weights)), torch.zeros_like(y[..., :w]))
    return ((y + (1 << 19)) >> 20).to(torch.uint8)


def inside(boxes: Tensor, size: tuple[int, ...] | torch.Size) -> Tensor:
    """Which pixels lie in each box.  boxes: B 4 of top, left, height, width.  Returns B 1 H W."""
    top, left, height, width = boxes.view(-1, 4, 1, 1, 1).unbind(1)
    row, column = torch.arange(size[0], device=boxes.device)[:, None], torch.arange(size[1], device=boxes.device)
    return (row >= top) & (row < top + height) & (column >= left) & (column < left + width)


def cut_out(x: Tensor, boxes: Tensor) -> Tensor:
    """A grey box over each image.  boxes: B 4."""
    return torch.where(inside(boxes, x.shape[2:]), FILL_LEVEL, x).to(torch.uint8)


def erase(x: Tensor, boxes: Tensor, keys: Tensor) -> Tensor:
    """A box of noise over each image: about normal, of mean 128 and deviation 64, cut at 0 and 255.

    Pixel p of a sample is a hash of (its key, p): the sum of the hash's four bytes.  boxes: B 4.  keys: B, of 32 bits.
    """
    place = torch.arange(x[0].numel(), device=x.device).view(1, *x.shape[1:])
    bits = _hashed(keys.view(-1, 1, 1, 1) ^ _hashed(place + 1))                 # B C H W
    total = (bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24)  # mean 510, deviation 148
    noise = (FILL_LEVEL + ((total - 510) * 111 + 128 >> 8)).clamp(0, 255)
    return torch.where(inside(boxes, x.shape[2:]), noise, x).to(torch.uint8)


def _hashed(x: Tensor) -> Tensor:
    """murmur3's finaliser on 32 bits held in int64."""
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return x ^ (x >> 16)


def mix(x: Tensor, partner: Tensor, share: Tensor, boxes: Tensor) -> Tensor:
    """share · own + (1 − share) · partner's; inside the box the partner's alone.  uint8 is rounded, floats stay.

    x: B C H W.  partner: B, rows of the batch.  share: B.  boxes: B 4.
    """
    share = share.view(-1, 1, 1, 1)
    other = x[partner]
    y = share * x + (1 - share) * other
    y = y if x.is_floating_point() else y.round()
    return torch.where(inside(boxes, x.shape[2:]), other, y.to(x.dtype))


def is_eager_cpu(x: Tensor) -> bool:
    """True on an eager CPU, where picking the samples that need an operation pays; a GPU would have to wait."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()
