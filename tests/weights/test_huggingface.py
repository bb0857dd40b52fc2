"""Every vision transformer of transformers, built small: it runs here as it runs there, or it is refused by name."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import image_set
from tiny_models import awake, line_of
from torch.testing import assert_close

import vitreous
from vitreous.errors import FormatError
from vitreous.evaluation.features import extract
from vitreous.models.preprocess import HALF_RGB, IMAGENET_MEAN
from vitreous.weights.huggingface.families import ANY_ACTIVATION, FAMILIES, TRANSFORMERS_ACTIVATIONS, fitting
from vitreous.weights.huggingface.processors import CLIP_MEAN

transformers = pytest.importorskip("transformers")
ROOT = Path(__file__).parents[2]


def comparison():
    """The script that compares every class."""
    spec = importlib.util.spec_from_file_location("classes_script", ROOT / "benchmarks" / "huggingface_classes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = comparison()
HELD_BY_NO_CLASS = ["BEiT, masked image modelling"]  # the mean behind the last norm


def built(name: str, folder: Path):
    """A class of transformers as it saves itself, and the class's own answer."""
    case = SCRIPT.CASES[name]
    theirs = SCRIPT.build(case.title, case.config, case.changes)
    theirs.save_pretrained(folder)
    return theirs, lambda x: case.answer(case.run(theirs)(x))


def rewrite(folder: Path, **changes) -> Path:
    path = folder / "config.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in {**said, **changes}.items() if v is not None}))
    return folder


def assert_agree(ours, answer, size=None) -> None:
    size = size or ours.config.image_size
    x = torch.randn(2, ours.config.channels, *size, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        want = answer(x)
        assert_close(ours(x), want, atol=1e-5 * max(1.0, want.abs().max().item()), rtol=0)


@pytest.mark.parametrize("name", SCRIPT.CASES)
def test_every_class_runs_here_as_it_runs_there_and_is_saved_for_it_again(name):
    row = SCRIPT.compare(name)
    assert row["verdict"] == "agree", row
    if name in HELD_BY_NO_CLASS:
        assert row["saved as"] is None
    else:
        assert (row["same bits"], row["saved agrees"]) == (True, True), row
        assert "tensors that it misses" not in row, row


@pytest.mark.parametrize("name", SCRIPT.REFUSED)
def test_a_class_of_another_function_is_refused_with_the_reason(name):
    row = SCRIPT.refuse(name)
    assert row["verdict"] == "refused", row
    words = {"text tower": "sees no images", "NaFlex": "any number and shape", "gated by GELU": "only silu"}
    want = next((why for word, why in words.items() if word in name), "not built here")
    line_of(ValueError(row["why"]), "FOLDER", want)


def test_the_recorded_comparison_is_of_these_classes_and_none_differs():
    rows = json.loads((ROOT / "benchmarks" / "results" / "huggingface_classes.json").read_text())["rows"]
    assert list(rows) == [*SCRIPT.CASES, *SCRIPT.REFUSED]
    assert {name for name, row in rows.items() if row["verdict"] == "agree"} == set(SCRIPT.CASES)
    assert not [name for name, row in rows.items() if row["verdict"] == "differ"]


def test_every_model_type_of_the_table_is_compared():
    shown = {getattr(transformers, case.config).model_type for case in SCRIPT.CASES.values()}
    assert set(FAMILIES) <= shown


# A file alone: its tensors tell the family, and the family what no tensor shows

ALONE = [
    "ViT, classifier", "DeiT, classifier with teacher", "DINOv2, classifier, gated MLP", "I-JEPA, classifier",
    "CLIP, vision tower with projection", "CLIP, text and images", "SigLIP, vision tower", "SigLIP, classifier",
    "DINOv3, encoder", "BEiT, classifier", "BEiT, encoder, class token, shared table", "Data2Vec, encoder",
]  # fmt: skip


@pytest.mark.parametrize("name", ALONE)
def test_a_file_alone_has_the_activation_and_eps_of_its_family(name, tmp_path):
    """Names as modules have them in memory; nothing is said but heads and size."""
    theirs, answer = built(name, tmp_path / "theirs")
    torch.save(theirs.state_dict(), tmp_path / "alone.pth")
    ours = vitreous.load(tmp_path / "alone.pth", heads=4, image_size=48)
    assert_agree(ours, answer)
    assert any(note.startswith("model type ") for note in ours.source["assumed"])


# What lies beside the vision tower


@pytest.mark.parametrize("name", ["CLIP, text and images", "SigLIP, text and images"])
def test_of_a_model_of_text_and_images_the_vision_tower_is_taken_and_the_rest_is_named(name, tmp_path):
    theirs, _ = built(name, tmp_path / "m")
    ours = vitreous.load(tmp_path / "m")
    count = sum(key.startswith(("text_", "logit_")) for key in theirs.state_dict())
    assert ours.source["left_out"] == [f"text tower ({count} tensors)"]
    assert (
        f"left out: text tower ({count} tensors)"
        in vitreous.convert(tmp_path / "m", tmp_path / "o", to="vitreous").notes
    )


def test_defaults_that_a_nested_config_leaves_out_are_those_of_its_class(tmp_path):
    """The hub's SigLIP says {"model_type": "siglip_vision_model"} and nothing else of its vision tower."""
    sizes = {"hidden_size": 48, "num_hidden_layers": 1, "intermediate_size": 32, "image_size": 32, "patch_size": 16}
    config = transformers.SiglipConfig(text_config=SCRIPT.TEXT, vision_config=sizes)
    theirs = transformers.SiglipModel(config).eval()
    theirs.save_pretrained(tmp_path / "m")
    rewrite(tmp_path / "m", vision_config={"model_type": "siglip_vision_model"})
    ours = vitreous.load(tmp_path / "m")
    assert ours.config.encoder.heads == 12
    assert_agree(ours, lambda x: theirs.get_image_features(x).pooler_output)


# Contradictions


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("CLIP, vision tower", {"model_type": "vit"}, ["is a vit by its config and not by its tensors"]),
        ("CLIP, vision tower", {"model_type": "siglip_vision_model"}, ["class_token=True", "norm_before_blocks=True"]),
        ("SigLIP, vision tower", {"model_type": "clip_vision_model"}, ["class_token=False", "patch_bias=True"]),
        ("ViT, encoder", {"model_type": "beit"}, ["key_bias=True"]),
        ("BEiT, encoder", {"model_type": "vit"}, ["attention_bias=table"]),
        ("BEiT, encoder", {"use_mean_pooling": False}, ["use_mean_pooling false", "pooler.layernorm"]),
        ("DINOv2, encoder", {"model_type": "dinov3_vit"}, ["by its config and not by its tensors"]),
        ("I-JEPA, encoder", {"model_type": "vit"}, ["class_token=False"]),
        ("DINOv3, encoder", {"num_register_tokens": 4}, ["says num_register_tokens 4", "have 0"]),
        ("CLIP, vision tower", {"patch_size": 16}, ["says patch_size 16", "have 12"]),
    ],
)  # fmt: skip
def test_a_config_that_its_tensors_contradict_is_refused(name, changes, words, tmp_path):
    built(name, tmp_path / "m")
    with pytest.raises(FormatError) as caught:
        vitreous.load(rewrite(tmp_path / "m", **changes))
    line_of(caught.value, tmp_path / "m", "mend config.json", *words)


def test_a_text_tower_alone_is_refused_with_and_without_its_config(tmp_path):
    theirs = SCRIPT.build("CLIPTextModel", "CLIPTextConfig", SCRIPT.TEXT)
    torch.save(theirs.state_dict(), tmp_path / "text.pth")
    theirs.save_pretrained(tmp_path / "m")
    for source in (tmp_path / "text.pth", rewrite(tmp_path / "m", model_type="clip_vision_model")):
        with pytest.raises(FormatError) as caught:
            vitreous.load(source)
        line_of(caught.value, source, "text tower", "sees no images", "vision tower")


def test_a_classifier_on_a_type_that_has_none_is_refused(tmp_path):
    theirs, _ = built("DINOv3, encoder", tmp_path / "m")
    tensors = {**theirs.state_dict(), "classifier.weight": torch.ones(3, 32), "classifier.bias": torch.ones(3)}
    torch.save(tensors, tmp_path / "m.pth")
    with pytest.raises(FormatError, match="has a classifier, which transformers' dinov3_vit has not"):
        vitreous.load(tmp_path / "m.pth", heads=4)


# Other sizes, activations, preprocessing


@pytest.mark.parametrize("name", ["CLIP, vision tower", "SigLIP, vision tower", "I-JEPA, encoder", "DINOv3, encoder"])
def test_at_another_size_positions_move_as_transformers_moves_them(name, tmp_path):
    theirs, _ = built(name, tmp_path / "m")
    case = SCRIPT.CASES[name]
    said = {} if "DINOv3" in name else {"interpolate_pos_encoding": True}
    ours = vitreous.load(tmp_path / "m", dynamic_image_size=True)
    assert_agree(ours, lambda x: case.answer(theirs(x, **said)), size=(72, 36))


@pytest.mark.parametrize("word", TRANSFORMERS_ACTIVATIONS)
def test_every_activation_that_a_config_may_name_is_that_of_transformers(word, tmp_path):
    case = SCRIPT.CASES["CLIP, vision tower"]
    theirs = SCRIPT.build(case.title, case.config, case.changes | {"hidden_act": word})
    theirs.save_pretrained(tmp_path / "m")
    assert_agree(vitreous.load(tmp_path / "m"), lambda x: theirs(x).pooler_output)


def test_each_family_has_the_preprocessing_of_its_own_processor(tmp_path):
    wants = {
        "CLIP, vision tower": ("crop", 48, "bicubic", CLIP_MEAN),
        "SigLIP, vision tower": ("squash", None, "bicubic", HALF_RGB),
        "ViT-MAE, encoder": ("squash", None, "bicubic", IMAGENET_MEAN),
        "DINOv3, encoder": ("squash", None, "bilinear", IMAGENET_MEAN),
        "BEiT, encoder": ("squash", None, "bicubic", HALF_RGB),
        "DINOv2, encoder": ("crop", 55, "bicubic", IMAGENET_MEAN),
    }
    for name, want in wants.items():
        built(name, tmp_path / name)
        rule = vitreous.load(tmp_path / name).preprocess
        assert (rule.fit, rule.short_side, rule.interpolation, rule.mean) == want, name


# What is written


def test_a_model_is_written_as_the_first_type_that_holds_all_of_it():
    tower = {"norm_before_blocks": True, "patch_bias": False, "activation": "quick-gelu", "classes": 0}
    wants = {
        "vit": {"activation": "gelu"},
        "vit_msn": {"activation": "silu", "classes": 0},
        "deit": {"activation": "gelu", "distillation_token": True},
        "ijepa": {"activation": "gelu", "pool": "gap"},
        "clip_vision_model": tower | {"representation": 8, "representation_kind": "linear"},
        "siglip_vision_model": {"pool": "map", "classes": 0},
        "beit": {"activation": "gelu", "key_bias": False, "attention_bias": "table", "positions": "none",
                 "pool": "gap", "pool_order": "mean-first", "class_token": True},
    }  # fmt: skip
    for model_type, changes in wants.items():
        config = awake(**changes).config
        assert (fitting(config).model_type, fitting(config).differences(config)) == (model_type, []), model_type


def test_a_tower_with_a_new_head_is_refused_by_the_part_and_loses_its_projection(tmp_path):
    built("CLIP, vision tower with projection", tmp_path / "m")
    ours = vitreous.load(tmp_path / "m", classes=5)
    assert ours.config.readout.representation == 0
    assert ours.config.readout.representation_kind == "tanh"
    with pytest.raises(FormatError, match="huggingface cannot hold this model: pool=cls"):
        vitreous.save(ours, tmp_path / "again", format="huggingface")


def test_a_projection_is_kept_by_our_own_format(tmp_path):
    _, answer = built("CLIP, vision tower with projection", tmp_path / "m")
    file = vitreous.save(vitreous.load(tmp_path / "m"), tmp_path / "own")[0]
    assert_agree(vitreous.load(file), answer)


@pytest.mark.parametrize(
    ("name", "width"), [("CLIP, text and images", 24), ("SigLIP, vision tower", 32), ("ViT-MAE, with decoder", 32)]
)
def test_an_encoder_without_a_head_gives_features_and_takes_a_head(name, width, tmp_path):
    """What few-shot reads, and what `fit --weights` begins from."""
    built(name, tmp_path / "m")
    ours, data = vitreous.load(tmp_path / "m"), image_set(6)
    found = extract(ours, data, cache=False)["features"]
    assert found.shape == (6, width)
    assert np.isfinite(found).all()
    new = vitreous.load(tmp_path / "m", classes=3)
    with torch.inference_mode():
        assert new(torch.randn(1, 3, 48, 48)).tolist() == [[0.0, 0.0, 0.0]]


def test_all_activations_of_transformers_are_ours():
    from vitreous.models.layers import ACTIVATIONS

    assert set(ANY_ACTIVATION) <= set(ACTIVATIONS)
