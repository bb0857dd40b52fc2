"""The architecture that a config names decides: it runs here as it runs there, or it is refused with the reason."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import BIT, VIT, answer, awake, line_of
from torch.testing import assert_close

import vitreous
from vitreous.errors import FormatError, VitreousError
from vitreous.weights import timm
from vitreous.weights.huggingface.families import REFUSED_MODEL_TYPES
from vitreous.weights.layouts import write_with
from vitreous.weights.timm_names import BIT_BY_HAND, HYBRID_BY_HAND, Implied, refused, runs

PLAIN = "vit_base_patch16_224"
POOLS = {"token": "cls", "avg": "gap", "map": "map"}
OF_TIMM = {name: known for name, known in runs().items() if name not in (BIT_BY_HAND, HYBRID_BY_HAND)}


def groups() -> dict[Implied, list[str]]:
    """Names by all that they imply but the size."""
    out: dict[Implied, list[str]] = {}
    for name, known in OF_TIMM.items():
        out.setdefault(dataclasses.replace(known, width=None, heads=None), []).append(name)
    return out


ROTARY = {  # by rope_type: our options
    "cat": {"rotary": "axial", "rotary_base": 10_000.0},
    "dinov3": {"rotary": "axial", "rotary_places": "image", "rotary_pairs": "halves"},
    "mixed": {"rotary": "mixed"},
}


def rotary_of(known: Implied) -> dict:
    said = dict(known.arguments)
    if not said:
        return {}
    out = dict(ROTARY[said.get("rope_type", "cat")])
    out |= {"rotary_grid": said["ref_feat_shape"]} if "ref_feat_shape" in said else {}
    out |= {} if said.get("use_abs_pos_emb", True) else {"positions": "none"}
    out |= {"rotary_base": said["rope_temperature"]} if "rope_temperature" in said else {}
    out |= {"rotary_first": "columns"} if said.get("rope_grid_indexing") == "xy" else {}
    return out | {"rotary_start": said.get("rope_grid_offset", 0.0)}


FAMILY = {
    "eva": {"key_bias": False, "class_token": True},  # which does not turn: so the place of the first patch shows
    "beit": {"attention_bias": "table", "key_bias": False, "positions": "none", "class_token": True},
    "relpos": {"attention_bias": "mlp", "positions": "none"},
}


def model_of(known: Implied, **changes):
    """A tiny model of ours with the function that a name implies."""
    if known.family == "bit":
        return awake(BIT, root_pad="zeros", standardise_eps=1e-8)
    said = {"activation": known.activation, "norm_eps": known.norm_eps, "pool": POOLS[known.pool], "norm": known.norm}
    said |= {"pool_tokens": "all"} if known.pool_tokens == "all" else {}
    said |= {"pool_heads": 4} if known.pool_heads else {}
    said |= {"layer_scale": 1e-5} if known.activation == "swiglu" else {}
    said |= {"pool_order": "mean-first"} if known.pool == "avg" else {}
    said |= {**FAMILY.get(known.family, {}), **rotary_of(known)}
    if known.family == "eva" and known.pool == "map" and known.pool_tokens != "all":
        said |= {"class_token": False}
    if known.no_embed_class:
        said |= {"registers": 1} | ({"positions_cover": "patches"} if "positions" not in said else {})
    if known.family == "distilled":
        said |= {"distillation_token": True, "distillation_head": True, "pool": "cls-and-distillation"}
    return awake(VIT, **{**said, **changes})


def saved(model, folder):
    """A folder of timm's in which only the name tells what the tensors do not; and a way to name it."""
    vitreous.save(model, folder, format="timm", anyway=True)
    (folder / "vitreous.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    sizes = ("embed_dim", "depth", "num_heads", "img_size", "attn_pool_num_heads")
    kept = {k: v for k, v in config.get("model_args", {}).items() if k in sizes}
    config = {**config, "model_args": kept}
    config.pop("global_pool", None)

    def named(name, **more):
        (folder / "config.json").write_text(json.dumps({**config, "architecture": name, **more}))
        return folder

    return named


@pytest.mark.parametrize("known", groups(), ids=lambda known: "-".join(map(str, vars(known).values())))
def test_every_name_of_the_table_runs_the_function_it_implies(known, tmp_path):
    """Nothing but the name says activation, eps, pool and what positions cover."""
    held = {"norm_eps": 1e-6} if known.activation == "swiglu" and known.family == "vit" else {}
    named, want = saved(model_of(known, **held), tmp_path / "m"), answer(model_of(known))
    for name in groups()[known]:
        second = vitreous.load(named(name))
        assert_close(answer(second), want, atol=1e-5, rtol=0, msg=name)
        assert not any(word in note for note in second.source["assumed"] for word in ("activation", "eps", "heads"))


def test_every_name_known_to_be_another_function_is_refused_with_the_reason(tmp_path):
    """The tensors are a plain ViT's: the name alone refuses."""
    named = saved(awake(activation="gelu"), tmp_path / "m")
    words = ("attention and MLP side by side are", "differential attention is", "patches of any number and shape are")
    assert {f"{word} not built here" for word in words} <= set(refused().values())
    for name, why in refused().items():
        with pytest.raises(FormatError) as caught:
            vitreous.load(named(name))
        line_of(caught.value, tmp_path / "m", name, why, "architecture=")


@pytest.mark.parametrize(
    "name", ["vit_base_patch16_999", "vit_base_patch16_224_new", "swin_tiny_patch4_window7_224", ""]
)
def test_a_name_that_nobody_knows_is_refused(name, tmp_path):
    folder = saved(awake(activation="gelu"), tmp_path / "m")(name)
    with pytest.raises(FormatError) as caught:
        vitreous.load(folder)
    line_of(caught.value, folder, name, "not among those known to run here", "architecture=")


def test_no_name_both_runs_and_is_refused():
    assert not runs().keys() & refused().keys()
    assert len(OF_TIMM) >= 260
    assert len(refused()) >= 60


@pytest.mark.parametrize(
    "name",
    [
        f"{PLAIN}.augreg_in21k",
        f"hf_hub:timm/{PLAIN}.augreg_in21k",
        f"timm/{PLAIN}",
        "vit_base_patch16_224_in21k",
        "vit_base_patch16_224_dino",
    ],
)
def test_tags_and_old_names_are_read(name, tmp_path):
    first = awake(activation="gelu")
    assert_close(answer(vitreous.load(saved(first, tmp_path / "m")(name))), answer(first), atol=1e-6, rtol=0)


def test_the_name_tells_the_heads_of_its_own_width_and_of_one_that_the_arguments_say(tmp_path):
    """timm keeps a name's heads where model_args change the width alone."""
    named = saved(awake(activation="gelu", width=64), tmp_path / "m")
    assert vitreous.load(named("test_vit", model_args={})).config.encoder.heads == 2
    assert vitreous.load(named("vit_medium_patch16_gap_240", model_args={"embed_dim": 64})).config.encoder.heads == 8
    with pytest.raises(VitreousError, match="heads="):
        vitreous.load(named(PLAIN, model_args={}))
    assert runs()["vit_giantopt_patch16_siglip_256"].heads == 16  # and 24 in DINOv2's giant of the same width
    assert runs()["vit_giant_patch14_dinov2"].heads == 24


def test_model_args_win_over_the_name(tmp_path):
    first = awake(activation="relu", pool="gap", pool_order="norm-first", norm_eps=1e-5)
    named = saved(first, tmp_path / "m")
    args = {"act_layer": "relu", "global_pool": "avg", "num_heads": 2}
    second = vitreous.load(named("vit_base_patch16_clip_224", model_args=args))
    assert_close(answer(second), answer(first), atol=1e-6, rtol=0)


# architecture=


@pytest.mark.parametrize("name", ["vit_base_patch16_xp_224", "vit_base_patch16_999", PLAIN])
def test_who_says_architecture_takes_the_blame(name, tmp_path):
    first = awake(activation="gelu")
    folder = saved(first, tmp_path / "m")(name)
    second = vitreous.load(folder, architecture=PLAIN)
    assert_close(answer(second), answer(first), atol=1e-6, rtol=0)
    instead = "" if name == PLAIN else f", though the config names {name}"
    assert f"architecture {PLAIN}: as given{instead}" in second.source["assumed"]


def test_architecture_tells_what_a_file_alone_does_not(tmp_path):
    first = awake(activation="gelu-tanh", pool="map", width=64)
    saved(first, tmp_path / "m")
    file = (tmp_path / "m" / "model.safetensors").rename(tmp_path / "alone.safetensors")
    second = vitreous.load(file, architecture="vit_base_patch32_siglip_256", heads=2)
    assert_close(answer(second), answer(first), atol=1e-6, rtol=0)


def test_an_architecture_that_does_not_run_here_is_answered_with_near_ones(tmp_path):
    folder = saved(awake(activation="gelu"), tmp_path / "m")(PLAIN)
    for name in ("vit_base_patch16_xp_224", "vit_base_patch16_22", "zzz"):
        with pytest.raises(FormatError) as caught:
            vitreous.load(folder, architecture=name)
        line_of(caught.value, name, "vit_base_patch16_224")


@pytest.mark.parametrize(
    "name",
    ["vit_base_patch16_rope_224", "beit_base_patch16_224", "eva_giant_patch14_224", "vit_relpos_base_patch16_224"],
)
def test_a_name_that_its_tensors_contradict_is_refused(name, tmp_path):
    """A plain ViT's tensors, under names of models with other positions or another attention."""
    folder = saved(awake(activation="gelu"), tmp_path / "m")(name)
    with pytest.raises(FormatError) as caught:
        vitreous.load(folder, heads=2)
    line_of(caught.value, folder, "tensors", "mend config.json")


def test_what_names_no_architecture_takes_none(tmp_path):
    own = vitreous.save(awake(), tmp_path / "own")[0]
    google = vitreous.save(awake(), tmp_path / "m.npz", format="google")[0]
    for source in (own, google, "Ti/16"):
        with pytest.raises(FormatError, match="leave architecture= out"):
            vitreous.load(source, architecture=PLAIN)


def test_convert_takes_an_architecture(tmp_path):
    folder = saved(awake(activation="gelu"), tmp_path / "m")("vit_base_patch16_rope_224")
    done = vitreous.convert(folder, tmp_path / "out", to="vitreous", architecture=PLAIN)
    assert any(note.startswith(f"architecture {PLAIN}: as given") for note in done.notes)


# Files alone: their keys tell


def alone(model, tmp_path, rename=lambda name: name, **more):
    tensors = write_with(timm.rules(model.config), model.state_dict())
    save_file({rename(name): tensor for name, tensor in tensors.items()} | more, tmp_path / "alone.safetensors")
    return tmp_path / "alone.safetensors"


def test_a_file_alone_without_positions_may_be_rotary_and_is_refused(tmp_path):
    first = awake(activation="gelu", positions="none")
    file = alone(first, tmp_path)
    with pytest.raises(FormatError) as caught:
        vitreous.load(file, heads=2)
    line_of(caught.value, file, "pos_embed", "rotary", "architecture=")
    second = vitreous.load(file, heads=2, architecture=PLAIN, image_size=16)
    assert_close(answer(second), answer(first), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("rope.freqs", "rotary positions of learned frequencies; say which, architecture="),
        ("storage_tokens", "it is DINOv3's own file; load timm's or transformers'"),
        ("blocks.0.attn.rel_pos.mlp.fc1.weight", "say which, architecture="),
        ("blocks.0.attn.q_bias", "positions may be rotary; say which, architecture="),
    ],
)
def test_a_file_alone_with_the_parts_of_another_model_is_refused_by_them(key, why, tmp_path):
    file = alone(awake(activation="gelu"), tmp_path, **{key: torch.ones(2, 16)})
    with pytest.raises(FormatError) as caught:
        vitreous.load(file, heads=2)
    line_of(caught.value, file, key, why)


def test_a_distilled_deit_without_heads_answers_with_the_mean_of_its_two_tokens(tmp_path):
    first = model_of(Implied("distilled"), distillation_head=False, classes=0, pool="cls-distillation-mean")
    both = model_of(Implied("distilled"), distillation_head=False, classes=0)
    assert_close(answer(first), answer(both).unflatten(1, (2, -1)).mean(1), atol=1e-6, rtol=0)
    vitreous.save(first, tmp_path / "m", format="timm")
    assert_close(answer(vitreous.load(tmp_path / "m")), answer(first), atol=1e-6, rtol=0)
    file = (tmp_path / "m" / "model.safetensors").rename(tmp_path / "alone.safetensors")
    assert vitreous.load(file, heads=2).config.readout.pool == "cls-distillation-mean"
    assert vitreous.load(file, heads=2, architecture="deit_base_patch16_224").config.readout.pool == "cls"


def test_a_distilled_deit_that_reads_one_token_is_not_written_for_timm(tmp_path):
    first = model_of(Implied("distilled"), distillation_head=False, classes=0, pool="cls")
    with pytest.raises(FormatError, match="distillation_token=True with pool=cls"):
        vitreous.save(first, tmp_path / "m", format="timm")


@pytest.mark.parametrize("registers", [0, 2])
@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_a_file_of_dinov2s_own_code_is_read(registers, activation, tmp_path):
    """Registers stand behind the class token without positions of their own; w12 and w3 are the gated MLP."""
    first = awake(
        activation=activation, registers=registers, layer_scale=1.0, positions_cover="class", classes=0, mask_token=True
    )
    back = {theirs: original for original, theirs in timm.DINOV2_NAMES.items()}

    def original(name: str) -> str:
        for ours, theirs in back.items():
            name = name.replace(ours, theirs) if activation == "swiglu" or ours == "reg_token" else name
        return name

    file = alone(first, tmp_path, original, mask_token=torch.ones(1, 16))
    assert ("register_tokens" in load_file(file)) == bool(registers)
    assert_close(answer(vitreous.load(file, heads=2)), answer(first), atol=1e-6, rtol=0)


# What we write ourselves


@pytest.mark.parametrize(
    "model",
    [
        awake(BIT, root_pad="zeros", standardise_eps=1e-8),
        awake(VIT, activation="gelu", stem="resnet", patch=(1, 1), image_size=(32, 32), **{
            **vars(timm.TIMM_HYBRID), "units": (1,), "resnet_width": 0.25,
        }),
        model_of(Implied("distilled")),
        model_of(Implied("vit", activation="swiglu")),
        awake(activation="gelu-tanh", positions="none"),
    ],
    ids=["bit", "hybrid", "distilled", "swiglu", "no-positions"],
)  # fmt: skip
def test_what_we_write_has_a_name_that_we_read(model, tmp_path):
    vitreous.save(model, tmp_path / "m", format="timm")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["architecture"] in runs()
    assert_close(answer(vitreous.load(tmp_path / "m")), answer(model), atol=1e-6, rtol=0)


# Hugging Face


def hugging(tmp_path, **changes):
    vitreous.save(awake(activation="gelu"), tmp_path / "m", format="huggingface", force=True)
    (tmp_path / "m" / "vitreous.json").unlink(missing_ok=True)
    path = tmp_path / "m" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return tmp_path / "m"


@pytest.mark.parametrize("kind", [*REFUSED_MODEL_TYPES, "a_later_type", 7, ["vit"]])
def test_a_model_type_of_another_function_is_refused_by_name(kind, tmp_path):
    folder = hugging(tmp_path, model_type=kind)
    with pytest.raises(FormatError) as caught:
        vitreous.load(folder)
    word = kind if isinstance(kind, str) else ""
    line_of(caught.value, folder, word, REFUSED_MODEL_TYPES.get(word, "not among those known"), "architecture=")
    model = vitreous.load(folder, architecture="vit")
    assert any(
        note.startswith("architecture vit: as given, though the config names") for note in model.source["assumed"]
    )


def test_a_folder_with_code_of_its_own_is_refused(tmp_path):
    folder = hugging(tmp_path, auto_map={"AutoModel": "modeling.Other"})
    with pytest.raises(FormatError) as caught:
        vitreous.load(folder)
    line_of(caught.value, folder, "auto_map", "architecture=")


def test_a_model_type_that_its_tensors_contradict_is_refused(tmp_path):
    for said in ({"model_type": "dinov2"}, {"model_type": "x"}):
        with pytest.raises(FormatError):
            vitreous.load(hugging(tmp_path, **said))
    with pytest.raises(FormatError, match="take one of vit, deit"):
        vitreous.load(hugging(tmp_path), architecture=PLAIN)
    with pytest.raises(FormatError, match="by its config and not by its tensors"):
        vitreous.load(hugging(tmp_path, model_type="dinov2"))


def test_each_model_type_has_the_eps_of_its_own_class(tmp_path):
    for kind, eps in (("vit", 1e-12), ("vit_msn", 1e-6)):
        folder = hugging(tmp_path, model_type=kind)
        path = folder / "config.json"
        said = json.loads(path.read_text())
        del said["layer_norm_eps"]
        path.write_text(json.dumps(said))
        assert vitreous.load(folder).config.encoder.norm_eps == eps


def test_tensors_of_timm_under_a_config_of_transformers_are_refused(tmp_path):
    """Code of their own has timm's tensors too, and another function."""
    named = saved(awake(activation="gelu"), tmp_path / "m")
    (named(PLAIN) / "config.json").write_text(json.dumps({"model_type": "radio"}))
    with pytest.raises(FormatError) as caught:
        vitreous.load(tmp_path / "m", heads=2)
    line_of(caught.value, tmp_path / "m", "radio", "architecture=")
