"""Strangers' files: nothing in them runs, nothing they claim is believed with memory, and each refusal is one line."""

import io
import json
import pickle
import resource
import shutil
import subprocess
import sys
import warnings
import zipfile

import golden_cases as golden
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny_models import VIT, answer, assert_same_answers, assert_same_model, awake, line_of

import vitreous
from vitreous.errors import CheckpointError, FormatError, VitreousError
from vitreous.weights import tensor_files
from vitreous.weights.tensor_files import read_tensors


def refused(path, *words, kind=VitreousError, **said) -> str:
    with pytest.raises(kind) as caught:
        vitreous.load(path, **said)
    return line_of(caught.value, *words)


def arrays(name: str) -> dict[str, np.ndarray]:
    with np.load(golden.source(name)) as file:
        return {key: file[key] for key in file.files}


def tensors(name: str) -> dict[str, torch.Tensor]:
    file = golden.FOLDER / name / golden.MANIFEST[name]["checkpoint"]
    return load_file(file)


def as_npz(path, content: dict[str, bytes], how=zipfile.ZIP_STORED):
    """An npz of raw members."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of two members with one name
        with zipfile.ZipFile(path, "w", how) as file:
            for name, raw in content.items():
                file.writestr(name.rstrip("!") + ".npy", raw)
    return path


def npy(descr="'<f4'", shape="(2,)", data=bytes(8), order="False", version=1, header=None) -> bytes:
    """A raw npy file, as true or as false as wanted."""
    text = header or f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"
    raw = text.encode("latin1").ljust(118) + b"\n"
    length = len(raw).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + raw + data


# Pickles


class Payload:
    """Writes a file when it is unpickled by somebody who runs what he reads."""

    def __init__(self, canary):
        self.canary = str(canary)

    def __reduce__(self):
        return (open, (self.canary, "w"))


@pytest.mark.parametrize("ending", [".pth", ".pt", ".bin"])
@pytest.mark.parametrize("form", ["zip", "old", "plain", "in a wrapper", "protocol 4"])
def test_code_in_a_pickle_does_not_run(form, ending, tmp_path):
    canary, path = tmp_path / "canary", tmp_path / f"evil{ending}"
    payload = {"cls_token": torch.zeros(1, 1, 4), "x": Payload(canary)}
    if form == "plain":
        path.write_bytes(pickle.dumps(payload))
    elif form == "in a wrapper":
        torch.save({"model": {"a": torch.zeros(2)}, "args": Payload(canary)}, path)
    else:
        torch.save(
            payload,
            path,
            _use_new_zipfile_serialization=form != "old",
            pickle_protocol=4 if form == "protocol 4" else 2,
        )
    refused(path, path, "more than tensors", kind=CheckpointError)
    assert not canary.exists()
    with open(canary, "w"):  # the canary sings when it is let out  # noqa: PTH123
        assert canary.exists()


@pytest.mark.parametrize("open_lock", ["ours", "torch's"])
def test_either_of_two_locks_keeps_code_from_running(open_lock, tmp_path, monkeypatch):
    """We go through the pickle before torch reads it, and torch reads tensors alone: each would do by itself."""
    if open_lock == "ours":
        monkeypatch.setattr(tensor_files, "check_pickle", lambda *path, **how: None)
    else:
        trusting = torch.load
        monkeypatch.setattr(torch, "load", lambda path, **how: trusting(path, **how | {"weights_only": False}))
    for is_zip in (True, False):
        canary, path = tmp_path / "canary", tmp_path / "evil.pth"
        torch.save({"a": torch.zeros(2), "x": Payload(canary)}, path, _use_new_zipfile_serialization=is_zip)
        refused(path, path, "more than tensors", kind=CheckpointError)
        assert not canary.exists()


class Claim:
    """A call that torch's own safe reader allows, and that takes any memory."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "claim", [Claim(bytearray, 2**42), Claim(torch.FloatTensor, 2**40), Claim(torch.Tensor, 2**40)]
)
def test_a_pickle_cannot_ask_for_memory(claim, tmp_path):
    torch.save({"a": claim}, tmp_path / "m.pth")
    refused(tmp_path / "m.pth", "m.pth", "more than tensors")


def test_a_tensor_cannot_reach_beyond_its_file(tmp_path):
    """A length that was made larger in the pickle, a view that repeats one number, many views of one tensor."""
    whole = io.BytesIO()
    torch.save({"a": torch.arange(1000, dtype=torch.float32)}, whole)
    with zipfile.ZipFile(whole) as file:
        members = {name: file.read(name) for name in file.namelist()}
    (pickled,) = (name for name in members if name.endswith("data.pkl"))
    thousand = (1000).to_bytes(2, "little")
    assert members[pickled].count(b"M" + thousand) == 2  # the storage's length and the tensor's
    for times, claimed in ((2, 60_000), (1, 60_000)):
        changed = members[pickled].replace(b"M" + thousand, b"M" + claimed.to_bytes(2, "little"), times)
        with zipfile.ZipFile(tmp_path / "long.pth", "w") as file:
            for name, raw in members.items():
                file.writestr(name, changed if name == pickled else raw)
        try:
            found = read_tensors(tmp_path / "long.pth")[0]["a"]
        except CheckpointError as error:
            line_of(error, "long.pth")
        else:
            assert found.numel() == 1000
    torch.save({"a": torch.zeros(1).expand(2**20, 2**20)}, tmp_path / "wide.pth")
    refused(tmp_path / "wide.pth", "wide.pth", "more than the file holds")
    one = torch.zeros(1000)
    torch.save({f"t{i}": one for i in range(1000)}, tmp_path / "many.pth")
    refused(tmp_path / "many.pth", "many.pth", "more than the file holds")
    torch.save({"a": torch.zeros(2**40, device="meta")}, tmp_path / "meta.pth")
    refused(tmp_path / "meta.pth", "meta.pth")
    torch.save({"a": torch.eye(3).to_sparse()}, tmp_path / "sparse.pth")
    refused(tmp_path / "sparse.pth", "sparse.pth")


@pytest.mark.parametrize("old", [False, True])
def test_a_damaged_torch_file_is_refused(old, tmp_path):
    torch.save(tensors("timm_vit_cls"), tmp_path / "m.pth", _use_new_zipfile_serialization=not old)
    whole = (tmp_path / "m.pth").read_bytes()
    for end in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "m.pth").write_bytes(whole[:end])
        refused(tmp_path / "m.pth", "m.pth")
    if not old:  # the zip has sums
        at = whole.index(tensors("timm_vit_cls")["norm.weight"].numpy().tobytes())
        (tmp_path / "m.pth").write_bytes(whole[:at] + b"\0\0" + whole[at + 2 :])
        refused(tmp_path / "m.pth", "damaged")


@pytest.mark.parametrize("content", [[1, 2], {}, {"a": 1}, "words", {"state_dict": {}}])
def test_a_torch_file_without_tensors_says_so(content, tmp_path):
    torch.save(content, tmp_path / "m.pth")
    refused(tmp_path / "m.pth", "m.pth", "state_dict")


# What training scripts wrap around a state dict


@pytest.mark.parametrize("name", ["timm_vit_cls", "hf_vit", "tv_vit"])
@pytest.mark.parametrize("old", [False, True])
def test_wrapped_state_dicts_are_read(name, old, tmp_path):
    said = golden.hints(name) | ({"heads": 4, "norm_eps": 1e-12} if name == "hf_vit" else {})
    said["heads"] = golden.load(name).config.encoder.heads
    want = answer(golden.load(name), golden.images(name))
    plain = tensors(name)
    wraps = [
        plain,
        {"model": plain},
        {"state_dict": plain, "epoch": 3, "best": 0.5, "optimizer": {"lr": [1e-3], "state": {}}},
        {"state_dict": {f"module.{k}": v for k, v in plain.items()}},
        {"model": {"state_dict": {f"_orig_mod.{k}": torch.nn.Parameter(v) for k, v in plain.items()}}},
        {f"module._orig_mod.{k}": v for k, v in plain.items()},
        {f"_orig_mod.module.{k}": v for k, v in plain.items()},
        {k.replace(".0.", ".0._orig_mod."): v for k, v in plain.items()},  # one block compiled
    ]
    wraps += [{word: plain, "epoch": 3} for word in ("model_state_dict", "state_dict_ema", "ema", "net", "student")]
    if name == "timm_vit_cls":
        wraps.append({f"backbone.{k}": v for k, v in plain.items()})
        wraps.append({f"model.{k}": v for k, v in plain.items()})
    for wrapped in wraps:
        torch.save(wrapped, tmp_path / "m.pth", _use_new_zipfile_serialization=not old)
        model = vitreous.load(tmp_path / "m.pth", **said)
        assert_same_answers(answer(model, golden.images(name)), want)


def test_two_tensors_for_one_part_are_refused(tmp_path):
    plain = tensors("timm_vit_cls")
    torch.save({**plain, "module.norm.weight": plain["norm.weight"]}, tmp_path / "m.pth")
    refused(tmp_path / "m.pth", "norm.weight", "module.norm.weight", heads=4)


# npz


NPZ = {
    "objects": ({"cls": npy("'|O'", data=pickle.dumps([1]))}, ["cls", "not numbers"]),
    "objects within": ({"cls": npy("[('a', '|O')]")}, ["cls", "not numbers"]),
    "text": ({"cls": npy("'<U2'")}, ["cls", "not numbers"]),
    "complex": ({"cls": npy("'<c8'", "(1,)")}, ["cls", "not numbers"]),
    "wide floats": ({"cls": npy("'<f16'", "(1,)", bytes(16))}, ["cls", "not numbers"]),
    "unsigned": ({"cls": npy("'<u4'")}, ["cls", "not numbers"]),
    "dates": ({"cls": npy("'<M8[s]'", "(1,)")}, ["cls", "not numbers"]),
    "records": ({"cls": npy("[('a', '<u2')]", "(4,)")}, ["cls", "not numbers"]),
    "rows": ({"cls": npy("'(1,)<i2'", "(4,)")}, ["cls"]),
    "huge": ({"cls": npy(shape="(1099511627776, 1099511627776)")}, ["cls", "claims shape"]),
    "empty and huge": ({"cls": npy(shape=f"(0, {10**40})", data=b"")}, ["npz"]),
    "negative": ({"cls": npy(shape="(-1, -2)")}, ["cls", "claims shape"]),
    "many axes": ({"cls": npy(shape=f"({'1, ' * 200}2)")}, ["cls"]),
    "fraction": ({"cls": npy(shape="(2.0,)")}, ["header", "cls"]),
    "too short": ({"cls": npy(data=bytes(7))}, ["cls"]),
    "too long": ({"cls": npy(data=bytes(9))}, ["cls"]),
    "version": ({"cls": npy(version=9)}, ["cls", "version"]),
    "no magic": ({"cls": b"hello"}, ["npz"]),
    "nothing": ({"cls": b""}, ["npz"]),
    "long header": ({"cls": npy(header="{" + " " * 9000 + "}")}, ["header", "cls"]),
    "no header": ({"cls": npy(header="(((")}, ["header", "cls"]),
    "code": ({"cls": npy(header="__import__('os').abort()")}, ["header", "cls"]),
    "escape": ({"cls": npy(header="{'a': '\\d'}")}, ["header", "cls"]),
    "twice": ({"cls": npy(), "cls!": npy()}, ["cls", "twice"]),
    "a name of two lines": ({"a\nb": npy()}, ["an invalid name"]),
    "no format": ({"cls": npy()}, ["no known format"]),
}


@pytest.mark.parametrize("case", NPZ)
def test_a_strange_npz_is_refused(case, tmp_path):
    content, words = NPZ[case]
    path = as_npz(tmp_path / "m.npz", content)
    refused(path, path, *words, kind=CheckpointError)


def test_an_npz_that_is_no_whole_zip_is_refused(tmp_path):
    whole = golden.source("gvit_cls").read_bytes()
    path = tmp_path / "m.npz"
    for content in (b"", b"PK", b"no zip", whole[:30], whole[: len(whole) // 2], whole[:-1], whole[:-30], whole[50:]):
        path.write_bytes(content)
        refused(path, path, kind=CheckpointError)
    np.savez(path, **arrays("gvit_cls"))
    whole = path.read_bytes()
    at = whole.index(arrays("gvit_cls")["cls"].tobytes())
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])  # the zip's own sum
    refused(path, path, kind=CheckpointError)


def test_bombs_are_refused_before_they_go_off(tmp_path):
    """A zip that grows a thousandfold, members that lie about their length, a stack of blocks of nothing."""
    zeros = bytes(2**20)
    bomb = tmp_path / "bomb.npz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        for i in range(3):
            with file.open(f"x{i}.npy", "w", force_zip64=True) as member:
                member.write(npy(shape=f"({2**26},)", data=b""))
                for _ in range(2**8):
                    member.write(zeros)
    assert bomb.stat().st_size < 2**20
    liar = tmp_path / "liar.npz"
    as_npz(liar, {"x": npy(shape="(67108864,)", data=zeros)}, zipfile.ZIP_DEFLATED)
    raw = liar.read_bytes()
    place = raw.index(b"PK\x01\x02") + 24
    liar.write_bytes(raw[:place] + (2**28 - 2**20).to_bytes(4, "little") + raw[place + 4 :])
    stack = tmp_path / "stack.npz"
    small = {k: v for k, v in arrays("bv_tok_scan").items() if "encoderblock" not in k}
    np.savez(stack, **small)
    with zipfile.ZipFile(stack, "a") as file:
        for part in ("LayerNorm_0/scale", "LayerNorm_0/bias"):
            file.writestr(f"Transformer/encoderblock/{part}.npy", npy(shape=f"({2**40}, 0)", data=b""))
    code = """
import sys, vitreous
for path in sys.argv[1:]:
    try:
        vitreous.load(path)
    except vitreous.errors.CheckpointError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, bomb, liar, stack],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32)),
    )
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert "bomb.npz would grow to 80" in first
    assert "liar.npz" in second
    assert "stack.npz" in third


def test_bfloat16_as_raw_items_is_read_as_bfloat16(tmp_path):
    """big_vision writes two-byte items that numpy does not know."""
    plain = arrays("gvit_cls")
    raw = {k: torch.from_numpy(v).bfloat16().view(torch.int16).numpy().view("V2") for k, v in plain.items()}
    np.savez(tmp_path / "half.npz", **raw)
    np.savez(tmp_path / "full.npz", **{k: torch.from_numpy(v).bfloat16().float().numpy() for k, v in plain.items()})
    half, full = vitreous.load(tmp_path / "half.npz"), vitreous.load(tmp_path / "full.npz")
    assert half.head.weight.dtype == torch.float32
    assert_same_model(half, full)


@pytest.mark.parametrize("turn", [np.asfortranarray, lambda a: a.astype(">f4"), np.float64, np.float16])
def test_other_layouts_of_the_same_numbers_are_the_same(turn, tmp_path):
    np.savez(tmp_path / "m.npz", **{k: turn(v) for k, v in arrays("gvit_cls").items()})
    atol = 1e-2 if turn is np.float16 else 1e-5
    want = answer(golden.load("gvit_cls"), golden.images("gvit_cls"))
    torch.testing.assert_close(
        answer(vitreous.load(tmp_path / "m.npz"), golden.images("gvit_cls")), want, atol=atol, rtol=0
    )


def test_a_header_of_python_2_is_read(tmp_path):
    plain = {
        k: npy(
            shape=str(v.shape).replace(",", "L,").replace("L,)", "L,)").replace(")", "L)").replace(",L)", ",)"),
            data=v.tobytes(),
        )
        for k, v in arrays("gvit_cls").items()
    }
    as_npz(tmp_path / "m.npz", plain)
    assert_same_model(vitreous.load(tmp_path / "m.npz"), golden.load("gvit_cls"))


def test_whole_numbers_are_no_weights(tmp_path):
    np.savez(tmp_path / "m.npz", **{k: v.astype(np.int32) for k, v in arrays("gvit_cls").items()})
    refused(tmp_path / "m.npz", "torch.int32", "not weights")


# Shards


@pytest.fixture
def sharded(tmp_path):
    """hf_vit in two files and an index."""
    plain = tensors("hf_vit")
    names = sorted(plain)
    where = {name: f"model-0000{1 + (i % 2)}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(where.values()):
        save_file({n: plain[n] for n in names if where[n] == file}, tmp_path / file)
    shutil.copy(golden.FOLDER / "hf_vit" / "config.json", tmp_path)

    def write(change=lambda where: where):
        index = tmp_path / "model.safetensors.index.json"
        index.write_text(json.dumps({"metadata": {}, "weight_map": change(where)}))
        return tmp_path

    return write


def test_shards_make_one_model(sharded):
    want = answer(golden.load("hf_vit"))
    folder = sharded()
    assert_same_answers(answer(vitreous.load(folder)), want)
    assert_same_answers(answer(vitreous.load(folder / "model.safetensors.index.json")), want)


SHARDS = {
    "above": (lambda w: {n: "../" + f for n, f in w.items()}, ["weight_map"]),
    "absolute": (lambda w: dict.fromkeys(w, "/etc/passwd"), ["weight_map"]),
    "windows": (lambda w: dict.fromkeys(w, "..\\x.safetensors"), ["weight_map"]),
    "dots": (lambda w: dict.fromkeys(w, ".."), ["weight_map"]),
    "number": (lambda w: dict.fromkeys(w, 3), ["weight_map"]),
    "list": (lambda w: list(w), ["weight_map"]),
    "nothing": (lambda w: {}, ["weight_map"]),
    "absent": (lambda w: dict.fromkeys(w, "model-9.safetensors"), ["model-9.safetensors", "not there"]),
    "itself": (lambda w: dict.fromkeys(w, "model.safetensors.index.json"), ["does not end in"]),
    "elsewhere": (lambda w: {**w, "extra": next(iter(w.values()))}, ["extra"]),
    "one too few": (lambda w: {n: f for n, f in w.items() if n != "classifier.bias"}, ["classifier.bias"]),
}


@pytest.mark.parametrize("case", SHARDS)
def test_an_index_that_points_elsewhere_is_refused(case, sharded):
    change, words = SHARDS[case]
    refused(sharded(change), *words)


# Tensors that do not fit, in every format


ONE_OF_EACH = [
    "gvit_cls",
    "bv_map",
    "bit_tf",
    "bit_bigvision",
    "timm_vit_reg4",
    "timm_bit",
    "hf_vit",
    "hf_dinov2_reg",
    "tv_vit",
]


def rewritten(name: str, tmp_path, change):
    """The golden checkpoint with changed tensors, config and all."""
    source = golden.source(name)
    if source.is_dir():
        shutil.copytree(source, tmp_path / "m", dirs_exist_ok=True)
        file = tmp_path / "m" / "model.safetensors"
    else:
        file = tmp_path / source.name
    content = arrays(name) if file.suffix == ".npz" else tensors(name)
    change(content)
    if file.suffix == ".npz":
        np.savez(file, **content)
    else:
        save_file({k: v.contiguous() for k, v in content.items()}, file)
    return file.parent if source.is_dir() else file


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_what_is_missing_or_left_over_or_misshaped_is_named(name, tmp_path):
    said = golden.hints(name)
    content = arrays(name) if golden.source(name).suffix == ".npz" else tensors(name)
    under = {"bv_map": "params/img/"}.get(name, "")
    parts = [k for k in content if k.startswith(under) and "mask_token" not in k and "global_step" not in k]

    def drop(tensors, victim):
        del tensors[victim]

    def fold(tensors, victim):
        tensors[victim] = tensors[victim].reshape(-1, 1)

    def trim(tensors, victim):
        tensors[victim] = tensors[victim].reshape(-1)[:-1]

    for victim in parts[:: max(len(parts) // 8, 1)]:
        own = victim.removeprefix(under).removeprefix("vit.").removeprefix("dinov2_with_registers.").split("/")[-1]
        for change in (drop, fold, trim):
            path = rewritten(name, tmp_path, lambda t, change=change, victim=victim: change(t, victim))
            with pytest.raises(VitreousError) as caught:
                vitreous.load(path, **said)
            tells_the_kind = any(
                word in victim for word in ("cls", "token", "pos", "probe", "embed", "head", "scale1", "fc2")
            )
            line_of(caught.value, path, *([] if tells_the_kind and change is not trim else [own]))
    path = rewritten(name, tmp_path, lambda t: t.update({under + "extra/part": next(iter(t.values())) + 1}))
    refused(path, "extra/part", "no part", kind=CheckpointError, **said)


# config.json


def with_config(name: str, tmp_path, text=None, file="config.json", **changes):
    shutil.copytree(golden.FOLDER / name, tmp_path / "m", dirs_exist_ok=True)
    path = tmp_path / "m" / file
    if text is None:
        said = json.loads(path.read_text()) if path.is_file() else {}
        text = json.dumps(said | changes).encode()
    path.write_bytes(text)
    return tmp_path / "m"


@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json", "vitreous.json"])
@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"3", b"null", b"\xff\xfe\x00", b"[" * 99_999, b'{"a":' * 99_999])
def test_a_config_that_is_no_json_object_is_refused(file, text, tmp_path):
    folder = with_config("hf_vit", tmp_path, text, file)
    refused(folder, folder / file, "JSON", kind=CheckpointError)


NONSENSE = {
    "no heads": ({"num_attention_heads": 0}, ["0 heads"]),
    "minus": ({"num_attention_heads": -4}, ["-4 heads"]),
    "heads do not divide": ({"num_attention_heads": 7}, ["not divisible", "7"]),
    "heads as a word": ({"num_attention_heads": "four"}, ["four heads"]),
    "heads as truth": ({"num_attention_heads": True}, ["heads"]),
    "many heads": ({"num_attention_heads": 10**40}, ["heads"]),
    "half a head": ({"num_attention_heads": 4.5}, ["4.5 heads"]),
    "image as a word": ({"image_size": "large"}, ["image size large"]),
    "image as truth": ({"image_size": True}, ["image size"]),
    "image of nothing": ({"image_size": 0}, ["image size 0"]),
    "image of three": ({"image_size": [1, 2, 3]}, ["image size"]),
    "image of words": ({"image_size": ["a", "b"]}, ["image size"]),
    "infinite image": ({"image_size": [float("inf"), 2]}, ["image size"]),
    "unknown activation": ({"hidden_act": "mish"}, ["mish", "activation="]),
    "strange activation": ({"hidden_act": ["gelu"]}, ["activation="]),
    "eps as a word": ({"layer_norm_eps": "small"}, ["layer_norm_eps small"]),
    "no eps": ({"layer_norm_eps": 0}, ["norm_eps"]),
    "eps of nothing": ({"layer_norm_eps": float("nan")}, ["norm_eps"]),
    "minus eps": ({"layer_norm_eps": -1e-6}, ["norm_eps"]),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_a_config_that_says_nonsense_is_refused(case, tmp_path):
    changes, words = NONSENSE[case]
    folder = with_config("hf_vit", tmp_path, **changes)
    refused(folder, folder, *words)


def test_huge_numbers_that_tensors_contradict_change_nothing(tmp_path):
    folder = with_config("hf_vit", tmp_path, image_size=10**30)
    model = vitreous.load(folder)
    assert model.config == golden.load("hf_vit").config
    assert any("image size" in note for note in model.source["assumed"])


@pytest.mark.parametrize(
    "name", ["hidden_size", "num_hidden_layers", "intermediate_size", "patch_size", "num_channels"]
)
@pytest.mark.parametrize("value", [1, 10**30])
def test_a_size_that_tensors_contradict_is_refused_by_name(name, value, tmp_path):
    folder = with_config("hf_vit", tmp_path, **{name: value})
    with pytest.raises(VitreousError) as caught:
        vitreous.load(folder)
    line_of(caught.value, folder, f"says {name} {value}", "its tensors have", "mend config.json")


PREPROCESSORS = [
    {"image_mean": "abc"},
    {"image_mean": [0.5, "a", 0.5]},
    {"image_std": [0, 0, 0]},
    {"image_std": None},
    {"image_mean": [], "image_std": []},
    {"size": {"shortest_edge": "x"}},
    {"size": {"height": -1, "width": 4}},
    {"size": 10**30},
    {"size": {"shortest_edge": 0}},
    {"size": "big"},
    {"rescale_factor": "x"},
    {"rescale_factor": 0},
    {"image_mean": [float("nan")] * 3, "image_std": [float("nan")] * 3},
    {"do_center_crop": True, "crop_size": "x"},
]


@pytest.mark.parametrize("changes", PREPROCESSORS)
def test_preprocessing_that_makes_no_sense_is_refused(changes, tmp_path):
    folder = with_config("hf_vit", tmp_path, file="preprocessor_config.json", **changes)
    refused(folder, folder, "preprocess")


TIMM = [
    ({"model_args": {"num_heads": "x"}}, ["heads"]),
    ({"model_args": {"num_heads": 0}}, ["0 heads"]),
    ({"model_args": {"act_layer": "mish"}}, ["mish"]),
    ({"model_args": {"act_layer": {}}}, ["activation"]),
    (
        {"architecture": "vit_base_patch16_xp_224"},
        ["attention and MLP side by side are not built here", "architecture="],
    ),
    ({"model_args": {"use_rot_pos_emb": True, "rope_type": "mrope"}}, ["rope_type=mrope"]),
    ({"model_args": {"use_rot_pos_emb": True, "rope_temperature": "x"}}, ["rope_temperature x"]),
    ({"model_args": {"use_rot_pos_emb": True, "ref_feat_shape": "x"}}, ["image size x"]),
    ({"model_args": {"scale_mlp": True}}, ["scale_mlp=True", "tensors say otherwise"]),
    ({"model_args": {"use_rel_pos_bias": True}}, ["use_rel_pos_bias=True", "tensors say otherwise"]),
    ({"architecture": "vit"}, ["timm's vit", "architecture="]),
    ({"architecture": ["vit_base_patch16_224"]}, ["architecture="]),
    ({"architecture": None}, ["architecture="]),
    ({"architecture": "resnetv2_50x1_bit"}, ["the tensors of a ViT and the name of a BiT"]),
    ({"model_args": {"img_size": "x"}}, ["image size x"]),
    ({"model_args": {"block_fn": "ResPostBlock"}}, ["block_fn=ResPostBlock", "model_args"]),
    ({"model_args": {"norm_layer": "rmsnorm"}}, ["norm_layer=rmsnorm"]),
    ({"model_args": {"norm_layer": "layernorm"}}, ["norm_layer=layernorm", "norm_eps="]),
    ({"model_args": {"final_norm": False}}, ["final_norm=False"]),
    ({"model_args": {"pos_embed": {}}}, ["pos_embed="]),
    ({"model_args": {"pool_include_prefix": True, "some_new_thing": 1}}, ["some_new_thing=1"]),
    ({"model_args": {"some_new_thing": 1}}, ["some_new_thing=1"]),
    ({"model_args": {"global_pool": "avgmax"}}, ["global_pool 'avgmax'"]),
    ({"global_pool": "prr"}, ["global_pool 'prr'"]),
    ({"global_pool": "map"}, ["global_pool 'map'", "attn_pool"]),
    ({"global_pool": ["avg"]}, ["global_pool"]),
    ({"pretrained_cfg": {"crop_pct": 0}}, ["crop_pct"]),
    ({"pretrained_cfg": {"crop_pct": "x"}}, ["crop_pct"]),
    ({"pretrained_cfg": {"crop_pct": -1}}, ["crop_pct"]),
    ({"pretrained_cfg": {"crop_pct": float("nan")}}, ["crop_pct"]),
    ({"pretrained_cfg": {"mean": "abc"}}, ["preprocess"]),
    ({"pretrained_cfg": {"mean": [0.5], "std": [0.5, 0.5]}}, ["preprocess"]),
    ({"pretrained_cfg": {"interpolation": "magic"}}, ["preprocess"]),
    ({"pretrained_cfg": {"std": [1, 1, 0]}}, ["preprocess"]),
]


@pytest.mark.parametrize(("changes", "words"), TIMM)
def test_a_timm_config_that_says_nonsense_is_refused(changes, words, tmp_path):
    args = {"num_heads": 4, **changes.get("model_args", {})}
    changes = {"architecture": "vit_base_patch16_224", **changes, "model_args": args}
    folder = with_config("timm_vit_cls", tmp_path, **changes)
    refused(folder, folder, *words)


def test_a_timm_config_may_say_what_changes_nothing_or_what_arguments_override(tmp_path):
    args = {"num_heads": 4, "drop_path_rate": 0.1, "final_norm": True, "block_fn": None, "dynamic_img_size": True}
    args |= {"act_layer": "quick_gelu", "norm_layer": "layernorm"}
    folder = with_config("timm_vit_cls", tmp_path, architecture="vit_base_patch16_224", model_args=args, global_pool="")
    model = vitreous.load(folder, activation="gelu", norm_eps=1e-6)
    assert_same_answers(answer(model, golden.images("timm_vit_cls")), golden_answer("timm_vit_cls"))
    assert any(note.startswith("pool cls: the config says none") for note in model.source["assumed"])


def golden_answer(name):
    return answer(golden.load(name), golden.images(name))


def test_a_pooler_of_another_function_is_refused_by_name(tmp_path):
    bare = awake(VIT.change(activation="gelu", classes=0, representation=6))
    vitreous.save(bare, tmp_path / "m", format="huggingface")
    (tmp_path / "m" / "vitreous.json").unlink(missing_ok=True)
    path = tmp_path / "m" / "config.json"
    said = json.loads(path.read_text())
    assert said["pooler_act"] == "tanh"
    path.write_text(json.dumps(said | {"pooler_act": "relu"}))
    refused(tmp_path / "m", "pooler_act 'relu'", "tanh")


def test_activation_said_by_the_user_wins_over_one_we_have_not(tmp_path):
    folder = with_config("hf_vit", tmp_path, hidden_act="quick_gelu")
    assert vitreous.load(folder, activation="gelu").config.encoder.activation == "gelu"
    with pytest.raises(VitreousError, match="'swoosh' is not one of gelu"):
        vitreous.load(folder, activation="swoosh")


def test_an_unknown_format_or_ending_is_refused(tmp_path):
    (tmp_path / "m.h5").write_bytes(b"x")
    refused(tmp_path / "m.h5", ".safetensors", kind=FormatError)
    refused(golden.source("gvit_cls"), "keras", format="keras")
    refused(golden.source("gvit_cls"), "not a vitreous checkpoint", format="vitreous")
    refused(golden.source("gvit_cls"), "patch_embed", format="timm")


# Fuzz: whatever happens to a file, loading it works or ends in one line


def loads_or_says(path, **said) -> None:
    try:
        vitreous.load(path, **said)
    except VitreousError as error:
        line_of(error)


FUZZ = settings(max_examples=40, suppress_health_check=list(HealthCheck), derandomize=True)
CASES = st.sampled_from(golden.MODELS)
EDITS = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.sampled_from(["flip", "cut", "insert", "zero", "copy"]),
        st.binary(min_size=1, max_size=9),
    ),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def edited(raw: bytes, edits) -> bytes:
    out = bytearray(raw)
    for where, what, some in edits:
        at = int(where * len(out))
        match what:
            case "flip":
                out[at : at + len(some)] = bytes(a ^ b for a, b in zip(out[at : at + len(some)], some, strict=False))
            case "cut":
                del out[at : at + len(some) ** 4]
            case "insert":
                out[at:at] = some
            case "zero":
                out[at : at + len(some)] = bytes(len(some))
            case "copy":
                out[at:at] = out[: len(some) ** 3]
    return bytes(out)


@FUZZ
@given(name=CASES, edits=EDITS, front=st.booleans(), as_torch=st.booleans())
def test_mutated_bytes_end_in_a_model_or_a_line(name, edits, front, as_torch, place):
    """Front: near the start, where headers are."""
    source = golden.FOLDER / name / golden.MANIFEST[name]["checkpoint"]
    raw, ending = source.read_bytes(), source.suffix
    if as_torch and ending == ".safetensors":
        whole = io.BytesIO()
        torch.save(load_file(source), whole, _use_new_zipfile_serialization=len(edits) % 2 == 0)
        raw, ending = whole.getvalue(), ".pth"
    edits = [(where * (0.05 if front else 1), what, some) for where, what, some in edits]
    path = place / f"m{ending}"
    path.write_bytes(edited(raw, edits))
    loads_or_says(path, heads=4)


CONFIG_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 64),
    st.sampled_from([2**31, 2**63, 10**40]),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(-1, 40), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@FUZZ
@given(data=st.data(), name=CASES)
def test_changed_tensors_and_configs_end_in_a_model_or_a_line(data, name, place):
    """Drop, rename, reshape, retype; and any value in any field of the configs."""
    source = golden.source(name)
    folder = place / "m"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    file = folder / golden.MANIFEST[name]["checkpoint"]
    content = {k: torch.from_numpy(v) for k, v in arrays(name).items()} if file.suffix == ".npz" else tensors(name)
    for _ in range(data.draw(st.integers(0, 2))):
        victim = data.draw(st.sampled_from(sorted(content)))
        tensor = content[victim]
        match data.draw(
            st.sampled_from(["drop", "rename", "flatten", "grow", "cut", "retype", "empty", "scalar", "swap"])
        ):
            case "drop":
                del content[victim]
            case "rename":
                content[data.draw(st.sampled_from(sorted(content))) + data.draw(st.text("01./_a\n", max_size=3))] = (
                    content.pop(victim)
                )
            case "flatten":
                content[victim] = tensor.flatten()
            case "grow":
                content[victim] = torch.cat([tensor, tensor]) if tensor.dim() else tensor
            case "cut":
                content[victim] = tensor[..., :-1] if tensor.dim() else tensor
            case "retype":
                content[victim] = tensor.to(
                    data.draw(st.sampled_from([torch.int32, torch.float16, torch.bool, torch.float64]))
                )
            case "empty":
                content[victim] = tensor[:0] if tensor.dim() else tensor
            case "scalar":
                content[victim] = tensor.flatten()[0]
            case "swap":
                content[victim] = content[data.draw(st.sampled_from(sorted(content)))]
    if file.suffix == ".npz":
        np.savez(file, **{k: v.numpy() for k, v in content.items()})
    else:
        save_file({k: v.clone().contiguous() for k, v in content.items()}, file)
        config = (
            json.loads((source / "config.json").read_text())
            if source.is_dir()
            else {"architecture": "vit_base_patch16_224"}
        )
        fields = [
            *config,
            "model_args",
            "pretrained_cfg",
            "num_attention_heads",
            "image_size",
            "hidden_act",
            "id2label",
        ]
        inner = st.sampled_from(
            ["num_heads", "img_size", "act_layer", "input_size", "mean", "crop_pct", "global_pool", "no_embed_class"]
        )
        for _ in range(data.draw(st.integers(0, 2))):
            config[data.draw(st.sampled_from(fields))] = data.draw(
                CONFIG_VALUES | st.dictionaries(inner, CONFIG_VALUES, max_size=2)
            )
        (folder / "config.json").write_text(json.dumps(config))
        said = st.sampled_from(
            ["size", "crop_size", "resample", "image_mean", "image_std", "do_center_crop", "rescale_factor"]
        )
        (folder / "preprocessor_config.json").write_text(
            json.dumps(data.draw(st.dictionaries(said, CONFIG_VALUES, max_size=2)))
        )
    loads_or_says(folder if file.suffix != ".npz" else file, heads=data.draw(st.sampled_from([None, 4])))
