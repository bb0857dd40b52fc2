"""The work `look`: what `vitreous.look` finds inside trained models, as a few plain numbers for each measure.

A reading is named after what it says: `distance_mean` is a list by block, `place_hit` one number. Networks of
different depth are compared by a mean over a part of the depth, or by a list from which the experiment takes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.errors import DataError
from vitreous.images.imageset import TEST, ImageSet
from vitreous.images.stores import kept
from vitreous.measures.attention import patch_distances
from vitreous.measures.filters_and_positions import COMPONENTS_DRAWN, rank_correlation
from vitreous.measures.layer_similarity import is_block
from vitreous.measures.look import look
from vitreous.measures.measure import Found, plain
from vitreous.models.catalog import build
from vitreous.models.model import Model
from vitreous.papers.experiment import Cell
from vitreous.papers.works.bench import Bench, Readings, Work
from vitreous.randomness import permutation
from vitreous.weights.load_model import load

SEEN = 512  # images of a look
WIDE, LOCAL = 0.8, 0.5  # times the distance of even attention: heads above the first are wide, below the second local
GROUPS_OF_PLACES = 5  # the position vectors of released weights are one table: its places stand in for seeds
FITTED = ("probes", "token-probes")  # these fit on training images and judge on test images; others see test images


def looked_at_start(
    model: str, seed: int, data: str, only: Sequence[str], *, seen: int = SEEN, group: int | None = None
) -> Cell:
    """A look at a network as it is before training."""
    options = {"data": data, "only": list(only), "seen": seen, "at_start": model, "seed": seed}
    return Cell("look", options | ({} if group is None else {"group": group}), (), LOOK.version)


def looked(
    model: Cell | str,
    data: str,
    only: Sequence[str],
    *,
    against: Cell | str | None = None,
    seen: int = SEEN,
    group: int | None = None,
) -> Cell:
    """A look as a cell.

    model, against: a training, or the name of released weights.  only: measures.  seen: images.  group: which group to
    look at when all images are dealt out in groups of `seen`; by default all looks share the same images.
    """
    options: dict[str, Any] = {"data": data, "only": list(only), "seen": seen}
    options |= {} if group is None else {"group": group}
    needs: list[Cell] = []
    for side, one in (("model", model), ("against", against)):
        if isinstance(one, str):
            options[side] = one
        elif one is not None:
            needs.append(one)
    return Cell("look", options, tuple(needs), LOOK.version)


def run_look(cell: Cell, bench: Bench) -> Readings:
    """Probes on images of both splits, all else on test images."""
    options = cell.options
    model, against = models_of(cell, bench)
    data = bench.sets.open(options["data"])
    fitted = [name for name in options["only"] if name in FITTED]
    others = [name for name in options["only"] if name not in FITTED]
    readings: Readings = {}
    for names, part in ((others, data.split(TEST)), (fitted, data)):
        if names:
            shown = kept.as_evaluated(dealt(part, options["seen"], options.get("group")), model.preprocess)
            found = look(model, shown, against=against, only=names, images=len(shown), **bench.place)
            for name in names:
                readings |= read(name, found[name], options.get("group"))
            readings |= heads_by_distance(found.found)
    return readings


def models_of(cell: Cell, bench: Bench) -> tuple[Model, Model | None]:
    """The model that a cell looks into, and the one it is compared with."""
    options, needs = cell.options, list(cell.needs)
    if "at_start" in options:
        first: Model = build(options["at_start"], seed=int(options["seed"]))
    else:
        first = released(options["model"], bench) if "model" in options else bench.model(needs.pop(0))
    if "against" in options:
        return first, released(options["against"], bench)
    return first, bench.model(needs[0]) if needs else None


def released(name: str, bench: Bench) -> Model:
    """Weights by their short name: the folder of that name next to the sets, or what `vitreous.load` finds."""
    beside = Path(bench.sets.folder or ".") / name
    return load(beside if bench.sets.folder and beside.is_dir() else name)


def dealt(data: ImageSet, count: int, group: int | None = None) -> ImageSet:
    """`count` images in an order that never changes; group: those after the first group × count."""
    begin = (group or 0) * count
    if begin >= len(data) or (group is not None and begin + count > len(data)):
        raise DataError(f"{data.path} has {len(data)} images, too few for group {group} of {count}; ask for fewer")
    return data.take(permutation(0, "paper look", 0, len(data))[begin : begin + count])


# A few numbers of each measure ---------------------------------------------------------------------------------------


def read(measure: str, found: Found, group: int | None = None) -> Readings:
    """The readings of one measure.  group: of the places, for measures that depend on no image."""
    if measure not in READ:
        raise DataError(f"no readings are named for the measure {measure!r}; there are: {', '.join(READ)}")
    values = positions(found, group) if measure == "positions" else READ[measure](found)
    return {name: plain(value) for name, value in values.items()}


def distances(found: Found) -> Readings:
    """How far heads look, by block, in units of the distance of even attention."""
    even = found["uniform_px"]
    heads = [[row["distance_px"] / even for row in rows] for rows in _by(found["rows"], "layer").values()]
    low = sorted(far for block in heads[:2] for far in block)
    return {
        "distance_even_px": even,
        "distance_mean": [float(np.mean(block)) for block in heads],
        "distance_min": [min(block) for block in heads],
        "distance_max": [max(block) for block in heads],
        "distance_spread": [float(np.std(block)) for block in heads],
        "distance_wide": [_share(block, lambda far: far > WIDE) for block in heads],
        "distance_local": [_share(block, lambda far: far < LOCAL) for block in heads],
        "distance_low_quarter": float(np.quantile(low, 0.25)),  # of the heads of the lowest two blocks
    }


def skips(found: Found) -> Readings:
    """ln of the skip's norm over the branch's: of class token and patches by block, or of a ResNet by unit."""
    out: Readings = {}
    for branch, rows in _by(found["rows"], "branch").items():
        for token in ("class", "patches"):
            ratios = [row[f"{token}_ratio"] for row in rows]
            if all(ratios):
                out[f"skip_{token}_{branch}"] = [math.log(ratio) for ratio in ratios]
    every = [row["patches_ratio"] for row in found["rows"]]
    return out | ({"skip_mean": float(np.mean(np.log(every)))} if all(every) else {})


def place(found: Found) -> Readings:
    """Whether last tokens are most like their own patch: inner tokens, and all."""
    rows = {row["tokens"]: row for row in found["rows"] if row["by"] == "cka"}
    inner = rows.get("interior", rows["all"])
    return {
        "place_hit": inner["hit"],
        "place_hit_all": rows["all"]["hit"],
        "place_chance": 1 / math.prod(found["grid"]),
        "place_percentile": inner["percentile"],
        "place_margin": inner["margin"],
    }


def probes(found: Found) -> Readings:
    """Accuracy of probes by block: `probe_` by all images, `probe_10_shot_` by ten of each class."""
    out: Readings = {"probe_chance": found["chance"]}
    for tokens, rows in _by(found["rows"], "tokens").items():
        name = {"cls": "class", "gap": "patches", "middle": "one"}[tokens]
        out[f"probe_{name}"] = [row["linear"] for row in rows]
        out[f"probe_10_shot_{name}"] = [row["ten_shot"] for row in rows]
    return out


def token_probes(found: Found) -> Readings:
    """10-shot accuracy of single tokens at five depths, and of the class token at the last."""
    layers, last = found["layers"], found["layers"][-1]
    out: Readings = {f"token_probe_{key}": [layer[key] for layer in layers] for key in ("lowest", "mean", "highest")}
    out["token_probe_last"] = last["mean"]
    return out | ({} if last["class_token"] is None else {"token_probe_last_class": last["class_token"]})


def fields(found: Found) -> Readings:
    """Radius that holds half of the receptive field, in units of an even field's: by block after the skip, before it.

    field_low: mean over the lower half of the depth.
    """
    whole = found["whole_image_radius_px"]
    by = {when: [row["radius_px"] for row in rows] for when, rows in _by(found["rows"], "when").items()}
    out: Readings = {f"field_{when}": [radius / whole for radius in radii] for when, radii in by.items()}
    return out | {"field_low": float(np.mean(lower_half(out["field_after"])))}


def positions(found: Found, group: int | None = None) -> Readings:
    """How the likeness of positions falls with distance. group: of the places, each against all others."""
    out = {f"position_{name}": found[name] for name in ("nearness", "row_column", "axis_diagonal")}
    return out if group is None else out | {"position_nearness": nearness_of_group(found, group)}


def nearness_of_group(found: Found, group: int) -> float | None:
    """Rank correlation of likeness with −distance, from the places of one group of GROUPS_OF_PLACES to all others."""
    grid, tiles = tuple(found["grid"]), np.array(found["tiles"], np.float64)
    if found["tile_step"] != 1:
        raise DataError(f"a grid of {grid[0]}×{grid[1]} places is too large for groups of places; ask for no group")
    count = math.prod(grid)
    mine = permutation(0, "paper places", 0, count)[group % GROUPS_OF_PLACES :: GROUPS_OF_PLACES]
    far = patch_distances((grid[0], grid[1]), 1.0).numpy()[mine]
    pair = far > 0
    return rank_correlation((-far[pair]).tolist(), tiles.reshape(count, count)[mine][pair].tolist())


def filters(found: Found) -> Readings:
    """How much of the patch filters a few components hold, and how alike their neighbouring weights are.

    A few means P1's 28, or a quarter if a patch has too few numbers for 28 to say anything.
    """
    explained = [row["explained"] for row in found["rows"]]
    few = min(COMPONENTS_DRAWN, max(len(explained) // 4, 1))
    out: Readings = {"filters_few": few, "filters_held": float(np.sum(explained[:few]))}
    if found["components"] is not None:
        shaped = np.reshape(found["components"][:few], (few, *found["shape"]))
        out["filters_smoothness"] = float(np.mean([autocorrelation(each) for each in shaped]))
    return out


def autocorrelation(component: Any) -> float:
    """The mean product of neighbours over the mean square: 1 for an even filter, 0 for noise.  C h w"""
    power = float(np.mean(np.square(component)))
    beside = [component[..., 1:] * component[..., :-1], component[:, 1:] * component[:, :-1]]
    products = np.concatenate([each.ravel() for each in beside])
    return float(products.mean()) / power if power > 0 and products.size else math.nan


def head_likeness(found: Found) -> Readings:
    return {"head_likeness": [row["mean_cosine"] for row in found["rows"]]}


def heads_by_distance(found: Mapping[str, Found]) -> Readings:
    """heads_apart: over pairs of heads, the rank correlation of their difference in distance with their unlikeness.

    A mean over blocks; empty with fewer than three heads, or unless both measures were asked for.
    """
    if not {"attention-distance", "head-likeness"} <= set(found):
        return {}
    trends = []
    rows = _by(found["attention-distance"]["rows"], "layer").values()
    for block, cosines in zip(rows, found["head-likeness"]["heads"], strict=True):
        far = [row["distance_px"] for row in block]
        pairs = list(combinations(range(len(far)), 2))
        apart = [abs(far[i] - far[j]) for i, j in pairs]
        trends.append(rank_correlation(apart, [-cosines[i][j] for i, j in pairs]) if len(pairs) > 2 else None)
    known = [trend for trend in trends if trend is not None]
    return {"heads_apart": plain(float(np.mean(known)))} if known else {}


def entropy(found: Found) -> Readings:
    """The entropy of attention by block, in units of the largest."""
    return {"entropy": [nats / found["largest_nats"] for nats in found["by_layer_nats"]]}


def within(found: Found) -> Readings:
    """CKA within a model. cka_across: by block, between what comes before the block and what comes from it on."""
    names = found["rows_of_matrix"]
    ends = [i for i, name in enumerate(names) if is_block(name) or name in ("embedding.tokens", "root")]
    matrix = np.array([[found["cka"][i][j] for j in ends] for i in ends], np.float64)
    return {
        "cka_low_high": found["low_high"],
        "cka_mean": found["uniformity"],
        "cka_low_high_blocks": found["of_blocks"]["low_high"],
        "cka_across": [float(np.nanmean(matrix[:i, i:])) for i in range(1, len(ends))],
    }


def across(found: Found) -> Readings:
    """CKA of this model's layers (rows) with another's (columns).

    match_slope: the slope of this depth over the other's, for the best matches of the other's lower half.
    """
    matrix = np.nan_to_num(np.array(found["cka"], np.float64), nan=-1.0)
    best, (rows, columns) = matrix.max(1), matrix.shape
    third = max(rows // 3, 1)
    low = lower_half(np.arange(columns) / max(columns - 1, 1))
    mine = matrix[:, : len(low)].argmax(0) / max(rows - 1, 1)
    blocks = [i for i, name in enumerate(found["rows_of_matrix"]) if is_block(name)]
    ends = [j for j, name in enumerate(found["columns_of_matrix"]) if is_block(name)]
    return {
        "match_best": [float(best[i]) for i in blocks],
        "match_before_last_third": float(best[:-third].mean()) if rows > third else None,
        "match_last_third": float(best[-third:].mean()),
        "match_depth": [float(depth) for depth in mine],
        "match_slope": float(np.polyfit(low, mine, 1)[0]) if len(low) > 1 else None,
        "match_same": [row["cka"] for row in found["same_name"]],
        "match_last_stage": float(np.mean([matrix[blocks[-1], j] for j in _last_stage(found, ends)])),
    }


def _last_stage(found: Found, ends: Sequence[int]) -> list[int]:
    """The blocks of the last stage of a ResNet; of a ViT the last block."""
    names = found["columns_of_matrix"]
    stage = names[ends[-1]].split(".units.")[0]
    return [j for j in ends if names[j].startswith(f"{stage}.units.")] or [ends[-1]]


def heads_against(found: Found) -> Readings:
    """Rank correlation of heads' distance with their likeness to each ResNet unit, and its mean over the lower half."""
    each = [value for value in found["rank_correlation"].values() if value is not None]
    return {"heads_trend": each, "heads_trend_low": float(np.mean(lower_half(each))) if each else None}


def removal(found: Found) -> Readings:
    """Share of answers that stay when one block loses its skips: by block, and their mean."""
    kept = [row["same_answer"] for row in found["rows"]]
    return {"removal_same_answer": kept, "removal_kept": float(np.mean(kept)) if None not in kept else None}


def cuts(found: Found) -> Readings:
    """What is lost when the skips of one block are cut, by block: of accuracy, and of likeness to the uncut model."""
    rows, out = found["rows"], Readings()
    for name, key, sign, whole in (("accuracy", "accuracy_change", -1, 0), ("features", "features_cka", -1, 1)):
        if all(row[key] is not None for row in rows):
            out[f"cut_{name}"] = [whole + sign * row[key] for row in rows]
            out[f"cut_{name}_mean"] = float(np.mean(out[f"cut_{name}"]))
    return out


def change(found: Found) -> Readings:
    return {name: found[name] for name in ("filter_space", "position_pattern")}


READ: Mapping[str, Callable[[Found], Readings]] = {
    "attention-distance": distances,
    "attention-entropy": entropy,
    "head-likeness": head_likeness,
    "skip-ratio": skips,
    "localisation": place,
    "probes": probes,
    "token-probes": token_probes,
    "receptive-field": fields,
    "positions": positions,
    "patch-filters": filters,
    "similarity": within,
    "similarity-across": across,
    "heads-against-layers": heads_against,
    "embeddings-change": change,
    "skip-removal": lambda found: {**removal(found), **cuts(found)},
}


def lower_half(by_depth: Any) -> Any:
    """The first half of a list by depth, the middle one included."""
    return by_depth[: -(-len(by_depth) // 2)]


def _by(rows: Sequence[Mapping[str, Any]], key: str) -> dict[Any, list[Mapping[str, Any]]]:
    out: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        out.setdefault(row[key], []).append(row)
    return out


def _share(values: Sequence[float], holds: Callable[[float], bool]) -> float:
    return sum(map(holds, values)) / len(values)


LOOK = Work(run_look)
