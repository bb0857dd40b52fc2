"""Every number that `look` gives, against a plain loop over what the model's taps hold for each image by itself.

The pure functions have laws of their own; here is what becomes of them while images stream by in batches: which tap,
which token, which order, which divisor. The model has a class token, registers, several heads and a grid that is not
square; the images come in batches of 9, 9, 9 and 4, and the last is too small for likeness.
"""

import math
from contextlib import nullcontext
from functools import cache

import numpy as np
import pytest
import torch
from picture_sets import Arrays, as_set, scene
from scipy.stats import spearmanr
from tiny_models import BIT, VIT, awake

import vitreous
from vitreous.models.preprocess import Preprocess
from vitreous.randomness import permutation

ROWS, COLUMNS, TALL, WIDE = 4, 5, 4, 8  # of patches, and pixels of one
SIZE = HEIGHT, WIDTH = ROWS * TALL, COLUMNS * WIDE
N = ROWS * COLUMNS
FRONT = 3  # class token and two registers
DEPTH, HEADS = 3, 4
IMAGES, TEST, BATCH = 31, 10, 9
WHOLE = 27  # images in batches that are large enough for likeness
PLACES = [(row, column) for row in range(ROWS) for column in range(COLUMNS)]
MEAN, STD = (0.3, 0.5, 0.6), (0.2, 0.3, 0.25)
NAMES = ("class 2", "class 0", "class 1")  # of the model: the set has them in another order
LAYERS = ["embedding.tokens"] + [
    f"blocks.{block}.{part}"
    for block in range(DEPTH)
    for part in ("norm1", "attention.output", "residual1", "norm2", "mlp.hidden", "output")
]


def near(found, wanted, rtol=3e-4, atol=2e-5):
    np.testing.assert_allclose(np.array(found, float), np.array(wanted, float), rtol=rtol, atol=atol)


def column(found, name):
    return [row[name] for row in found["rows"]]


def answers(scores):
    """The class of each row with the highest score, which no rounding decides.  N K"""
    best = np.sort(scores, -1)
    assert (best[..., -1] - best[..., -2]).min() > 1e-5, "two classes are equal but for rounding; change the seed"
    return np.argmax(scores, -1)


def standard_error(values):
    return np.std(values, 0, ddof=1) / math.sqrt(len(values))


# The model, the images, and what its taps hold ---------------------------------------------------------------------


@cache
def model():
    network = awake(VIT.change(image_size=SIZE, patch=(TALL, WIDE), registers=2, depth=DEPTH, heads=HEADS), classes=3)
    with torch.no_grad():
        for block in network.blocks:
            block.attention.qkv.weight.mul_(2)  # heads that choose
    network.preprocess = Preprocess(size=SIZE, mean=MEAN, std=STD)
    network.labels = NAMES
    return network


@cache
def resnet():
    network = awake(BIT, image_size=SIZE, classes=3, seed=3)
    network.preprocess = Preprocess(size=SIZE, mean=MEAN, std=STD)
    return network


@cache
def pictures():
    return as_set(Arrays(np.stack([scene(i, *SIZE) for i in range(IMAGES)])), test=TEST)


@cache
def order():
    """In which the images are seen."""
    return permutation(0, "look", 0, IMAGES)


@cache
def pixels():
    """N C H W, bytes."""
    return np.stack([pictures().source.pixels[i].transpose(2, 0, 1) for i in order()])


def normalised(images):
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (MEAN, STD))
    return torch.from_numpy((images.astype(np.float32) / 255 - mean) / std)


def tapped(network, names):
    """What each image, by itself, leaves at the taps: tap -> N …, float64."""
    found = {}
    for image in pixels():
        with torch.inference_mode(), vitreous.taps(network, names) as seen:
            network(normalised(image[None]))
        for name, value in seen.items():
            found.setdefault(name, []).append(value[0].double().numpy())
    return {name: np.stack(values) for name, values in found.items()}


@cache
def held():
    attention = ["weights", "per_head", "output"]
    names = ["embedding.patches", "embedding.tokens", "logits"]
    names += [f"blocks.*.{part}" for part in ("norm1", "residual1", "norm2", "mlp.hidden", "mlp.output", "output")]
    return tapped(model(), [*names, *(f"blocks.*.attention.{part}" for part in attention)])


@cache
def held_by_resnet():
    return tapped(resnet(), ["root", "norm", *(f"stages.*.units.*.{part}" for part in ("skip", "branch", "output"))])


def attention(block):
    """N H T T."""
    return held()[f"blocks.{block}.attention.weights"]


@cache
def truth():
    """The model's number of each image's class."""
    return np.array([NAMES.index(pictures().classes[pictures().labels[i]]) for i in order()])


@cache
def seen():
    return vitreous.look(model(), pictures(), batch=BATCH)


@cache
def pair():
    names = ["similarity-across", "heads-against-layers", "skip-ratio", "localisation", "skip-removal", "shift"]
    return vitreous.look(model(), pictures(), against=resnet(), only=names, batch=BATCH)


# Attention ---------------------------------------------------------------------------------------------------------


def test_attention_distance():
    found = seen()["attention-distance"]
    far = np.zeros((IMAGES, DEPTH, HEADS))
    for block in range(DEPTH):
        for i, (row, col) in enumerate(PLACES):
            for j, (other_row, other_col) in enumerate(PLACES):
                pixel = math.hypot(TALL * (row - other_row), WIDE * (col - other_col))
                far[:, block] += attention(block)[:, :, FRONT + i, FRONT + j] * pixel / N
    assert [(row["layer"], row["head"]) for row in found["rows"]] == [
        (b, h) for b in range(DEPTH) for h in range(HEADS)
    ]
    near(column(found, "distance_px"), far.mean(0).flatten())
    near(column(found, "error_px"), standard_error(far).flatten(), rtol=2e-3)
    among = np.zeros((IMAGES, DEPTH, HEADS))
    for block in range(DEPTH):
        of_patches = attention(block)[:, :, FRONT:, FRONT:]
        of_patches = of_patches / of_patches.sum(-1, keepdims=True)
        for i, (row, col) in enumerate(PLACES):
            for j, (other_row, other_col) in enumerate(PLACES):
                pixel = math.hypot(TALL * (row - other_row), WIDE * (col - other_col))
                among[:, block] += of_patches[:, :, i, j] * pixel / N
    near(column(found, "among_patches_px"), among.mean(0).flatten())
    near(found["by_layer_px"], far.mean((0, 2)))
    alike = sum(math.hypot(TALL * (a - c), WIDE * (b - d)) for a, b in PLACES for c, d in PLACES)
    near(found["uniform_px"], alike / N**2)
    near(found["uniform_with_front_tokens_px"], alike / (N * (N + FRONT)))
    near(found["local_share_first_block"], (far.mean(0)[0] < alike / N**2 / 2).mean())
    assert found["images"] == IMAGES


def test_attention_entropy_is_that_of_all_tokens():
    found = seen()["attention-entropy"]
    nats = np.zeros((IMAGES, DEPTH, HEADS))
    for block in range(DEPTH):
        for token in range(FRONT + N):
            a = attention(block)[:, :, token]
            nats[:, block] -= (a * np.log(a)).sum(-1) / (FRONT + N)
    near(column(found, "entropy_nats"), nats.mean(0).flatten())
    near(column(found, "error_nats"), standard_error(nats).flatten(), rtol=2e-3)
    near(found["by_layer_nats"], nats.mean((0, 2)))
    near(found["largest_nats"], math.log(FRONT + N))


def test_class_attention_counts_every_patch():
    found = seen()["class-attention"]
    patches = range(FRONT, FRONT + N)
    for block in range(DEPTH):
        a = attention(block).mean(0)  # H T T
        rows = [row for row in found["rows"] if row["layer"] == block]
        near([row["to_itself"] for row in rows], a[:, 0, 0])
        near([row["to_front"] for row in rows], a[:, 0, 1] + a[:, 0, 2])
        near([row["to_patches"] for row in rows], sum(a[:, 0, j] for j in patches))
        near([row["from_patches"] for row in rows], sum(a[:, i, 0] for i in patches) / N)
        for part, value in found["by_layer"][block].items():
            near(value, np.mean([row[part] for row in rows]))


def test_head_likeness():
    found = seen()["head-likeness"]
    for block in range(DEPTH):
        cosine = np.zeros((HEADS, HEADS))
        for weights in attention(block):
            for a in range(HEADS):
                for b in range(HEADS):
                    x, y = weights[a].flatten(), weights[b].flatten()
                    cosine[a, b] += x @ y / np.linalg.norm(x) / np.linalg.norm(y) / IMAGES
        others = [cosine[a, b] for a in range(HEADS) for b in range(HEADS) if a != b]
        near(found["heads"][block], cosine, atol=1e-4)
        near(found["rows"][block]["mean_cosine"], np.mean(others))
        near(found["rows"][block]["largest_cosine"], max(others))


def rolled_out(image, heads="mean", residual=True):
    """T T: how much of each input token is in each output token, layer after layer."""
    flow = np.eye(FRONT + N)
    for block in range(DEPTH):
        mixed = getattr(attention(block)[image], heads)(0) + residual * np.eye(FRONT + N)
        mixed = mixed / mixed.sum(1, keepdims=True)
        flow = np.array([sum(mixed[i, k] * flow[k] for k in range(FRONT + N)) for i in range(FRONT + N)])
    return flow


def test_rollout_is_the_class_tokens_row_of_later_layers_times_earlier_ones():
    found = seen()["rollout"]
    shares = np.stack([rolled_out(image)[0, FRONT:] for image in range(IMAGES)])
    shares = shares / shares.sum(1, keepdims=True)
    near(found["mean_map"], shares.mean(0).reshape(ROWS, COLUMNS))
    near(column(found, "share"), shares.mean(0))
    assert [(row["row"], row["column"]) for row in found["rows"]] == PLACES
    tenth = np.array([sum(sorted(row, reverse=True)[: N // 10]) for row in shares])
    near(found["held_by_top_tenth"], tenth.mean())
    near(found["held_by_top_tenth_error"], standard_error(tenth), rtol=2e-3)
    near(found["spread_patches"], np.mean([math.exp(-sum(s * math.log(s) for s in row)) for row in shares]))


def test_attention_maps_are_those_of_the_first_images():
    arrays, found = seen().arrays["attention-maps"], seen()["attention-maps"]
    assert (found["images"], found["layers"], found["heads"], found["front_tokens"]) == (4, DEPTH, HEADS, FRONT)
    assert np.array_equal(arrays["images"], pixels()[:4])
    for image in range(4):
        for block in range(DEPTH):
            looks = attention(block)[image][:, :, FRONT:]  # H T N
            peak = looks.max(-1)
            near(arrays["peaks"][image, block], peak, rtol=2e-3)
            near(arrays["maps"][image, block], 255 * looks / peak[..., None], rtol=0, atol=0.51)
        for name, how in {
            "rollout": {},
            "rollout_plain": {"residual": False},
            "rollout_max": {"heads": "max"},
            "rollout_min": {"heads": "min"},
        }.items():
            row = rolled_out(image, **how)[0, FRONT:]
            near(arrays[name][image], (row / row.max()).reshape(ROWS, COLUMNS), rtol=2e-3, atol=1e-3)


# What was learned before the first block ---------------------------------------------------------------------------


def test_patch_filters_are_components_of_the_projection():
    found = seen()["patch-filters"]
    filters = model().embedding.projection.weight.detach().double().numpy()  # D PPC
    left, values, _ = np.linalg.svd((filters - filters.mean(0)).T, full_matrices=False)
    near(column(found, "singular_value"), values, atol=1e-4)
    near(column(found, "explained"), values**2 / (values**2).sum())
    near(found["held_by_28"], (values**2)[:28].sum() / (values**2).sum())
    assert found["shape"] == [3, TALL, WIDE]
    for component, wanted in list(zip(found["components"], left.T, strict=False))[:15]:  # the last is of no size
        assert max(component, key=abs) > 0
        assert abs(np.dot(component, wanted)) == pytest.approx(1, abs=1e-3)


def test_positions_are_what_is_added_to_the_patches():
    found = seen()["positions"]
    added = held()["embedding.tokens"][0, FRONT:] - held()["embedding.patches"][0]
    unit = added / np.linalg.norm(added, axis=1, keepdims=True)
    likeness = unit @ unit.T
    near(found["tiles"], likeness.reshape(ROWS, COLUMNS, ROWS, COLUMNS), atol=2e-4)
    pairs = [(i, j) for i in range(N) for j in range(N) if i != j]
    steps = {(i, j): np.abs(np.subtract(PLACES[i], PLACES[j])) for i, j in pairs}
    far = {each: math.hypot(*step) for each, step in steps.items()}
    on_axis = {each for each in pairs if 0 in steps[each]}
    nearness = spearmanr([-far[each] for each in pairs], [likeness[each] for each in pairs]).statistic
    near(found["nearness"], nearness, rtol=0, atol=2e-3)
    axis = np.mean([likeness[each] for each in pairs if each in on_axis])
    near(found["row_column"], axis - np.mean([likeness[each] for each in pairs if each not in on_axis]), atol=1e-4)
    gaps = []
    for step in range(1, COLUMNS):
        along = [likeness[each] for each in on_axis if far[each] == step]
        across = [likeness[each] for each in pairs if each not in on_axis and abs(far[each] - step) < 0.5]
        gaps += [np.mean(along) - np.mean(across)] if along and across else []
    near(found["axis_diagonal"], np.mean(gaps), atol=1e-4)


def test_the_change_of_embeddings_is_measured_between_the_two_models():
    one, other = (awake(model().config.change(width=32), seed=seed) for seed in (1, 9))
    found = vitreous.look(one, pictures(), against=other, only=["embeddings-change"])["embeddings-change"]
    spaces, patterns = [], []
    for network in (one, other):
        filters = network.embedding.projection.weight.detach().double().numpy()
        spaces.append(np.linalg.svd((filters - filters.mean(0)).T)[0][:, :28])
        seen_ = tapped(network, ["embedding.tokens", "embedding.patches"])
        added = seen_["embedding.tokens"][0, FRONT:] - seen_["embedding.patches"][0]
        unit = added / np.linalg.norm(added, axis=1, keepdims=True)
        patterns.append([unit[i] @ unit[j] for i in range(N) for j in range(i)])
    near(found["filter_space"], ((spaces[0].T @ spaces[1]) ** 2).sum() / 28, rtol=1e-3)
    near(found["position_pattern"], np.corrcoef(patterns)[0, 1], atol=1e-3)


# Likeness ----------------------------------------------------------------------------------------------------------


def hsic(a, b):
    """Unbiased, as Song et al. (2012) write it, of two Gram matrices."""
    n = len(a)
    a, b = a - np.diag(np.diag(a)), b - np.diag(np.diag(b))
    ends = a.sum() * b.sum() / ((n - 1) * (n - 2)) - 2 * (a @ b).sum() / (n - 2)
    return (np.trace(a @ b) + ends) / (n * (n - 3))


def grams(x, batch=BATCH):
    """One for each whole batch.  x: N …"""
    x = x.reshape(len(x), -1)
    x = x - x.mean(0)  # changes nothing but rounding
    return [part @ part.T for part in (x[i : i + batch] for i in range(0, len(x), batch)) if 2 * len(part) >= batch]


def cka(a, b, without=None):
    """Of two lists of Gram matrices: HSIC is averaged over batches before the ratio."""
    kept = [i for i in range(len(a)) if i != without]
    both, one, other = (sum(hsic(x[i], y[i]) for i in kept) for x, y in ((a, b), (a, a), (b, b)))
    return both / math.sqrt(one * other)


def plain_cka(x, y):
    """Over all images at once."""
    return cka(grams(x, len(x)), grams(y, len(y)))


@cache
def wanted_likeness():
    layers = [grams(held()[name]) for name in LAYERS]
    assert len(layers[0]) == 3
    return np.array([[cka(a, b) for b in layers] for a in layers])


def test_similarity_of_all_layers():
    found, wanted = seen()["similarity"], wanted_likeness()
    assert found["rows_of_matrix"] == found["columns_of_matrix"] == LAYERS
    near(found["cka"], wanted, rtol=0, atol=2e-4)
    assert (found["images"], found["left_out"], found["batches"], found["constant"]) == (WHOLE, IMAGES - WHOLE, 3, [])
    count, third = len(LAYERS), len(LAYERS) // 3
    near(found["uniformity"], wanted[~np.eye(count, dtype=bool)].mean(), atol=2e-4)
    near(found["low_high"], wanted[:third, -third:].mean(), atol=2e-4)
    blocks = [LAYERS.index(f"blocks.{block}.output") for block in range(DEPTH)]
    near(found["of_blocks"]["low_high"], wanted[blocks[0], blocks[-1]], atol=2e-4)
    for i, j in [(0, 6), (3, 17), (18, 1)]:
        a, b = grams(held()[LAYERS[i]]), grams(held()[LAYERS[j]])
        left_out = np.array([cka(a, b, without=batch) for batch in range(3)])
        spread = math.sqrt(((left_out - left_out.mean()) ** 2).sum() * 2 / 3)
        near(found["error"][i][j], spread, rtol=0.06, atol=1e-5)


def test_similarity_across_models_has_the_first_models_layers_as_rows():
    found = pair()["similarity-across"]
    others = [name for name in found["columns_of_matrix"] if name.endswith(".output") or name == "root"]
    assert found["rows_of_matrix"] == LAYERS
    assert {"root", "stages.0.units.0.output", "stages.1.units.1.output"} <= set(others)
    places = [found["columns_of_matrix"].index(name) for name in others]
    wanted = [[cka(grams(held()[row]), grams(held_by_resnet()[name])) for name in others] for row in LAYERS]
    near(np.array(found["cka"], float)[:, places], wanted, rtol=0, atol=2e-4)
    matrix = np.array(found["cka"])
    assert [each["column"] for each in found["best_match"]] == matrix.argmax(1).tolist()
    near([each["cka"] for each in found["best_match"]], matrix.max(1))
    third = len(LAYERS) // 3
    near(found["best_of_first_third"], matrix.max(1)[:third].mean())
    near(found["best_of_last_third"], matrix.max(1)[-third:].mean())


def test_heads_that_look_nearest_come_first_against_the_layers_of_a_resnet():
    found = pair()["heads-against-layers"]
    by_distance = sorted(range(HEADS), key=lambda head: seen()["attention-distance"]["rows"][head]["distance_px"])
    units = [name for name in held_by_resnet() if name.endswith(".output")]
    assert [(row["heads"], row["layer"]) for row in found["rows"]] == [(str(h), u) for h in by_distance for u in units]
    per_head = held()["blocks.0.attention.per_head"]  # N H T d
    for row in found["rows"]:
        own = grams(per_head[:, int(row["heads"]), FRONT:])
        near(row["cka"], cka(own, grams(held_by_resnet()[row["layer"]])), atol=2e-4)
    for unit in units:
        ranks = [row["cka"] for row in found["rows"] if row["layer"] == unit]
        near(found["rank_correlation"][unit], spearmanr(range(HEADS), ranks).statistic, atol=1e-4)


# What is carried over ----------------------------------------------------------------------------------------------


def cosines(a, b):
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def test_skip_ratio_of_every_half_block():
    """The skip is what the layer before gave; class token, registers and patches are told apart."""
    found = seen()["skip-ratio"]
    stream = held()["embedding.tokens"]
    halves = iter(zip(found["rows"], found["by_token"], strict=True))
    for block in range(DEPTH):
        for half, branch, after in (("skip1", "attention", "residual1"), ("skip2", "mlp", "output")):
            row, tokens = next(halves)
            assert (row["place"], row["branch"]) == (f"blocks.{block}.{half}", branch)
            added = held()[f"blocks.{block}.{branch}.output"]
            ratio = np.linalg.norm(stream, axis=-1) / np.linalg.norm(added, axis=-1)  # N T
            near(row["class_ratio"], ratio[:, 0].mean())
            near(row["patches_ratio"], ratio[:, FRONT:].mean())
            near(row["patches_error"], standard_error(ratio[:, FRONT:].mean(1)), rtol=2e-3)
            near(row["patches_cosine"], cosines(stream, added)[:, FRONT:].mean())
            near(row["patches_cosine_with_sum"], cosines(stream, stream + added)[:, FRONT:].mean())
            near(row["class_cosine"], cosines(stream, added)[:, 0].mean())
            near(tokens["ratio"], ratio.mean(0), rtol=2e-3)
            stream = held()[f"blocks.{block}.{after}"]


def test_skip_ratio_of_a_resnet_is_that_of_its_places():
    found = pair().found_against["skip-ratio"]
    for row in found["rows"]:
        maps = (held_by_resnet()[f"{row['layer']}.{part}"] for part in ("skip", "branch"))  # N C h w
        skip, branch = (x.reshape(*x.shape[:2], -1).swapaxes(1, 2) for x in maps)  # N places C
        near(row["patches_ratio"], (np.linalg.norm(skip, axis=-1) / np.linalg.norm(branch, axis=-1)).mean())
        near(row["patches_cosine"], cosines(skip, branch).mean())
        assert row["class_ratio"] is None


# Places ------------------------------------------------------------------------------------------------------------


def parts_of_images(rows, columns):
    """N places …: the image cut like a cake, row by row."""
    tall, wide = HEIGHT // rows, WIDTH // columns
    parts = [
        pixels()[:, :, tall * r : tall * (r + 1), wide * c : wide * (c + 1)].reshape(IMAGES, -1)
        for r in range(rows)
        for c in range(columns)
    ]
    return np.stack(parts, 1) / 255


def standing_out(heat):
    """hit, share, percentile and margin of every token at its own place, one by one."""
    out = []
    for own, row in enumerate(heat):
        others = np.delete(row, own)
        share = max(row[own], 0) / sum(max(value, 0) for value in row)
        out.append([float(row[own] > others.max()), share, np.mean(others < row[own]), row[own] - others.mean()])
    return np.array(out)


@cache
def wanted_heat():
    """Each last token against each part of the image."""
    tokens, parts = held()[f"blocks.{DEPTH - 1}.output"][:, FRONT:], parts_of_images(ROWS, COLUMNS)
    of_tokens, of_parts = ([grams(x[:, place]) for place in range(N)] for x in (tokens, parts))
    return np.array([[cka(a, b) for b in of_parts] for a in of_tokens])


def test_localisation_is_with_the_part_of_the_image_at_the_tokens_own_place():
    found, heat = seen()["localisation"], wanted_heat()
    tokens = held()[f"blocks.{DEPTH - 1}.output"][:, FRONT:]
    embedded = held()["embedding.patches"]
    angles = np.mean([cosines(t[:, None], e[None]) for t, e in list(zip(tokens, embedded, strict=True))[:WHOLE]], 0)
    inside = np.array([0 < row < ROWS - 1 and 0 < col < COLUMNS - 1 for row, col in PLACES])
    kinds = {"all": np.ones(N, bool), "interior": inside, "edge": ~inside}
    rows = iter(found["rows"])
    for by, values in (("cka", heat), ("cosine", angles)):
        for kind, of in kinds.items():
            row = next(rows)
            assert (row["by"], row["tokens"], row["count"]) == (by, kind, of.sum())
            wanted = standing_out(values)[of].mean(0)
            near([row[name] for name in ("hit", "share", "percentile", "margin")], wanted, rtol=1e-3, atol=1e-4)
    assert found["images"] == WHOLE
    assert [(each["row"], each["column"]) for each in found["heat"]] == [(0, 0), (2, 0), (1, 1), (2, 2)]
    for each in found["heat"]:
        own = heat[each["row"] * COLUMNS + each["column"]]
        near(each["cka"], own.reshape(ROWS, COLUMNS), rtol=0, atol=2e-4)


def test_localisation_in_a_resnet_is_of_the_places_of_its_last_map():
    found = pair().found_against["localisation"]
    last = held_by_resnet()["norm"]  # N C h w
    rows, columns = last.shape[2:]
    assert found["grid"] == [rows, columns] == [2, 5]
    parts = parts_of_images(rows, columns)
    of_parts = [grams(parts[:, place]) for place in range(rows * columns)]
    for each in found["heat"]:
        own = grams(last[:, :, each["row"], each["column"]])
        near(each["cka"], np.reshape([cka(own, b) for b in of_parts], (rows, columns)), rtol=0, atol=2e-4)


# What can be read --------------------------------------------------------------------------------------------------


def accuracy_of_least_squares(x, clear=1e-4, l2=1024.0):
    """P1's: columns standardised, a constant of 100 beside, targets of ±1; fitted on train, judged on test.  N D

    Least and most: where two classes are nearer than `clear`, rounding decides.
    """
    is_test = np.array([i >= IMAGES - TEST for i in order()])
    labels = pictures().labels[order()]
    mean, std = x[~is_test].mean(0), x[~is_test].std(0) + 1e-5
    rows = np.column_stack([(x - mean) / std, np.full(len(x), 100.0)])
    fit, targets = rows[~is_test], 2.0 * (labels[~is_test, None] == np.arange(3)) - 1
    weight = np.linalg.solve(fit.T @ fit + l2 * np.eye(fit.shape[1]), fit.T @ targets)
    scores = rows[is_test] @ weight
    is_right, best = scores.argmax(1) == labels[is_test], np.sort(scores, 1)
    is_clear = best[:, -1] - best[:, -2] > clear
    return (is_right & is_clear).mean(), (is_right | ~is_clear).mean()


def lies_within(found, least_and_most):
    least, most = least_and_most
    assert least - 1e-6 <= found <= most + 1e-6


def test_probes_read_each_layers_class_token_mean_and_middle_patch():
    """Ten shots are all there are of each class, so that they are the whole fit too."""
    found = seen()["probes"]
    assert (found["images"], found["fitted_on"], found["constant"]) == (TEST, IMAGES - TEST, [])
    middle = FRONT + ROWS // 2 * COLUMNS + COLUMNS // 2
    for row in found["rows"]:
        x = held()[f"{row['layer']}.output"]
        rows = {"gap": x[:, FRONT:].mean(1), "cls": x[:, 0], "middle": x[:, middle]}[row["tokens"]]
        for value in (row["linear"], row["ten_shot"], *row["ten_shot_seeds"]):
            lies_within(value, accuracy_of_least_squares(rows))
    near(found["chance"], 1 / 3)


def test_token_probes_read_every_place_by_itself():
    found = seen()["token-probes"]
    assert [layer["layer"] for layer in found["layers"]] == [f"blocks.{block}" for block in range(DEPTH)]
    rows = iter(found["rows"])
    for layer in found["layers"]:
        x = held()[f"{layer['layer']}.output"].astype(np.float16).astype(float)
        tokens = [0, *range(FRONT, FRONT + N)]
        told = [next(rows) for _ in tokens]
        assert [(row["row"], row["column"]) for row in told] == [(None, None), *PLACES]
        for token, row in zip(tokens, told, strict=True):
            lies_within(row["ten_shot"], accuracy_of_least_squares(x[:, token], clear=2e-3))
        own, *patches = (row["ten_shot"] for row in told)
        near(layer["class_token"], own)
        near([layer["lowest"], layer["mean"], layer["highest"]], [min(patches), np.mean(patches), max(patches)])
        near(layer["error"], math.sqrt(np.mean(patches) * (1 - np.mean(patches)) / TEST))


@torch.inference_mode()
def answered(tokens):
    """Probabilities of one image, by the final norm and head on its class token."""
    z = torch.from_numpy(tokens).float()
    return model().head(model().norm(z)[0]).softmax(-1).double().numpy()


def test_the_logit_lens():
    found = seen()["logit-lens"]
    final = answers(held()["logits"])
    for block, row in enumerate(found["rows"]):
        chances = np.stack([answered(tokens) for tokens in held()[f"blocks.{block}.output"]])
        said = answers(chances)
        same = said == final
        near(row["same_answer"], same.mean())
        near(row["same_answer_error"], standard_error(same.astype(float)))
        near(row["chance_of_answer"], chances[np.arange(IMAGES), final].mean())
        near(row["accuracy"], (said == truth()).mean())
    assert 0 < found["rows"][0]["same_answer"] < 1, "a law without a grip; change the seed"


def test_the_lens_judges_images_that_have_a_label_and_no_others():
    """In whichever batch they come."""
    partly = as_set(Arrays(pictures().source.pixels), test=TEST)
    partly.labels[::3] = -1
    found = vitreous.look(model(), partly, only=["logit-lens"], batch=BATCH)["logit-lens"]
    known = partly.labels[order()] >= 0
    for block, row in enumerate(found["rows"]):
        said = np.array([answered(tokens).argmax() for tokens in held()[f"blocks.{block}.output"]])
        near(row["accuracy"], (said == truth())[known].mean())
        near(row["same_answer"], (said == held()["logits"].argmax(1)).mean())


# Forwards of their own ---------------------------------------------------------------------------------------------


@torch.inference_mode()
def without_skips(cut):
    """The forward written out, image by image; block `cut` gets no skip.  Outputs of the blocks, features, answers."""
    outputs, features = [], []
    for tokens in held()["embedding.tokens"]:
        z, seen_ = torch.from_numpy(tokens).float()[None], []
        for number, block in enumerate(model().blocks):
            carried = 0.0 if number == cut else 1.0
            z = carried * z + block.attention(block.norm1(z))
            z = carried * z + block.mlp(block.norm2(z))
            seen_.append(z[0].double().numpy())
        outputs.append(seen_)
        features.append(model().norm(z)[0, 0])
    scores = model().head(torch.stack(features)).double().numpy()
    return np.array(outputs), torch.stack(features).double().numpy(), answers(scores)


def contrast(outputs, cut):
    """Likeness of blocks on two sides of a cut, less that on one side.  outputs: N L T D"""
    likeness = {(i, j): plain_cka(outputs[:, i], outputs[:, j]) for i in range(outputs.shape[1]) for j in range(i)}
    across = [value for (i, j), value in likeness.items() if (i < cut) != (j < cut)]
    within = [value for (i, j), value in likeness.items() if (i < cut) == (j < cut)]
    return np.mean(across) - np.mean(within) if across and within else None


def test_skip_removal_takes_both_skips_of_one_block():
    found = seen()["skip-removal"]
    intact, features, before = without_skips(None)
    assert (before == answers(held()["logits"])).all()
    for cut, row in enumerate(found["rows"]):
        outputs, changed, said = without_skips(cut)
        assert row["block"] == f"blocks.{cut}"
        near(row["features_cka"], plain_cka(features, changed), rtol=1e-3)
        near(row["same_answer"], (said == before).mean())
        near(row["accuracy_change"], (said == truth()).mean() - (before == truth()).mean())
        for name, blocks in (("contrast_intact", intact), ("contrast_without", outputs)):
            wanted = contrast(blocks, cut)
            assert (row[name] is None) == (wanted is None)
            near(row[name] or 0, wanted or 0, rtol=1e-3)
    assert any(row["same_answer"] not in (0, 0.5, 1) and row["accuracy_change"] for row in found["rows"])


@pytest.mark.parametrize("which", ["vit", "resnet"])
def test_a_shift_is_to_the_right_and_its_answers_are_compared_with_those_before(which):
    network, inspection = (model(), seen()) if which == "vit" else (resnet(), pair())
    found = inspection["shift"] if which == "vit" else inspection.found_against["shift"]

    @torch.inference_mode()
    def read(images):
        features = network.features(normalised(images))
        return features.double().numpy(), network.head(features).softmax(-1).double().numpy()

    before, sure = read(pixels())
    assert column(found, "shift_px") == list(range(1, (WIDE if which == "vit" else 16) + 1))
    for row in found["rows"]:
        px = row["shift_px"]
        moved = np.concatenate([np.repeat(pixels()[..., :1], px, -1), pixels()[..., :-px]], -1)
        features, chances = read(moved)
        near(row["feature_cosine"], cosines(before, features).mean())
        near(row["feature_cosine_error"], standard_error(cosines(before, features)), rtol=3e-3)
        near(row["same_answer"], (answers(chances) == answers(sure)).mean())
        near(row["chance_change"], np.abs(chances - sure).sum(1).mean() / 2)


def test_an_image_that_cannot_be_read_takes_its_label_with_it():
    """Those after it are still judged by their own."""
    lost = 2  # in the order of the look
    broken = as_set(Arrays(pictures().source.pixels, {int(order()[lost])}), test=TEST)
    found = vitreous.look(model(), broken, only=["skip-removal", "logit-lens"], batch=BATCH)
    assert found.data["images"] == IMAGES - 1
    assert found["logit-lens"]["images"] == found["skip-removal"]["images"] == IMAGES - 1
    kept = np.delete(np.arange(IMAGES), lost)
    before = answers(held()["logits"])[kept] == truth()[kept]
    near(found["logit-lens"]["rows"][-1]["accuracy"], before.mean())
    for cut, row in enumerate(found["skip-removal"]["rows"]):
        near(row["accuracy_change"], (without_skips(cut)[2] == truth())[kept].mean() - before.mean())


@torch.inference_mode()
def resnet_without(unit):
    """Features and answers; where a unit is named, its branch stands for its sum."""
    kept = {}

    def keep(branch):
        kept["branch"] = branch
        return branch

    edit = {f"{unit}.branch": keep, f"{unit}.output": lambda whole: kept["branch"]}
    with vitreous.taps(resnet(), edit=edit) if unit else nullcontext():
        features = resnet().features(normalised(pixels()))
    return features.double().numpy(), answers(resnet().head(features).double().numpy())


def test_skip_removal_in_a_resnet():
    found = pair().found_against["skip-removal"]
    assert column(found, "block") == [f"stages.{s}.units.{u}" for s, u in ((0, 0), (1, 0), (1, 1))]
    features, before = resnet_without(None)
    for row in found["rows"]:
        changed, said = resnet_without(row["block"])
        near(row["same_answer"], (said == before).mean())
        near(row["features_cka"], plain_cka(features, changed), rtol=1e-3, atol=1e-4)


# Receptive fields --------------------------------------------------------------------------------------------------


def rings_around(centre):
    """Whole pixels between each pixel and the centre.  H W"""
    return np.array([[int(math.hypot(y - centre[0], x - centre[1])) for x in range(WIDTH)] for y in range(HEIGHT)])


def half_mass(mass):
    """Pixels that hold half of the mass, which is spread evenly within a ring of one pixel."""
    half, before = sum(mass) / 2, 0.0
    for ring, value in enumerate(mass):
        if before + value >= half:
            return ring + (half - before) / value
        before += value
    raise AssertionError


def test_receptive_fields_are_mean_gradients_around_the_middle():
    few = 4
    found = vitreous.look(model(), pictures(), only=["receptive-field"], images=few, exact=True, batch=few)
    found = found["receptive-field"]
    names = [row["tap"] for row in found["rows"]]
    assert names == [
        f"blocks.{b}.{part}" for b in range(DEPTH) for part in ("attention.output", "mlp.output", "output")
    ]
    middle = FRONT + ROWS // 2 * COLUMNS + COLUMNS // 2
    centre = TALL * (ROWS // 2 + 0.5) - 0.5, WIDE * (COLUMNS // 2 + 0.5) - 0.5
    fields = {name: [] for name in names}
    for image in pixels()[:few]:
        x = normalised(image[None]).requires_grad_()
        with vitreous.taps(model(), names) as seen_:
            model()(x)
        for name in names:
            values = seen_[name][0, middle]  # D
            (slopes,) = torch.autograd.grad(
                values, x, torch.eye(len(values)), retain_graph=True, is_grads_batched=True
            )  # D 1 C H W
            fields[name].append(slopes[:, 0].abs().mean((0, 1)).double().numpy())
    ring = rings_around(centre)
    for row in found["rows"]:
        field = np.stack(fields[row["tap"]])  # images H W
        mass = np.array([[each[ring == r].sum() for r in range(ring.max() + 1)] for each in field])
        near(row["radius_px"], half_mass(mass.sum(0)), rtol=1e-3)
        without = np.array([half_mass(mass.sum(0) - each) for each in mass])
        near(row["error_px"], math.sqrt(((without - without.mean()) ** 2).sum() * (few - 1) / few), rtol=1e-2)
        own = field[:, TALL * 2 : TALL * 3, WIDE * 2 : WIDE * 3].sum((1, 2)) / field.sum((1, 2))
        near(row["own_patch_share"], own.mean(), rtol=1e-3)
        assert row["when"] == ("after" if row["tap"].count(".") == 2 else "before")
    even = rings_around(((HEIGHT - 1) / 2, (WIDTH - 1) / 2))
    near(found["whole_image_radius_px"], half_mass([(even == r).sum() for r in range(even.max() + 1)]))
