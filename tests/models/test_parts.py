"""A network's parts hold all its parameters, their shapes are those of its forward, and each is drawn."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
import torch
from torch import nn

from vitreous.models import architecture, catalog
from vitreous.models.vit import ViT

SMALL = "width=16 depth=2 heads=2 mlp=24 image_size=32 classes=5"
NAMES = [
    f"Ti/8 {SMALL}",
    f"Ti/8 {SMALL} pool=gap",
    f"Ti/8 {SMALL} pool=map positions=none",
    f"Ti/8 {SMALL} registers=4 positions=learned-2d mask_token=true norm_before_blocks=true",
    f"Ti/8 {SMALL} positions=relative norm=post pool=max",
    f"Ti/8 {SMALL} positions_at=every-layer layer_scale=0.1 representation=12",
    f"Ti/8 {SMALL} distillation_token=true distillation_head=true pool=cls-and-distillation qk_norm=true",
    f"Ti/8 {SMALL} positions=sincos-2d activation=swiglu pool=cls-and-gap pool_order=mean-first norm_kind=batch",
    f"Ti/8 {SMALL} stem=convolutions pool=gap channels=1",
    f"Ti/8 {SMALL} positions=none rotary=axial rotary_places=image registers=4 key_bias=false layer_scale=0.1",
    f"Ti/8 {SMALL} rotary=mixed inner_norm=both norm=branch norm_kind=rms branch_bias=false patch_norm=true",
    f"Ti/8 {SMALL} positions=none attention_bias=table attention_bias_at=both pool_order=no-norm",
    f"Ti/8 {SMALL} attention_bias=mlp pool=map pool_heads=4 pool_mlp=12 pool_tokens=all",
    f"Ti/2 {SMALL} stem=resnet units=1,2 resnet_width=0.25",
    f"Ti/1 {SMALL} stem=resnet units=1 resnet_width=0.25 root=small",
    "BiT-R50x1 image_size=32 units=1,2 resnet_width=0.25 classes=5",
    "BiT-R50x1 image_size=32 units=1,2 resnet_width=0.25 root=small classes=0",
]


def config_of(name):
    """units=1,2 is a change that names do not know."""
    word = next((word for word in name.split() if word.startswith("units=")), "")
    units = {"units": tuple(map(int, word.removeprefix("units=").split(",")))} if word else {}
    return catalog.parse(name.replace(word, "")).change(**units) if word else catalog.parse(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_hold_every_parameter_once(name):
    config = config_of(name)
    found = architecture.parts(config)
    assert sum(part.parameters for part in found) == sum(p.numel() for p in catalog.blueprint(config).parameters())
    for part in found:
        of_one = sum(one.parameters for leg in part.legs for one in (*leg.branch, *leg.after))
        assert not part.legs or part.parameters == part.copies * of_one


@pytest.mark.parametrize("name", NAMES)
def test_shapes_are_those_of_the_forward(name):
    config = config_of(name)
    model, found = catalog.build(config, seed=0).eval(), architecture.parts(config)
    with torch.inference_mode():
        answer = model(torch.zeros(1, config.channels, *config.image_size))
    assert found[-1].shape == tuple(answer.shape[1:])
    if isinstance(model, ViT):
        (blocks,) = (part for part in found if part.legs)
        assert blocks.copies == config.encoder.depth
        assert blocks.shape == (config.prefix + model.grid[0] * model.grid[1], config.encoder.width)


@pytest.mark.parametrize("name", NAMES)
def test_the_drawing_says_every_part_and_its_parameters(name):
    config = config_of(name)
    svg = ElementTree.fromstring(architecture.drawing(config, "mine").to_svg())
    words = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    for part in architecture.parts(config):
        assert any(word.startswith(part.name) for word in words)
        assert not part.parameters or f"{part.parameters:,}" in words
        for one in (one for leg in part.legs for one in (*leg.branch, *leg.after)):
            assert one.name in words
            assert f"{one.parameters:,}" in words
    assert svg.get("aria-label").startswith("mine: a ")
    wide, tall = float(svg.get("width")), float(svg.get("height"))
    for box in svg.iter("{http://www.w3.org/2000/svg}rect"):
        assert 0 <= float(box.get("x")) <= float(box.get("x")) + float(box.get("width")) <= wide
        assert 0 <= float(box.get("y")) <= float(box.get("y")) + float(box.get("height")) <= tall


def names_of(name):
    return [part.name for part in architecture.parts(config_of(name))]


def test_a_part_is_named_if_the_model_has_it_and_not_otherwise():
    plain, hybrid = names_of(f"Ti/8 {SMALL}"), names_of(f"Ti/8 {SMALL} stem=convolutions pool=gap positions=none")
    assert plain[:3] == ["patches to tokens", "tokens in front", "positions"]
    assert hybrid[:5] == ["convolution 1", "convolution 2", "convolution 3", "places to tokens", "block"]
    resnet = [names_of(f"Ti/{patch} {SMALL} stem=resnet units=1,2 resnet_width=0.25") for patch in (1, 2)]
    assert [names[:4] for names in resnet] == [
        ["root", "stage 1", "stage 2", "places to tokens"],
        ["root", "stage 1", "stage 2", "patches to tokens"],
    ]
    assert "positions" not in names_of(f"Ti/8 {SMALL} positions=relative")  # they are inside attention


def inner(name):
    (blocks,) = (part for part in architecture.parts(config_of(name)) if part.legs)
    return [[[part.name for part in parts] for parts in (leg.branch, leg.after)] for leg in blocks.legs]


def test_the_norm_stands_where_the_block_has_it():
    assert inner(f"Ti/8 {SMALL}") == [[["norm", "attention"], []], [["norm", "MLP"], []]]
    assert inner(f"Ti/8 {SMALL} norm=post") == [[["attention"], ["norm"]], [["MLP"], ["norm"]]]


def test_cut_skips_are_told_and_not_drawn():
    whole, some, none = (
        architecture.drawing(catalog.parse(f"Ti/8 {SMALL}").change(skips=skips), "m").to_svg()
        for skips in ((), (1,), (0, 1))
    )
    assert ("stroke-dasharray" in whole, "stroke-dasharray" in some, "stroke-dasharray" in none) == (True, True, False)
    assert "without skips in block 2" in some
    assert "without skips" not in whole + none  # neither has anything that its drawing does not show
    assert [svg.count(">+</text>") for svg in (whole, some, none)] == [2, 2, 0]


@pytest.mark.parametrize(
    "name",
    [
        f"Ti/4 {SMALL} stem=convolutions image_size=28 pool=gap",
        f"Ti/8 {SMALL} stem=convolutions image_size=30x26 pool=gap",
        f"Ti/1 {SMALL} stem=resnet units=1 resnet_width=0.25 root=small",
        f"Ti/2 {SMALL} stem=resnet units=1,2 resnet_width=0.25 image_size=48",
    ],
)
def test_a_place_sees_its_window_and_nothing_else(name):
    """Without norms, which mix a whole map, the gradient of a place reaches the edges of its window and no further."""
    config = config_of(name)
    model = catalog.build(config, seed=0).eval()
    for part in list(model.stem.modules()):
        for child, module in part.named_children():
            if isinstance(module, nn.GroupNorm):
                setattr(part, child, nn.Identity())
    seen = architecture.window(model.stem, config.image_size)
    images = torch.randn(24, config.channels, *config.image_size, generator=torch.Generator().manual_seed(1))
    images.requires_grad_()
    tokens = model.embedding.embed(model.stem(images)).unflatten(1, model.grid)  # B rows columns D
    for place in ((0, 0), tuple(side // 2 for side in model.grid), tuple(side - 1 for side in model.grid)):
        (gradient,) = torch.autograd.grad(tokens[(slice(None), *place)].square().sum(), images, retain_graph=True)
        reached = gradient.abs().sum((0, 1)).nonzero()  # pixels, 2
        for side in (0, 1):
            begin = seen.first[side] + place[side] * seen.step[side]
            assert reached[:, side].min() == max(begin, 0)
            assert reached[:, side].max() == min(begin + seen.size[side], config.image_size[side]) - 1


def test_a_plain_vit_has_no_window():
    config = catalog.parse(f"Ti/8 {SMALL}")
    assert architecture.window(catalog.blueprint(config).stem, config.image_size) is None
    assert architecture.spread(catalog.blueprint(config).stem, config.image_size, (2, 2)) == (0, 0, 1, 1)


def test_places_of_a_hybrid_lie_around_the_middles_of_their_windows():
    config = config_of(f"Ti/8 {SMALL} stem=convolutions image_size=28x20 pool=gap")
    stem = catalog.blueprint(config).stem
    left, top, right, bottom = architecture.spread(stem, config.image_size, (4, 3))
    seen = architecture.window(stem, config.image_size)
    for i, count, begin, end, side in ((0, 4, top, bottom, 28), (1, 3, left, right, 20)):
        middles = [side * (begin + (end - begin) * (k + 0.5) / count) for k in range(count)]
        assert middles == pytest.approx([seen.first[i] + k * seen.step[i] + seen.size[i] / 2 for k in range(count)])
        assert middles[0] == pytest.approx(0.5)  # the first window lies around the first pixel
