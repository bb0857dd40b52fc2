"""Does every vision transformer of transformers run here as it runs there?   python benchmarks/huggingface_classes.py

Each class is built small, every weight drawn at random; saved by transformers; loaded by us. Its answer (logits, pooled
vector or projected embedding) and its last hidden state agree with ours, or the folder is refused with the reason; they
never differ. What loads is saved again for transformers, which reads the same bits and gives the same answer.
"""

import argparse
import functools
import json
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

CLOSE = 1e-5  # of the largest answer, or of 1, in float32
CLOSE_IN_DOUBLE = 1e-7  # in float64, where another eps of a norm shows; angles and tables are computed in float32
CLASSES = 7
SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
IMAGES = {"image_size": 48, "patch_size": 12}
SMALL = {**SIZES, **IMAGES}
TEXT = {**SIZES, "vocab_size": 99, "max_position_embeddings": 16}
TOWERS = {"text_config": TEXT, "vision_config": SMALL}
Answer = Callable[[Any], Tensor]  # of what a class of transformers returns


def logits(out: Any) -> Tensor:
    return out.logits


def pooled(out: Any) -> Tensor:
    return out.pooler_output


def projected(out: Any) -> Tensor:
    return out.image_embeds


def class_token(out: Any) -> Tensor:
    return out.last_hidden_state[:, 0]


def mean_of_patches(out: Any) -> Tensor:
    return out.last_hidden_state.mean(1)


def mean_behind_class_token(out: Any) -> Tensor:
    return out.last_hidden_state[:, 1:].mean(1)


def all_patches(theirs: nn.Module) -> Callable[[Tensor], Any]:
    """An MAE that hides nothing, its patches in order."""
    theirs.config.mask_ratio = 0.0
    order = torch.arange(16.0)
    return lambda x: theirs(x, noise=order.expand(len(x), -1))


def of_images(theirs: nn.Module) -> Callable[[Tensor], Any]:
    """The image side of a model of text and images."""
    return lambda x: theirs.get_image_features(x)


@dataclass(frozen=True)
class Case:
    """A class of transformers with one config."""

    title: str  # of the class
    config: str  # of the config's class
    changes: dict[str, Any]
    answer: Answer
    hidden: str = "norm"  # our tap that is their last hidden state; empty: their answer holds none
    run: Callable[[nn.Module], Callable[[Tensor], Any]] = lambda theirs: theirs
    family: str = ""  # as docs call it


def classifier(title: str, config: str = "", **changes: Any) -> Case:
    task = changes.pop("task", "ForImageClassification")
    sizes = SMALL | {"num_labels": CLASSES} | changes
    return Case(f"{title}{task}", config or f"{title}Config", sizes, logits, "", family=title)


def bare(title: str, answer: Answer, hidden: str = "norm", config: str = "", **changes: Any) -> Case:
    run = all_patches if title.startswith("ViTMAE") else (lambda theirs: theirs)
    return Case(title, config or f"{title.removesuffix('Model')}Config", SMALL | changes, answer, hidden, run, title)


LAST_BLOCK = "blocks.2.output"
SHARED_TABLE = {"use_shared_relative_position_bias": True}
GATED = {"use_swiglu_ffn": True}
CASES = {
    "ViT, classifier": classifier("ViT"),
    "ViT, classifier, no q k v bias, tanh GELU": classifier("ViT", qkv_bias=False, hidden_act="gelu_pytorch_tanh"),
    "ViT, classifier, ReLU, eps 1e-3, rectangle": classifier(
        "ViT", hidden_act="relu", layer_norm_eps=1e-3, image_size=[24, 48]
    ),
    "ViT, encoder": bare("ViTModel", pooled),
    "ViT, masked image modelling": Case(
        "ViTForMaskedImageModeling", "ViTConfig", SMALL, class_token, run=lambda theirs: theirs.vit
    ),
    "DeiT, classifier": classifier("DeiT"),
    "DeiT, classifier with teacher": classifier("DeiT", task="ForImageClassificationWithTeacher"),
    "DeiT, encoder": bare("DeiTModel", pooled),
    "ViT-MSN, classifier": classifier("ViTMSN"),
    "ViT-MSN, encoder": bare("ViTMSNModel", class_token),
    "ViT-MAE, encoder": bare("ViTMAEModel", class_token),
    "ViT-MAE, with decoder": Case(
        "ViTMAEForPreTraining", "ViTMAEConfig",
        SMALL | {f"decoder_{name}": value for name, value in SIZES.items()},
        class_token, run=lambda theirs: all_patches(theirs.vit),
    ),
    "I-JEPA, encoder": bare("IJepaModel", mean_of_patches),
    "I-JEPA, classifier": classifier("IJepa"),
    "DINOv2, encoder": bare("Dinov2Model", pooled),
    "DINOv2, classifier": classifier("Dinov2"),
    "DINOv2, classifier, gated MLP": classifier("Dinov2", **GATED),
    "DINOv2 with registers, encoder": bare("Dinov2WithRegistersModel", pooled),
    "DINOv2 with registers, classifier, gated MLP": classifier("Dinov2WithRegisters", **GATED),
    "CLIP, vision tower": bare("CLIPVisionModel", pooled, LAST_BLOCK),
    "CLIP, vision tower, GELU": bare("CLIPVisionModel", pooled, LAST_BLOCK, hidden_act="gelu"),
    "CLIP, vision tower with projection": bare(
        "CLIPVisionModelWithProjection", projected, LAST_BLOCK, "CLIPVisionConfig", projection_dim=24
    ),
    "CLIP, text and images": Case(
        "CLIPModel", "CLIPConfig", {**TOWERS, "projection_dim": 24}, pooled, LAST_BLOCK, run=of_images
    ),
    "CLIP, classifier": Case("CLIPForImageClassification", "CLIPConfig", {**TOWERS, "num_labels": CLASSES}, logits, ""),
    "SigLIP, vision tower": bare("SiglipVisionModel", pooled),
    "SigLIP, vision tower without head": bare(
        "SiglipVisionModel", mean_of_patches, vision_use_head=False
    ),
    "SigLIP, text and images": Case("SiglipModel", "SiglipConfig", TOWERS, pooled, "norm", run=of_images),
    "SigLIP, classifier": Case(
        "SiglipForImageClassification", "SiglipConfig", {**TOWERS, "num_labels": CLASSES}, logits, ""
    ),
    "DINOv3, encoder": bare("DINOv3ViTModel", pooled),
    "DINOv3, encoder, 4 registers, gated MLP": bare(
        "DINOv3ViTModel", pooled, use_gated_mlp=True, hidden_act="silu", num_register_tokens=4, key_bias=True
    ),
    "DINOv3, encoder, rectangle, no biases": bare(
        "DINOv3ViTModel", pooled, image_size=[48, 24], rope_theta=50.0, query_bias=False, value_bias=False,
        proj_bias=False, mlp_bias=False,
    ),
    "BEiT, encoder": bare("BeitModel", pooled, LAST_BLOCK, use_relative_position_bias=True),
    "BEiT, encoder, class token, shared table": bare(
        "BeitModel", pooled, use_mean_pooling=False, use_shared_relative_position_bias=True
    ),
    "BEiT, classifier": classifier("Beit", use_relative_position_bias=True),
    "BEiT, classifier, both tables, learned positions, no gains": classifier(
        "Beit", use_relative_position_bias=True, use_shared_relative_position_bias=True,
        use_absolute_position_embeddings=True, layer_scale_init_value=0.0, use_mean_pooling=False,
    ),
    "BEiT, masked image modelling": Case(
        "BeitForMaskedImageModeling", "BeitConfig", SMALL | {"use_relative_position_bias": True, "vocab_size": 9},
        lambda out: out[:, 1:].mean(1), "", run=lambda theirs: lambda x: theirs.layernorm(theirs.beit(x)[0]),
    ),
    "Data2Vec, encoder": bare("Data2VecVisionModel", mean_behind_class_token, LAST_BLOCK, **SHARED_TABLE),
    "Data2Vec, classifier": classifier("Data2VecVision", **SHARED_TABLE),
}  # fmt: skip

VIDEO = SIZES | {"image_size": 32, "num_frames": 2}
REFUSED = {
    "CLIP, text tower": ("CLIPTextModel", "CLIPTextConfig", TEXT),
    "SigLIP, text tower": ("SiglipTextModel", "SiglipTextConfig", TEXT),
    "SigLIP 2, NaFlex": ("Siglip2VisionModel", "Siglip2VisionConfig", {**SIZES, "patch_size": 12, "num_patches": 16}),
    "SigLIP 2, NaFlex, text and images": (
        "Siglip2Model", "Siglip2Config",
        {"text_config": TEXT, "vision_config": {**SIZES, "patch_size": 12, "num_patches": 16}},
    ),
    "BEiT, segmentation": (
        "BeitForSemanticSegmentation", "BeitConfig", SMALL | {"num_hidden_layers": 4, "out_indices": [0, 1, 2, 3]}
    ),
    "DINOv3, MLP gated by GELU": ("DINOv3ViTModel", "DINOv3ViTConfig", SMALL | {"use_gated_mlp": True}),
    "YOLOS, detection": ("YolosModel", "YolosConfig", SMALL | {"image_size": [48, 48], "num_detection_tokens": 5}),
    "DPT, depth": ("DPTModel", "DPTConfig", SMALL | {"backbone_out_indices": [0, 1, 2], "is_hybrid": False}),
    "ViViT, video": ("VivitModel", "VivitConfig", VIDEO | {"tubelet_size": [2, 16, 16]}),
    "VideoMAE, video": ("VideoMAEModel", "VideoMAEConfig", VIDEO | {"patch_size": 16}),
    "TimeSformer, video": ("TimesformerModel", "TimesformerConfig", VIDEO | {"patch_size": 16}),
    "OWL-ViT, detection": (
        "OwlViTModel", "OwlViTConfig", {"text_config": TEXT, "vision_config": SMALL, "projection_dim": 16}
    ),
    "CLIPSeg, segmentation": (
        "CLIPSegModel", "CLIPSegConfig", {"text_config": TEXT, "vision_config": SMALL, "projection_dim": 16}
    ),
    "Swin": ("SwinModel", "SwinConfig", {"image_size": 32, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2]}),
}  # fmt: skip


def build(title: str, config: str, changes: dict[str, Any]) -> nn.Module:
    """A model of transformers in which no number stays what it was: a zero or a one would hide a part."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = getattr(transformers, title)(getattr(transformers, config)(**changes)).eval()
    generator = torch.Generator().manual_seed(zlib.crc32(title.encode()))
    with torch.no_grad():
        for tensor in model.parameters():
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.copy_(0.1 * noise if tensor.dim() > 1 else 0.1 * noise + (0 if tensor.abs().sum() == 0 else 0.7))
    return model


def images(model: Any) -> Tensor:
    shape = (2, model.config.channels, *model.config.image_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def largest(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, as a share of the largest answer or of 1; infinite if the shapes differ."""
    if ours.shape != theirs.shape:
        return float("inf")
    return ((ours - theirs).abs().max() / max(1.0, theirs.abs().max().item())).item()


def differences(ours: Any, theirs: nn.Module, case: Case) -> dict[str, float]:
    """How far the answers and the last hidden states are apart, in float32 and in float64."""
    import vitreous

    found: dict[str, float] = {}
    for dtype, word in ((torch.float32, "float32"), (torch.float64, "float64")):
        ours, theirs = ours.to(dtype), theirs.to(dtype)
        x = images(ours).to(dtype)
        with torch.inference_mode():
            out = case.run(theirs)(x)
            with vitreous.taps(ours, [case.hidden or LAST_BLOCK]) as seen:
                found[word] = largest(ours(x), case.answer(out))
            if case.hidden:
                found[word] = max(found[word], largest(seen[case.hidden], out.last_hidden_state))
    ours.float(), theirs.float()
    return found


def is_close(found: dict[str, float]) -> bool:
    return found["float32"] <= CLOSE and found["float64"] <= CLOSE_IN_DOUBLE


def same_bits(one: nn.Module, other: nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def compare(name: str) -> dict[str, Any]:
    """One row of the result."""
    import transformers

    import vitreous

    case = CASES[name]
    theirs = build(case.title, case.config, case.changes)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        theirs.save_pretrained(place / "theirs")
        try:
            ours = vitreous.load(place / "theirs")
        except vitreous.errors.VitreousError as error:
            return {"class": case.title, "verdict": "refused", "why": str(error).replace(folder + "/", "")}
        found = differences(ours, theirs, case)
        row = {"class": case.title, "verdict": "agree" if is_close(found) else "differ", **rounded(found)}
        row |= {"left out": ours.source["left_out"]} if "left_out" in ours.source else {}
        try:
            vitreous.save(ours, place / "ours", format="huggingface")
        except vitreous.errors.VitreousError as error:
            return row | {"saved as": None, "why not saved": str(error)}
        (title,) = json.loads((place / "ours" / "config.json").read_text())["architectures"]
        again, loading = getattr(transformers, title).from_pretrained(place / "ours", output_loading_info=True)
        read_back = vitreous.load(place / "ours")
        plain = Case(title, "", {}, case.answer if case.run is not of_images else answer_of(title), case.hidden)
        back = differences(read_back, again.eval(), plain)
        lost = [*loading["missing_keys"], *loading["unexpected_keys"], *loading["mismatched_keys"]]
        is_whole = title == case.title and "left_out" not in ours.source
        is_same = same_bits(ours, read_back) and (not is_whole or same_bits(theirs, again))
        row |= {"saved as": title, "same bits": is_same, "saved agrees": is_close(back)}
        return row | ({"tensors that it misses": sorted(map(str, lost))} if lost else {})


def answer_of(title: str) -> Answer:
    return projected if title.endswith("WithProjection") else pooled


def rounded(found: dict[str, float]) -> dict[str, float]:
    return {word: float(f"{value:.1e}") for word, value in found.items()}


def refuse(name: str) -> dict[str, Any]:
    """The line that refuses a class with another function."""
    import vitreous

    title, config, changes = REFUSED[name]
    with tempfile.TemporaryDirectory() as folder:
        build(title, config, changes).save_pretrained(folder)
        try:
            vitreous.load(folder)
        except vitreous.errors.VitreousError as error:
            return {"class": title, "verdict": "refused", "why": str(error).replace(folder, "FOLDER")}
    return {"class": title, "verdict": "differ", "why": "it loads, and nothing says that it is the same function"}


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="rows whose name has this word")
    args = parser.parse_args()
    import transformers

    from vitreous.machine import record

    begun, machine = time.perf_counter(), record()
    work: dict[str, Callable[[], dict[str, Any]]] = {name: functools.partial(compare, name) for name in CASES}
    work |= {name: functools.partial(refuse, name) for name in REFUSED}
    rows = {name: do() for name, do in work.items() if args.only in name}
    counts = {word: sum(row["verdict"] == word for row in rows.values()) for word in ("agree", "refused", "differ")}
    result = {
        "counts": {"rows": len(rows), **counts},
        "seconds": round(time.perf_counter() - begun),
        "transformers": transformers.__version__,
        "machine": machine,
        "rows": rows,
    }
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
