"""The other libraries themselves, beside us in one process: the same logits from the same weights, both ways.

transformers is in the dev environment. timm and torchvision run where they are installed (on a machine with a GPU).
"""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import vitreous
from vitreous.errors import VitreousError
from vitreous.weights.timm_names import refused, runs

SQUARE, RECTANGLE = (224, 224), (160, 224)


def works(name: str) -> bool:
    if importlib.util.find_spec(name) is None:
        return False
    try:
        importlib.import_module(name)
    except (ImportError, RuntimeError):  # a torchvision that does not fit its torch
        return False
    return True


needs_transformers = pytest.mark.skipif(not works("transformers"), reason="transformers is not installed")
needs_torchvision = pytest.mark.skipif(
    not works("torchvision"), reason="torchvision is not installed, or does not fit torch"
)
needs_timm = pytest.mark.skipif(not works("timm"), reason="timm is not installed")


def scrambled(model: nn.Module) -> nn.Module:
    """Weights of which none is zero or one by accident."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def images(size, batch=2):
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(1))


def agree(ours, theirs, size):
    with torch.inference_mode():
        x = images(size)
        want = theirs(x)
        assert_close(ours(x), want, atol=2e-5 * max(1.0, want.abs().max().item()), rtol=0)


# transformers


def small(**changes):
    return {
        "hidden_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 200,
        "num_labels": 7,
        **changes,
    }


def hugging(kind: str, task: str, **changes):
    import transformers

    config = getattr(transformers, f"{kind}Config")(**changes)
    return scrambled(getattr(transformers, f"{kind}{task}")(config))


@needs_transformers
@pytest.mark.parametrize("size", [SQUARE, RECTANGLE])
def test_transformers_b16(tmp_path, size):
    """The whole ViT-B/16, at its own size and, positions resized as transformers does, at another shape."""
    theirs = hugging("ViT", "ForImageClassification", num_labels=1000, id2label={i: str(i) for i in range(1000)})
    theirs.save_pretrained(tmp_path / "b16")
    ours = vitreous.load(tmp_path / "b16", dynamic_image_size=True)
    assert sum(p.numel() for p in ours.parameters()) == 86_567_656
    assert (ours.config.encoder.activation, ours.config.encoder.norm_eps) == ("gelu", 1e-12)
    agree(ours, lambda x: theirs(x, interpolate_pos_encoding=True).logits, size)


CASES = {
    "vit": ("ViT", "ForImageClassification", small(hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-6)),
    "no-bias": ("ViT", "ForImageClassification", small(qkv_bias=False)),
    "rectangle": ("ViT", "ForImageClassification", small(image_size=[160, 224])),
    "deit": ("DeiT", "ForImageClassification", small()),
    "deit-teacher": ("DeiT", "ForImageClassificationWithTeacher", small()),
    "dinov2": ("Dinov2", "ForImageClassification", small(image_size=112, patch_size=14, mlp_ratio=2)),
    "dinov2-gated": ("Dinov2", "ForImageClassification", small(image_size=112, patch_size=14, use_swiglu_ffn=True)),
    "registers": (
        "Dinov2WithRegisters",
        "ForImageClassification",
        small(image_size=112, patch_size=14, num_register_tokens=4),
    ),
    "bare": ("ViT", "Model", small()),
    "msn": ("ViTMSN", "ForImageClassification", small()),
}


@needs_transformers
@pytest.mark.parametrize("case", CASES)
def test_transformers_reads_what_we_write_and_we_what_it_writes(tmp_path, case):
    """Its file -> our logits are its logits; our file -> its logits are ours; and its in-memory names are read too."""
    import transformers

    kind, task, changes = CASES[case]
    theirs = hugging(kind, task, **changes)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = vitreous.load(tmp_path / "theirs")

    def answer(model):
        return lambda x: out.logits if hasattr(out := model(x), "logits") else out.pooler_output

    agree(ours, answer(theirs), ours.config.image_size)
    vitreous.save(ours, tmp_path / "ours", format="huggingface")
    kind = "ViT" if kind == "ViTMSN" else kind  # the same function, which we write by its plain name
    again = getattr(transformers, kind + task).from_pretrained(tmp_path / "ours").eval()
    agree(ours, answer(again), ours.config.image_size)
    assert all(
        torch.equal(a, b) for a, b in zip(theirs.state_dict().values(), again.state_dict().values(), strict=True)
    )
    torch.save(theirs.state_dict(), tmp_path / "bare.pth")
    encoder = ours.config.encoder
    said = {"heads": encoder.heads, "norm_eps": encoder.norm_eps, "image_size": ours.config.image_size}
    gated = encoder.activation == "swiglu"
    bare = vitreous.load(tmp_path / "bare.pth", **said, **({} if gated else {"activation": encoder.activation}))
    agree(bare, answer(theirs), ours.config.image_size)


@needs_transformers
@pytest.mark.parametrize(
    ("kind", "task"),
    [("DPT", "Model")],
)
def test_a_model_of_transformers_with_another_function_is_refused(tmp_path, kind, task):
    """Some have a ViT's tensors, name by name: what they are is in the config alone."""
    tiny = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    theirs = hugging(kind, task, **tiny, image_size=32, patch_size=8)
    theirs.save_pretrained(tmp_path / "theirs")
    with pytest.raises(VitreousError, match=theirs.config.model_type):
        vitreous.load(tmp_path / "theirs")


# timm


def names_of_timm():
    """The script that compares every name of timm's."""
    path = Path(__file__).parents[2] / "benchmarks" / "timm_names.py"
    spec = importlib.util.spec_from_file_location("timm_names_script", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def one_of_each() -> list[str]:
    """A name of each kind that runs, of each reason that refuses, and those that once ran as another function."""
    kinds = {(k.family, k.activation, k.norm_eps, k.pool, k.no_embed_class): name for name, k in runs().items()}
    once = ["vit_small_patch16_rope_224", "vit_small_patch16_dinov3", "vit_pe_core_tiny_patch16_384", "test_vit3"]
    by_reason = {why: name for name, why in refused().items()}
    return [*kinds.values(), *by_reason.values(), *once]


@needs_timm
def test_no_kind_of_timms_names_answers_something_else():
    script = names_of_timm()
    there = set(script.names())
    for name in [name for name in one_of_each() if name in there]:
        for classes in (0, 7):
            assert script.compare(name, classes)["verdict"] != "differ", name


@needs_timm
@pytest.mark.slow
def test_every_name_of_timm_agrees_or_is_refused():
    script = names_of_timm()
    found = {(name, k): script.compare(name, k)["verdict"] for name in script.names() for k in (0, 7)}
    assert [at for at, verdict in found.items() if verdict == "differ"] == []
    ours = [name for name in script.names() if name in runs()]
    assert [name for name in ours if found[name, 7] != "agree"] == []


@needs_timm
@pytest.mark.slow
def test_the_table_of_names_is_what_timms_own_models_say():
    script, ours = names_of_timm(), {**runs(), **refused()}
    for name in script.names():
        if name in ours:
            found = script.facts(script.on_meta(name))
            if isinstance(found, dict):
                size = found.pop("size", "None/None")
                known = vars(runs()[name])
                assert {k: known[k] for k in found} == found, name
                assert f"{known['width']}/{known['heads']}" == size, name
            else:
                assert name in refused(), name


TIMM = {
    "b16": ("vit_base_patch16_224", {}, SQUARE),
    "b16-rectangle": ("vit_base_patch16_224", {"img_size": RECTANGLE}, RECTANGLE),
    "s16-average": ("vit_small_patch16_224", {"global_pool": "avg", "class_token": False}, SQUARE),
    "s16-average-norm-first": (
        "vit_small_patch16_224",
        {"global_pool": "avg", "fc_norm": False, "img_size": RECTANGLE},
        RECTANGLE,
    ),
    "s16-registers": ("vit_small_patch16_224", {"reg_tokens": 4}, SQUARE),
    "s16-registers-rectangle": (
        "vit_small_patch16_224",
        {"reg_tokens": 4, "no_embed_class": True, "img_size": RECTANGLE},
        RECTANGLE,
    ),
    "s16-map": ("vit_small_patch16_224", {"global_pool": "map", "class_token": False}, SQUARE),
    "s16-gelu-tanh": ("vit_small_patch16_224", {"act_layer": "gelu_tanh"}, SQUARE),
    "deit-distilled": ("deit_tiny_distilled_patch16_224", {}, SQUARE),
    "deit3": ("deit3_small_patch16_224", {}, SQUARE),
    "dinov2": ("vit_small_patch14_reg4_dinov2", {"img_size": 112, "num_classes": 9}, (112, 112)),
    "hybrid": ("vit_base_r50_s16_224", {}, SQUARE),
    "hybrid-root-only": ("vit_tiny_r_s16_p8_224", {}, SQUARE),
    "hybrid-32": ("vit_small_r26_s32_224", {}, SQUARE),
    "bit-r50x1": ("resnetv2_50x1_bit", {"num_classes": 1000}, SQUARE),
    "bit-r50x1-rectangle": ("resnetv2_50x1_bit", {"num_classes": 1000}, RECTANGLE),
}


@needs_timm
@pytest.mark.parametrize("case", TIMM)
def test_timm_reads_what_we_write_and_we_what_it_writes(tmp_path, case):
    import timm

    name, changes, size = TIMM[case]
    theirs = scrambled(timm.create_model(name, **changes))
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    said = {"activation": "gelu-tanh"} if changes.get("act_layer") else {}
    ours = vitreous.load(tmp_path / "theirs.pth", image_size=size, **said)
    if (
        changes.get("global_pool") == "avg" and changes.get("fc_norm") is False
    ):  # no tensor tells this from a class token
        config = ours.config.change(pool="gap", class_token=True)
        ours = vitreous.weights.load_model.assemble(config, ours.state_dict())
    agree(ours.eval(), theirs, size)
    vitreous.save(ours, tmp_path / "ours", format="timm")
    again = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True).eval()
    agree(ours, again, size)


@needs_timm
def test_positions_move_to_another_size_as_timm_moves_them(tmp_path):
    import timm

    theirs = scrambled(timm.create_model("vit_small_patch16_224"))
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    theirs.set_input_size(img_size=RECTANGLE)
    agree(vitreous.load(tmp_path / "theirs.pth", image_size=RECTANGLE, position_resize="timm"), theirs, RECTANGLE)
    agree(vitreous.load(tmp_path / "theirs.pth", dynamic_image_size=True), theirs, RECTANGLE)


# torchvision


@needs_torchvision
@pytest.mark.parametrize(("maker", "size"), [("vit_b_16", 224), ("vit_b_32", 160)])
def test_torchvision_reads_what_we_write_and_we_what_it_writes(tmp_path, maker, size):
    import torchvision

    theirs = scrambled(getattr(torchvision.models, maker)(image_size=size))
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    ours = vitreous.load(tmp_path / "theirs.pth")
    agree(ours, theirs, (size, size))
    vitreous.save(ours, tmp_path / "ours.pth", format="torchvision")
    theirs.load_state_dict(torch.load(tmp_path / "ours.pth", weights_only=True), strict=True)
    agree(ours, theirs, (size, size))
