"""`fit` on shards in a store: streamed, resumed, with a bad shard, and without a word about secrets."""

import json

import numpy as np
import pytest
import torch
from picture_files import encoded, tar_of
from range_server import serving
from safetensors.torch import load_file
from small_runs import Death, die_at, fitted

from vitreous.errors import DataError, ShardError
from vitreous.images import imageset
from vitreous.images.sources import remote
from vitreous.training.run import decoded

pytest.importorskip("aiohttp")
fsspec = pytest.importorskip("fsspec")

SECRET = "hush-5678"


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Six shards of eight images of two classes, for training, and one to test."""
    monkeypatch.setattr(remote, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(remote, "_systems", {})
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    files = {}
    for k in range(7):
        inside = {}
        for n in range(8 * k, 8 * k + 8):
            inside |= {f"{n:05d}.jpg": encoded(n, "JPEG"), f"{n:05d}.cls": str(n % 2).encode()}
        name = "val-0.tar" if k == 6 else f"train-{k}.tar"
        files[f"set/{name}"] = tar_of(tmp_path / name, inside).read_bytes()
    with serving(files) as running:
        yield running


@pytest.fixture
def streamed(server, monkeypatch):
    """The same, as if it were too large to hold."""
    monkeypatch.setattr(imageset, "STREAMED_FROM", 40)
    monkeypatch.setattr(decoded, "hold", lambda *given, **how: pytest.fail("images were held"))
    monkeypatch.setattr(decoded, "pack", lambda *given, **how: pytest.fail("images were packed"))
    return f"{server.address}/set/{{train-{{0..5}},val-0}}.tar"


def words_of(events):
    return [str(event) for event in events]


def test_a_streamed_run_that_was_ended_goes_on_to_the_same_weights(streamed, tmp_path):
    whole = fitted(streamed, tmp_path / "whole", length="8 steps", check=True)
    with pytest.raises(Death):
        fitted(streamed, tmp_path / "ended", length="8 steps", check=True, tell=die_at(5))
    again = fitted(streamed, tmp_path / "ended", resume=True, length="8 steps", check=True)
    one, other = (load_file(run.model) for run in (whole, again))
    assert all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)
    assert json.loads((tmp_path / "ended" / "config.json").read_text())["data"]["images"] == 56


def test_a_shard_lost_within_a_run_stops_it_and_it_goes_on_when_told(streamed, server, tmp_path):
    raw = server.files["set/train-3.tar"]
    heard = []

    def lose(event):
        if event["kind"] == "step" and event["step"] == 1:
            server.files["set/train-3.tar"] = raw[:700]

    with pytest.raises(
        ShardError, match=r"train-3\.tar is cut short at train-3\.tar/000\d\d\.jpg; fetch the shard again"
    ):
        fitted(streamed, tmp_path / "run", length="30 steps", tell=lose)
    server.files["set/train-3.tar"] = raw  # the headers are read again, where no index was written
    run = tmp_path / "run"

    def lose_again(event):
        heard.append(event)
        lose({"kind": "step", "step": 1})

    fitted(streamed, run, resume=True, length="30 steps", skip_bad_shards=True, tell=lose_again)
    told = [line for line in words_of(heard) if "cannot be read" in line]
    assert told
    assert all("train-3.tar" in line for line in told)


def test_a_shard_that_is_bad_from_the_start_is_told_with_its_loss(streamed, server, tmp_path):
    del server.files["set/train-3.tar"]
    with pytest.raises(DataError, match=r"train-3\.tar is not there; check the address"):
        fitted(streamed, tmp_path / "run")
    heard = []
    fitted(streamed, tmp_path / "run", skip_bad_shards=True, tell=heard.append)
    assert any("skipped 1 bad shards" in line and "all of 1 that no index tells of" in line for line in words_of(heard))


def test_a_run_folder_holds_no_secret_and_asks_for_it_again(server, tmp_path, monkeypatch):
    server.token = f"token={SECRET}"
    address = f"{server.address}/set/{{train-{{0..5}},val-0}}.tar?token={SECRET}"
    monkeypatch.setattr("sys.argv", ["vitreous", "fit", address])
    with pytest.raises(Death):
        fitted(address, tmp_path / "run", length="8 steps", tell=die_at(3))
    with pytest.raises(DataError, match=r"without its password or signature.*name it again: vitreous fit ADDRESS"):
        fitted(tmp_path / "run", None, resume=True, model=None, recipe="auto", check=True, folds=None)
    fitted(address, tmp_path / "run", length="8 steps", resume=True)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 3
    assert not [path.name for path in files if SECRET.encode() in path.read_bytes()]
    assert "?***" in (tmp_path / "run" / "config.json").read_text()


def test_the_order_of_a_streamed_run_is_that_of_its_shards_alone(streamed, tmp_path):
    """Held or streamed, near or far: the losses are the same."""
    far = fitted(streamed, tmp_path / "far", length="6 steps")
    near = fitted(tmp_path / "{train-{0..5},val-0}.tar", tmp_path / "near", length="6 steps")
    losses = [
        [
            json.loads(line)["loss"]
            for line in (tmp_path / name / "events.jsonl").read_text().splitlines()
            if '"step"' in line and "loss" in json.loads(line)
        ]
        for name in ("far", "near")
    ]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert far.path != near.path
