"""A model that is loaded is its own: nothing that happens to its file afterwards changes it, or ends the process."""

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import answer, awake
from torch.testing import assert_close

import vitreous
from vitreous.weights import formats
from vitreous.weights.quantised import write_quantised

GELU = {"activation": "gelu"}


def written(format, seed, folder):
    """The files of a tiny model of that format."""
    model = awake(seed=seed, **(GELU if format in ("timm", "huggingface", "torchvision") else {}))
    if format == "quantised":
        path = folder / "m.safetensors"
        path.parent.mkdir()
        write_quantised(model, path, fineness=20)
        return path, [path]
    if format == "pickled":
        path = folder / "m.pth"
        vitreous.save(awake(seed=seed, **GELU), path, format="torchvision")
        return path, [path]
    files = vitreous.save(model, folder / "m", format=format, anyway=True)
    return folder / "m" if formats.get(format).is_folder else files[0], files


@pytest.mark.parametrize("format", [*formats.names()[1:], "pickled", "quantised"])
def test_a_file_that_is_overwritten_and_cut_leaves_the_loaded_model_as_it_is(format, tmp_path):
    place, files = written(format, 0, tmp_path / "one")
    _, others = written(format, 1, tmp_path / "two")
    leaves_the_model_alone(place, files, others)


def test_so_does_our_own(tmp_path):
    for seed, name in enumerate(("one", "two")):
        vitreous.save(awake(seed=seed), tmp_path / f"{name}.safetensors")
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    leaves_the_model_alone(one, [one], [two])


def leaves_the_model_alone(place, files, others):
    model = vitreous.load(place)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    said = answer(model)
    for file, other in zip(files, others, strict=True):
        raw = other.read_bytes()
        with file.open("r+b") as same:  # in place: the same inode
            same.write(raw)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    for file in files:
        with file.open("r+b") as same:
            same.truncate(0)
    assert_close(answer(model), said)


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_every_type_is_read_as_safetensors_reads_it(kind, tmp_path):
    model = awake().to(kind)
    (file,) = vitreous.save(model, tmp_path / "m")
    ours, theirs = vitreous.load(file).state_dict(), load_file(file)
    assert {name: tensor.dtype for name, tensor in ours.items()} == {name: t.dtype for name, t in theirs.items()}
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_a_file_that_is_cut_while_it_is_read_is_refused(tmp_path, monkeypatch):
    """After its header was read and found whole."""
    from vitreous.errors import CheckpointError
    from vitreous.weights import tensor_files

    (file,) = vitreous.save(awake(), tmp_path / "m")
    real = tensor_files._read_header

    def cutting(opened, path):
        found = real(opened, path)
        with path.open("r+b") as same:
            same.truncate(path.stat().st_size // 2)
        opened.seek(opened.tell())  # what is buffered is forgotten
        return found

    monkeypatch.setattr(tensor_files, "_read_header", cutting)
    with pytest.raises(CheckpointError, match="became shorter while it was read; fetch or write it again"):
        vitreous.load(file)
