"""A process knows which of how many it is; real groups of two are in images/test_batches.py."""

import subprocess
import sys

import pytest

from vitreous import ranks
from vitreous.errors import ConfigError
from vitreous.ranks import Ranks


def test_alone_is_the_first_of_one(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert ranks.here() == Ranks(0, 1)
    assert ranks.here().is_first
    assert ranks.gather("mine") == ["mine"]


def test_torchruns_variables_are_read_before_the_group_is_made(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert ranks.here() == Ranks(2, 4)
    assert not ranks.here().is_first
    with pytest.raises(ConfigError, match=r"rank 2 of 4 has no process group to ask; call torch\.distributed"):
        ranks.gather(1)


@pytest.mark.parametrize(("rank", "world"), [("4", "4"), ("one", "4"), ("-1", "2")])
def test_variables_that_cannot_be_are_one_line(monkeypatch, rank, world):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    with pytest.raises(
        ConfigError, match=r"rank 4 of 4 does not exist|variable RANK is '(one|-1)', which is no number"
    ):
        ranks.here()


def test_asking_does_not_import_torch():
    code = "import sys; from vitreous import ranks; ranks.here(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
