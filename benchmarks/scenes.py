"""Generated landscapes with one thing in each: a boat, a lighthouse, a house, a tree or a balloon.

`paint(kind, seed)` is one picture of 640 x 480 pixels; every seed has its own weather, hills, place, size and colours.
`python benchmarks/scenes.py FOLDER` writes 24 of each kind.
"""

import math
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

COLUMNS, ROWS = 640, 480
EACH = 24  # scenes of a kind in a folder
FINER = 2  # painted larger, then made smaller: smooth edges
SKIES = (  # above, at the horizon
    ((88, 150, 214), (214, 232, 244)),
    ((60, 96, 168), (246, 206, 160)),
    ((120, 140, 160), (220, 222, 220)),
    ((72, 78, 140), (240, 150, 120)),
    ((110, 180, 220), (250, 240, 220)),
)
MEADOWS = ((92, 140, 72), (142, 150, 80), (70, 110, 70))
SEAS = ((36, 92, 130), (44, 120, 140), (60, 84, 120))
LEAVES = ((60, 120, 60), (90, 140, 50), (190, 120, 50), (50, 100, 80))
RED, ORANGE, BLUE, CREAM, GREEN, PURPLE = PAINTS = (
    *((196, 64, 52), (226, 160, 60), (52, 104, 160)),
    *((240, 236, 226), (88, 132, 96), (140, 80, 130)),
)


def paint(kind, seed):
    """One scene. kind: of KINDS."""
    rng = np.random.default_rng([seed, *kind.encode()])
    above, low = (np.array(colour, float) for colour in SKIES[rng.integers(len(SKIES))])
    horizon = rng.uniform(0.58, 0.72) * ROWS * FINER
    is_wet = kind in ("sailboat", "lighthouse")
    image = sky(rng, above, low)
    pen = ImageDraw.Draw(image)
    hills(pen, rng, horizon, low)
    ground(pen, rng, horizon, low, np.array((SEAS if is_wet else MEADOWS)[rng.integers(3)], float), is_wet)
    x, size = image.width * rng.uniform(0.25, 0.75), image.height * rng.uniform(0.3, 0.55)
    KINDS[kind](pen, rng, x, horizon + (image.height - horizon) * rng.uniform(0.15, 0.55), size)
    pixels = np.asarray(image.resize((COLUMNS, ROWS), Image.Resampling.LANCZOS), float)
    return Image.fromarray((pixels + rng.normal(0, 3, (ROWS, COLUMNS, 1))).clip(0, 255).astype(np.uint8))


# Around ---------------------------------------------------------------------------------------------------------------


def sky(rng, above, low):
    width, height = COLUMNS * FINER, ROWS * FINER
    down = np.linspace(0, 1, height)[:, None, None] ** 0.8
    colours = np.repeat(above * (1 - down) + low * down, width, axis=1)
    y, x = np.mgrid[:height, :width]
    sun = rng.uniform(0.1, 0.9) * width, rng.uniform(0.08, 0.35) * height
    glow = np.exp(-((x - sun[0]) ** 2 + (y - sun[1]) ** 2) / (2 * (0.12 * width) ** 2))[..., None]
    image = Image.fromarray((colours + (np.array([255, 246, 214]) - colours) * 0.7 * glow).astype(np.uint8))
    clouds = Image.new("L", image.size)
    pen = ImageDraw.Draw(clouds)
    for _ in range(rng.integers(2, 7)):
        place, radius = (rng.uniform(0, width), rng.uniform(0.05, 0.4) * height), rng.uniform(0.03, 0.08) * width
        for _ in range(8):
            puff = place[0] + rng.normal(0, 1.3 * radius), place[1] + rng.normal(0, 0.25 * radius)
            ellipse(pen, *puff, *(radius * rng.uniform(0.35, 0.8) * np.array([1, 0.6])), int(rng.uniform(120, 220)))
    image.paste((255, 252, 248), mask=clouds.filter(ImageFilter.GaussianBlur(10)))
    return image


def hills(pen, rng, horizon, low):
    width, height = COLUMNS * FINER, ROWS * FINER
    across = np.linspace(0, 1, 80)
    for depth in range(3):  # the far ones first, in haze
        waves = sum(
            high * np.sin(across * often + rng.uniform(0, 6.3)) for high, often in ((0.3, 5), (0.18, 11), (0.07, 29))
        )
        ridge = horizon - (2 - depth) * 0.02 * height - (0.16 - 0.045 * depth) * height * (0.45 + waves)
        haze = 0.62 - 0.22 * depth
        points = [*zip(across * width, ridge, strict=True), (width, height), (0, height)]
        pen.polygon(points, fill=shade(np.array([64, 92, 84]) * (1 - haze) + low * haze))


def ground(pen, rng, horizon, low, colour, is_wet):
    """Meadow with grass, or sea with waves; hazy far away."""
    width, height = COLUMNS * FINER, ROWS * FINER
    for y in range(int(horizon), height):
        near = (y - horizon) / (height - horizon)
        haze = 0.35 * (1 - near)
        pen.line([(0, y), (width, y)], fill=shade(colour * (0.75 + 0.35 * near) * (1 - haze) + low * haze))
    for _ in range(260):
        x, near = rng.uniform(0, width), rng.uniform(0, 1) ** 0.8
        y, long = horizon + (height - horizon) * near, (6 + 30 * near) * rng.uniform(0.4, 1.2)
        end = (x + long, y) if is_wet else (x + rng.normal(0, 3), y - long / 2)
        pen.line([(x, y), end], fill=shade(colour, rng.uniform(0.82, 1.2)), width=2)


# Things: at x, y (their foot), of a size ----------------------------------------------------------------------------


def sailboat(pen, rng, x, y, size):
    hull = pick(rng)
    for i in range(26):  # its reflection
        half = 0.45 * size * (1 - i / 30) * rng.uniform(0.6, 1)
        depth = y + 4 + i * 0.012 * size
        pen.line([(x - half, depth), (x + half, depth)], fill=shade(hull, 0.55), width=2)
    polygon(pen, x, y, size, [(-0.42, -0.12), (0.46, -0.12), (0.3, 0.04), (-0.28, 0.04)], hull)
    polygon(pen, x, y, size, [(-0.005, -0.12), (0.005, -0.12), (0.005, -0.98), (-0.005, -0.98)], (90, 70, 52))
    polygon(pen, x, y, size, [(0.015, -0.95), (0.015, -0.17), (0.4, -0.17)], CREAM)
    polygon(pen, x, y, size, [(-0.015, -0.88), (-0.015, -0.17), (-0.3, -0.17)], pick(rng))


def lighthouse(pen, rng, x, y, size):
    stripe = (RED, ORANGE, BLUE, GREEN, PURPLE)[rng.integers(5)]
    rough = rng.uniform(0.8, 1.2, (15, 2)) * (0.42, 0.1)
    around = [
        (a * math.cos(turn), b * math.sin(turn)) for (a, b), turn in zip(rough, np.arange(15) * 0.42, strict=True)
    ]
    polygon(pen, x, y, size, around, (96, 92, 88))
    for i in range(5):
        low, high = 0.13 - 0.011 * i, 0.119 - 0.011 * i
        belt = [(-low, -0.16 * i), (low, -0.16 * i), (high, -0.16 * (i + 1)), (-high, -0.16 * (i + 1))]
        polygon(pen, x, y, size, belt, stripe if i % 2 else CREAM)
    polygon(pen, x, y, size, [(-0.1, -0.83), (0.1, -0.83), (0.1, -0.8), (-0.1, -0.8)], (60, 60, 64))
    polygon(pen, x, y, size, [(-0.055, -0.92), (0.055, -0.92), (0.055, -0.83), (-0.055, -0.83)], (255, 232, 150))
    polygon(pen, x, y, size, [(-0.08, -0.92), (0.08, -0.92), (0, -1)], shade(stripe, 0.7))


def house(pen, rng, x, y, size):
    wall, roof = shade(pick(rng), 1.1), shade((RED, ORANGE)[rng.integers(2)], 0.8)
    box(pen, x, y, size, 0.14, -0.72, 0.23, -0.45, shade(roof, 0.7))
    box(pen, x, y, size, -0.36, -0.42, 0.36, 0, wall)
    box(pen, x, y, size, -0.36, -0.42, -0.05, 0, shade(wall, 0.88))
    polygon(pen, x, y, size, [(-0.42, -0.42), (0.42, -0.42), (0, -0.78)], roof)
    for middle in (-0.24, 0.2):
        box(pen, x, y, size, middle - 0.08, -0.32, middle + 0.08, -0.15, CREAM)
        for side in (-0.035, 0.035):
            box(pen, x, y, size, middle + side - 0.03, -0.305, middle + side + 0.03, -0.165, (90, 110, 130))
    box(pen, x, y, size, -0.07, -0.24, 0.06, 0, shade(roof, 0.6))


def tree(pen, rng, x, y, size):
    leaves = LEAVES[rng.integers(len(LEAVES))]
    polygon(pen, x, y, size, [(-0.05, 0), (0.05, 0), (0.025, -0.5), (-0.025, -0.5)], (92, 68, 48))
    for _ in range(46):
        turn, far, radius = rng.uniform(0, 6.28), rng.uniform(0, 0.26), size * rng.uniform(0.05, 0.1)
        up = far * math.sin(turn)  # light from above
        place = x + 1.1 * size * far * math.cos(turn), y + size * (up - 0.66)
        ellipse(pen, *place, radius, radius, shade(leaves, 0.8 - 0.85 * up + rng.normal(0, 0.06)))


def balloon(pen, rng, x, y, size):
    y -= size * rng.uniform(0.5, 1.1)
    one, two = (PAINTS[i] for i in rng.choice(len(PAINTS), 2, replace=False))
    for i in range(4):
        ellipse(pen, x, y - 0.25 * size, 0.34 * size * (1 - 0.27 * i), 0.35 * size, two if i % 2 else one)
    polygon(pen, x, y, size, [(-0.2, 0.02), (0.2, 0.02), (0.06, 0.2), (-0.06, 0.2)], shade(one, 0.8))
    for side in (-1, 1):
        pen.line([(x + side * 0.06 * size, y + 0.2 * size), (x + side * 0.05 * size, y + 0.3 * size)], (70, 56, 40), 4)
    box(pen, x, y, size, -0.065, 0.3, 0.065, 0.39, (128, 88, 52))


KINDS = {"balloon": balloon, "house": house, "lighthouse": lighthouse, "sailboat": sailboat, "tree": tree}


# Strokes ------------------------------------------------------------------------------------------------------------


def pick(rng):
    return PAINTS[rng.integers(len(PAINTS))]


def shade(colour, factor=1.0):
    return tuple(int(min(max(value * factor, 0), 255)) for value in colour)


def polygon(pen, x, y, size, points, fill):
    pen.polygon([(x + size * across, y + size * down) for across, down in points], fill=fill)


def box(pen, x, y, size, left, top, right, bottom, fill):
    polygon(pen, x, y, size, [(left, top), (right, top), (right, bottom), (left, bottom)], fill)


def ellipse(pen, x, y, half_width, half_height, fill):
    pen.ellipse([x - half_width, y - half_height, x + half_width, y + half_height], fill=fill)


def paint_folder(folder):
    """EACH scenes of every kind, a folder for each kind."""
    for kind in KINDS:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for seed in range(100, 100 + EACH):
            paint(kind, seed).save(folder / kind / f"{seed}.jpg", quality=92)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        paint_folder(Path(name))
