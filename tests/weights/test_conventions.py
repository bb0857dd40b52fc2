"""What tensors cannot tell: each source runs as its own code runs, and what was assumed is said aloud."""

import json
import os
import re
import shutil

import golden_cases as golden
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import VIT, answer, assert_same_model, awake, line_of
from torch.testing import assert_close

import vitreous
from vitreous.errors import CheckpointError, FormatError, ModelNameError
from vitreous.models.positions import resize_positions

NPZ = [name for name in golden.MODELS if golden.source(name).suffix == ".npz"]


def bare(name: str, tmp_path):
    """The tensors of a golden case in a folder of their own, without any config."""
    file = golden.FOLDER / name / golden.MANIFEST[name]["checkpoint"]
    shutil.copy(file, tmp_path / file.name)
    return tmp_path / file.name


def arrays(name: str) -> dict[str, np.ndarray]:
    with np.load(golden.source(name)) as file:
        return {key: file[key] for key in file.files}


def heads_of(name: str) -> dict[str, int]:
    encoder = getattr(golden.load(name).config, "encoder", None)
    return {} if encoder is None else {"heads": encoder.heads}


def same_answers(path, name: str, **said) -> None:
    said = {**golden.hints(name), **said}
    assert_close(answer(vitreous.load(path, **said), golden.images(name)), golden.logits(name), atol=5e-5, rtol=0)


def tensors_alone(model, format: str, tmp_path):
    """A model in a format, what lies beside the tensors taken away."""
    files = vitreous.save(model, tmp_path / "alone", format=format, anyway=True)
    for file in files:
        if file.suffix == ".json":
            file.unlink()
    return next(file for file in files if file.suffix != ".json")


# The convention of each source

ENCODER = {  # activation, eps, pool, order
    "gvit_cls": ("gelu-tanh", 1e-6, "cls", "norm-first"),
    "gvit_gap": ("gelu-tanh", 1e-6, "gap", "norm-first"),
    "ghybrid_stages": ("gelu-tanh", 1e-6, "cls", "norm-first"),
    "bv_map": ("gelu-tanh", 1e-6, "map", "norm-first"),
    "bv_gap_sincos": ("gelu-tanh", 1e-6, "gap", "norm-first"),
    "bv_tok_scan": ("gelu-tanh", 1e-6, "cls", "norm-first"),
    "timm_vit_cls": ("gelu", 1e-6, "cls", "norm-first"),
    "timm_vit_avg_fcnorm": ("gelu", 1e-6, "gap", "mean-first"),
    "timm_vit_avg_norm_first": ("gelu", 1e-6, "gap", "norm-first"),
    "timm_vit_map": ("gelu", 1e-6, "map", "norm-first"),
    "timm_hybrid_stages": ("gelu", 1e-6, "cls", "norm-first"),
    "hf_vit": ("gelu", 1e-12, "cls", "norm-first"),
    "hf_deit_teacher": ("gelu", 1e-12, "cls-and-distillation", "norm-first"),
    "hf_dinov2_reg": ("gelu", 1e-6, "cls-and-gap", "norm-first"),
    "tv_vit": ("gelu", 1e-6, "cls", "norm-first"),
}


@pytest.mark.parametrize("name", ENCODER)
def test_a_file_alone_runs_as_its_source_does(name, tmp_path):
    said = {**golden.hints(name), **heads_of(name)}
    model = vitreous.load(bare(name, tmp_path), **said)
    e, r = model.config.encoder, model.config.readout
    assert (e.activation, e.norm_eps, r.pool, r.pool_order) == ENCODER[name]
    notes = " | ".join(model.source["assumed"])
    for word in (f"activation {e.activation}", f"norm_eps {e.norm_eps:g}:".replace("e-0", "e-"), "preprocessing"):
        assert word in notes
    assert model.source["format"] == golden.format_of(name)
    assert model.source["path"] == golden.MANIFEST[name]["checkpoint"]


RESNET = {  # root pad, eps of standardisation, where, eps of group norm
    "ghybrid_stages": ("infinity", 1e-5, "deviation", 1e-6),
    "ghybrid_stem_only": ("infinity", 1e-5, "deviation", 1e-6),
    "timm_hybrid_stages": ("infinity", 1e-8, "variance", 1e-5),
    "bit_tf": ("zeros", 1e-10, "variance", 1e-5),
    "bit_bigvision": ("infinity", 1e-10, "variance", 1e-5),
    "timm_bit": ("zeros", 1e-8, "variance", 1e-5),
}


@pytest.mark.parametrize("name", RESNET)
def test_each_resnet_has_its_own_border_and_eps(name):
    r = golden.load(name).config.resnet
    assert (r.root_pad, r.standardise_eps, r.standardise_eps_at, r.group_norm_eps) == RESNET[name]


# The argument wins over the config, the config over the convention


def test_arguments_win_over_the_config_and_the_config_over_the_convention(tmp_path):
    shutil.copytree(golden.source("hf_vit"), tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    said = json.loads(path.read_text()) | {"hidden_act": "relu", "layer_norm_eps": 3e-5}
    path.write_text(json.dumps(said))
    by_config = vitreous.load(tmp_path / "m")
    assert (by_config.config.encoder.activation, by_config.config.encoder.norm_eps) == ("relu", 3e-5)
    assert not any(word in note for note in by_config.source["assumed"] for word in ("activation", "eps", "heads"))
    heads = by_config.config.encoder.heads // 2
    by_word = vitreous.load(tmp_path / "m", activation="gelu-tanh", norm_eps=1e-3, heads=heads)
    e = by_word.config.encoder
    assert (e.activation, e.norm_eps, e.heads) == ("gelu-tanh", 1e-3, heads)


@pytest.mark.parametrize("name", ["gvit_cls", "bv_map", "timm_vit_cls", "hf_vit", "tv_vit"])
def test_what_the_user_says_is_not_assumed(name, tmp_path):
    said = {**golden.hints(name), **heads_of(name), "activation": "relu", "norm_eps": 1e-4}
    model = vitreous.load(bare(name, tmp_path), **said)
    assert (model.config.encoder.activation, model.config.encoder.norm_eps) == ("relu", 1e-4)
    assert not any(re.match("activation|norm_eps|heads", note) for note in model.source["assumed"])


@pytest.mark.parametrize("format", ["timm", "huggingface", "torchvision"])
def test_heads_that_nobody_told_are_asked_for(format, tmp_path):
    path = tensors_alone(awake(activation="gelu"), format, tmp_path)
    with pytest.raises(CheckpointError) as caught:
        vitreous.load(path)
    line_of(caught.value, path, "width 16", "heads=")
    assert vitreous.load(path, heads=2).config.encoder.heads == 2


@pytest.mark.parametrize("format", ["timm", "huggingface", "torchvision"])
def test_a_published_width_has_its_published_heads(format, tmp_path):
    path = tensors_alone(awake(activation="gelu", width=192, heads=3, depth=1), format, tmp_path)
    model = vitreous.load(path)
    assert model.config.encoder.heads == 3
    assert "heads 3: the published size of width 192" in model.source["assumed"]


def test_google_files_tell_their_heads():
    model = golden.load("gvit_cls")
    assert not any("heads" in note for note in model.source["assumed"])
    with pytest.raises(CheckpointError, match="leave heads= out"):
        vitreous.load(golden.source("gvit_cls"), heads=model.config.encoder.heads * 2)


# The grid of a table


@pytest.mark.parametrize("format", ["google", "big_vision", "timm", "huggingface"])
def test_a_table_that_is_no_square_asks_for_the_image(format, tmp_path):
    first = awake(image_size=(12, 24), activation="gelu" if format in ("timm", "huggingface") else "gelu-tanh")
    path = tensors_alone(first, format, tmp_path)
    said = {"heads": 2, "norm_eps": 1e-6}
    with pytest.raises(CheckpointError) as caught:
        vitreous.load(path, **said)
    line_of(caught.value, path, "18 positions", "image_size=(rows, columns)")
    second = vitreous.load(path, image_size=(12, 24), **said)
    assert_close(answer(second), answer(first), atol=1e-6, rtol=0)
    assert any("positions made for 12x24: as given" in note for note in second.source["assumed"])


EVERYONE = ["google", "big_vision", "timm", "huggingface", "torchvision"]


def in_the_function_of(format: str, **changes):
    return awake(activation="gelu" if format in ("timm", "huggingface", "torchvision") else "gelu-tanh", **changes)


@pytest.mark.parametrize("format", [name for name in EVERYONE if name != "torchvision"])
def test_a_table_that_fits_the_asked_image_is_kept_and_said(format, tmp_path):
    """16 places are 4 x 4 or 2 x 8: without a config the asked size decides, and nothing is resampled."""
    first = in_the_function_of(format, image_size=(8, 32))
    path = tensors_alone(first, format, tmp_path)
    second = vitreous.load(path, image_size=(8, 32), heads=2, norm_eps=1e-6)
    assert_close(answer(second), answer(first), atol=1e-6, rtol=0)
    assert any(
        "positions made for 8x32: as given, though 16 places could be 4x4" in n for n in second.source["assumed"]
    )


@pytest.mark.parametrize("format", EVERYONE)
def test_a_table_taken_for_a_square_to_be_resized_is_said(format, tmp_path):
    path = tensors_alone(in_the_function_of(format), format, tmp_path)
    model = vitreous.load(path, image_size=(24, 8), heads=2)
    assert "positions made for 16x16: a square, and resized to 24x8" in model.source["assumed"]
    assert not any("positions made" in note for note in vitreous.load(path, heads=2).source["assumed"])


@pytest.mark.claim("T11")
@pytest.mark.parametrize("format", EVERYONE)
def test_a_grid_of_as_many_places_is_resampled_where_a_config_says_what_it_was(format, tmp_path):
    """2 x 8 asked of a 4 x 4 table: each place reads where it lies in the image, though both have 16 rows."""
    path = vitreous.save(in_the_function_of(format), tmp_path / "whole", format=format)[0]
    path = path.parent if path.name in ("config.json", "model.safetensors") else path
    own, other = (vitreous.load(path, image_size=size, heads=2) for size in ((16, 16), (8, 32)))
    old, new = (model.embedding.positions.table for model in (own, other))
    prefix = own.config.covered
    assert old.shape == new.shape
    assert torch.equal(new[:prefix], old[:prefix])
    assert_close(new, resize_positions(old, (4, 4), (2, 8), prefix=prefix))
    assert not torch.equal(new, old)


# Generations of names


def test_both_generations_of_google_names_are_one_model():
    assert_close(golden.logits("gvit_cls"), golden.logits("gvit_cls_oldnames"), atol=1e-6, rtol=0)
    a, b = golden.load("gvit_cls"), golden.load("gvit_cls_oldnames")
    assert a.config == b.config
    assert all(torch.equal(t, b.state_dict()[name]) for name, t in a.state_dict().items())


@pytest.mark.parametrize("name", ["gvit_cls", "gvit_cls_oldnames", "ghybrid_stages", "bit_tf"])
@pytest.mark.parametrize("prefix", ["params/", "opt/target/"])
def test_google_files_may_have_a_prefix_and_an_optimiser_beside(name, prefix, tmp_path):
    plain = arrays(name)
    noise = {"opt/state/step": np.zeros(1, np.float32), "chrono/x": np.zeros(1, np.float32)}
    np.savez(tmp_path / "m.npz", **{prefix + k: v for k, v in plain.items()}, **noise)
    same_answers(tmp_path / "m.npz", name)


@pytest.mark.parametrize("prefix", ["", "params/", "params/img/", "img/", "opt/target/"])
@pytest.mark.parametrize("name", ["bv_map", "bv_tok_scan", "bv_gap_sincos", "bit_bigvision"])
def test_big_vision_files_may_lie_anywhere(name, prefix, tmp_path):
    plain = {re.sub(r"^(params/img/|params/|opt/target/)", "", k): v for k, v in arrays(name).items()}
    plain = {
        k: v
        for k, v in plain.items()
        if not k.startswith(("params/", "opt/", "chrono/", "txt/")) and k not in ("t", "b")
    }
    text = {"params/txt/head/kernel": np.zeros((2, 2), np.float32), "params/t": np.zeros(1, np.float32)}
    beside = text if prefix == "params/img/" else {}
    np.savez(tmp_path / "m.npz", **{prefix + k: v for k, v in plain.items()}, **beside)
    same_answers(tmp_path / "m.npz", name)


ATTENTION = "MultiHeadDotProductAttention"
OLD = {f"{ATTENTION}_0": f"{ATTENTION}_1", "LayerNorm_1": "LayerNorm_2", "MlpBlock_0": "MlpBlock_3"}


@pytest.mark.parametrize("place", ["Transformer/posembed_input/pos_embedding", "Transformer/pos_embedding"])
@pytest.mark.parametrize("old_blocks", [False, True])
def test_older_big_vision_names(place, old_blocks, tmp_path):
    """Positions under the Transformer, the MAP head's parts at the top, blocks numbered 1, 2, 3 (METHODS F2)."""

    def older(name: str) -> str:
        name = name.removeprefix("params/img/")
        if name == "pos_embedding":
            return place
        if name.startswith("Transformer/encoderblock") and old_blocks:
            for new, old in OLD.items():
                name = name.replace(f"/{new}/", f"/{old}/")
        return name.removeprefix("MAPHead_0/")

    plain = {k: v for k, v in arrays("bv_map").items() if k.startswith("params/img/")}
    np.savez(tmp_path / "m.npz", **{older(k): v for k, v in plain.items()})
    same_answers(tmp_path / "m.npz", "bv_map")
    assert vitreous.load(tmp_path / "m.npz", **golden.hints("bv_map")).source["format"] == "big_vision"


@pytest.mark.parametrize("has_class_token", [True, False])
def test_a_class_row_in_an_older_table_is_folded_into_the_class_token(has_class_token, tmp_path):
    name = "bv_tok_scan" if has_class_token else "gvit_gap"
    plain = {k.removeprefix("params/"): v for k, v in arrays(name).items()}
    table = plain.pop("pos_embedding" if has_class_token else "Transformer/posembed_input/pos_embedding")
    row = np.full_like(table[:, :1], 0.25)
    plain["pos_embedding"] = np.concatenate([row, table], 1)
    if has_class_token:
        plain["cls"] = plain["cls"] - row
    np.savez(tmp_path / "m.npz", **plain)
    same_answers(tmp_path / "m.npz", name)


def test_numbered_layers_of_a_bit_are_read(tmp_path):
    def numbered(name: str, i: int) -> str:
        return name.replace("/standardized_conv2d/", f"/standardized_conv2d_{i}/").replace(
            "/group_norm/", f"/group_norm_{i // 3}/"
        )

    plain = arrays("bit_tf")
    norms = {re.sub(r"/[^/]*$", "", k): i for i, k in enumerate(plain)}
    np.savez(tmp_path / "m.npz", **{numbered(k, norms[re.sub(r"/[^/]*$", "", k)]): v for k, v in plain.items()})
    same_answers(tmp_path / "m.npz", "bit_tf")


def test_deit_3_gains_flat_patch_kernels_and_wrappers_of_timm_are_read(tmp_path):
    name = "timm_vit_reg2_ls_noembed"
    plain = load_file(
        golden.source(name) if golden.source(name).is_file() else golden.source(name) / "model.safetensors"
    )

    def older(key: str) -> str:
        return key.replace(".ls1.gamma", ".gamma_1").replace(".ls2.gamma", ".gamma_2")

    flat = {older(k): v.flatten(1) if k == "patch_embed.proj.weight" else v for k, v in plain.items()}
    for wrapper in ("", "module.", "model.", "backbone.", "module.backbone."):
        save_file({wrapper + k: v for k, v in flat.items()}, tmp_path / "old.safetensors")
        same_answers(tmp_path / "old.safetensors", name, **heads_of(name))
    bad = {**flat, "patch_embed.proj.weight": torch.zeros(flat["patch_embed.proj.weight"].shape[0], 50)}
    save_file(bad, tmp_path / "bad.safetensors")
    with pytest.raises(CheckpointError, match="50 columns"):
        vitreous.load(tmp_path / "bad.safetensors", heads=2)


def test_old_torchvision_names_are_read(tmp_path):
    plain = load_file(golden.source("tv_vit_rep"))
    old = {k.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2."): v for k, v in plain.items()}
    assert old.keys() != plain.keys()
    for wrapper in ("", "module.", "_orig_mod.", "module.module.", "_orig_mod.module."):
        save_file({wrapper + k: v for k, v in old.items()}, tmp_path / "old.safetensors")
        same_answers(tmp_path / "old.safetensors", "tv_vit_rep")


def test_labels_come_from_the_config_unless_they_say_nothing(tmp_path):
    shutil.copytree(golden.source("hf_vit"), tmp_path / "m")
    path, n = tmp_path / "m" / "config.json", golden.load("hf_vit").config.readout.classes
    said = json.loads(path.read_text())
    for named, want in (
        ({str(i): f"kind {i}" for i in range(n)}, tuple(f"kind {i}" for i in range(n))),
        ({str(i): f"LABEL_{i}" for i in range(n)}, None),
        ({"0": "only one"}, None),
        ("words", None),
    ):
        path.write_text(json.dumps(said | {"id2label": named}))
        assert vitreous.load(tmp_path / "m").labels == want
    with pytest.raises(vitreous.errors.ConfigError, match="not a list of words"):
        vitreous.load(tmp_path / "m", labels="x" * n)
    given = [str(i) for i in range(n)]
    assert vitreous.load(tmp_path / "m", labels=given).labels == tuple(given)
    with pytest.raises(vitreous.errors.ConfigError, match="one label per answer"):
        vitreous.load(tmp_path / "m", labels=["a"])


def test_an_explicit_format_reads_what_two_would_know(tmp_path):
    """A Google file read as big_vision's: the class row is folded, the answers stay."""
    model = vitreous.load(golden.source("gvit_cls"), format="big_vision")
    assert model.source["format"] == "big_vision"
    assert_close(answer(model, golden.images("gvit_cls")), golden.logits("gvit_cls"), atol=2e-5, rtol=0)


def test_a_catalog_name_is_a_new_model_and_an_existing_path_wins(tmp_path, monkeypatch):
    model = vitreous.load("Ti/16 registers=2", classes=3, image_size=32, heads=6)
    assert (model.config.embedding.registers, model.config.readout.classes, model.config.encoder.heads) == (2, 3, 6)
    with pytest.raises(FormatError, match="leave format= out"):
        vitreous.load("Ti/16", format="timm")
    assert vitreous.load("Ti/16", position_resize="timm").config.embedding.position_resize == "timm"
    monkeypatch.chdir(tmp_path)
    saved = awake(VIT)
    (tmp_path / "Ti").mkdir()
    vitreous.save(saved, tmp_path / "Ti" / "16" / "model")
    assert vitreous.load("Ti/16").config == saved.config


def test_last_is_the_newest_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="no finished run"):
        vitreous.load("last")
    for i, name in enumerate(("a", "b")):
        (file,) = vitreous.save(awake(seed=i), tmp_path / "runs" / name / "model")
        os.utime(file, (i, i))
    assert_same_model(vitreous.load("last"), awake(seed=1))


def test_a_run_by_its_name_alone_is_told_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    vitreous.save(awake(), tmp_path / "runs" / "cats-1" / "model")
    with pytest.raises(ModelNameError, match=r"no model is called 'cats-1'; did you mean the run runs/cats-1\?"):
        vitreous.load("cats-1")
