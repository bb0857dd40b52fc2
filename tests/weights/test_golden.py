"""Others' checkpoints, run by us: their logits, every activation they recorded, and their files again bit for bit."""

import re

import golden_cases as golden
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import vitreous
from vitreous.errors import FormatError
from vitreous.weights import formats
from vitreous.weights.tensor_files import read

ALL = pytest.mark.parametrize("name", golden.MODELS)


@ALL
def test_logits_are_those_of_the_library_that_wrote_the_file(name):
    model = golden.load(name)
    with torch.inference_mode():
        assert_close(model(golden.images(name)), golden.logits(name), atol=golden.MANIFEST[name]["atol"], rtol=0)


@ALL
def test_every_recorded_activation_is_ours(name):
    """Patch embedding, positions, each block, each attention map, each stage, norm and representation."""
    model, case, recorded = golden.load(name), golden.MANIFEST[name], golden.activations(name)
    atol = case.get("activation_atol", 2e-4 if case["atol"] > 2e-5 else 2e-5)  # convolutions sum more
    with torch.no_grad(), vitreous.taps(model, "**") as seen:
        model(golden.images(name))
    for key, theirs in recorded.items():
        ours = as_recorded(key, seen, model, theirs, name)
        noise = max(atol, 1e-5 * theirs.abs().max().item())  # sums of 75 differ in float32 by more than the tolerance
        assert_close(ours, theirs, atol=noise, rtol=1e-5, msg=lambda m, key=key: f"{key}: {m}")


def as_recorded(key: str, seen: dict[str, Tensor], model, theirs: Tensor, name: str) -> Tensor:
    """Our activation in the layout of the recording."""
    channels_last = golden.MANIFEST[name]["input_layout"] == "NHWC"
    if match := re.fullmatch(r"(block|attention)_(\d+)(_after_attention)?", key):
        kind, i, after = match.groups()
        tap = "residual1" if after else {"block": "output", "attention": "attention.weights"}[kind]
        return seen[f"blocks.{i}.{tap}"]
    if match := re.fullmatch(r"(?:stage_|resnet_block)(\d+)", key):
        tap = f"stages.{match[1]}.output" if key.startswith("stage") else f"stem.stages.{int(match[1]) - 1}.output"
        return maps(seen[tap], channels_last)
    if key == "patch_embedding":
        patches = seen["embedding.patches"]
        if theirs.dim() == 3:
            return patches
        return patches.unflatten(1, model.grid) if channels_last else patches.mT.unflatten(2, model.grid)
    if key == "with_positions":
        tokens = seen["embedding.tokens"]
        return tokens[:, -theirs.shape[1] :]  # big_vision adds positions before the class token is put in front
    if key in ("stem", "backbone"):
        taps = [t for t in seen if re.fullmatch(r"stem\.(root|stages\.\d+\.output)", t)]
        return maps(seen["root"] if key == "stem" else seen[taps[-1]], channels_last)
    if key in ("conv_root", "gn_root"):
        return maps(seen[f"stem.root.{'conv' if key == 'conv_root' else 'norm'}"], channels_last)
    if key == "norm":
        return maps(seen["norm"], channels_last)
    if key in ("cls_logits", "distillation_logits"):
        first, second = seen["representation"].chunk(2, -1)
        return model.head.class_head(first) if key == "cls_logits" else model.head.distillation_head(second)
    if key == "pre_logits_before_tanh":
        return torch.atanh(seen["representation"])
    if key == "head_input":  # big_vision's, before its representation layer
        return seen["norm"].mean(1) if model.config.readout.representation else seen["representation"]
    if key == "pre_logits":
        return seen["pooled"] if "pooled" in seen else seen["representation"]
    if key == "attention_map_head":
        return seen["pool.weights"]
    assert key == "encoder_norm", f"no tap is known for the recorded {key}"
    return seen["norm"]


def maps(x: Tensor, channels_last: bool) -> Tensor:
    return x.permute(0, 2, 3, 1) if channels_last else x


def canonical(name: str, source) -> dict[str, Tensor]:
    """A file's own tensors under its format's canonical names, those that play no part left out."""
    known = formats.get(golden.format_of(name))
    found = read(source)
    tensors = known.draft(
        found, formats.Hints(**{k: v for k, v in golden.hints(name).items() if k != "dynamic_image_size"})
    ).tensors
    return {key: tensor for key, tensor in tensors.items() if not known.ignores(key) or "mask_token" in key}


@ALL
@pytest.mark.parametrize("through", formats.names())
def test_round_trips_end_where_they_began(name, through, tmp_path):
    """A -> B -> A bit for bit. Logits agree to rounding. Where B folds rows (documented), the second trip is equal."""
    home, first = golden.format_of(name), golden.load(name)
    if not holds(through, first, tmp_path / "b"):
        return
    second = vitreous.load(written(tmp_path / "b"), **dynamic(name))
    folds = getattr(second.config, "covered", 0) != getattr(first.config, "covered", 0)
    with torch.inference_mode():
        x = golden.images(name)
        want = first(x)
        assert_close(second(x), want, atol=2e-6 * max(1.0, want.abs().max().item()), rtol=0)
    vitreous.save(second, tmp_path / "a", format=home, anyway=True)
    if not folds:
        before, after = canonical(name, golden.source(name)), canonical(name, written(tmp_path / "a"))
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key].float().flatten(), after[key].flatten()) for key in before)
    else:
        vitreous.save(vitreous.load(written(tmp_path / "a")), tmp_path / "b2", format=through, anyway=True)
        again = vitreous.load(written(tmp_path / "b2"), **dynamic(name))
        assert all(
            torch.equal(t, again.state_dict()[key]) for key, t in second.state_dict().items() if "mask_token" not in key
        )


def holds(through, model, path) -> bool:
    """Whether the format took the model; where not, it says which part it cannot hold."""
    try:
        vitreous.save(model, path, format=through, anyway=True)
    except FormatError as refusal:
        words = str(refusal)
    else:
        return True
    assert re.search(r"cannot hold this model: (\w+=|a BiT)", words), words
    return False


def written(stem):
    return next(p for p in (stem, *stem.parent.glob(stem.name + ".*")) if p.exists() and p.suffix != ".json")


def dynamic(name):
    return {k: v for k, v in golden.hints(name).items() if k == "dynamic_image_size"}
