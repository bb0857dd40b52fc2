"""Preprocessing travels with the weights, exact to the source."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import BIT, VIT, awake

import vitreous
from vitreous.models.preprocess import HALF_RGB, IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitreous.weights import torchvision
from vitreous.weights.huggingface import processors
from vitreous.weights.timm import crop_share


def alone(model, format, tmp_path, *, drop=("vitreous.json",)):
    """A model in a format, some of the JSON beside it taken away."""
    files = vitreous.save(model, tmp_path / "m", format=format, anyway=True)
    for file in files:
        if file.name in drop or file.name.endswith((".npz.json", ".safetensors.json")):
            file.unlink()
    return next(f for f in files if f.suffix != ".json")


ALL_JSON = ("config.json", "preprocessor_config.json", "vitreous.json")


# Google, big_vision


@pytest.mark.parametrize("config", [VIT, BIT])
def test_google_squashes_without_antialias_to_minus_one_to_one(config, tmp_path):
    size = config.image_size
    model = vitreous.load(alone(awake(config), "google", tmp_path), image_size=size)
    assert model.preprocess == Preprocess(
        size=size,
        fit="squash",
        interpolation="bilinear",
        antialias=False,
        mean=HALF_RGB,
        std=HALF_RGB,
        source="google",
    )
    assert any(note.startswith("preprocessing") for note in model.source["assumed"])


def test_another_image_size_takes_the_preprocessing_along(tmp_path):
    path = alone(awake(), "google", tmp_path)
    assert vitreous.load(path, image_size=(32, 24)).preprocess.size == (32, 24)


def test_big_vision_cuts_the_centre_and_siglip_squashes(tmp_path):
    plain = vitreous.load(alone(awake(), "big_vision", tmp_path / "a")).preprocess
    assert (plain.fit, plain.interpolation, plain.antialias, plain.mean) == ("crop", "box", True, HALF_RGB)
    assert plain.short_side == round(16 * 256 / 224)
    siglip = vitreous.load(alone(awake(pool="map", class_token=False), "big_vision", tmp_path / "b")).preprocess
    assert (siglip.fit, siglip.antialias, siglip.mean, siglip.size) == ("squash", False, HALF_RGB, (16, 16))


# timm


def timm_folder(tmp_path, pretrained: dict | None, config=None, **changes):
    model = awake(config or VIT.change(image_size=(224, 224), patch=(56, 56), activation="gelu"))
    alone(model, "timm", tmp_path)
    path = tmp_path / "m" / "config.json"
    said = json.loads(path.read_text()) | changes
    said.pop("pretrained_cfg")
    path.write_text(json.dumps(said | ({"pretrained_cfg": pretrained} if pretrained is not None else {})))
    return tmp_path / "m"


CFG = {"input_size": [3, 224, 224], "interpolation": "bicubic", "crop_pct": 0.9, "mean": [0.5] * 3, "std": [0.5] * 3}


def test_timm_says_it_in_its_config(tmp_path):
    model = vitreous.load(timm_folder(tmp_path, CFG))
    assert model.preprocess == Preprocess(
        size=(224, 224), fit="crop", short_side=248, interpolation="bicubic", antialias=True, source="timm"
    )
    assert not any("preprocessing" in note for note in model.source["assumed"])


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({"crop_pct": 1.0}, {"fit": "crop", "short_side": 224}),
        ({"crop_pct": 0.875}, {"fit": "crop", "short_side": 256}),
        ({"crop_pct": 0.95}, {"fit": "crop", "short_side": 235}),
        ({"crop_pct": 1.0, "crop_mode": "squash"}, {"fit": "squash", "short_side": None}),
        ({"crop_pct": 0.9, "crop_mode": "squash"}, {"fit": "squash-crop", "short_side": 248}),
        ({"crop_mode": "center"}, {"fit": "crop", "short_side": 248}),
        ({"interpolation": "random"}, {"interpolation": "bicubic"}),
        ({"interpolation": "bilinear"}, {"interpolation": "bilinear"}),
        ({"mean": IMAGENET_MEAN, "std": IMAGENET_STD}, {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}),
    ],
)
def test_every_word_of_timm_is_heeded(changes, want, tmp_path):
    rule = vitreous.load(timm_folder(tmp_path, CFG | changes)).preprocess
    assert {name: getattr(rule, name) for name in want} == want


def test_timm_without_a_config_is_what_timm_gives_googles_weights(tmp_path):
    for config, want in (
        (VIT.change(image_size=(224, 224), patch=(56, 56), activation="gelu"), (248, "bicubic")),
        (BIT.change(image_size=(224, 224), standardise_eps=1e-8), (256, "bilinear")),
    ):
        path = alone(awake(config), "timm", tmp_path / want[1], drop=ALL_JSON)
        model = vitreous.load(path, **({"heads": 2} if config.image_size and hasattr(config, "encoder") else {}))
        rule = model.preprocess
        assert (rule.short_side, rule.interpolation, rule.mean, rule.fit) == (*want, HALF_RGB, "crop")
        assert any("preprocessing: timm's" in note for note in model.source["assumed"])


@given(size=st.integers(1, 2000), side=st.integers(1, 3000))
def test_timm_reads_back_the_short_side_that_we_write(size, side):
    """⌊size / crop_pct⌋ is the same whole number, whatever floating point does."""
    assert math.floor(size / crop_share(size, side)) == side


def test_a_short_side_survives_timm(tmp_path):
    model = awake(activation="gelu", image_size=(224, 224), patch=56)
    for side in (224, 235, 242, 248, 249, 251, 256, 257, 299):
        model.preprocess = Preprocess(
            size=(224, 224), fit="crop", short_side=side, interpolation="bicubic", antialias=True
        )
        vitreous.save(model, tmp_path / "m", format="timm", force=True)
        assert not (tmp_path / "m" / "vitreous.json").exists()  # the config says it all
        assert vitreous.load(tmp_path / "m").preprocess.short_side == side


# Hugging Face


def test_the_defaults_of_transformers_processors(tmp_path):
    """ViT squashes to 224, bilinear; DeiT squashes to 256 and cuts 224; DINOv2 cuts 224 from 256, ImageNet's."""
    vit = VIT.change(image_size=(224, 224), patch=(56, 56), activation="gelu")
    deit = vit.change(distillation_token=True, pool="cls-and-distillation", distillation_head=True)
    dino = vit.change(layer_scale=1.0, pool="cls-and-gap", positions_cover="class", mlp=32)
    common = {"size": (224, 224), "antialias": True, "centre": "floor", "source": "huggingface (assumed)"}
    wants = {
        "vit": (
            vit,
            Preprocess(fit="squash", interpolation="bilinear", mean=HALF_RGB, std=HALF_RGB, **common),
        ),
        "deit": (
            deit,
            Preprocess(
                fit="squash-crop",
                short_side=256,
                interpolation="bicubic",
                mean=HALF_RGB,
                std=HALF_RGB,
                **common,
            ),
        ),
        "dinov2": (
            dino,
            Preprocess(
                fit="crop", short_side=256, interpolation="bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD, **common
            ),
        ),
    }
    for kind, (config, want) in wants.items():
        path = alone(awake(config), "huggingface", tmp_path / kind, drop=ALL_JSON)
        model = vitreous.load(path, heads=2)
        assert model.preprocess == want
        assert any("preprocessing" in note for note in model.source["assumed"])


def hugging(tmp_path, said: dict, size=(224, 224)):
    patch = tuple(n // 4 for n in size)
    alone(awake(activation="gelu", image_size=size, patch=patch), "huggingface", tmp_path)
    (tmp_path / "m" / "preprocessor_config.json").write_text(json.dumps(said))
    return vitreous.load(tmp_path / "m")


@pytest.mark.parametrize(
    ("said", "want"),
    [
        ({"size": {"height": 224, "width": 224}}, {"fit": "squash", "size": (224, 224), "interpolation": "bilinear"}),
        ({"size": 224, "resample": 3}, {"fit": "squash", "interpolation": "bicubic"}),
        (
            {"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": {"height": 224, "width": 224}},
            {"fit": "crop", "short_side": 256},
        ),
        (
            {"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": 224, "resample": 3},
            {"fit": "crop", "short_side": 256},
        ),
        (
            {"size": {"height": 256, "width": 256}, "do_center_crop": True, "crop_size": 224},
            {"fit": "squash-crop", "short_side": 256},
        ),
        ({"size": 256, "do_center_crop": True, "crop_size": 224}, {"fit": "squash-crop", "short_side": 256}),
        ({"size": 256, "do_center_crop": False}, {"fit": "squash", "size": (224, 224)}),
        ({"image_mean": IMAGENET_MEAN, "image_std": IMAGENET_STD}, {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}),
        ({"do_normalize": False}, {"mean": (0, 0, 0), "std": (1, 1, 1)}),
        (
            {"rescale_factor": 1 / 127.5, "image_mean": [1, 1, 1], "image_std": [1, 1, 1]},
            {"mean": HALF_RGB, "std": HALF_RGB},
        ),
        (
            {"do_rescale": False, "image_mean": [127.5] * 3, "image_std": [127.5] * 3},
            {"mean": HALF_RGB, "std": HALF_RGB},
        ),
    ],
)
def test_every_word_of_a_preprocessor_config_is_heeded(said, want, tmp_path):
    model = hugging(tmp_path, said)
    assert {name: getattr(model.preprocess, name) for name in want} == want
    assert model.preprocess.antialias
    assert model.preprocess.source == "huggingface"


def test_a_processor_for_another_size_than_the_network_keeps_its_ratio(tmp_path):
    """DINOv2: positions for 518 pixels, a processor that cuts 224 from 256."""
    said = {
        "size": {"shortest_edge": 256},
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
        "resample": 3,
    }
    model = hugging(tmp_path, said, size=(448, 448))
    assert (model.preprocess.size, model.preprocess.short_side) == ((448, 448), 512)
    at_224 = vitreous.load(tmp_path / "m", image_size=224).preprocess
    assert (at_224.size, at_224.short_side) == ((224, 224), 256)


def test_an_image_that_is_not_resized_or_not_cut_is_said(tmp_path):
    """A network takes one size: what the processor would hand on otherwise is brought to it, and that is said."""
    as_it_is = hugging(tmp_path / "a", {"do_resize": False, "size": {"shortest_edge": 256}})
    assert (as_it_is.preprocess.fit, as_it_is.preprocess.size) == ("squash", (224, 224))
    assert any("do_resize is false" in note for note in as_it_is.source["assumed"])
    uncut = hugging(tmp_path / "b", {"size": {"shortest_edge": 256}, "do_center_crop": False, "crop_size": 224})
    assert (uncut.preprocess.fit, uncut.preprocess.short_side) == ("crop", 256)
    assert any("do_center_crop is not true" in note for note in uncut.source["assumed"])


@pytest.mark.parametrize(
    ("kind", "want"),
    [
        ("ViTImageProcessor", ("squash", None, "bilinear", HALF_RGB)),
        ("ViTImageProcessorFast", ("squash", None, "bilinear", HALF_RGB)),
        ("DeiTFeatureExtractor", ("squash-crop", 256, "bicubic", HALF_RGB)),
        ("BitImageProcessor", ("crop", 224, "bicubic", processors.CLIP_MEAN)),
        ("CLIPImageProcessorFast", ("crop", 224, "bicubic", processors.CLIP_MEAN)),
    ],
)
def test_what_a_processor_leaves_out_is_its_classs_default(kind, want, tmp_path):
    word = "feature_extractor_type" if "Extractor" in kind else "image_processor_type"
    model = hugging(tmp_path, {word: kind})
    rule = model.preprocess
    assert (rule.fit, rule.short_side, rule.interpolation, rule.mean) == want
    assert not any("default" in note and "resample" in note for note in model.source["assumed"])


def test_what_a_processor_of_no_known_class_leaves_out_is_said(tmp_path):
    model = hugging(tmp_path, {"image_processor_type": "OwlImageProcessor", "resample": 3})
    assert model.preprocess.interpolation == "bicubic"
    assert "image_mean, image_std: ViTImageProcessor's default" in model.source["assumed"]


def test_a_resampling_that_we_have_not_is_said(tmp_path):
    model = hugging(tmp_path, {"resample": 5})
    assert any("resample 5" in note for note in model.source["assumed"])


@pytest.mark.parametrize("fit", ["squash", "crop", "squash-crop"])
def test_what_we_write_for_transformers_is_read_back(fit, tmp_path):
    model = awake(activation="gelu")
    side = None if fit == "squash" else 18
    model.preprocess = Preprocess(
        size=(16, 16),
        fit=fit,
        short_side=side,
        antialias=True,
        centre="floor",
        mean=IMAGENET_MEAN,
        source="huggingface",
    )
    vitreous.save(model, tmp_path / "m", format="huggingface")
    assert not (tmp_path / "m" / "vitreous.json").exists()
    assert vitreous.load(tmp_path / "m").preprocess == model.preprocess


@pytest.mark.parametrize("format", ["timm", "huggingface"])
def test_what_a_config_cannot_say_goes_beside_it(format, tmp_path):
    """No library but Google's resizes without antialias, and none has a temperature."""
    first = awake(activation="gelu")
    first.preprocess, first.temperature = Preprocess(size=(16, 16), source="google"), 1.5
    vitreous.save(first, tmp_path / "m", format=format)
    for path in (tmp_path / "m", tmp_path / "m" / "model.safetensors"):
        second = vitreous.load(path)
        assert (second.preprocess, second.temperature) == (first.preprocess, 1.5)


# torchvision


@pytest.mark.parametrize(
    ("size", "patch", "width", "want"),
    [
        (224, 16, 768, (256, "bilinear")),
        (224, 32, 1024, (256, "bilinear")),
        (224, 16, 1024, (242, "bilinear")),
        (384, 16, 768, (384, "bicubic")),
        (512, 16, 1024, (512, "bicubic")),
        (518, 14, 1280, (518, "bicubic")),
    ],
)
def test_torchvision_is_known_by_its_sizes(size, patch, width, want):
    rule = torchvision.preprocess(VIT.change(image_size=(size, size), patch=(patch, patch), width=width))
    assert (rule.short_side, rule.interpolation) == want
    assert (rule.size, rule.fit, rule.antialias) == ((size, size), "crop", True)
    assert (rule.mean, rule.std) == (IMAGENET_MEAN, IMAGENET_STD)


def test_torchvision_says_what_it_assumed(tmp_path):
    model = vitreous.load(alone(awake(activation="gelu"), "torchvision", tmp_path), heads=2)
    assert any("torchvision's published weights" in note for note in model.source["assumed"])


# All


def test_channels_other_than_three_share_the_colours_mean(tmp_path):
    first = awake(activation="gelu", channels=5)
    first.preprocess = Preprocess(size=(16, 16), mean=(0.4,) * 5, std=(0.2,) * 5, antialias=True, centre="floor")
    vitreous.save(first, tmp_path / "m", format="huggingface")
    (tmp_path / "m" / "preprocessor_config.json").unlink()
    rule = vitreous.load(tmp_path / "m").preprocess
    assert rule.mean == (0.5,) * 5


def test_processors_have_a_name_for_each_fit():
    assert set(processors.PROCESSORS) == {"squash", "crop", "squash-crop"}


def test_preprocessing_says_itself_in_a_line():
    for fit in ("squash", "crop", "squash-crop"):
        assert len(str(Preprocess(fit=fit, short_side=256)).splitlines()) == 1


def test_a_folder_with_one_unnamed_file_has_no_config(tmp_path):
    """config.json belongs to the files that the hub names so, not to any file that lies there."""
    path = alone(awake(activation="gelu"), "huggingface", tmp_path, drop=("vitreous.json",))
    (path.parent / "other.safetensors").write_bytes(path.read_bytes())
    with pytest.raises(vitreous.errors.CheckpointError, match="heads="):
        vitreous.load(path.parent / "other.safetensors")
