"""Does every ViT and BiT name of timm run here as it runs there, or is it refused?   python benchmarks/timm_names.py

Each name is built small, with and without a head, every weight drawn at random; saved as timm's hub saves it; loaded by
us. In float64 the two answers agree, the folder is refused, or they differ, which must never happen. What we load we
save for timm again, which must give the same answers there and the same bits here, or be refused. A name that cannot be
built small is tried with a plain ViT's tensors under its own config, and its row says so.
--table FILE instead writes the table that `vitreous.load` reads: what each name implies that its tensors do not show.
"""

import argparse
import fnmatch
import functools
import json
import multiprocessing
import tempfile
import time
import warnings
import zlib
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load_file
from timm.models import _hub as hub
from timm.models import _registry as registry
from timm.models import eva, resnetv2
from torch import Tensor, nn

MODULES = (
    "vision_transformer",
    "vision_transformer_hybrid",
    "vision_transformer_relpos",
    "vision_transformer_sam",
    "deit",
    "eva",
    "beit",
    "resnetv2",
    "naflexvit",
)
PATTERNS = ("vit*", "deit*", "eva*", "beit*", "flexivit*", "test_vit*", "*dinov3*", "*siglip*", "*clip*")
CLOSE = 1e-9  # of the largest answer, or of 1: in float64 even another eps of a norm shows
CLOSE_ROTARY = {"axial": 1e-6, "mixed": 1e-5}  # timm keeps angles in float32, and mixed ones run in float32 alone
CLASSES = 7

# What our parts build. Every module of a model must be here, or its name is refused by the first reason that fits.
PLAIN = {
    "VisionTransformer VisionTransformerDistilled Sequential Identity Dropout PatchEmbed Conv2d Linear LayerNorm",
    "Block Attention Mlp GELU GELUTanh LayerScale AttentionPoolLatent GluMlp SiLU ReLU QuickGELU RmsNorm SwiGLU",
    "ResPostBlock ModuleList Eva EvaBlock EvaBlockPostNorm EvaAttention AttentionRope RotaryEmbeddingCat",
    "RotaryEmbeddingMixed RotaryEmbeddingDinoV3 Beit VisionTransformerRelPos RelPosBlock ResPostRelPosBlock",
    "RelPosAttention RelPosMlp",
    "HybridEmbed StdConv2dSame GroupNormAct MaxPool2dSame ReLU ResNetStage Bottleneck DownsampleConv ClassifierHead",
    "SelectAdaptivePool2d ResNetV2 StdConv2d PreActBottleneck ConstantPad2d MaxPool2d AdaptiveAvgPool2d Flatten",
}
BUILT = {word for line in PLAIN for word in line.split()}
REASONS = {  # by a word in the name of a module's class
    "Parallel": "attention and MLP side by side are",
    "DiffAttention": "differential attention is",
    "Evo": "EvoNorm is",
    "FilterResponse": "filter response norm is",
    "SAM": "attention in windows with relative positions is",
    "MbConv": "convolutional stages before the blocks are",
    "NaFlex": "patches of any number and shape are",
    "MobileNet": "a MobileNet is",
    "ConvNeXt": "a ConvNeXt is",
    "RegNet": "a RegNet is",
    "ByobNet": "a ResNet with attention at its end is",
    "BatchNorm": "batch norm in a ResNet or a convolutional stem is",
    "DownsampleAvg": "a ResNet's shortcut by average pooling is",
}
ROTARY_ARGUMENTS = (
    "use_rot_pos_emb", "rope_type", "rope_temperature", "rope_rotate_half", "rope_grid_indexing", "rope_grid_offset",
    "ref_feat_shape", "use_abs_pos_emb",
)  # fmt: skip


def names() -> list[str]:
    def is_ours(name: str) -> bool:
        return registry._model_to_module[name] in MODULES or any(fnmatch.fnmatch(name, p) for p in PATTERNS)

    return [name for name in timm.list_models() if is_ours(name)]


# The table


def facts(model: nn.Module) -> dict[str, Any] | str:
    """What a model's name implies and its tensors do not show; or why we do not run it."""
    found = look_inside(model)
    return f"{found} not built here" if isinstance(found, str) else found


def look_inside(model: nn.Module) -> dict[str, Any] | str:
    kinds = sorted({type(module).__name__ for module in model.modules()})
    for word, reason in REASONS.items():
        if any(word in kind for kind in kinds):
            return reason
    strange = [kind for kind in kinds if kind not in BUILT]
    if strange:
        return f"timm's {strange[0]} is"
    kind = type(model).__name__
    if kind == "ResNetV2":
        is_bit = "StdConv2d" in kinds and "ConstantPad2d" in kinds
        return {"family": "bit"} if is_bit else "a ResNet other than BiT is"
    families = {"VisionTransformerDistilled": "distilled", "Eva": "eva", "Beit": "beit"}
    families |= {"VisionTransformerRelPos": "relpos"}
    (eps,) = {module.eps for module in model.modules() if type(module).__name__ in ("LayerNorm", "RmsNorm")}
    heads, first = model.blocks[0].attn.num_heads, type(model.blocks[0]).__name__
    found = {
        "family": families.get(kind, "vit"),
        "activation": activation(model.blocks[0].mlp),
        "norm_eps": eps,
        "pool": model.global_pool,
        "no_embed_class": getattr(model, "no_embed_class", False),
        "size": f"{model.embed_dim}/{heads}",
    }
    pool = getattr(model, "attn_pool", None)
    reads_all = getattr(model, "pool_include_prefix", False) or (kind == "Eva" and pool is not None)
    found |= {"norm": "branch"} if "Post" in first else {}
    found |= {"pool_tokens": "all"} if reads_all and model.num_prefix_tokens else {}
    found |= {"pool_heads": pool.num_heads} if pool is not None and pool.num_heads != heads else {}
    every = getattr(model, "given", {})
    given = {name: every[name] for name in ROTARY_ARGUMENTS if name in every}
    return found | ({"arguments": given} if given.get("use_rot_pos_emb") else {})


def activation(mlp: nn.Module) -> str:
    kinds = {"GELU": "gelu", "GELUTanh": "gelu-tanh", "QuickGELU": "quick-gelu", "SiLU": "silu", "ReLU": "relu"}
    return "swiglu" if type(mlp).__name__ in ("GluMlp", "SwiGLU") else kinds[type(mlp.act).__name__]


def keep_arguments(kind: type[nn.Module]) -> None:
    """Every new model of this class remembers its arguments as `given`."""
    make = kind.__init__

    @functools.wraps(make)
    def init(self: nn.Module, *args: Any, **given: Any) -> None:
        make(self, *args, **given)
        self.given = given

    kind.__init__ = init


keep_arguments(eva.Eva)


def on_meta(name: str) -> nn.Module:
    """A name's model without memory; of one block where it takes a depth, since all are alike."""
    with torch.device("meta"):
        try:
            return timm.create_model(name, depth=1)
        except (TypeError, ValueError, AssertionError):
            return timm.create_model(name)


def table() -> dict[str, Any]:
    """Names by what they imply, then by width and heads; refused ones by reason; old names by their new ones."""
    runs: dict[str, dict[str, list[str]]] = {}
    refused: dict[str, list[str]] = {}
    for name in names():
        found = facts(on_meta(name))
        if isinstance(found, str):
            refused.setdefault(found, []).append(name)
        else:
            size = found.pop("size", "")
            runs.setdefault(json.dumps(found), {}).setdefault(size, []).append(name)
    known = {name for sizes in runs.values() for some in sizes.values() for name in some}
    renamed = {old: new.split(".")[0] for old, new in sorted(registry._deprecated_models.items()) if new}
    return {
        "timm": timm.__version__,
        "runs": [{**json.loads(implied), "names": on_lines(sizes)} for implied, sizes in runs.items()],
        "renamed": {old: new for old, new in renamed.items() if new in known},
        "refused": on_lines(refused),
    }


def on_lines(lists: dict[str, list[str]]) -> dict[str, str]:
    return {key: " ".join(some) for key, some in lists.items()}


# The comparison


@functools.cache
def small_builds(name: str) -> list[dict[str, Any]]:
    """Overrides that make a name small, the best first."""
    if name.endswith("_bit"):
        return [{"layers": [1, 1, 1, 1], "width_factor": 1}]
    model = on_meta(name)
    stride = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    side = 4 * stride[0] if isinstance(stride, tuple) and stride[0] > 7 else 64
    tiny = {"embed_dim": 96, "depth": 2, "num_heads": 4}  # a width whose gated MLPs have an even number of columns
    shared = {"num_kv_heads": 2} if "sapiens2" in name else {}  # heads that share keys and values, in every block
    return [{**tiny, **shared, "img_size": side}, {**tiny, **shared}, {"depth": 2}]


def build(name: str, classes: int) -> tuple[nn.Module, dict[str, Any]]:
    """A small model of this name, and the overrides that made it so."""
    # A BiT's name fixes layers and width itself; the function that it calls takes others.
    make = functools.partial(resnetv2._create_resnetv2_bit if name.endswith("_bit") else timm.create_model, name)
    for args in small_builds(name):
        try:
            return make(num_classes=classes, **args).eval(), args
        except (TypeError, AssertionError, ValueError, RuntimeError, AttributeError):
            continue
    raise LookupError(name)


@torch.no_grad()
def scramble(model: nn.Module, seed: int) -> None:
    """No number stays what it was: a zero or a one would hide a part."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in model.parameters():
        noise = 0.1 * torch.randn(tensor.shape, generator=generator)
        tensor.copy_(noise if tensor.dim() > 1 else noise + (0 if tensor.abs().sum() == 0 else 0.7))
    for name, tensor in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            tensor.copy_(1 + 0.1 * torch.rand(tensor.shape, generator=generator))


@torch.inference_mode()
def compare(name: str, classes: int) -> dict[str, Any]:
    """One row of the result."""
    import vitreous

    seed, note = zlib.crc32(name.encode()), {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            theirs, args = build(name, classes)
        except LookupError:
            note = {"tensors": "a plain ViT's"}
            theirs, args = build("vit_base_patch16_224", classes)
            theirs.pretrained_cfg = {**on_meta(name).pretrained_cfg, "architecture": name}
        scramble(theirs, seed)
        hub.save_for_hf(theirs, folder, model_args=args, safe_serialization=True)
        try:
            ours = vitreous.load(folder)
        except vitreous.errors.VitreousError as error:
            return {"verdict": "refused", "why": str(error).replace(folder, "FOLDER"), **note}
        back = saved(ours, Path(folder) / "back")
        sides = (64, 64) if name.endswith("_bit") else ours.config.image_size  # a BiT takes any
        size = (2, ours.config.channels, *sides)
        images = torch.randn(size, generator=torch.Generator().manual_seed(seed))
        rotary = ours.config.rotation.rotary if ours.config.family == "vit" else "none"
        if rotary != "mixed":
            images, ours, theirs = images.double(), ours.double(), theirs.double()
        want, close = theirs(images), CLOSE_ROTARY.get(rotary, CLOSE)
        row = {**verdict(ours(images), want, close), **note}
        if isinstance(back, str):
            return {**row, "saved": "refused", "why not": back}
        again = verdict(back.to(images.dtype)(images), want, close)
        return {**row, "saved": again["verdict"]}


def saved(model: nn.Module, folder: Path) -> nn.Module | str:
    """timm's model of what we write, or why we do not write it; read here again, every bit is the same."""
    import vitreous

    try:
        vitreous.save(model, folder, format="timm")
    except vitreous.errors.FormatError as error:
        return str(error)
    (folder / "vitreous.json").unlink(missing_ok=True)
    again = vitreous.load(folder).state_dict()
    state = model.state_dict()
    assert state.keys() == again.keys()
    assert all(torch.equal(state[name], again[name]) for name in state)
    said = json.loads((folder / "config.json").read_text())
    if said["architecture"] not in timm.list_models():
        return f"{said['architecture']} is a name of ours: timm has none for these sizes"
    if said["architecture"].endswith("_bit"):
        args = {"layers": list(model.config.resnet.units), "width_factor": 1}
        theirs = resnetv2._create_resnetv2_bit(said["architecture"], num_classes=said["num_classes"], **args)
    else:
        try:
            theirs = timm.create_model(said["architecture"], num_classes=said["num_classes"], **said["model_args"])
        except TypeError as error:  # we write for the timm whose table of names we have
            return f"timm {timm.__version__} is older than what we write for: {error}"
    theirs.load_state_dict(load_file(folder / "model.safetensors"))
    return theirs.eval()


def verdict(ours: Tensor, theirs: Tensor, close: float) -> dict[str, Any]:
    if ours.shape != theirs.shape:
        return {"verdict": "differ", "why": f"{tuple(ours.shape)} here, {tuple(theirs.shape)} there"}
    largest = (ours - theirs).abs().max().item()
    is_close = largest <= close * max(1.0, theirs.abs().max().item())
    return {"verdict": "agree" if is_close else "differ", "difference": float(f"{largest:.1e}")}


def compared(name: str) -> dict[str, Any]:
    """The rows of one name, with a head and without."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    return {f"{k} classes": compare(name, k) for k in (CLASSES, 0)}


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, help="write the table of names here, and compare nothing")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="*", help="names of this pattern alone")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the names")
    args = parser.parse_args()
    if args.table:
        args.table.write_text(json.dumps(table(), indent=1) + "\n", encoding="utf-8")
        return
    from vitreous.machine import record

    begun, machine, wanted = time.perf_counter(), record(), fnmatch.filter(names(), args.only)
    with ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn")) as processes:
        rows = dict(zip(wanted, processes.map(compared, wanted), strict=True))
    every = [row for name in rows.values() for row in name.values()]
    counts = {word: sum(row["verdict"] == word for row in every) for word in ("agree", "refused", "differ")}
    written = {
        f"saved, {word}": sum(row.get("saved") == word for row in every) for word in ("agree", "refused", "differ")
    }
    agreeing = [row["difference"] for row in every if row["verdict"] == "agree"]
    result = {
        "counts": {
            "names": len(rows),
            "loads": len(every),
            **counts,
            **written,
            "refused, with a plain ViT's tensors": sum("tensors" in row for row in every),
        },
        "largest difference of those that agree": max(agreeing, default=0.0),
        "seconds": round(time.perf_counter() - begun),
        "timm": timm.__version__,
        "machine": machine,
        "names": rows,
    }
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    wrong = {n: r for n, r in rows.items() if any("differ" in (row["verdict"], row.get("saved")) for row in r.values())}
    print(json.dumps({**result, "names": wrong}))


if __name__ == "__main__":
    main()
