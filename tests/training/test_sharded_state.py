"""A state in shards, read by one process: every kind of tensor comes back, and a foreign file runs no code."""

import pickle
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.testing import assert_close

from vitreous.errors import CheckpointError
from vitreous.training.run.sharded_state import read_whole


@pytest.fixture
def state(tmp_path):
    tensors = {
        "weight": torch.randn(5, 3),
        "half": torch.randn(4).bfloat16(),
        "step": torch.tensor(7),
        "is_on": torch.tensor([True, False]),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that no other process writes
        dcp.save(tensors, storage_writer=dcp.FileSystemWriter(tmp_path / "state"), no_dist=True)
    return tensors, tmp_path / "state"


def test_every_kind_of_tensor_comes_back(state):
    tensors, path = state
    found = read_whole(path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert_close(found[name], tensor, rtol=0, atol=0)


class Evil:
    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return open, (str(self.place), "w")


def test_a_list_of_tensors_runs_no_code(state, tmp_path):
    """torch writes the list as a pickle; a run folder from elsewhere must not run what it names."""
    _, path = state
    (path / ".metadata").write_bytes(pickle.dumps(Evil(tmp_path / "was here")))
    with pytest.raises(CheckpointError, match=r"is no list of tensors \(it names \w+\.open\); take another state"):
        read_whole(path)
    assert not (tmp_path / "was here").exists()


def test_a_list_that_is_cut_is_one_line(state):
    _, path = state
    raw = (path / ".metadata").read_bytes()
    (path / ".metadata").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(CheckpointError, match="is no list of tensors"):
        read_whole(path)
