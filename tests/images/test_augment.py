"""Augmentation: Pillow's bytes where Pillow has the operation, and draws that know nothing of the batch."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from scipy import ndimage, stats
from shared_files import ROOT
from torch.testing import assert_close

from vitreous.errors import ConfigError, DataError
from vitreous.images.embedded import shapes
from vitreous.images.pixels import operations
from vitreous.images.pixels.augment import (
    OPERATION_CODES,
    Augment,
    AugmentPlan,
    _layer,
    apply,
    beta,
    crop_boxes,
    draw,
    encode,
    targets,
)
from vitreous.models.preprocess import Preprocess

SIZE = (48, 48)
PICTURES = torch.from_numpy(shapes.batch(range(12), seed=9)[0]).permute(0, 3, 1, 2).contiguous()  # 12 3 48 48
RULE = Preprocess(size=SIZE)
PLAIN = Augment(size=SIZE, crop="none", flip=0.0)
ALL = Augment(
    size=(40, 36), rand_augment=(3, 12), three_augment=True, colour_jitter=0.3, erase=0.5, mixup=0.4, cutmix=1.0
)
KINDS = {
    "crop": Augment(size=(40, 36)),
    "window": Augment(size=SIZE, crop="window", window=0.8),
    "shift": Augment(size=SIZE, crop="shift", edge="reflect"),
    "rand": replace(PLAIN, rand_augment=(2, 10)),
    "timm": replace(PLAIN, rand_augment=(2, 9), rand_augment_table="timm", rand_augment_deviation=0.5),
    "three": replace(PLAIN, three_augment=True, colour_jitter=0.3),
    "erase": replace(PLAIN, erase=0.5),
    "mix": replace(PLAIN, mixup=0.4, cutmix=1.0),
    "all": ALL,
}


def one(name, argument, x=PICTURES, place=(0.5, 0.5)):
    """One operation on every picture, by itself."""
    n, size = len(x), (x.shape[2], x.shape[3])
    layer = encode(np.full(n, OPERATION_CODES[name]), np.full(n, float(argument)), size, np.tile(place, (n, 1)))
    numbers = [torch.from_numpy(getattr(layer, f.name)).to(torch.int32) for f in fields(layer)]
    names = {"rotate": ("rotate",), "shear-x": ("rotate",), "shear-y": ("rotate",)}.get(name, (name,))
    names = ("rotate",) if name.startswith("translate") else names
    return _layer(x, names, *numbers)


def pillow(work, x=PICTURES):
    """The same by Pillow, picture by picture."""
    done = [np.array(work(Image.fromarray(p.permute(1, 2, 0).numpy()))) for p in x]
    return torch.from_numpy(np.stack(done)).permute(0, 3, 1, 2)


def levels(a, b):
    return int((a.int() - b.int()).abs().max())


# ------------------------------------------------------------------------------------------------ each operation


def enhanced(kind, factor):
    return lambda image: kind(image).enhance(factor)


def moved(*matrix):
    return lambda image: image.transform(image.size, Image.Transform.AFFINE, matrix, fillcolor=(128,) * 3)


FACTORS = (0.0, 0.1, 0.5, 1.0, 1.25, 1.8994140625, 3.69921875)  # whole multiples of 1 / 1024
SAME_BYTES = [
    ("invert", 0, ImageOps.invert),
    ("equalise", 0, ImageOps.equalize),
    *(("posterise", bits, lambda image, bits=bits: ImageOps.posterize(image, bits)) for bits in (1, 3, 4, 8)),
    *(("solarise", level, lambda image, level=level: ImageOps.solarize(image, level)) for level in (0, 100, 128, 256)),
    *(("brightness", f, enhanced(ImageEnhance.Brightness, f)) for f in FACTORS),
    *(("contrast", f, enhanced(ImageEnhance.Contrast, f)) for f in FACTORS),
    *(("colour", f, enhanced(ImageEnhance.Color, f)) for f in FACTORS),
    *(("sharpness", f, enhanced(ImageEnhance.Sharpness, f)) for f in FACTORS),
    *(("rotate", a, lambda im, a=a: im.rotate(a, fillcolor=(128,) * 3)) for a in (-30, -7.5, 0, 10, 45, 60)),
    *(("shear-x", s, moved(1, s, 0, 0, 1, 0)) for s in (-0.3, 0.15, 0.6)),
    *(("shear-y", s, moved(1, 0, 0, s, 1, 0)) for s in (-0.3, 0.15, 0.6)),
    *(("translate-x", n / 48, moved(1, 0, n, 0, 1, 0)) for n in (-20, 7, 60)),
    *(("translate-y", n / 48, moved(1, 0, 0, 0, 1, n)) for n in (-20, 7, 60)),
]


@pytest.mark.parametrize(("name", "argument", "theirs"), SAME_BYTES, ids=lambda v: str(v) if not callable(v) else "")
def test_an_operation_gives_pillows_bytes(name, argument, theirs):
    factor = round(argument * 1024) / 1024
    if name in ("brightness", "contrast", "colour", "sharpness") and factor != argument:
        kind = {"colour": ImageEnhance.Color}.get(name) or getattr(ImageEnhance, name.title())
        theirs = enhanced(kind, factor)
    assert levels(one(name, argument), pillow(theirs)) == 0


def test_autocontrast_is_pillows_to_one_level():
    """255 (x − low) / (high − low), cut off: exact here, through a float there."""
    ours, theirs = one("autocontrast", 0), pillow(ImageOps.autocontrast)
    assert levels(ours, theirs) <= 1
    assert (ours != theirs).float().mean() < 0.03
    assert (ours.amin((2, 3)) == 0).all()
    assert (ours.amax((2, 3)) == 255).all()


@pytest.mark.parametrize("deviation", [0.1, 0.7, 1.3, 2.0])
def test_blur_is_the_gaussian(deviation):
    ours = one("blur", deviation)
    exact = ndimage.gaussian_filter(PICTURES.double().numpy(), (0, 0, deviation, deviation), mode="nearest", truncate=4)
    assert np.abs(ours.numpy() - exact).max() < 0.5 + 0.6  # rounding, and taps of 12 bits
    assert (
        levels(ours, pillow(lambda image: image.filter(ImageFilter.GaussianBlur(deviation)))) <= 12
    )  # Pillow's is boxes


def test_solarise_add_and_cutout_are_their_definitions():
    x = PICTURES.int()
    assert levels(one("solarise-add", 110), torch.where(x < 128, (x + 110).clamp(max=255), x)) == 0
    cut = one("cutout", 10 / 48, place=(0.5, 0.25))
    want = PICTURES.clone()
    want[:, :, 14:34, 2:22] = 128
    assert levels(cut, want) == 0
    edge = one("cutout", 10 / 48, place=(0.999, 0.0))
    assert (edge == 128).all(1).sum((1, 2)).min() >= 11 * 10


@pytest.mark.parametrize(
    ("name", "argument"),
    [("rotate", 0), ("shear-x", 0), ("shear-y", 0), ("translate-x", 0), ("translate-y", 0), ("posterise", 8)]
    + [("solarise", 256), ("solarise-add", 0), ("cutout", 0), ("blur", 0)]
    + [(name, 1.0) for name in ("colour", "contrast", "brightness", "sharpness")],
)
def test_nothing_changes_at_zero_strength(name, argument):
    assert (one(name, argument) == PICTURES).all()


@pytest.mark.parametrize("name", ["equalise", "autocontrast", "contrast", "sharpness"])
@pytest.mark.parametrize("size", [(1, 1), (2, 5), (3, 3)])
def test_flat_and_tiny_pictures_survive(name, size):
    flat = torch.full((2, 3, *size), 77, dtype=torch.uint8)
    assert (one(name, 1.0, flat) == 77).all()


def test_grey_pictures_are_augmented_too():
    x = PICTURES[:, :1]
    assert (one("colour", 0.3, x) == x).all()
    assert (
        levels(one("contrast", 0.5, x), pillow(enhanced(ImageEnhance.Contrast, 0.5), x.expand(-1, 3, -1, -1))[:, :1])
        == 0
    )
    y = apply(x, draw(ALL, 0, 0, range(12), range(12)))
    assert y.shape == (12, 1, 40, 36)
    with pytest.raises(DataError, match="the images have 4 channels; colour is changed in images of 1 or 3"):
        one("colour", 0.5, torch.zeros(1, 4, 8, 8, dtype=torch.uint8))


# ------------------------------------------------------------------------------------------------ crops


def exact_crop(x, box, flip, size):
    """Bilinear with half-pixel centres inside the box, in float64, from the definition."""
    top, left, tall, wide = box
    x = x[:, top : top + tall, left : left + wide].double()

    def weights(n, out):
        place = ((torch.arange(out, dtype=torch.float64) + 0.5) * n / out - 0.5).clamp(0, n - 1)
        return (1 - (place[:, None] - torch.arange(n)).abs()).clamp(min=0)

    y = weights(tall, size[0]) @ x @ weights(wide, size[1]).T
    return y.flip(2) if flip else y


@pytest.mark.parametrize("size", [(20, 20), (48, 30), (64, 96)])
def test_a_crop_is_the_definition_rounded(size):
    plan = draw(Augment(size=size), 3, 1, range(12))
    boxes = crop_boxes(plan, 48, 48)
    ours = apply(PICTURES, plan)
    for x, box, flip, y in zip(PICTURES, boxes.tolist(), plan.flip, ours, strict=True):
        assert (y - exact_crop(x, box, flip, size)).abs().max() <= 0.5 + 0.13  # rounding, and weights of 11 bits


def test_upsampling_a_crop_is_pillows_to_one_level():
    """Pillow's bilinear antialiases only where it makes smaller."""
    plan = draw(Augment(size=(64, 64), area=(0.2, 0.6), flip=0.0), 0, 0, range(12))
    ours = apply(PICTURES, plan)
    for x, (top, left, tall, wide), y in zip(PICTURES, crop_boxes(plan, 48, 48).tolist(), ours, strict=True):
        image = Image.fromarray(x.permute(1, 2, 0).numpy()).crop((left, top, left + wide, top + tall))
        theirs = torch.from_numpy(np.array(image.resize((64, 64), Image.Resampling.BILINEAR))).permute(2, 0, 1)
        assert levels(y, theirs) <= 1


@pytest.mark.parametrize(("height", "width"), [(48, 48), (375, 500), (500, 30), (7, 300), (1, 1)])
@pytest.mark.parametrize("crop", ["inception", "window", "none"])
def test_boxes_lie_inside_the_picture(height, width, crop):
    plan = draw(Augment(crop=crop, window=0.7), 1, 2, range(2000))
    top, left, tall, wide = crop_boxes(plan, height, width).T
    assert min(top.min(), left.min()) >= 0
    assert min(tall.min(), wide.min()) >= 1
    assert (top + tall).max() <= height
    assert (left + wide).max() <= width


def test_areas_are_uniform_and_aspects_log_uniform():
    plan = draw(Augment(area=(0.05, 0.5)), 0, 0, range(20_000))  # every first try fits
    top, left, tall, wide = crop_boxes(plan, 2000, 2000).T
    assert stats.kstest(tall * wide / 2000**2, stats.uniform(0.05, 0.45).cdf).pvalue > 0.01
    assert stats.kstest(np.log(wide / tall), stats.uniform(np.log(3 / 4), np.log(16 / 9)).cdf).pvalue > 0.01
    assert stats.kstest(top / (2000 - tall), "uniform").pvalue > 0.01
    assert stats.kstest(left / (2000 - wide), "uniform").pvalue > 0.01


def test_a_picture_too_long_for_any_box_gives_its_middle():
    boxes = crop_boxes(draw(Augment(area=(0.9, 1.0)), 0, 0, range(50)), 100, 1000)
    assert (boxes == (0, 433, 100, 133)).all()
    boxes = crop_boxes(draw(Augment(area=(0.9, 1.0)), 0, 0, range(50)), 1000, 90)
    assert (boxes == (440, 0, 120, 90)).all()


def test_boxes_for_the_decoder_are_those_of_the_device():
    """The box of each sample is the same whether all pictures have one size or each its own."""
    plan = draw(Augment(), 4, 4, range(6))
    heights, widths = np.array([100, 48, 200, 48, 60, 48]), np.array([50, 48, 90, 48, 60, 48])
    mixed, square = crop_boxes(plan, heights, widths), crop_boxes(plan, 48, 48)
    assert (mixed[[1, 3, 5]] == square[[1, 3, 5]]).all()
    alone = crop_boxes(draw(Augment(), 4, 4, [2]), 200, 90)
    assert (alone[0] == mixed[2]).all()


def test_what_the_decoder_cropped_is_not_cropped_again():
    augment = replace(ALL, size=SIZE)
    plan = draw(augment, 0, 0, range(12), range(12))
    flip_only = apply(PICTURES, draw(replace(PLAIN, flip=0.5), 0, 0, range(12)))
    assert (apply(PICTURES, draw(Augment(size=SIZE), 0, 0, range(12)), cropped=True) == flip_only).all()
    assert apply(PICTURES, plan, cropped=True).shape == PICTURES.shape
    with pytest.raises(ConfigError, match=r"cropped images of \(48, 48\) do not fit augmentation size \(40, 36\)"):
        apply(PICTURES, draw(ALL, 0, 0, range(12), range(12)), cropped=True)


@pytest.mark.parametrize("edge", ["black", "reflect"])
@pytest.mark.parametrize("layout", ["BCHW", "BHWC"])
def test_a_shift_is_a_padded_picture_cut(edge, layout):
    plan = draw(Augment(size=SIZE, crop="shift", margin=5, edge=edge), 7, 0, range(12))
    offsets = plan.on("cpu", None).offsets
    assert offsets.min() >= 0
    assert offsets.max() <= 10
    ours = apply(PICTURES if layout == "BCHW" else PICTURES.permute(0, 2, 3, 1).contiguous(), plan)
    mode = {"black": "constant", "reflect": "reflect"}[edge]
    for x, (top, left), flip, y in zip(PICTURES.numpy(), offsets.tolist(), plan.flip, ours.numpy(), strict=True):
        want = np.pad(x, ((0, 0), (5, 5), (5, 5)), mode)[:, top : top + 48, left : left + 48]
        assert (y == (want[..., ::-1] if flip else want)).all()


def test_a_shift_of_pictures_of_another_size_resizes_them_first():
    augment = Augment(size=(40, 40), crop="shift")
    resized = apply(PICTURES, draw(replace(augment, crop="none", flip=0.0), 0, 0, range(12)))
    assert (apply(PICTURES, draw(augment, 0, 0, range(12))) == apply(resized, draw(augment, 0, 0, range(12)))).all()


def test_half_of_the_pictures_are_mirrored():
    for p in (0.0, 0.5, 1.0):
        assert abs(draw(Augment(flip=p), 0, 0, range(10_000)).flip.mean() - p) < 0.02
    everything = apply(PICTURES, draw(replace(PLAIN, flip=1.0), 0, 0, range(12)))
    assert (everything == PICTURES.flip(3)).all()


# ------------------------------------------------------------------------------------------------ laws of all


@pytest.mark.claim("T09")
@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_is_augmented_the_same_alone_and_in_any_batch(kind):
    """Its pixels depend on (seed, epoch, sample id): not on batch size, order or neighbours, but for its partner."""
    augment, ids = KINDS[kind], np.array([5, 900, 17, 3, 10**9, 44, 1, 0, 2, 71, 6, 8])
    whole = apply(PICTURES, draw(augment, 11, 3, ids, range(12)), RULE)
    size = 2 if augment.mixes else 1
    for first in range(0, 12, size):
        part = slice(first, first + size)
        places = np.arange(12)[part]
        assert (apply(PICTURES[part], draw(augment, 11, 3, ids[part], places), RULE) == whole[part]).all()
    order = np.random.default_rng(0).permutation(12)
    assert (apply(PICTURES[order], draw(augment, 11, 3, ids[order], order), RULE) == whole[order]).all()


@pytest.mark.claim("T09")
@pytest.mark.parametrize("kind", KINDS)
def test_augmentation_repeats_from_its_seed_and_differs_in_every_epoch(kind):
    def pixels(seed, epoch):
        return apply(PICTURES, draw(KINDS[kind], seed, epoch, range(12), range(12)), RULE)

    assert (pixels(1, 2) == pixels(1, 2)).all()
    assert (pixels(1, 2) != pixels(1, 3)).any()
    assert (pixels(1, 2) != pixels(2, 2)).any()


@pytest.mark.claim("T09")
def test_augmented_pictures_keep_their_label():
    """A model trained without augmentation still knows the shapes, and a target's largest part is its own label."""

    import vitreous

    model = vitreous.load(ROOT / "tests/golden/shapes/shapes.npz")
    pictures, kinds = shapes.batch(range(200), seed=2)
    x, labels = torch.from_numpy(pictures), torch.from_numpy(kinds)
    gentle = Augment(size=SIZE, crop="shift", margin=3, edge="reflect", colour_jitter=0.2)

    @torch.inference_mode()
    def accuracy(augment):
        y = apply(x, draw(augment, 0, 0, range(200), range(200)), model.preprocess)
        return (model(y).argmax(1) == labels).double().mean().item()

    assert accuracy(gentle) > accuracy(PLAIN) - 0.1 > 0.7
    for augment in (replace(gentle, mixup=0.2), replace(gentle, cutmix=1.0), ALL, gentle):
        plan = draw(augment, 0, 0, range(200), range(200))
        y = targets(labels, plan, 4)
        assert_close(y.sum(1), torch.ones(200))
        assert (y.gather(1, labels[:, None])[:, 0] >= y.amax(1) - 1e-6).all()
        assert augment.mixes or (y == torch.nn.functional.one_hot(labels, 4)).all()


@pytest.mark.parametrize("kind", ["window", "shift", "all"])
def test_it_compiles_whole_and_gives_the_same_bytes(kind):
    """Compiled, as on a GPU, every operation runs on every sample with parameters that mostly change nothing."""
    torch._dynamo.reset()
    plan = draw(KINDS[kind], 2, 2, range(12), range(12))
    compiled = torch.compile(apply, fullgraph=True, backend="eager")
    assert (compiled(PICTURES, plan.on("cpu", SIZE), RULE) == apply(PICTURES, plan, RULE)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_channels_may_lie_last(kind):
    plan = draw(KINDS[kind], 0, 5, range(12), range(12))
    last = apply(PICTURES.permute(0, 2, 3, 1).contiguous(), plan)
    assert (last == apply(PICTURES, plan)).all()
    assert last.is_contiguous()
    assert last.dtype == torch.uint8


def test_the_batch_is_left_as_it_was():
    x = PICTURES.clone()
    for augment in (PLAIN, replace(ALL, crop="none", size=SIZE)):
        apply(x, draw(augment, 0, 0, range(12), range(12)))
        assert (x == PICTURES).all()


def test_without_augmentation_pixels_are_the_models():
    x = apply(PICTURES, draw(PLAIN, 0, 0, range(12)), RULE)
    assert_close(x, PICTURES / 127.5 - 1, atol=1e-6, rtol=0)


# ------------------------------------------------------------------------------------------------ what is drawn


def operations_of(plan, step):
    return np.bincount(plan.layers[step].code, minlength=len(OPERATION_CODES)) / len(plan)


def test_every_operation_of_rand_augment_comes_equally_often():
    plan = draw(replace(PLAIN, rand_augment=(2, 10)), 0, 0, range(32_000))
    for step in (0, 1):
        often = operations_of(plan, step)
        assert often[OPERATION_CODES["nothing"]] == often[OPERATION_CODES["blur"]] == 0
        assert np.abs(often[1:17] - 1 / 16).max() < 0.006
    both = (plan.layers[0].code == 1) & (plan.layers[1].code == 1)
    assert abs(both.mean() - 1 / 256) < 0.0015


def test_timms_operations_happen_half_of_the_time_and_leave_nothing_out():
    plan = draw(replace(PLAIN, rand_augment=(1, 9), rand_augment_table="timm"), 0, 0, range(32_000))
    often = operations_of(plan, 0)
    assert abs(often[OPERATION_CODES["nothing"]] - 0.5) < 0.01
    assert often[OPERATION_CODES["cutout"]] == 0
    assert np.abs(often[1:16] - 0.5 / 15).max() < 0.004


MAGNITUDES = {  # what big_vision's table says at 10 (AugReg's light2) and 20 (strong2)
    10: {"posterise": 256 - 16, "solarise": 256, "solarise-add": 110, "colour": round(1.9 * 1024)},
    20: {"posterise": 256 - 1, "solarise": 512, "solarise-add": 220, "colour": round(3.7 * 1024)},
}


@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_magnitudes_are_big_visions(magnitude):
    plan = draw(Augment(rand_augment=(1, magnitude)), 0, 0, range(4000))
    (layer,) = plan.layers
    for name, number in MAGNITUDES[magnitude].items():
        assert set(layer.number[layer.code == OPERATION_CODES[name]]) == {number}
    scale = magnitude / 10
    turned = layer.matrix[layer.code == OPERATION_CODES["rotate"]] / 65536
    assert np.allclose(np.abs(np.degrees(np.arctan2(turned[:, 3], turned[:, 0]))), 30 * scale, atol=1e-3)
    assert abs((turned[:, 3] > 0).mean() - 0.5) < 0.1
    assert set(np.abs(layer.matrix[layer.code == OPERATION_CODES["translate-x"]][:, 2] - 32768) / 65536) == {
        100 * scale
    }
    assert np.allclose(
        np.abs(layer.matrix[layer.code == OPERATION_CODES["shear-y"]][:, 3]) / 65536, 0.3 * scale, atol=1e-4
    )
    assert layer.box[layer.code == OPERATION_CODES["cutout"]][:, 2].max() == 80 * scale


def test_a_magnitude_of_zero_is_not_the_identity():
    """As AugReg notes of its "light1": posterise to 0 bits and solarise from 0 remain."""
    (layer,) = draw(Augment(rand_augment=(1, 0)), 0, 0, range(4000)).layers
    assert set(layer.number[layer.code == OPERATION_CODES["posterise"]]) == {0}
    assert set(layer.number[layer.code == OPERATION_CODES["solarise"]]) == {0}
    assert set(layer.number[layer.code == OPERATION_CODES["brightness"]]) == {102}


def test_timms_magnitude_scatters_within_its_range():
    augment = Augment(rand_augment=(1, 9), rand_augment_table="timm", rand_augment_deviation=0.5)
    (layer,) = draw(augment, 0, 0, range(30_000)).layers
    angle = np.abs(np.degrees(np.arcsin(layer.matrix[layer.code == OPERATION_CODES["rotate"]][:, 3] / 65536)))
    assert angle.max() <= 30.001
    assert abs(angle.mean() - 27) < 0.3
    assert abs(angle.std() - 1.5) < 0.2


def test_three_augment_takes_one_of_three_and_jitter_all_in_any_order():
    plan = draw(Augment(three_augment=True, colour_jitter=0.3), 0, 0, range(12_000))
    assert (
        abs(
            operations_of(plan, 0)[[OPERATION_CODES["colour"], OPERATION_CODES["solarise"], OPERATION_CODES["blur"]]]
            - 1 / 3
        ).max()
        < 0.02
    )
    codes = np.stack([layer.code for layer in plan.layers[1:]], 1)
    assert (
        np.sort(codes, 1)
        == sorted([OPERATION_CODES["brightness"], OPERATION_CODES["contrast"], OPERATION_CODES["colour"]])
    ).all()
    orders, count = np.unique(codes, axis=0, return_counts=True)
    assert len(orders) == 6
    assert np.abs(count / 12_000 - 1 / 6).max() < 0.02
    factors = np.concatenate([layer.number for layer in plan.layers[1:]]) / 1024
    assert stats.kstest(factors, stats.uniform(0.7, 0.6).cdf).pvalue > 0.01


def test_erasing_leaves_noise_in_a_box():
    plan = draw(replace(PLAIN, erase=0.25), 0, 0, range(3000))
    assert abs((plan.erase[:, 2] > 0).mean() - 0.25) < 0.02
    x = torch.zeros(3000, 1, 48, 48, dtype=torch.uint8)
    y = apply(x, plan)
    box = operations.inside(torch.from_numpy(plan.erase), SIZE)
    assert (y[~box] == 0).all()
    noise = y[box].double()
    assert abs(noise.mean() - 128) < 0.5
    assert abs(noise.std() - 62.3) < 0.5  # 64 before the cut at 0 and 255
    area = box.sum((1, 2, 3)).double() / 48**2
    assert area[area > 0].min() > 0.01
    assert area.max() < 0.36


@pytest.mark.parametrize("a", [0.1, 0.2, 0.8, 1.0, 4.0])
def test_mixing_weights_are_beta(a):
    rng = np.random.default_rng(0)
    drawn, at = np.sort(beta(rng.random(20_000), rng.random(20_000), a)), np.linspace(1e-6, 1 - 1e-6, 999)
    assert (
        np.abs(drawn.searchsorted(at) / 20_000 - stats.beta(a, a).cdf(at)).max() < 0.0115
    )  # one in a hundred is larger
    assert np.isfinite(beta(np.array([0.0, 1 - 2**-53, 0.5]), np.array([0.0, 0.25, 0.75]), a)).all()


def test_mixup_mixes_neighbours_of_the_order_and_their_labels():
    plan = draw(replace(PLAIN, mixup=0.5), 0, 0, range(12), range(12))
    x, y = apply(PICTURES, plan, RULE), targets(torch.arange(12), plan, 12)
    plain = PICTURES / 127.5 - 1
    assert (plan.partner == np.arange(12) ^ 1).all()
    for i in range(12):
        own = y[i, i]
        assert 0.5 <= own <= 1
        assert_close(y[i, i ^ 1], 1 - own)
        assert_close(x[i], own * plain[i] + (1 - own) * plain[i ^ 1], atol=1e-6, rtol=0)
        assert_close(y[i ^ 1, i ^ 1], own)  # both of a pair draw the same


def test_cutmix_gives_a_box_of_the_partner_and_its_area_to_the_label():
    plan = draw(replace(PLAIN, cutmix=1.0), 0, 0, range(12), range(12))
    x, y = apply(PICTURES, plan), targets(torch.arange(12), plan, 12)
    for i in range(12):
        box = operations.inside(torch.from_numpy(plan.mix_box[i : i + 1]), SIZE)[0]
        assert (x[i] == torch.where(box, PICTURES[i ^ 1], PICTURES[i])).all()
        assert_close(y[i, i ^ 1].item(), box.double().mean().item(), atol=1e-6, rtol=0)


def test_with_both_on_pairs_choose():
    plan = draw(Augment(mixup=0.8, cutmix=1.0), 0, 0, range(8000), range(8000))
    assert abs((plan.mix_box[:, 2] > 0).mean() - 0.5) < 0.03
    assert (plan.own >= 0.5).all()
    assert (plan.own[::2] == plan.own[1::2]).all()


def test_the_last_of_an_odd_number_stays_as_it_is():
    augment = replace(PLAIN, mixup=1.0, cutmix=1.0)
    plan = draw(augment, 0, 0, range(5), range(5), total=5)
    assert plan.partner[4] == 4
    assert (apply(PICTURES[:5], plan)[4] == PICTURES[4]).all()
    assert (targets(torch.arange(5), plan, 5)[4] == torch.eye(5)[4]).all()


def test_a_pair_cut_in_two_is_refused():
    augment = Augment(mixup=1.0)
    with pytest.raises(ConfigError, match="place 3 of the epoch's order comes without 2; cut batches at even places"):
        draw(augment, 0, 0, [7, 8, 9], [3, 4, 5])
    with pytest.raises(ConfigError, match="place 4 of the epoch's order comes without 5"):
        draw(augment, 0, 0, [7, 8, 9], [2, 3, 4], total=100)
    with pytest.raises(ConfigError, match="give draw the samples' places"):
        draw(augment, 0, 0, [7, 8])


def test_labels_are_smoothed_and_may_be_several():
    plan = draw(PLAIN, 0, 0, range(3))
    assert_close(
        targets(torch.tensor([0, 1, 1]), plan, 2, smoothing=0.2), torch.tensor([[0.9, 0.1], [0.1, 0.9], [0.1, 0.9]])
    )
    many = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]])
    assert (targets(many, plan, 3) == many).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size": (0, 4)}, r"size \(0, 4\) is out of reach; give sides of 1 to 8192"),
        ({"area": (0.5, 0.1)}, "area 0.5, 0.1 is not a range"),
        ({"flip": 2.0}, "flip=2.0 must be at least 0 and at most 1"),
        ({"rand_augment": (2, 100)}, r"rand_augment=\(2, 100\) is out of reach"),
        ({"mixup": -1.0}, "mixup=-1.0 must be 0 or more"),
        ({"window": 0.0}, "window=0.0 must be above 0 and at most 1"),
        ({"colour_jitter": 1.5}, "colour_jitter=1.5 must be at least 0 and at most 1"),
    ],
)
def test_a_value_without_sense_is_refused_in_one_line(changes, words):
    with pytest.raises(ConfigError, match=words):
        Augment(**changes)


def test_what_is_no_batch_is_refused():
    with pytest.raises(ConfigError, match=r"shape \(12, 5, 48, 48\) is not a batch of images; give B C H W or B H W C"):
        apply(torch.zeros(12, 5, 48, 48, dtype=torch.uint8), draw(PLAIN, 0, 0, range(12)))


def test_a_plan_is_numbers_alone():
    plan = draw(ALL, 0, 0, range(4), range(4))
    assert isinstance(plan, AugmentPlan)
    assert len(plan) == 4
    assert len(plan.layers) == len(ALL.layers) == 3 + 1 + 3
