"""Our own file: what comes back is what went in, and whatever happened to it on the way is refused by name."""

import json
import os
import resource
import signal
import struct
import subprocess
import sys
import time
from dataclasses import replace

import forks
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import BIT, VIT, assert_same_model, awake, line_of

import vitreous
from vitreous.errors import CheckpointError, ConfigError, ExistsError, FormatError, VitreousError
from vitreous.files import digest
from vitreous.weights.own_format import tensor_digest


@pytest.fixture(scope="module")
def model():
    model = awake(representation=6)
    model.labels = ("ape", "bee", "café", 'd"o\\g', "eel\n")
    model.temperature = 1.7
    model.threshold, model.answers = 2.5, "several"
    model.source = {"format": "google", "path": "x.npz", "assumed": ["heads 2: said so"]}
    model.preprocess = replace(model.preprocess, size=(16, 16), fit="crop", short_side=18, antialias=True)
    return model


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory) -> bytes:
    (file,) = vitreous.save(model, tmp_path_factory.mktemp("whole") / "model")
    return file.read_bytes()


@pytest.fixture
def refused(tmp_path):
    """refused(bytes, words…): the one line that loading these bytes ends in."""

    def refused(content: bytes, *words: str) -> str:
        path = tmp_path / "broken.safetensors"
        path.write_bytes(content)
        with pytest.raises(CheckpointError) as caught:
            vitreous.load(path)
        return line_of(caught.value, path, *words)

    return refused


def split(content: bytes) -> tuple[dict, bytes]:
    """Header and tensors of a safetensors file."""
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def join(header, data: bytes) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


# What comes back


@pytest.mark.parametrize("change", [{}, {"positions": "relative"}, {"norm_kind": "batch"}, {"pool": "map"}])
def test_everything_comes_back(change, model, tmp_path):
    first = awake(**change) if change else model
    (file,) = vitreous.save(first, tmp_path / "m")
    second = vitreous.load(file)
    assert second.config == first.config
    for part in ("preprocess", "labels", "temperature", "threshold", "answers", "source"):
        assert getattr(second, part) == getattr(first, part)
    assert_same_model(second, first)
    assert [t.dtype for t in second.state_dict().values()] == [t.dtype for t in first.state_dict().values()]
    assert not second.training
    assert all(p.requires_grad for p in second.parameters())


def test_a_bit_comes_back(tmp_path):
    first = awake(BIT)
    second = vitreous.load(vitreous.save(first, tmp_path / "bit")[0])
    assert second.config == first.config
    assert_same_model(first, second)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_stay(dtype, tmp_path):
    first = awake().to(dtype)
    second = vitreous.load(vitreous.save(first, tmp_path / "m")[0], classes=3)
    assert {p.dtype for p in second.parameters()} == {dtype}
    assert torch.equal(first.blocks[0].mlp.expand.weight, second.blocks[0].mlp.expand.weight)


def test_the_same_model_gives_the_same_bytes(model, whole, tmp_path):
    assert vitreous.save(model, tmp_path / "again")[0].read_bytes() == whole
    assert vitreous.save(vitreous.load(tmp_path / "again.safetensors"), tmp_path / "third")[0].read_bytes() == whole


def test_a_name_gets_our_ending_and_a_wrong_one_is_refused(model, tmp_path):
    assert vitreous.save(model, tmp_path / "b16.v2")[0].name == "b16.v2.safetensors"
    with pytest.raises(FormatError) as caught:
        vitreous.save(model, tmp_path / "model.pth")
    line_of(caught.value, "model.pth", ".safetensors")


# Damage


def test_a_flipped_byte_is_refused_wherever_it_is(whole, refused):
    """The header at every place, the tensors at many; a byte of a tensor is refused by the tensor's name."""
    length = 8 + struct.unpack("<Q", whole[:8])[0]
    header, _ = split(whole)
    for at in [*range(0, length, 23), *range(length - 12, length)]:
        for flip in (0x01, 0x20):
            broken = bytearray(whole)
            broken[at] ^= flip
            refused(bytes(broken))
    places = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
    for name, (begin, end) in places.items():
        for at in {begin, (begin + end) // 2, end - 1}:
            broken = bytearray(whole)
            broken[length + at] ^= 0x10
            refused(bytes(broken), f"tensor {name} ", "damaged")


def test_padding_of_the_header_is_part_of_it(whole, refused):
    """A tab for a space is JSON still, and a flipped byte all the same."""
    header, data = split(whole)
    raw = json.dumps(header, separators=(",", ":")).encode()
    refused(join(raw + b"\t", data), "header")


def test_truncation_is_refused_at_every_kind_of_place(whole, refused):
    length = 8 + struct.unpack("<Q", whole[:8])[0]
    refused(b"", "empty")
    for end in (
        1,
        7,
        8,
        9,
        length // 2,
        length - 1,
        length,
        length + 1,
        len(whole) // 2,
        len(whole) - 4,
        len(whole) - 1,
    ):
        refused(whole[:end], "cut short")
    refused(whole + b"\0", "belong to no tensor")


def reseal(content: bytes, change) -> bytes:
    """The file with a changed manifest, its own digest mended: what a forger would write."""
    header, data = split(content)
    manifest = json.loads(json.loads(header["__metadata__"]["vitreous"])["manifest"])
    change(manifest)
    text = json.dumps(manifest)
    header["__metadata__"]["vitreous"] = json.dumps({"digest": digest(text.encode()), "manifest": text})
    return join(header, data)


def rebuilt(content: bytes, tmp_path, change, *, mend_digests: bool = True) -> bytes:
    """The file with changed tensors."""
    (tmp_path / "t.safetensors").write_bytes(content)
    tensors = load_file(tmp_path / "t.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "t.safetensors", metadata=split(content)[0]["__metadata__"])
    out = (tmp_path / "t.safetensors").read_bytes()
    digests = {name: tensor_digest(tensor) for name, tensor in tensors.items()}
    return reseal(out, lambda m: m.update(tensors=digests)) if mend_digests else out


@pytest.mark.parametrize("mend_digests", [True, False])
def test_tensors_that_do_not_fit_the_config_are_named(whole, refused, tmp_path, mend_digests):
    def now(*words, change):
        refused(rebuilt(whole, tmp_path, change, mend_digests=mend_digests), *words)

    now("lacks the tensor norm.bias", change=lambda t: t.pop("norm.bias"))
    now("blocks.7.norm1.weight", change=lambda t: t.update({"blocks.7.norm1.weight": torch.zeros(16)}))
    now("norm.bias", "17", "16", change=lambda t: t.update({"norm.bias": torch.zeros(17)}))
    now("norm.bias", "1x16", change=lambda t: t.update({"norm.bias": torch.zeros(1, 16)}))
    now("norm.bias", change=lambda t: t.update({"norm.bias": torch.zeros(16, dtype=torch.int32)}))


def test_another_type_of_number_is_damage(whole, refused, tmp_path):
    """Halves where the digest speaks of floats."""
    half = lambda t: t.update({"norm.bias": t["norm.bias"].half()})  # noqa: E731
    refused(rebuilt(whole, tmp_path, half, mend_digests=False), "tensor norm.bias", "damaged")


MANIFESTS = {
    "newer": (lambda m: m.update(version=2), ["version 2", "upgrade"]),
    "no version": (lambda m: m.pop("version"), ["version None"]),
    "no config": (lambda m: m.pop("config"), ["does not describe a model"]),
    "deep": (lambda m: m["config"]["encoder"].update(depth=10**9), ["tensors"]),
    "wide": (lambda m: m["config"]["encoder"].update(width=10**18, heads=1), ["does not describe a model"]),
    "huge": (lambda m: m["config"]["encoder"].update(width=10**30), ["does not describe a model"]),
    "no heads": (lambda m: m["config"]["encoder"].update(heads=0), ["heads=0"]),
    "words": (lambda m: m["config"]["encoder"].update(mlp="many"), ["does not describe a model"]),
    "unknown": (lambda m: m["config"].update(colour="red"), ["colour"]),
    "image": (lambda m: m["config"].update(image_size=[2**40, 2**40]), ["image_size", "is not valid"]),
    "waves": (
        lambda m: (
            m["config"].update(image_size=[65532, 65532]),
            m["config"]["embedding"].update(positions="sincos-2d"),
        ),
        ["too many"],
    ),
    "relative": (
        lambda m: (m["config"].update(image_size=[4096, 4096]), m["config"]["embedding"].update(positions="relative")),
        ["too many"],
    ),
    "stages": (
        lambda m: (m["config"]["resnet"].update(units=[1] * 999), m["config"]["embedding"].update(stem="resnet")),
        ["tensors"],
    ),
    "labels": (lambda m: m.update(labels="ape"), ["labels"]),
    "label": (lambda m: m.update(labels=[1, 2, 3, 4, 5]), ["labels"]),
    "temperature": (lambda m: m.update(temperature=float("nan")), ["temperature"]),
    "cold": (lambda m: m.update(temperature=-1), ["temperature"]),
    "threshold": (lambda m: m.update(threshold=[3]), ["threshold"]),
    "answers": (lambda m: m.update(answers="two"), ["answers"]),
    "preprocess": (lambda m: m["preprocess"].update(interpolation="magic"), ["preprocessing"]),
    "sizes": (lambda m: m["preprocess"].update(size=[0, -3]), ["preprocessing"]),
    "no preprocess": (lambda m: m.pop("preprocess"), ["does not describe a model"]),
    "no digests": (lambda m: m.pop("tensors"), ["damaged"]),
    "digests": (lambda m: m.update(tensors=[1]), ["damaged"]),
}


@pytest.mark.parametrize("case", MANIFESTS)
def test_a_manifest_that_makes_no_model_is_refused(case, whole, refused):
    change, words = MANIFESTS[case]
    refused(reseal(whole, change), *words)


def test_a_file_without_its_manifest_says_so(whole, refused):
    header, data = split(whole)
    del header["__metadata__"]
    refused(join(header, data), "lost its manifest", "vitreous.save", "load_state_dict")


# Hostile headers


def one(name="x", dtype="F32", shape=(2,), offsets=(0, 8)):
    return {name: {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


HEADERS = {
    "length": (struct.pack("<Q", 2**63) + b"{}", ["cut short"]),
    "shape": (join(one(shape=(2**40, 2**20)), bytes(8)), ["claims shape"]),
    "wrapping shape": (join(one(shape=(2**32, 2**32), offsets=(0, 0)), b""), ["claims shape"]),
    "many axes": (join(one(shape=(9**99,) * 100), bytes(8)), ["damaged"]),
    "big numbers": (
        join(b'{"x":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,8]}}', b""),
        ["damaged"],
    ),
    "overlap": (join({**one("a"), **one("b", offsets=(4, 12))}, bytes(12)), ["b", "overlaps"]),
    "same place": (join({**one("a"), **one("b")}, bytes(8)), ["overlaps"]),
    "gap": (join({**one("a"), **one("b", offsets=(12, 20))}, bytes(20)), ["b", "gap"]),
    "negative": (join(one(shape=(-2,), offsets=(8, 0)), bytes(8)), ["damaged", "x"]),
    "backwards": (join(one(offsets=(8, 0)), bytes(8)), ["claims"]),
    "fraction": (join(one(shape=(2.5,)), bytes(8)), ["damaged"]),
    "truth": (join(one(shape=(True, 2)), bytes(8)), ["damaged"]),
    "type": (join(one(dtype="F8_E4M3", shape=(8,)), bytes(8)), ["F8_E4M3"]),
    "no type": (join({"x": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)), ["damaged"]),
    "deep": (join(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b""), ["damaged"]),
    "twice": (
        join(
            b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
            bytes(8),
        ),
        ["twice"],
    ),
    "nan": (join(b'{"x":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}', bytes(8)), ["damaged"]),
    "no utf-8": (join(b'{"\xff\xfe":1}', b""), ["damaged"]),
    "utf-16": (join('{"a":1}'.encode("utf-16"), b""), ["damaged"]),
    "a list": (join(b"[]", b""), ["damaged"]),
    "nothing": (join(b"", b""), ["damaged"]),
    "metadata": (join({"__metadata__": {"vitreous": {"a": 1}}, **one()}, bytes(8)), ["metadata"]),
    "a name of two lines": (join(one("a\nb"), bytes(8)), ["an invalid name"]),
    "a long name": (join(one("a" * 9999), bytes(8)), ["an invalid name"]),
    "many tensors": (join({f"x{i}": one(shape=(0,), offsets=(0, 0))["x"] for i in range(20_001)}, b""), ["20001"]),
    "empty manifest": (join({"__metadata__": {"vitreous": ""}, **one()}, bytes(8)), ["manifest"]),
    "strange manifest": (join({"__metadata__": {"vitreous": "[" * 5000}, **one()}, bytes(8)), ["manifest"]),
    "manifest of numbers": (
        join({"__metadata__": {"vitreous": '{"manifest": 3, "digest": 4}'}, **one()}, bytes(8)),
        ["manifest"],
    ),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_hostile_header_is_refused(case, refused):
    content, words = HEADERS[case]
    refused(content, *words)


def in_a_small_room(code: str, *words: object, gigabytes: float = 4) -> subprocess.CompletedProcess:
    """A Python of its own that may not have more memory."""
    limit = int(gigabytes * 2**30)
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )


def test_files_that_claim_terabytes_take_no_memory(whole, tmp_path):
    """A sparse file is as long as it says; a manifest may ask for any model; neither is believed with memory."""
    sparse = tmp_path / "sparse.safetensors"
    with sparse.open("wb") as file:
        file.write(join(one("embedding.projection.weight", shape=(2**40,), offsets=(0, 2**42)), b""))
        file.truncate(file.tell() + 2**40)
    header = tmp_path / "header.safetensors"
    with header.open("wb") as file:
        file.write(struct.pack("<Q", 2**39))
        file.truncate(2**40)
    forged = tmp_path / "forged.safetensors"
    forged.write_bytes(reseal(whole, lambda m: m["config"]["encoder"].update(width=2**22, mlp=2**24, heads=1)))
    code = """
import sys, vitreous
for path in sys.argv[1:]:
    try:
        vitreous.load(path)
    except vitreous.errors.CheckpointError as error:
        print(error)
status = open("/proc/self/status").read()  # rusage would tell the peak of the process that started this one
print(status.partition("VmHWM:")[2].split()[0])
"""
    done = in_a_small_room(code, sparse, header, forged)
    assert done.returncode == 0, done.stderr
    first, second, third, kilobytes = done.stdout.splitlines()
    assert str(sparse) in first
    assert str(header) in second
    assert str(forged) in third
    assert int(kilobytes) < 1_000_000


# Writing


def test_nothing_is_overwritten_without_force(model, whole, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"precious")
    with pytest.raises(ExistsError) as caught:
        vitreous.save(model, path)
    line_of(caught.value, path, "--force")
    assert path.read_bytes() == b"precious"
    vitreous.save(model, path, force=True)
    assert path.read_bytes() == whole


def test_killed_in_the_middle_of_a_save_the_old_file_is_whole(model, whole, tmp_path):
    """SIGKILL at many moments of a loop that does nothing but save: what lies there always loads."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(whole)
    code = """
import sys, torch, vitreous
model = vitreous.load(sys.argv[1])
print("ready", flush=True)
while True:
    with torch.no_grad():
        model.norm.bias += 1
    vitreous.save(model, sys.argv[1], force=True)
"""
    for moment in (0.01, 0.05):
        process = forks.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        time.sleep(moment)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert vitreous.load(path).labels == model.labels
    others = [p for p in tmp_path.iterdir() if p != path]
    assert all(p.name.startswith(".") and p.suffix == ".part" for p in others)  # nothing that could be taken for whole


def test_a_save_that_fails_leaves_the_old_file(whole, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(whole)
    broken = awake(VIT)
    broken.source = {"what": object()}
    with pytest.raises(ConfigError, match="source is not JSON"):
        vitreous.save(broken, path, force=True)
    assert path.read_bytes() == whole
    assert os.listdir(tmp_path) == ["m.safetensors"]  # noqa: PTH208


def test_a_source_that_is_no_path_says_what_to_give(tmp_path):
    for source in (tmp_path / "no.safetensors", tmp_path, "x" * 5000, "a\0b", "", " ", "./nothing"):
        with pytest.raises(VitreousError) as caught:
            vitreous.load(source)
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": ("a", "b")}, ["2 labels", "answers 5"]),
        ({"labels": "abcde"}, ["'abcde'", "not a list of words"]),
        ({"labels": [1, 2, 3, 4, 5]}, ["not a list of words"]),
        ({"temperature": float("nan")}, ["temperature nan"]),
        ({"temperature": float("inf")}, ["temperature inf"]),
        ({"temperature": 0.0}, ["temperature 0.0"]),
        ({"temperature": torch.tensor(1.0)}, ["temperature tensor"]),
        ({"threshold": float("nan")}, ["threshold nan"]),
        ({"threshold": "high"}, ["threshold high"]),
        ({"answers": "two"}, ["answers two", "neither one nor several"]),
    ],
)
@pytest.mark.parametrize("format", ["vitreous", "google"])
def test_what_could_not_be_read_back_is_not_written(format, change, words, tmp_path):
    model = awake(VIT)
    for name, value in change.items():
        setattr(model, name, value)
    with pytest.raises(ConfigError) as caught:
        vitreous.save(model, tmp_path / "m", format=format)
    line_of(caught.value, *words)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("said", [{"metrics": {"top-1": torch.zeros(2)}}, {"recipe": object()}, {"metrics": {1j}}])
def test_what_is_no_json_is_named(said, tmp_path):
    with pytest.raises(ConfigError) as caught:
        vitreous.save(awake(VIT), tmp_path / "m", **said)
    line_of(caught.value, *said, "is not JSON")
    assert not any(tmp_path.iterdir())


def test_a_bare_state_dict_of_ours_says_how(tmp_path):
    torch.save({"model": {f"module.{k}": v for k, v in awake(VIT).state_dict().items()}}, tmp_path / "mine.pth")
    with pytest.raises(CheckpointError) as caught:
        vitreous.load(tmp_path / "mine.pth")
    line_of(caught.value, tmp_path / "mine.pth", "manifest", "vitreous.save", "load_state_dict")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("google/vit-base-patch16-224", ["is not there", "hf:google/vit-base-patch16-224"]),
        ("my/folder", ["my/folder is not there"]),
        ("my/other/folder", ["my/other/folder is not there"]),
        ("vit_base_patch16_224", ["timm:vit_base_patch16_224", "deit-base or vit-base", "untrained: B/16"]),
        ("resnet50", ["trained weights: bit-r50", "untrained: BiT-R50x1"]),
        ("vit_base_patch16_224.augreg_in21k", ["timm:vit_base_patch16_224.augreg_in21k"]),
        ("X/16", ["'X/16'", "near"]),
    ],
)
def test_a_name_from_elsewhere_is_answered_with_how_to_say_it(source, words):
    with pytest.raises(VitreousError) as caught:
        vitreous.load(source)
    line_of(caught.value, *words)


def test_a_typo_of_a_run_names_the_run_beside_it(tmp_path):
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    with pytest.raises(CheckpointError) as caught:
        vitreous.load(str(tmp_path / "runs" / "dmeo"))
    line_of(caught.value, "dmeo is not there", f"did you mean {tmp_path / 'runs' / 'demo'}?")


def test_a_manifest_from_before_thresholds_is_read(model, tmp_path):
    """Version 1 files that say nothing of threshold and answers: none, and one."""
    (file,) = vitreous.save(model, tmp_path / "old")
    header, data = split(file.read_bytes())
    sealed = json.loads(header["__metadata__"]["vitreous"])
    manifest = {k: v for k, v in json.loads(sealed["manifest"]).items() if k not in ("threshold", "answers")}
    text = json.dumps(manifest, sort_keys=True)
    header["__metadata__"]["vitreous"] = json.dumps({"digest": digest(text.encode()), "manifest": text})
    file.write_bytes(join(header, data))
    old = vitreous.load(file)
    assert (old.threshold, old.answers) == (None, "one")
