"""Generated images: one shape somewhere on a cloudy ground. The label is its kind; colour and place say nothing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SHAPE_NAMES = ("disc", "square", "triangle", "cross")
SIZE = 48  # pixels


def draw(index: int, seed: int = 0) -> tuple[NDArray[np.uint8], int]:
    """Image number `index`: 48×48×3, and the number of its kind. The same numbers always give the same image."""
    image, kind, _ = _drawn(index, seed)
    return image, kind


def mask(index: int, seed: int = 0) -> NDArray[np.bool_]:
    """Which pixels of that image are the shape."""
    return _drawn(index, seed)[2]


def _drawn(index: int, seed: int) -> tuple[NDArray[np.uint8], int, NDArray[np.bool_]]:
    rng = np.random.default_rng((seed, index))
    kind = int(rng.integers(len(SHAPE_NAMES)))
    ground = _clouds(rng)
    colour = rng.uniform(0, 1, 3)
    colour = colour + 0.45 * np.sign(colour - ground.mean((0, 1)))  # pushed away from the ground's, channel by channel
    inside = _shape(SHAPE_NAMES[kind], centre=rng.uniform(12, SIZE - 12, 2), radius=rng.uniform(6, 10))
    image = np.where(inside[..., None], colour, ground) + rng.normal(0, 0.04, (SIZE, SIZE, 3))
    return (255 * image.clip(0, 1)).astype(np.uint8), kind, inside


def batch(indices: range, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Many of them: N×48×48×3 and N."""
    drawn = [draw(i, seed) for i in indices]
    return np.stack([image for image, _ in drawn]), np.array([kind for _, kind in drawn])


def _clouds(rng: np.random.Generator) -> NDArray[np.float64]:
    """Slow waves of colour."""
    rows, columns = np.mgrid[0:SIZE, 0:SIZE] / SIZE
    ground = np.zeros((SIZE, SIZE, 3))
    for _ in range(4):
        angle, speed, phase = rng.uniform(0, 2 * np.pi), rng.uniform(1, 3), rng.uniform(0, 2 * np.pi, 3)
        wave = 2 * np.pi * speed * (np.cos(angle) * rows + np.sin(angle) * columns)
        ground += 0.08 * np.sin(wave[..., None] + phase)
    return ground + rng.uniform(0.25, 0.75, 3)


def _shape(kind: str, centre: NDArray[np.float64], radius: float) -> NDArray[np.bool_]:
    y, x = np.mgrid[0:SIZE, 0:SIZE] + 0.5 - centre[:, None, None]
    if kind == "disc":
        return x**2 + y**2 <= radius**2
    if kind == "square":
        return np.maximum(abs(x), abs(y)) <= 0.85 * radius
    if kind == "triangle":
        return (y <= 0.8 * radius) & (y >= 2 * abs(x) - 1.1 * radius)
    return (np.minimum(abs(x), abs(y)) <= 0.3 * radius) & (np.maximum(abs(x), abs(y)) <= 1.1 * radius)
