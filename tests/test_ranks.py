"""A process knows which of how many it is; real groups of two are in images/test_batches.py."""

import os
import socket
import subprocess
import sys
import threading

import forks
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
        ConfigError, match=r"rank 4 of 4 does not exist|variable RANK is '(one|-1)', which is not a number"
    ):
        ranks.here()


def test_asking_does_not_import_torch():
    code = "import sys; from vitreous import ranks; ranks.here(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_alone_a_rank_agrees_with_itself_and_holds_what_it_made():
    alone, held = Ranks(0, 1), threading.Lock()
    assert ranks.agreed(alone, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        ranks.agreed(alone, lambda: 1 / 0)
    with ranks.first(alone, lambda: held) as made:
        assert made
        assert held.locked()
    assert not held.locked()
    ranks.together(alone)


TWO = """
import sys
import threading
import warnings
import torch
from vitreous import ranks
from vitreous.errors import VitreousError
warnings.simplefilter("ignore")
with ranks.group(torch.device("cpu")) as (device, here):
    chosen = ranks.agreed(here, lambda: ["chosen by the first"])
    try:
        ranks.agreed(here, lambda: 1 / 0)
    except (ZeroDivisionError, VitreousError) as error:
        fault = f"{type(error).__name__}: {error}"
    with ranks.first(here, lambda: open(sys.argv[1], "w")) as file:
        held = file is not None
    ranks.together(here)
print(here.rank, device, chosen, fault, held, torch.distributed.is_initialized())
"""


def test_two_ranks_agree_on_what_the_first_chooses_and_refuses(tmp_path):
    port = free_port()
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    words = [sys.executable, "-c", TWO, str(tmp_path / "held")]
    started = [forks.Popen(words, stdout=subprocess.PIPE, text=True, env=shared | {"RANK": rank}) for rank in "01"]
    said = [process.communicate(timeout=200)[0].strip() for process in started]
    assert said == [
        "0 cpu ['chosen by the first'] ZeroDivisionError: division by zero True False",
        "1 cpu ['chosen by the first'] ToldError: division by zero False False",
    ]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


LATE = "ended or did not answer within 2 s; look at its own messages, then start all ranks again (VITREOUS_RANK_TIMEOUT"


@pytest.mark.parametrize(
    ("rank", "address", "line"),
    [
        ("0", "127.0.0.1", f"rank 1 of 3 {LATE} sets the seconds)"),
        ("2", "127.0.0.1", f"rank 0 of 3 {LATE} sets the seconds)"),
        ("1", "", "rank 1 finds no rank 0: the variable MASTER_ADDR is not set; start with torchrun"),
    ],
)
def test_ranks_that_never_start_are_named(rank, address, line):
    shared = {"WORLD_SIZE": "3", "RANK": rank, "MASTER_ADDR": address, "MASTER_PORT": free_port()}
    environment = {**os.environ, **shared, "VITREOUS_RANK_TIMEOUT": "2"}
    words = [sys.executable, "-W", "ignore", "-c", TWO, "-"]
    process = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=200, check=False)
    assert process.stderr.strip().endswith(f"Error: {line}")
