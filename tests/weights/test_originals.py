"""The files of DeiT, DINO, DINOv2, MAE and MoCo v3 as their own code writes them: told by their keys, never by luck."""

import argparse

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import VIT, answer, assert_same_model, awake, line_of
from torch.testing import assert_close

import vitreous
from vitreous.errors import CheckpointError
from vitreous.models.preprocess import IMAGENET_MEAN
from vitreous.weights import timm
from vitreous.weights.layouts import write_with
from vitreous.weights.originals import waves

BARE = {"activation": "gelu", "classes": 0}


def tensors_of(model) -> dict:
    return write_with(timm.rules(model.config), model.state_dict())


def with_waves(model, *, rows_first: bool):
    """The same model with positions that are computed, as MAE and MoCo v3 leave them."""
    table = model.embedding.positions.table
    with torch.no_grad():
        table.copy_(torch.cat([torch.zeros(1, table.shape[1]), waves((4, 4), table.shape[1], rows_first=rows_first)]))
    return model


def named(tensors: dict, prefix: str) -> dict:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def saved(content, path):
    torch.save(content, path)
    return path


def noise(*names: str) -> dict:
    return {name: torch.ones(2, 16) for name in names}


def deit(tmp_path):
    first = awake(activation="gelu")
    return first, saved({"model": tensors_of(first)}, tmp_path / "deit.pth"), []


def distilled_deit(tmp_path):
    first = awake(activation="gelu", distillation_token=True, distillation_head=True, pool="cls-and-distillation")
    return first, saved({"model": tensors_of(first)}, tmp_path / "deit.pth"), []


def deit_while_it_trains(tmp_path):
    first = awake(activation="gelu")
    more = {"optimizer": {"state": {}}, "epoch": 3, "args": argparse.Namespace(lr=1e-3, model="deit_tiny")}
    return first, saved({"model": tensors_of(first), **more}, tmp_path / "checkpoint.pth"), []


def dino(tmp_path):
    first = awake(**BARE)
    return first, saved(tensors_of(first), tmp_path / "dino_deitsmall16_pretrain.pth"), []


def dino_with_its_head(tmp_path):
    first, other = awake(**BARE), awake(seed=1, **BARE)
    head = noise("head.mlp.0.weight", "head.last_layer.weight_v")
    content = {
        "student": named({**tensors_of(other), **head}, "module.backbone."),
        "teacher": {**named(tensors_of(first), "backbone."), **head},
        "epoch": 100,
        "args": argparse.Namespace(arch="vit_small"),
    }
    return first, saved(content, tmp_path / "full.pth"), ["projection head", "student network"]


def dinov2(tmp_path):
    first = awake(**BARE, layer_scale=1.0, positions_cover="class", mask_token=True)
    tensors = tensors_of(first) | {"mask_token": torch.ones(1, 16)}
    return first, saved(tensors, tmp_path / "dinov2_vits14_pretrain.pth"), []


def dinov2_in_chunks(tmp_path):
    first = awake(**BARE, layer_scale=1.0, positions_cover="class", mask_token=True)
    chunked = {name.replace("blocks.", "blocks.0."): tensor for name, tensor in tensors_of(first).items()}
    chunked |= {"mask_token": torch.ones(1, 16)}
    content = {"teacher": {**named(chunked, "backbone."), **noise("dino_head.mlp.0.weight", "ibot_head.mlp.0.weight")}}
    return first, saved(content, tmp_path / "teacher.pth"), ["projection head"]


def mae(tmp_path):
    first = with_waves(awake(**BARE), rows_first=False)
    return first, saved({"model": tensors_of(first)}, tmp_path / "mae.pth"), []


def mae_with_its_decoder(tmp_path):
    first = awake(**BARE)
    decoder = noise("mask_token", "decoder_embed.weight", "decoder_blocks.0.norm1.weight", "decoder_pos_embed")
    return first, saved({"model": {**tensors_of(first), **decoder}}, tmp_path / "mae.pth"), ["decoder"]


def tuned_mae(tmp_path):
    first = awake(activation="gelu", pool="gap", pool_order="mean-first", class_token=True)
    return first, saved({"model": tensors_of(first)}, tmp_path / "mae.pth"), []


def moco(tmp_path):
    first, other = awake(**BARE), awake(seed=1, **BARE)
    head = noise("head.0.weight", "head.1.running_mean", "head.3.weight")
    content = {
        **named({**tensors_of(first), **head}, "module.base_encoder."),
        **named({**tensors_of(other), **head}, "module.momentum_encoder."),
        **named(noise("0.weight"), "module.predictor."),
    }
    content = {"epoch": 300, "arch": "vit_small", "state_dict": content}
    return first, saved(content, tmp_path / "vit-s-300ep.pth.tar"), ["momentum encoder", "predictor", "projection"]


def moco_with_a_classifier(tmp_path):
    first = with_waves(awake(activation="gelu"), rows_first=True)
    return first, saved({"state_dict": named(tensors_of(first), "module.")}, tmp_path / "linear.pth.tar"), []


CASES = {
    "DeiT": [deit, distilled_deit, deit_while_it_trains],
    "DINO": [dino, dino_with_its_head],
    "DINOv2": [dinov2, dinov2_in_chunks],
    "MAE": [mae, mae_with_its_decoder, tuned_mae],
    "MoCo v3": [moco, moco_with_a_classifier],
}


@pytest.mark.parametrize(("whose", "make"), [(whose, make) for whose, some in CASES.items() for make in some])
def test_a_file_of_an_authors_own_code_runs_as_there_and_says_whose_it_is(whose, make, tmp_path):
    first, file, left_out = make(tmp_path)
    second = vitreous.load(file, heads=2)
    assert_close(answer(second), answer(first), atol=1e-6, rtol=0)
    notes = second.source["assumed"]
    assert any(note.startswith(f"written by {whose}'s own code: told by ") for note in notes), notes
    assert sum(note.startswith("preprocessing:") for note in notes) == 1
    rule = second.preprocess
    assert (rule.fit, rule.short_side, rule.mean) == ("crop", round(16 * 256 / 224), IMAGENET_MEAN)
    assert rule.interpolation == ("bilinear" if whose == "MoCo v3" else "bicubic")
    found = second.source.get("left_out", [])
    assert len(found) == len(left_out)
    assert all(any(word in part for part in found) for word in left_out), found


def test_moco_gives_its_small_vit_twelve_heads_and_the_others_six(tmp_path):
    """Both have width 384, and no tensor tells the heads."""
    small = {"width": 384, "depth": 1, "mlp": 8, "classes": 0, "activation": "gelu"}
    for rows_first, heads in ((True, 12), (False, 6)):
        first = with_waves(awake(VIT, **small, heads=heads), rows_first=rows_first)
        file = saved({"model": tensors_of(first)}, tmp_path / "m.pth")
        second = vitreous.load(file)
        assert second.config.encoder.heads == heads
        assert_close(answer(second), answer(first), atol=1e-5, rtol=0)


def test_the_waves_of_mae_are_those_that_transformers_computes_for_it():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    theirs = transformers.ViTMAEModel(transformers.ViTMAEConfig(**sizes)).embeddings
    theirs.patch_embeddings.projection._is_hf_initialized = False
    theirs.initialize_weights()
    assert_close(waves((4, 4), 32, rows_first=False), theirs.position_embeddings[0, 1:], atol=1e-5, rtol=0)


def test_a_file_of_timm_is_told_from_all_of_them(tmp_path):
    """Keys and values of a plain state dict say nothing of an author."""
    for changes in ({}, BARE, {"layer_scale": 1e-5}):
        file = saved(tensors_of(awake(**{"activation": "gelu", **changes})), tmp_path / "m.pth")
        model = vitreous.load(file, heads=2)
        assert not any(note.startswith("written by") for note in model.source["assumed"])
        assert model.preprocess.source == "timm (assumed)"


def test_what_an_authors_code_wrote_is_saved_for_others_and_comes_back(tmp_path):
    first, file, _ = mae(tmp_path)
    model = vitreous.load(file, heads=2)
    for format in ("huggingface", "timm"):
        vitreous.save(model, tmp_path / format, format=format)
        again = vitreous.load(tmp_path / format)
        assert_same_model(again, first)
        assert again.preprocess.mean == IMAGENET_MEAN
    assert load_file(tmp_path / "timm" / "model.safetensors").keys() == tensors_of(first).keys()


class Harmless:
    """Any class but a script's arguments."""


def test_a_scripts_arguments_may_lie_beside_the_tensors_and_nothing_else_that_is_an_object(tmp_path):
    tensors = tensors_of(awake(activation="gelu"))
    saved({"model": tensors, "args": argparse.Namespace(inside=Harmless())}, tmp_path / "m.pth")
    with pytest.raises(CheckpointError) as caught:
        vitreous.load(tmp_path / "m.pth", heads=2)
    line_of(caught.value, "holds more than tensors", "safetensors")


def test_an_archive_is_not_taken_for_weights(tmp_path):
    (tmp_path / "photos.tar").write_bytes(b"x" * 1024)
    with pytest.raises(vitreous.errors.VitreousError, match="does not end in"):
        vitreous.load(tmp_path / "photos.tar")
