"""How much of the image one place of a layer depends on (figures 6 and C.1 to C.4 of arXiv 2108.08810).

    field[y, x] = mean over images, channels c and colours of | ∂ f_c(centre) / ∂ input[y, x] |

B images   H W pixels
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.measures.drawing import banded, block_name, both_rows, layer_name, top_with_room
from vitreous.measures.measure import Arrays, Drawn, Found, Measure, Reading, bands, on_few_places, plain
from vitreous.measures.subject import Subject, in_chunks
from vitreous.models.taps import taps
from vitreous.randomness import integers
from vitreous.report import charts
from vitreous.report.charts import Tile
from vitreous.report.colours import colours
from vitreous.report.files import Panel
from vitreous.words import counted

GRAPHS_AT_ONCE = 8  # images whose graph stays in memory
CHANNELS_PER_IMAGE = 2  # channels drawn for each image and layer
MAP_SIDE = 28  # places a side of a map that is kept
MAX_MAPS_DRAWN = 8


def analytic_field(layers: Sequence[tuple[int, int]]) -> list[int]:
    """Pixels a side that a place depends on after each convolution or pool, given as (kernel, stride).

    rₗ = rₗ₋₁ + (k − 1) · the product of the strides before
    """
    size, step, out = 1, 1, []
    for kernel, stride in layers:
        size += (kernel - 1) * step
        step *= stride
        out.append(size)
    return out


def at_centre(x: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
    """The numbers of the place in the middle, row h // 2 and column w // 2: B C.

    x: B C h w; or tokens, B T C: the last h·w are the patches of `grid`.
    """
    if x.dim() == 4:
        return x[:, :, x.shape[2] // 2, x.shape[3] // 2]
    assert grid is not None
    patches = x[:, -grid[0] * grid[1] :]
    return patches[:, grid[0] // 2 * grid[1] + grid[1] // 2]


def field_of(values: Tensor, images: Tensor, channels: Tensor) -> Tensor:
    """|∂ values[b, channels[b]] / ∂ images[b]|, mean over colours.  values: B C of these images.  Returns B H W."""
    chosen = values.gather(1, channels[:, None].to(values.device)).sum()
    (slope,) = torch.autograd.grad(chosen, images, retain_graph=True)
    return slope.abs().mean(1)


def rings(field: Tensor, centre: tuple[float, float]) -> Tensor:
    """Mass by distance from the centre, in rings of one pixel.  B H W -> B R"""
    h, w = field.shape[-2:]
    rows = torch.arange(h, device=field.device, dtype=torch.float64) - centre[0]
    columns = torch.arange(w, device=field.device, dtype=torch.float64) - centre[1]
    ring = (rows[:, None].square() + columns.square()).sqrt().floor().long().flatten()
    count = math.ceil(math.hypot(h, w)) + 1
    out = torch.zeros(len(field), count, dtype=torch.float64, device=field.device)
    return out.index_add_(1, ring, field.flatten(1).double())


def half_mass_radius(mass: Tensor) -> float:
    """Pixels around the centre that hold half of the mass.  mass: R, by rings of one pixel."""
    total = mass.cumsum(0)
    half = float(total[-1]) / 2
    if half <= 0:
        return math.nan
    ring = int(torch.searchsorted(total, torch.tensor(half, dtype=total.dtype, device=total.device)))
    before = float(total[ring - 1]) if ring else 0.0
    return ring + (half - before) / float(mass[ring])


def rms_radius(field: Tensor, centre: tuple[float, float]) -> float:
    """√ of the mean squared distance, by mass.  H W"""
    rows = torch.arange(field.shape[0], dtype=torch.float64) - centre[0]
    columns = torch.arange(field.shape[1], dtype=torch.float64) - centre[1]
    squares = rows[:, None].square() + columns.square()
    return math.sqrt(float((field.double() * squares).sum() / field.double().sum()))


def centre_share(field: Tensor, box: tuple[int, int, int, int]) -> float:
    """Share of the mass in the own patch: top, left, bottom, right.  H W"""
    top, left, bottom, right = box
    return float(field[top:bottom, left:right].sum() / field.sum().clamp(min=torch.finfo(field.dtype).tiny))


@dataclass(frozen=True, eq=False)
class _Field:
    """The fields of some images at one tap: mass by rings, B R; share of the own patch, B; a small map, their sum."""

    mass: Tensor
    share: Tensor
    small: Tensor


class _Fields(Reading):
    def finish(self) -> Found:
        subject = self.subject
        images = subject.first(subject.settings.field_images)
        parts = in_chunks(images, GRAPHS_AT_ONCE, self._fields)
        known = _analytic(subject)
        rows, maps = [], {}
        for tap in parts[0]:
            radius, error = _jackknife(torch.cat([part[tap].mass for part in parts]))
            small = torch.stack([part[tap].small for part in parts]).sum(0)
            maps[tap] = plain(small / small.max().clamp(min=1e-30), 3)
            share = torch.cat([part[tap].share for part in parts]).mean().item()
            rows.append(
                {
                    "tap": tap,
                    "when": "after" if _is_after(tap) else "before",
                    "radius_px": plain(radius),
                    "error_px": plain(error),
                    "own_patch_share": plain(share),
                    "analytic_px": known.get(tap.rsplit(".", 1)[0]),
                }
            )
        return {
            "images": len(images),
            "channels": "all" if subject.settings.exact else CHANNELS_PER_IMAGE * len(images),
            "grid": list(subject.grid),
            "whole_image_radius_px": plain(_whole(images.shape[-2:])),
            "rows": rows,
            "maps": maps,
        }

    def _fields(self, images: Tensor, first: int) -> dict[str, _Field]:
        """The field of every tap: one forward, then a backward from each tap."""
        names = _names(self.subject)
        with torch.inference_mode(False), torch.enable_grad():
            x = self.subject.normalised(images.clone()).clone().requires_grad_()
            with taps(self.subject.model, names) as seen:
                self.subject.model.features(x)
            return {tap: self._field(tap, seen[tap], x, first) for tap in names}

    def _field(self, tap: str, seen: Tensor, x: Tensor, first: int) -> _Field:
        values = at_centre(seen, self.subject.grid)  # B C
        draws = self._channels(tap, values.shape[1], range(first, first + len(x)))
        total = torch.zeros_like(x[:, 0])
        for channels in draws:
            total += field_of(values, x, channels)
        field = total.cpu() / len(draws)  # B H W
        self.subject.tick(len(draws) * len(x) // 2)
        centre, box = _where(seen, field.shape[-2:], self.subject)
        h, w = field.shape[-2:]
        small = F.adaptive_avg_pool2d(field[:, None], (min(h, MAP_SIDE), min(w, MAP_SIDE)))[:, 0].sum(0)
        share = torch.tensor([centre_share(each, box) for each in field], dtype=torch.float64)
        return _Field(rings(field, centre), share, small)

    def _channels(self, tap: str, count: int, images: range) -> list[Tensor]:
        """Channels to differentiate, one for each image and round; all channels if exact."""
        if self.subject.settings.exact:
            return [torch.full((len(images),), channel) for channel in range(count)]
        drawn = integers(self.subject.settings.seed, f"field {tap}", 0, list(images), count, CHANNELS_PER_IMAGE)
        return list(torch.from_numpy(drawn).unbind(1))


def _where(
    seen: Tensor, size: Sequence[int], subject: Subject
) -> tuple[tuple[float, float], tuple[int, int, int, int]]:
    """The middle and the box of the pixels that belong to the place in the middle."""
    rows, columns = seen.shape[2:] if seen.dim() == 4 else subject.grid
    tall, wide = size[0] / rows, size[1] / columns
    top, left = rows // 2 * tall, columns // 2 * wide
    box = round(top), round(left), max(round(top + tall), round(top) + 1), max(round(left + wide), round(left) + 1)
    return (top + tall / 2 - 0.5, left + wide / 2 - 0.5), box


def _jackknife(mass: Tensor) -> tuple[float, float]:
    """Radius of the mean field, and its standard error over images.  mass: images R"""
    whole = mass.sum(0)
    radius = half_mass_radius(whole)
    if len(mass) < 2:
        return radius, math.nan
    without = torch.tensor([half_mass_radius(whole - each) for each in mass], dtype=torch.float64)
    count = len(mass)
    return radius, math.sqrt(float((without - without.mean()).square().sum()) * (count - 1) / count)


def _whole(size: Sequence[int]) -> float:
    """Radius of an even field."""
    h, w = int(size[0]), int(size[1])
    return half_mass_radius(rings(torch.ones(1, h, w), ((h - 1) / 2, (w - 1) / 2))[0])


FIELD_TAPS = {
    "vit": ("blocks.*.attention.output", "blocks.*.mlp.output", "blocks.*.output"),
    "stem": ("stem.stages.*.units.*.branch", "stem.stages.*.units.*.output"),
    "bit": ("stages.*.units.*.branch", "stages.*.units.*.output"),
}


def _names(subject: Subject) -> list[str]:
    order = {name: i for i, (name, _) in enumerate(subject.model.named_modules())}
    return sorted(dict.fromkeys(subject.taps(FIELD_TAPS)), key=order.__getitem__)


def _is_after(tap: str) -> bool:
    """True for a tap after the skip was added."""
    return tap.endswith(".output") and tap.split(".")[-2] not in ("attention", "mlp")


def _analytic(subject: Subject) -> dict[str, int]:
    """Field of every unit of a ResNet or of a hybrid's stem, by kernels and strides: pixels a side."""
    model: Any = subject.model
    if "bit" not in subject.families and not subject.has_stem:
        return {}
    net, before = (model.stem, "stem.") if subject.has_stem else (model, "")
    layers = [(net.root.conv.kernel_size[0], net.root.conv.stride[0])] + ([] if net.root.is_small else [(3, 2)])
    out = {}
    for s, stage in enumerate(net.stages):
        for u, unit in enumerate(stage.units):
            layers += [(conv.kernel_size[0], conv.stride[0]) for conv in (unit.conv1, unit.conv2, unit.conv3)]
            out[f"{before}stages.{s}.units.{u}"] = analytic_field(layers)[-1]
    return out


def _cost(subject: Subject) -> float:
    images = min(subject.settings.field_images, len(subject.data))
    channels = _width(subject) if subject.settings.exact else CHANNELS_PER_IMAGE
    return len(_names(subject)) * images * channels / 2  # on average, back through half of the model


def _width(subject: Subject) -> int:
    """Channels of a typical layer."""
    config: Any = subject.model.config
    return int(config.encoder.width) if subject.depth else round(1000 * config.resnet.resnet_width)


def _say(found: Found) -> str:
    after = [row for row in found["rows"] if row["when"] == "after" and row["radius_px"] is not None]
    if not after:
        return "no layer depends on the image"
    first, last = after[0], after[-1]
    whole, name = found["whole_image_radius_px"], layer_name(first["tap"])
    return (
        f"half of what a place depends on lies within {first['radius_px']:.0f} px after {name} and within "
        f"{last['radius_px']:.0f} px at the end; the whole image alike would be {whole:.0f} px"
        f"{on_few_places(found['grid'])}"
    )


def _draw(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    rows, whole = found["rows"], found["whole_image_radius_px"]
    after = [row for row in rows if row["when"] == "after"]
    span = (0.0, top_with_room([row["radius_px"] for row in both_rows(found, beside)], [whole]))
    series = []
    for word, own in (("after the skip", after), *_branches(rows).items()):
        if own:
            series.append(banded(word, own, np.linspace(0, 1, len(own)), "radius_px", "error_px"))
    chart = charts.lines(
        series, title="radius that holds half of the gradient", x_title="depth", x_is_share=True,
        level=(whole, f"whole image alike: {whole:.0f} px"), y_range=span,
    )  # fmt: skip
    panels = [Panel(chart, "Radius of half of the field, pixels")]
    known = [row for row in after if row["tap"] in found["maps"]]
    places = sorted({round(v) for v in np.linspace(0, len(known) - 1, MAX_MAPS_DRAWN)}) if known else []
    tiles = []
    for row in (known[place] for place in places):
        field = np.asarray(found["maps"][row["tap"]], np.float64)
        tiles.append(Tile(block_name(row["tap"]), colours((field / max(float(field.max()), 1e-30)) ** 0.25, 0.0, 1.0)))
    if tiles:
        maps = charts.tiles(tiles, title="receptive fields of the centre", columns=min(4, len(tiles)))
        panels.append(Panel(maps, "What the centre depends on (fourth root)"))
    return [Drawn(panels, paper="P2-fig6")]


def _branches(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows before a skip is added, by kind of branch."""
    before = [row for row in rows if row["when"] == "before"]
    kinds = {"attention.output": "attention", "mlp.output": "MLP", "branch": "branch"}
    found = {word: [row for row in before if row["tap"].endswith(f".{end}")] for end, word in kinds.items()}
    if found["branch"] and found["MLP"]:  # a hybrid: four lines would be one too many
        return {"branches": before}
    return found


FIELD = Measure(
    name="receptive-field",
    sentence="How far around a place the pixels lie that it really depends on, by gradient, layer by layer.",
    figure="P2 figures 6 and C.1 to C.4",
    saw="A ViT's fields are large early and global half-way; a ResNet's start small and grow slowly.",
    start=_Fields,
    says=_say,
    cost="two backward passes for each layer, on 16 images",
    forwards=_cost,
    draw=_draw,
    method=lambda found: (
        "Gradient of the centre place with respect to the image, absolute, mean over "
        f"{counted(found['images'], 'image')} and "
        + ("all channels" if found["channels"] == "all" else f"{found['channels']} channels drawn by the seed")
        + f"{bands(found)}."
    ),
    rank=3,
)
