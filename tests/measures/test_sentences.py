"""Every sentence of a look agrees with its number, whichever way the number goes."""

import pytest

from vitreous.measures import MEASURES


def says(name, **found):
    return MEASURES[name].says(found)


@pytest.mark.parametrize(
    ("near", "lines", "words"),
    [
        (0.61, 0.52, "the nearer two places, the more alike their positions (rank correlation 0.61); "
                     "those of the same row or column are more alike by 0.52"),
        (-0.09, 0.001, "how near two places are hardly shows in their positions (rank correlation -0.09)"),
        (-0.4, -0.2, "the nearer two places, the less alike their positions (rank correlation -0.40); "
                     "those of the same row or column are less alike by 0.20"),
        (0.3, None, "the nearer two places, the more alike their positions (rank correlation 0.30)"),
        (None, None, "positions have no pattern"),
    ],
)  # fmt: skip
def test_positions(near, lines, words):
    assert says("positions", nearness=near, row_column=lines) == words


@pytest.mark.parametrize(
    ("trend", "words"),
    [(-0.5, "look, the less they are like"), (0.5, "look, the more they are like"), (0.02, "hardly tells how much")],
)
def test_heads_against_layers(trend, words):
    found = {"models": ["a", "our BiT"], "rank_correlation": {"stages.0": trend}}
    text = says("heads-against-layers", heads=6, **found)
    assert words in text
    assert "layers of our BiT" in text
    assert text.endswith(f"(rank correlation {trend:.2f})")
    few = says("heads-against-layers", heads=5, **found)
    assert few == "the first block has 5 heads, too few for a trend"
    alike = says("heads-against-layers", heads=6, models=["a", "b"], rank_correlation={"stages.0": None})
    assert alike == "heads of the first block differ in nothing that could be ranked"


@pytest.mark.parametrize(("heads", "words"), [(1, "each by itself"), (3, "3 neighbours taken together as one")])
def test_heads_are_counted_in_words_that_fit(heads, words):
    assert f"sorted by distance, {words}" in MEASURES["heads-against-layers"].method({"heads_joined": heads})


@pytest.mark.parametrize(
    ("batches", "words"),
    [(1, "on 24 images in one batch; all tokens"), (3, "in 3 batches: HSIC is averaged over batches first")],
)
def test_only_several_batches_are_averaged(batches, words):
    assert words in MEASURES["similarity"].method({"images": 24, "batches": batches})


def test_heads_of_a_block():
    def told(*cosines, heads=2):
        rows = [{"layer": i, "mean_cosine": c} for i, c in enumerate(cosines)]
        return says("head-likeness", rows=rows, heads=[[[1.0] * heads] * heads] * len(cosines))

    assert told(0.2, 0.9) == "heads look most alike in block 2 (cosine 0.90) and least in block 1 (0.20)"
    assert told(0.2) == "heads look alike by a cosine of 0.20"
    assert told(1.0, 1.0, heads=1) == "each block has one head, which has no other to be like"


def test_distances():
    def told(*first, last=40.0, grid=(14, 14), front=""):
        far = [*((0, px) for px in first), (1, last)]
        rows = [{"layer": layer, "distance_px": px, "among_patches_px": 1.5 * px} for layer, px in far]
        found = {"by_layer_px": [5.0, last], "uniform_px": 33.4, "grid": grid, "in_front": front, "place": "patch"}
        return says("attention-distance", rows=rows, **found)

    assert told(21.0, 29.0).startswith("heads of the first block look 21 to 29 px far, the last block's 40 px on")
    assert told(21.0).startswith("heads of the first block look 21 px far")
    assert told(21.0).endswith("looking everywhere alike would be 33 px")
    assert told(21.0, grid=(4, 9)).endswith("alike would be 33 px; on 4 × 9 places that tells little")
    assert told(20.0, 30.0, front="class token") == (
        "heads of the first block look 20 to 30 px far, the last block's 40 px on average, a look at the class token "
        "counted as 0 px; among patches alone 30 to 45 px and 60 px; looking everywhere alike would be 33 px"
    )


def lens(*same, images=24):
    rows = [{"layer": i, "same_answer": s} for i, s in enumerate(same)]
    return says("logit-lens", images=images, leader="bag", rows=rows)


def test_answers_stand_from_a_block_on_if_they_do_not_fall_again():
    assert lens(0.1, 0.6, 0.7, 1.0) == "half of the final answers stand from block 2 on"
    assert lens(0.9, 0.2, 0.7, 1.0) == "half of the final answers stand from block 3 on"
    assert lens(0.6, 0.7, 1.0) == "half of the final answers stand from block 1 on"
    assert lens(0.1, 0.2, 1.0) == "half of the final answers stand only at the end"
    assert lens(0, 1, 1, images=1) == "read early, bag leads from block 2 on"
    assert lens(0, 0, 1, images=1) == "read early, bag leads only at the end"


def removal(*same, images=64, kind="blocks"):
    rows = [{"block": f"{kind}.{i}", "same_answer": s} for i, s in enumerate(same)]
    return says("skip-removal", images=images, leader="bag", rows=rows)


def test_skips():
    assert removal(0.5, 0.03, 0.1) == "without the skips of any one block, 3 to 50 % of the answers stay"
    assert removal(0.5, kind="stages.0.units") == "without the skips of any one unit, 50 % of the answers stay"
    assert removal(0.001, 0.002) == "without the skips of any one block, 0 % of the answers stay"
    assert removal(0, 1, 1, images=1) == "without one block's skips another class than bag leads in 1 of 3 cases"
    assert removal(1, images=1) == "without one block's skips another class than bag leads in none of 1 case"


def shift(*same, images=64):
    rows = [{"shift_px": i, "feature_cosine": 0.9 - i / 10, "same_answer": s} for i, s in enumerate(same)]
    return says("shift", images=images, leader="bag", rows=rows)


def test_shifts():
    assert shift(0.9, 0.64) == "features keep a cosine of 0.80 under a shift of 1 px; at least 64 % of the answers stay"
    assert shift(1, 0, images=1).endswith("; another class than bag leads at 1 of 2 shifts")
    assert shift(1, 1, images=1).endswith("; bag still leads")
    assert shift(None).endswith("under a shift of 0 px")


def test_probes_are_held_against_chance():
    def told(*rows):
        names = ("layer", "tokens", "linear", "ten_shot")
        told = [dict(zip(names, row, strict=True), interval=[row[2] - 0.05, row[2] + 0.1]) for row in rows]
        return says("probes", rows=told, chance=0.1, shots=10, place="patch", images=61)

    assert told(("blocks.0", "gap", 0.5, 0.4), ("blocks.1", "cls", 0.8, 0.7)) == (
        "a linear fit reads the class best from block 2 (class token): 80 % of 61 test images right (75 to 90 %), "
        "70 % by 10 shots; from block 1 50 %; by chance 10 %"
    )
    low, tied = ("blocks.0", "gap", 0.5, 0.4), [(f"blocks.{i}", "cls", 0.8, i / 100) for i in (9, 11, 12)]
    assert "best from block 10 (class token) and block 12 (class token) alike: 80 %" in told(low, *tied[:2])
    assert "best from block 13 (class token) and 2 more alike: 80 %" in told(low, *tied)
    assert "12 % by 10 shots" in told(low, *tied)
    assert told(("blocks.0", "gap", 0.5, 0.4)).endswith("by 10 shots; by chance 10 %")
    assert told(("blocks.0", "gap", 0.1, 0.1)) == (
        "a linear fit reads the class from no layer better than by chance (10 %)"
    )


def test_rollout_says_what_an_even_share_is():
    told = {"spread_patches": 12.0, "held_by_top_tenth": 0.3}
    assert says("rollout", patches=196, place="patch", **told).endswith(
        "30 % of it from the 20 patches that give most, 10 % if all gave alike"
    )
    assert says("rollout", patches=4, place="place", **told) == (
        "by rollout, the answer comes from about 12 of 4 places; "
        "30 % of it from the 1 place that gives most, 25 % if all gave alike"
    )


def test_a_share_of_tokens_at_their_place_names_its_images_and_chance():
    rows = [{"hit": 0.17, "percentile": 0.82}]
    assert says("localisation", images=303, grid=[14, 14], rows=rows, sampled=False) == (
        "on 303 images 17 % of the last tokens are most like the patch they came from (by chance 0.5 %, 1 of 196), "
        "which is more like them than 82 % of the others"
    )
    caution = MEASURES["localisation"].caution
    assert caution(8).startswith("CKA of 8 images is mostly chance")
    assert caution(999).startswith("this share grows with the images (DeiT-Ti: 6 % on 64")
    assert caution(1000) is None


def test_filters_say_how_many_and_why_they_are_not_drawn():
    rows = [{}] * 16
    assert says("patch-filters", rows=rows, held_by_28=1.0, why_no_shapes="") == (
        "16 shapes hold 100 % of what the patch filters look for"
    )
    assert says("patch-filters", rows=rows * 9, held_by_28=0.5, why_no_shapes="too many").endswith(
        "28 shapes hold 50 % of what the patch filters look for; the shapes are not drawn: too many"
    )


def test_layers():
    assert says("similarity", uniformity=0.0, low_high=-0.1, constant=[]) == (
        "two layers are alike by 0.00 on average (1 is the same), the first third and the last by -0.10"
    )
    assert says("similarity", uniformity=None, low_high=None, constant=["blocks.0.norm1"]) == (
        "layers cannot be compared; constant: block 1, norm1"
    )


def test_one_image_is_no_images():
    assert says("attention-maps", layers=12, heads=1, images=1, pooled_to=[2, 2], grid=[2, 2]) == (
        "12 blocks of 1 head on 1 image"
    )
