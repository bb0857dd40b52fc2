"""Writing for others: what a format cannot hold is refused by the part, and what was written is the same model."""

import json
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import forks
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kills import each_kill, killed_at
from tiny_models import BIT, VIT, answer, assert_same_answers, assert_same_model, awake, images, line_of
from torch.testing import assert_close

import vitreous
from vitreous import files
from vitreous.errors import ConfigError, ExistsError, FormatError, VitreousError
from vitreous.weights import formats

GELU = {"activation": "gelu"}
HYBRID = {"stem": "resnet", "units": (1, 1), "resnet_width": 0.25, "patch": 1, "image_size": (32, 32)}
DISTILLED = {"distillation_token": True, "pool": "cls-and-distillation", "distillation_head": True}


def refusal(model, format, path, **said) -> str:
    with pytest.raises(FormatError) as caught:
        vitreous.save(model, path, format=format, **said)
    assert not path.exists()
    return line_of(caught.value, format)


def file_of(files):
    """What to load of the files that were written."""
    first = files[0]
    return first.parent if first.name == "config.json" else next(f for f in files if f.suffix != ".json")


CANNOT = {  # format: changes, exactly the parts that are named
    "google": [
        ({"registers": 4}, ["registers=4"]),
        ({"layer_scale": 0.1}, ["layer_scale=0.1"]),
        ({"qk_norm": True}, ["qk_norm=True"]),
        ({"positions": "sincos-2d"}, ["positions=sincos-2d"]),
        ({"positions_at": "every-layer"}, ["positions_at=every-layer"]),
        ({"pool": "map"}, ["pool=map"]),
        ({"pool": "gap", "class_token": True}, ["pool=gap with class_token=True"]),
        ({"pool": "cls-and-gap"}, ["pool=cls-and-gap"]),
        ({"norm": "post"}, ["norm=post"]),
        ({"norm_kind": "batch"}, ["norm_kind=batch"]),
        ({"skips": (0,)}, ["skips=(0,)"]),
        ({"qkv_bias": False, "registers": 1}, ["registers=1", "qkv_bias=False"]),
        ({"registers": 4, "activation": "gelu"}, ["registers=4", "activation=gelu"]),
    ],
    "big_vision": [
        ({"registers": 4}, ["registers=4"]),
        ({"pool": "max"}, ["pool=max"]),
        ({"pool": "max", "class_token": True}, ["pool=max"]),
        ({"pool": "map", "class_token": True}, ["pool=map with class_token=True"]),
        (HYBRID, ["stem=resnet"]),
        ({"positions": "none"}, ["positions=none"]),
    ],
    "timm": [
        ({**GELU, "representation": 4}, ["representation=4"]),
        ({**GELU, "positions": "sincos-2d"}, ["positions=sincos-2d"]),
        ({**GELU, "patch": (4, 2)}, ["patch=4x2"]),
        ({**GELU, "norm_kind": "batch"}, ["norm_kind=batch"]),
        ({**GELU, "distillation_token": True}, ["distillation_token=True with pool=cls"]),
    ],
    "huggingface": [
        ({**GELU, "pool": "max"}, ["pool=max"]),
        ({**GELU, "registers": 4}, ["registers=4"]),
        ({**GELU, "representation": 4}, ["representation=4"]),
        ({**GELU, **HYBRID}, ["stem=resnet"]),
        ({**GELU, "layer_scale": 1.0}, ["layer_scale=1.0"]),
    ],
    "torchvision": [
        ({**GELU, "registers": 4}, ["registers=4"]),
        ({**GELU, "image_size": (8, 16)}, ["image_size=8x16 (square only)"]),
        ({**GELU, "channels": 1}, ["channels=1 (3 only)"]),
        ({**GELU, "qkv_bias": False}, ["qkv_bias=False"]),
    ],
}


@pytest.mark.parametrize(("format", "changes", "parts"), [(f, c, p) for f, cases in CANNOT.items() for c, p in cases])
@pytest.mark.parametrize("anyway", [False, True])
def test_the_parts_that_a_format_cannot_hold_are_named_and_no_others(format, changes, parts, anyway, tmp_path):
    line = refusal(awake(**changes), format, tmp_path / "m", anyway=anyway)
    assert line == f"{format} cannot hold this model: {', '.join(parts)}"


@pytest.mark.parametrize("format", ["huggingface", "torchvision"])
def test_a_bit_is_refused_where_there_is_none(format, tmp_path):
    assert refusal(awake(BIT), format, tmp_path / "m") == f"{format} cannot hold this model: a BiT"


DIFFERENTLY = [
    ("torchvision", VIT, {}, ["activation=gelu-tanh"]),
    ("torchvision", VIT, {"norm_eps": 1e-5, **GELU}, ["norm_eps=1e-05"]),
    ("google", VIT, {**GELU, "norm_eps": 1e-12}, ["norm_eps=1e-12", "activation=gelu"]),
    ("google", VIT, {"attention_scale": 0.5}, ["attention_scale=0.5"]),
    ("big_vision", VIT, {"activation": "relu"}, ["activation=relu"]),
    ("timm", VIT, {"norm_eps": 1e-12, **GELU}, ["norm_eps=1e-12"]),
    ("huggingface", VIT, {"attention_scale": 0.5}, ["attention_scale=0.5"]),
    ("timm", BIT, {}, ["standardise_eps=1e-10"]),
    ("google", BIT, {"root_pad": "infinity"}, ["root_pad=infinity"]),
    ("big_vision", BIT, {}, ["root_pad=zeros"]),
    ("timm", VIT, HYBRID, ["standardise_eps=1e-05", "standardise_eps_at=deviation", "group_norm_eps=1e-06"]),
]


@pytest.mark.parametrize(("format", "config", "changes", "parts"), DIFFERENTLY)
def test_a_library_that_would_run_it_differently_is_told_and_anyway_keeps_it(format, config, changes, parts, tmp_path):
    """Refused by the part; with anyway the tensors are written, and what they cannot say goes beside them."""
    first = awake(config, **changes)
    line = refusal(first, format, tmp_path / "m")
    assert line == (
        f"{format} would run this model differently: {', '.join(parts)}; "
        f"write it with anyway=True (--anyway) to keep the tensors all the same"
    )
    files = vitreous.save(first, tmp_path / "m", format=format, anyway=True)
    second = vitreous.load(file_of(files))
    assert second.source["assumed"] == []
    is_folded = format == "big_vision" and config is VIT  # the class row is in the class token
    assert second.config == (first.config.change(positions_cover="patches") if is_folded else first.config)
    assert_close(answer(second), answer(first), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("format", "name"), [("google", "m.npz"), ("torchvision", "m.safetensors"), ("timm", "m")])
def test_a_sidecar_of_another_file_is_ignored_and_that_is_said(format, name, tmp_path):
    relu = {"activation": "relu"}
    one = vitreous.save(awake(**relu), tmp_path / "one" / name, format=format, anyway=True)
    two = vitreous.save(awake(seed=1, **relu), tmp_path / "two" / name, format=format, anyway=True)
    for a, b in zip(one, two, strict=True):
        if a.suffix != ".json":
            a.write_bytes(b.read_bytes())
    if format == "timm":  # only here would a config say the activation
        next(f for f in one if f.name == "config.json").unlink()
        if not (tmp_path / "one" / name / "vitreous.json").exists():
            pytest.skip("timm's config says it all")
    model = vitreous.load(file_of([f for f in one if f.exists()]), heads=2)
    assert model.config.encoder.activation != "relu"
    assert any("of another file, and was not read" in note for note in model.source["assumed"])


def test_a_sidecar_that_makes_no_sense_is_refused(tmp_path):
    file, sidecar = vitreous.save(awake(), tmp_path / "m", format="google")
    said = json.loads(sidecar.read_text())
    changes = [
        {"config": {"family": "vit", "encoder": {"depth": 10**9}}},
        {"config": {"family": "cnn"}},
        {"config": None},
        {"config": said["config"] | {"image_size": [10**9, 10**9]}},
        {"preprocess": {"size": "x"}},
        {"preprocess": None},
        {"labels": 3},
        {"temperature": "hot"},
        {"threshold": "high"},
        {"answers": 2},
    ]
    for change in changes:
        sidecar.write_text(json.dumps(said | change))
        with pytest.raises(VitreousError) as caught:
            vitreous.load(file)
        line_of(caught.value, file)
    sidecar.write_text(json.dumps({"schema": "somebody else's"}))
    assert vitreous.load(file).config.encoder.activation == "gelu-tanh"


def test_a_sidecar_carries_labels_temperature_and_preprocessing(tmp_path):
    first = awake()
    first.labels, first.temperature = tuple("abcde"), 0.7
    first.threshold, first.answers = -1.5, "several"
    for format in ("google", "big_vision"):
        second = vitreous.load(vitreous.save(first, tmp_path / format, format=format)[0])
        assert (second.labels, second.temperature, second.preprocess) == (first.labels, 0.7, first.preprocess)
        assert (second.threshold, second.answers) == (-1.5, "several")


def test_a_folder_of_another_library_carries_a_threshold_beside(tmp_path):
    first = awake(activation="gelu", norm_eps=1e-12)
    first.threshold = 4.0
    vitreous.save(first, tmp_path / "hf", format="huggingface")
    assert vitreous.load(tmp_path / "hf").threshold == 4.0


def test_arguments_win_over_a_sidecar(tmp_path):
    file, _ = vitreous.save(awake(), tmp_path / "m", format="google")
    e = vitreous.load(file, activation="relu", norm_eps=1e-3).config.encoder
    assert (e.activation, e.norm_eps) == ("relu", 1e-3)


# Places


@pytest.mark.parametrize("format", formats.names())
def test_nothing_is_overwritten_without_force(format, tmp_path):
    first = awake(**(GELU if format in ("timm", "huggingface", "torchvision") else {}))
    files = vitreous.save(first, tmp_path / "m", format=format)
    before = {file: file.read_bytes() for file in files}
    second = awake(seed=1, **(GELU if format in ("timm", "huggingface", "torchvision") else {}))
    with pytest.raises(ExistsError) as caught:
        vitreous.save(second, tmp_path / "m", format=format)
    line_of(caught.value, tmp_path / "m", "--force")
    assert {file: file.read_bytes() for file in files} == before
    assert vitreous.save(second, tmp_path / "m", format=format, force=True) == files
    assert_same_answers(answer(vitreous.load(file_of(files))), answer(second))


def test_somebody_elses_json_beside_is_not_overwritten(tmp_path):
    (tmp_path / "m.npz.json").write_text("precious")
    with pytest.raises(ExistsError, match=r"m\.npz\.json"):
        vitreous.save(awake(), tmp_path / "m", format="google")
    assert [p.name for p in tmp_path.iterdir()] == ["m.npz.json"]


def test_force_does_not_delete_what_it_did_not_write(tmp_path):
    vitreous.save(awake(**GELU), tmp_path / "m", format="timm")
    (tmp_path / "m" / "notes.txt").write_text("mine")
    with pytest.raises(ExistsError, match=r"notes\.txt"):
        vitreous.save(awake(**GELU), tmp_path / "m", format="timm", force=True)


def labelled(word, seed):
    model = awake(seed=seed)
    model.labels = tuple(f"{word} {i}" for i in range(5))
    return model


OLD, NEW = labelled("old", 0), labelled("new", 1)


def is_whole(file) -> str:
    """Whose file it is, by its tensors; its labels are of the same."""
    found = vitreous.load(file)
    assert found.source["assumed"] == []
    whose = "new" if torch.equal(found.head.weight, NEW.head.weight) else "old"
    assert found.labels == (NEW if whose == "new" else OLD).labels
    return whose


def test_wherever_a_save_is_killed_a_file_that_is_there_has_its_labels(tmp_path, monkeypatch):
    found = []
    for folder in each_kill(
        tmp_path, monkeypatch, lambda folder: None, lambda folder: vitreous.save(NEW, folder / "m", format="google")
    ):
        file = folder / "m.npz"
        found.append(is_whole(file) if file.exists() else "absent")
        if found[-1] == "absent":
            vitreous.save(NEW, file, format="google")  # what the dead one left is in nobody's way
            assert is_whole(file) == "new"
    assert set(found) == {"absent", "new"}
    assert found == sorted(found)


@pytest.mark.parametrize("has_sidecar", [True, False])
def test_wherever_an_overwriting_save_is_killed_old_and_new_have_their_own_labels(tmp_path, monkeypatch, has_sidecar):
    """Also where the older file had no sidecar, so no labels."""
    found = []

    def start(folder):
        _, sidecar = vitreous.save(OLD, folder / "m", format="google")
        if not has_sidecar:
            sidecar.unlink()

    for folder in each_kill(
        tmp_path, monkeypatch, start, lambda folder: vitreous.save(NEW, folder / "m", format="google", force=True)
    ):
        file = folder / "m.npz"
        is_old = torch.equal(vitreous.load(file).head.weight, OLD.head.weight)
        found.append("old" if is_old else "new")
        if is_old and not has_sidecar:
            assert vitreous.load(file).labels is None
        else:
            assert is_whole(file) == found[-1]
        if found[-1] != found[0] or folder.name == "3":  # what a dead writer left is in nobody's way
            vitreous.save(OLD, file, format="google", force=True)
            assert is_whole(file) == "old"
            assert "replaces" not in json.loads((folder / "m.npz.json").read_text())
    assert set(found) == {"old", "new"}
    assert found == sorted(found, reverse=True)


def test_two_kills_in_a_row_keep_the_labels_of_the_oldest(tmp_path, monkeypatch):
    """Each dies when its sidecar is there and its file is not."""
    vitreous.save(OLD, tmp_path / "m", format="google")
    third = labelled("third", 2)
    steps = 3  # the sidecar is synced, renamed and its leftover unlinked
    for model in (NEW, third):
        killed_at(
            steps, monkeypatch, lambda model=model: vitreous.save(model, tmp_path / "m", format="google", force=True)
        )
        assert json.loads((tmp_path / "m.npz.json").read_text())["labels"] == list(model.labels)
        assert is_whole(tmp_path / "m.npz") == "old"


@pytest.mark.parametrize("force", [False, True])
def test_a_file_that_cannot_be_written_leaves_what_lies_beside_as_it_was(tmp_path, monkeypatch, force):
    """The disk fails under the second file, that of the tensors."""
    if force:
        vitreous.save(OLD, tmp_path / "m", format="google")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    real, files_synced = files.fsync, []

    def fsync(file):
        files_synced.append(file)
        if len(files_synced) == 2:
            raise OSError(28, "No space left on device")
        real(file)

    monkeypatch.setattr(files, "fsync", fsync)
    with pytest.raises(OSError, match="No space left"):
        vitreous.save(NEW, tmp_path / "m", format="google", force=force)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("format", ["timm", "huggingface"])
def test_wherever_an_overwriting_save_of_a_folder_is_killed_it_is_whole(tmp_path, monkeypatch, format):
    models = {word: awake(seed=seed, **GELU, norm_eps=1e-6) for seed, word in enumerate(("old", "new"))}
    for word, model in models.items():
        model.labels = tuple(f"{word} {i}" for i in range(5))

    def save(word, folder):
        vitreous.save(models[word], folder / "m", format=format, anyway=True, force=True)

    found = []
    for folder in each_kill(
        tmp_path, monkeypatch, lambda folder: save("old", folder), lambda folder: save("new", folder)
    ):
        model = vitreous.load(folder / "m")
        found.append(model.labels[0].partition(" ")[0])
        assert model.labels == models[found[-1]].labels
        assert torch.equal(model.head.weight, models[found[-1]].head.weight)
    assert set(found) == {"old", "new"}
    assert found == sorted(found, reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["google", "huggingface"])
def test_a_process_killed_at_any_moment_leaves_a_model_with_its_own_labels(tmp_path, format):
    """Real SIGKILLs of a process that overwrites one model by the other, over and over."""
    code = """
        import itertools, sys
        from vitreous.weights.save_model import save
        sys.path.insert(0, sys.argv[1])
        from tiny_models import awake
        models = []
        for seed, word in enumerate(("old", "new")):
            models.append(awake(seed=seed, **({} if sys.argv[3] == "google" else {"activation": "gelu"})))
            models[-1].labels = tuple(f"{word} {i}" for i in range(5))
        save(models[0], sys.argv[2], format=sys.argv[3], anyway=True, force=True)
        print("ready", flush=True)
        for i in itertools.count():
            save(models[i % 2], sys.argv[2], format=sys.argv[3], anyway=True, force=True)
        """
    changes = {} if format == "google" else GELU
    wanted = {word: awake(seed=seed, **changes).head.weight for seed, word in enumerate(("old", "new"))}
    place = tmp_path / "m"
    words = [sys.executable, "-c", textwrap.dedent(code), str(Path(__file__).parents[1]), str(place), format]
    for i in range(4):
        process = forks.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.2 + 0.037 * i)
        process.kill()
        process.communicate()
        model = vitreous.load(tmp_path / "m.npz" if format == "google" else place)
        word = model.labels[0].partition(" ")[0]
        assert model.labels == tuple(f"{word} {i}" for i in range(5))
        assert torch.equal(model.head.weight, wanted[word])


def test_a_folder_between_its_two_renames_is_found_by_load(tmp_path):
    """As a kill leaves it where the system cannot exchange two folders."""
    model = awake(**GELU)
    vitreous.save(model, tmp_path / "m", format="huggingface", anyway=True)
    (tmp_path / "m").rename(tmp_path / ".m.replaced")
    assert torch.equal(vitreous.load(tmp_path / "m").head.weight, model.head.weight)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize(("format", "name"), [("google", "m.pth"), ("timm", "m.safetensors"), ("torchvision", "m.npz")])
def test_a_name_that_would_be_misread_is_refused(format, name, tmp_path):
    with pytest.raises(FormatError) as caught:
        vitreous.save(awake(**GELU), tmp_path / name, format=format, anyway=True)
    line_of(caught.value, name)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("format", ["vitreous", "google", "torchvision"])
@pytest.mark.parametrize("path", ["folder/", "", "."])
def test_a_folder_is_no_name_for_a_file(format, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FormatError) as caught:
        vitreous.save(awake(**GELU), path, format=format, anyway=True)
    line_of(caught.value, "names no file", "model.")
    assert not any(tmp_path.iterdir())


def test_nothing_but_the_files_is_left_beside_them(tmp_path):
    for force in (False, True):
        vitreous.save(awake(), tmp_path / "deep" / "m", format="google", force=force)
        assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["m.npz", "m.npz.json"]


def test_torchvision_is_written_as_the_name_says(tmp_path):
    for name in ("m.pth", "m.pt", "m.safetensors"):
        files = vitreous.save(awake(**GELU), tmp_path / name, format="torchvision")
        assert files[0].name == name
        assert_same_model(vitreous.load(files[0]), awake(**GELU))


def test_an_unknown_format_lists_ours(tmp_path):
    (file,) = vitreous.save(awake(), tmp_path / "m")
    for call in (
        lambda: vitreous.save(awake(), tmp_path / "x", format="keras"),
        lambda: vitreous.convert("B/16", tmp_path / "x", to="keras"),
        lambda: vitreous.load(tensors_of(file, tmp_path), format="keras"),
    ):
        with pytest.raises(FormatError) as caught:
            call()
        line_of(caught.value, "keras", *formats.names(), formats.get("timm").holds)


def tensors_of(file, folder):
    """The tensors of our file, without its manifest."""
    torch.save(vitreous.load(file).state_dict(), folder / "bare.pth")
    return folder / "bare.pth"


# Every model, every format


CHOICES = {
    "positions": ["learned", "learned", "learned", "none", "sincos-2d", "learned-2d", "relative"],
    "positions_at": ["stem", "stem", "stem", "every-layer", "every-layer-shared"],
    "positions_cover": ["all", "class", "patches"],
    "pool": ["cls", "gap", "map", "max", "cls-and-gap", "cls-and-distillation"],
    "pool_order": ["norm-first", "mean-first"],
    "registers": [0, 0, 1, 3],
    "class_token": [True, False],
    "distillation_token": [False, False, True],
    "distillation_head": [False, False, True],
    "representation": [0, 0, 6],
    "norm_before_blocks": [False, True],
    "patch_bias": [True, False],
    "activation": ["gelu", "gelu-tanh", "relu", "swiglu"],
    "norm_eps": [1e-6, 1e-5, 1e-12],
    "qkv_bias": [True, False],
    "qk_norm": [False, True],
    "layer_scale": [None, 0.5],
    "mask_token": [False, True],
    "norm": ["pre", "pre", "pre", "post"],
    "norm_kind": ["layer", "layer", "layer", "batch"],
    "stem": ["patch", "patch", "patch", "resnet", "convolutions"],
    "attention_scale": [None, None, 0.3],
    "classes": [0, 1, 4],
    "channels": [3, 3, 1, 4],
    "depth": [1, 2],
    "heads": [1, 2, 4],
    "mlp": [8, 20],
    "width": [8, 16],
}
GRIDS = st.tuples(st.integers(1, 4), st.integers(1, 4)) | st.just((3, 3))
MODELS = st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in CHOICES.items()})


@settings(max_examples=40, suppress_health_check=list(HealthCheck), derandomize=True)
@given(changes=MODELS, grid=GRIDS, patch=st.sampled_from([(4, 4), (4, 4), (2, 4)]), anyway=st.booleans())
def test_any_model_is_saved_to_any_format_or_refused_and_comes_back_the_same(
    changes, grid, patch, anyway, tmp_path_factory
):
    """Random sizes, grids, positions, pools, tokens: equal answers, or one line that names a part."""
    size = grid[0] * patch[0], grid[1] * patch[1]
    if changes.get("stem") == "resnet":
        changes = {**changes, "units": (1,), "resnet_width": 0.125}
        size = grid[0] * patch[0] * 4, grid[1] * patch[1] * 4
    try:
        first = awake(VIT.change(**changes, patch=patch, image_size=size))
    except (ConfigError, VitreousError) as refused:
        line_of(refused)
        return
    place = tmp_path_factory.mktemp("any")
    x = images(first)
    for format in formats.names():
        try:
            files = vitreous.save(first, place / format, format=format, anyway=anyway)
        except FormatError as refused:
            line = line_of(refused, format)
            assert re.search(r"(cannot hold this model|would run this model differently): \w", line)
            assert anyway is False or "differently" not in line
            continue
        second = vitreous.load(file_of(files))
        assert_close(
            answer(second, x), answer(first, x), atol=2e-6 * max(1, answer(first, x).abs().max().item()), rtol=0
        )
        assert second.config.readout == first.config.readout
        assert second.preprocess == first.preprocess or format in ("timm", "huggingface")
        if format == "vitreous":
            assert second.config == first.config
