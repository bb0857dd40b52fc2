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
    text = says("heads-against-layers", models=["a", "our BiT"], rank_correlation={"stages.0": trend})
    assert words in text
    assert "layers of our BiT" in text
    assert text.endswith(f"(rank correlation {trend:.2f})")


def test_heads_of_a_block():
    def told(*cosines, heads=2):
        rows = [{"layer": i, "mean_cosine": c} for i, c in enumerate(cosines)]
        return says("head-likeness", rows=rows, heads=[[[1.0] * heads] * heads] * len(cosines))

    assert told(0.2, 0.9) == "heads look most alike in block 2 (cosine 0.90) and least in block 1 (0.20)"
    assert told(0.2) == "heads look alike by a cosine of 0.20"
    assert told(1.0, 1.0, heads=1) == "each block has one head, which has no other to be like"


def test_distances():
    def told(*first, last=40.0):
        rows = [{"layer": 0, "distance_px": px} for px in first]
        return says("attention-distance", rows=rows, by_layer_px=[5.0, last], uniform_px=33.4)

    assert told(21.0, 29.0).startswith("heads of the first block look 21 to 29 px far, the last block's 40 px on")
    assert told(21.0).startswith("heads of the first block look 21 px far")


def lens(*same, images=24):
    return says("logit-lens", images=images, rows=[{"layer": i, "same_answer": s} for i, s in enumerate(same)])


def test_answers_stand_from_a_block_on_if_they_do_not_fall_again():
    assert lens(0.1, 0.6, 0.7, 1.0) == "half of the final answers stand from block 2 on"
    assert lens(0.9, 0.2, 0.7, 1.0) == "half of the final answers stand from block 3 on"
    assert lens(0.6, 0.7, 1.0) == "half of the final answers stand from block 1 on"
    assert lens(0.1, 0.2, 1.0) == "half of the final answers stand only at the end"
    assert lens(0, 1, 1, images=1) == "the final answer stands from block 2 on"


def removal(*same, images=64):
    rows = [{"block": f"blocks.{i}", "same_answer": s} for i, s in enumerate(same)]
    return says("skip-removal", images=images, rows=rows)


def test_skips():
    assert removal(0.5, 0.03) == "without the skips of block 2, 3 % of the answers stay; without those of block 1, 50 %"
    assert removal(0.001, 0.002) == "without the skips of any one block, 0 % of the answers stay"
    assert removal(0, 1, 1, images=1) == "without one block's skips the answer changes in 1 of 3 cases"
    assert removal(1, images=1) == "without one block's skips the answer changes in none of 1 case"


def shift(*same, images=64):
    rows = [{"shift_px": i, "feature_cosine": 0.9 - i / 10, "same_answer": s} for i, s in enumerate(same)]
    return says("shift", images=images, rows=rows)


def test_shifts():
    assert shift(0.9, 0.64) == "features keep a cosine of 0.80 under a shift of 1 px; at least 64 % of the answers stay"
    assert shift(1, 0, images=1).endswith("; the answer is another at 1 of 2 shifts")
    assert shift(1, 1, images=1).endswith("; the answer stays")
    assert shift(None).endswith("under a shift of 0 px")


def test_probes_are_held_against_chance():
    def told(*rows):
        names = ("layer", "tokens", "linear", "ten_shot")
        return says("probes", rows=[dict(zip(names, row, strict=True)) for row in rows], chance=0.1, shots=10)

    assert told(("blocks.0", "gap", 0.5, 0.4), ("blocks.1", "cls", 0.8, 0.7)) == (
        "a linear fit reads the class best from block 2 (class token): 80 % right, 70 % by 10 shots; "
        "from block 1 50 %; by chance 10 %"
    )
    assert told(("blocks.0", "gap", 0.5, 0.4)).endswith("by 10 shots; by chance 10 %")
    assert told(("blocks.0", "gap", 0.1, 0.1)) == (
        "a linear fit reads the class from no layer better than by chance (10 %)"
    )


def test_rollout_says_what_an_even_share_is():
    told = {"spread_patches": 12.0, "held_by_top_tenth": 0.3}
    assert says("rollout", patches=196, **told).endswith(
        "30 % of it from the 20 patches that give most, 10 % if all gave alike"
    )
    assert says("rollout", patches=4, **told).endswith(
        "30 % of it from the 1 patch that gives most, 25 % if all gave alike"
    )


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
