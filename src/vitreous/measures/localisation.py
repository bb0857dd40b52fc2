"""Whether a late token still shows where it came from (figures 9, 10 and D.1 to D.3 of arXiv 2108.08810).

B images   N places in raster order   Q of them asked
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import DataError
from vitreous.measures.measure import Arrays, Averages, Drawn, Found, Measure, Reading, plain
from vitreous.measures.residual import as_tokens
from vitreous.measures.similarity import (
    ENOUGH_IMAGES,
    NO_BATCH,
    ROUNDING_SHARE,
    caution_of_likeness,
    centred,
    exact,
    is_whole,
)
from vitreous.measures.subject import Subject, needs_batches
from vitreous.models.vit import patchify
from vitreous.randomness import permutation
from vitreous.report import charts
from vitreous.report.charts import ShareBar, Tile
from vitreous.report.colours import colours
from vitreous.report.files import Panel
from vitreous.words import counted, percent

MAX_TOKENS_ASKED = 256  # if there are more tokens, the seed draws this many
WARN_BELOW_IMAGES = 1000
GROWTH = "DeiT-Ti: 6 % on 64, 17 % on 512, 45 % on 1,952"  # imagenette-128-val, seed 0


def token_grams(x: Tensor) -> Tensor:
    """`similarity.centred_gram` of every token by itself, over the images of a batch.  B N D -> N B², unbiased."""
    n = len(x)
    rows = x.transpose(0, 1)  # N B D
    rows = rows if rows.dtype == torch.float64 else rows.float()
    mean = rows.mean(1, keepdim=True)  # N 1 D
    rows = rows - mean
    grams = exact(rows @ rows.mT)  # N B B
    changes = grams.diagonal(dim1=1, dim2=2).sum(1)
    out = centred(grams)
    out[changes <= ROUNDING_SHARE * n * exact(mean).square().sum((1, 2))] = 0  # what is left there is rounding
    return out.flatten(1)


class TokenLikeness:
    """CKA of each token with each input patch, over minibatches: HSIC is averaged first, and the ratio taken last."""

    def __init__(self) -> None:
        self.cross: Tensor | float = 0.0  # Q N
        self.tokens: Tensor | float = 0.0  # Q
        self.patches: Tensor | float = 0.0  # N

    def add(self, tokens: Tensor, patches: Tensor) -> None:
        """The `token_grams` of one batch.  tokens: Q B².  patches: N B²"""
        self.cross = self.cross + (tokens @ patches.mT).cpu()
        self.tokens = self.tokens + tokens.square().sum(1).cpu()
        self.patches = self.patches + patches.square().sum(1).cpu()

    def heat(self) -> Tensor:
        """Q N; 0 for a token or a patch that is the same in all images."""
        if not isinstance(self.tokens, Tensor) or not isinstance(self.patches, Tensor):
            raise DataError(NO_BATCH)
        size = (self.tokens[:, None] * self.patches).sqrt()
        return torch.where(size > 0, self.cross / size, 0.0)


def own_place(heat: Tensor, asked: Tensor | None = None) -> dict[str, Tensor]:
    """How much each token stands out at its own patch.  heat: Q N.  asked: the place of each token; None is in order.

    hit: whether the own patch is the most alike.  share: its part of all likeness above 0.  percentile: share of other
    patches that are less alike (half of those equal).  margin: own less the mean of the others.  Each Q.
    """
    count = heat.shape[1]
    asked = torch.arange(count, device=heat.device) if asked is None else asked
    own = heat.gather(1, asked[:, None])  # Q 1
    less = (heat < own).double().sum(1) + ((heat == own).double().sum(1) - 1) / 2
    others = max(count - 1, 1)
    return {
        "hit": (heat.argmax(1) == asked).double(),
        "share": own[:, 0].clamp(min=0) / heat.clamp(min=0).sum(1).clamp(min=1e-30),
        "percentile": less / others,
        "margin": own[:, 0] - (heat.sum(1) - own[:, 0]) / others,
    }


def edge_places(grid: tuple[int, int]) -> Tensor:
    """True for places at the border.  N"""
    edge = torch.ones(grid, dtype=torch.bool)
    edge[1:-1, 1:-1] = False
    return edge.flatten()


class _Localisation(Reading):
    def __init__(self, subject: Subject, other: Subject | None = None):
        super().__init__(subject)
        self.grid = subject.grid
        count = self.grid[0] * self.grid[1]
        drawn = permutation(subject.settings.seed, "localisation", 0, count)[:MAX_TOKENS_ASKED]
        self.asked = torch.from_numpy(drawn).sort().values
        self.likeness, self.cosines = TokenLikeness(), Averages()
        self.images = self.size = self.largest = 0

    def see(self, tap: str, x: Tensor, side: int = 0) -> None:
        self.size = len(x)
        if tap == "embedding.patches":
            self.batch["embedded"] = F.normalize(x.float(), dim=-1)
        elif is_whole(self.size, self.largest):
            tokens = as_tokens(x)[:, -self.grid[0] * self.grid[1] :][:, self.asked.to(x.device)]
            self.batch["tokens"] = token_grams(tokens)
            self.batch["patches"] = token_grams(self._patches())
            if "embedded" in self.batch:
                unit = F.normalize(tokens.float(), dim=-1)
                self.cosines.gather("cosine", unit @ self.batch.pop("embedded").mT)  # B Q N

    def _patches(self) -> Tensor:
        """The image in as many parts as there are places, B N PPC."""
        pixels: Tensor = self.subject.of_batch["pixels"].float() / 255
        h, w = (n // places for n, places in zip(pixels.shape[2:], self.grid, strict=True))
        if (h * self.grid[0], w * self.grid[1]) != tuple(pixels.shape[2:]):
            h, w = max(h, 1), max(w, 1)
            pixels = F.interpolate(pixels, (h * self.grid[0], w * self.grid[1]), mode="bilinear", antialias=True)
        return patchify(pixels, (h, w))

    def update(self) -> None:
        if "tokens" in self.batch:
            self.likeness.add(self.batch["tokens"], self.batch["patches"])
            self.images += self.size
            self.largest = max(self.largest, self.size)
            self.cosines.update()
        self.drop()

    def drop(self) -> None:
        super().drop()
        self.cosines.drop()

    def finish(self) -> Found:
        heat = self.likeness.heat()
        edge = edge_places(self.grid)[self.asked]
        kinds = {"all": torch.ones_like(edge), "interior": ~edge, "edge": edge}
        measured = {"cka": heat}
        if self.cosines.sums:
            measured["cosine"] = self.cosines.mean("cosine")
        rows = [
            {"by": by, "tokens": kind, "count": int(of.sum())}
            | {name: plain(value[of].mean().item()) for name, value in own_place(values, self.asked).items()}
            for by, values in measured.items()
            for kind, of in kinds.items()
            if of.any()
        ]
        count = self.grid[0] * self.grid[1]
        shown = _shown(self.grid, self.asked)
        return {
            "images": self.images,
            "grid": list(self.grid),
            "asked": len(self.asked),
            "sampled": len(self.asked) < count,
            "rows": rows,
            "heat": [
                {"row": int(self.asked[i]) // self.grid[1], "column": int(self.asked[i]) % self.grid[1]}
                | {"cka": plain(heat[i].unflatten(0, self.grid), 4)}
                for i in shown
            ],
        }


def _shown(grid: tuple[int, int], asked: Tensor) -> list[int]:
    """Four tokens to draw: near the corner, near an edge, and two inside."""
    h, w = grid
    wanted = [(0, 0), (h // 2, 0), (h // 3, w // 3), (h // 2, w // 2)]
    rows, columns = asked // w, asked % w
    near = [int(((rows - r).square() + (columns - c).square()).argmin()) for r, c in wanted]
    return list(dict.fromkeys(near))


def caution_of_place(images: int) -> str | None:
    """Why a share of tokens on so few images is no property of the model; None if they are enough."""
    if images >= WARN_BELOW_IMAGES:
        return None
    return caution_of_likeness(images) or f"this share grows with the images ({GROWTH}); compare it on as many"


def _why_not(subject: Subject, other: Subject | None = None) -> str | None:
    is_single = subject.grid == (1, 1)
    return needs_batches(subject) or (f"{subject.name} ends in a single place" if is_single else None)


def _say(found: Found) -> str:
    row = found["rows"][0]
    drawn = f" ({found['asked']} tokens drawn)" if found["sampled"] else ""
    places = math.prod(found["grid"])
    return (
        f"on {counted(found['images'], 'image')} {100 * row['hit']:.0f} % of the last tokens are most like the patch "
        f"they came from (by chance {percent(1 / places)}, 1 of {places:,}), which is more like them than "
        f"{100 * row['percentile']:.0f} % of the others{drawn}"
    )


def _draw(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    heats = [(each, np.asarray(each["cka"], np.float64)) for each in found["heat"]]
    top = max([1e-6, *(float(heat.max()) for _, heat in heats)])
    tiles = [Tile(f"row {each['row'] + 1}, col {each['column'] + 1}", colours(heat, 0.0, top)) for each, heat in heats]
    maps = charts.tiles(tiles, title="likeness of four tokens with every patch", columns=max(len(tiles), 1))
    rows = [row for row in found["rows"] if row["by"] == "cka"]
    words = {"all": "all tokens", "interior": "inside", "edge": "at the edge"}
    bars = [ShareBar(f"{words[row['tokens']]}: own patch is the most alike", row["hit"]) for row in rows]
    bars += [
        ShareBar(f"{words[row['tokens']]}: others less alike than the own", row["percentile"], is_ours=False)
        for row in rows
    ]
    panels = [
        Panel(maps, f"CKA of four last tokens with each patch, 0 to {top:.2f}"),
        Panel(charts.bars(bars, title="how many tokens keep their place"), "Do tokens keep their place?"),
    ]
    return [Drawn(panels, paper="P2-fig9")]


LOCALISATION = Measure(
    name="localisation",
    sentence="Whether a token of the last block is still most like the patch of the image it came from.",
    figure="P2 figures 9, 10 and D.1 to D.3",
    saw="Tokens of a ViT with class token keep their place to the end; those of GAP and of ResNets lose it.",
    start=_Localisation,
    says=_say,
    taps={"vit": ("embedding.patches", "blocks.{last}.output"), "bit": ("norm",)},
    why_not=_why_not,
    caution=caution_of_place,
    least_images=ENOUGH_IMAGES,
    draw=_draw,
    method=lambda found: (
        "Unbiased linear CKA of each token of the last block with each patch of the image, over "
        f"{counted(found['images'], 'image')}; {found['asked']} tokens"
        f"{' drawn by the seed' if found['sampled'] else ''}."
    ),
    rank=4,
)
