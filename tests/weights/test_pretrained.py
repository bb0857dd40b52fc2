"""Short names for good weights: a table of facts, files brought by hand, and a hub that runs here."""

import json
import sys
from dataclasses import replace

import commands
import hub_server
import pytest
from tiny_models import assert_same_model, awake, line_of

import vitreous
from vitreous.errors import ConfigError, HubError, ModelNameError
from vitreous.models import catalog
from vitreous.weights import hub, pretrained, timm_names
from vitreous.weights.load_model import is_new
from vitreous.weights.pretrained import PRETRAINED, WEIGHTS_FILE

pytest.importorskip("huggingface_hub")
FILES = "config.json and model.safetensors"
KNOWN, UNKNOWN = PRETRAINED["deit-tiny"], PRETRAINED["vit-tiny"]  # with a digest in the table, and without


def small(**changes):
    return awake(activation="gelu", **changes)


# The table


@pytest.mark.parametrize("known", PRETRAINED.values(), ids=PRETRAINED)
def test_a_row_names_a_repository_whose_network_runs_here(known):
    repository, commit = hub.repository(known.source)
    assert repository.startswith("timm/")
    assert timm_names.without_tag(repository) in timm_names.runs()
    assert commit is None or len(commit) == 40
    assert known.sha256 is None or len(bytes.fromhex(known.sha256)) == 32
    assert known.page == f"https://huggingface.co/{repository}/tree/{commit or 'main'}"
    parameters = catalog.describe(known.network).parameters
    assert known.megabytes == pytest.approx(4 * parameters / 1e6, rel=0.01)  # float32


def test_no_short_name_is_a_name_of_the_catalog():
    for name in PRETRAINED:
        assert not catalog.is_in_catalog(name)
        assert not is_new(name)


def test_the_table_is_printed_and_is_json(monkeypatch, tmp_path):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "ours"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    bring(UNKNOWN, small())
    plain, body, two, alone, typo = commands.run_all(
        [
            ["models", "--weights"],
            ["models", "--weights", "--json"],
            ["models", "deit-base", "deit-tiny"],
            ["models"],
            ["models", "--weights", "deit-tny"],
        ]
    )
    lines = plain.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for known in PRETRAINED.values():
        (row,) = [line for line in lines if line.split()[:1] == [known.name]]
        assert f"{known.top1:.1f} %" in row
        assert known.licence in row
    assert "On this machine: vit-tiny." in plain.stdout
    rows = json.loads(body.stdout)["weights"]
    assert [row["name"] for row in rows] == list(PRETRAINED)
    assert [row["name"] for row in rows if row["is_here"]] == ["vit-tiny"]
    assert rows[0]["sha256"] == KNOWN.sha256
    assert "deit-tiny" in two.stdout
    assert "deit-small" not in two.stdout
    assert "On this machine: none of them yet." in two.stdout
    assert "vitreous models --weights" in alone.stdout
    assert "near: deit-tiny" in typo.line


# Words that are not names


@pytest.mark.parametrize(
    ("word", "near"),
    [("deit-tny", "deit-tiny"), ("DeiT-Tiny", "deit-tiny"), ("deit_small", "deit-small"), ("startr", "starter")],
)
def test_a_typo_gets_the_name_that_was_meant(word, near):
    with pytest.raises(ModelNameError) as caught:
        vitreous.load(word)
    line_of(caught.value, word, f"did you mean {near}", "vitreous models --weights")


def test_a_name_of_the_catalog_is_no_typo_of_weights():
    for name in ("B/16", "Ti/8 depth=2", "BiT-R50x1"):
        assert is_new(name)


def test_weights_are_looked_for_before_images_are_read(tmp_path):
    """The folder of images does not exist, and the line is about the weights."""
    for weights in ("deit-tny", tmp_path / "gone.safetensors"):
        with pytest.raises(vitreous.errors.VitreousError) as caught:
            vitreous.fit(tmp_path / "nothing", weights=weights, out=tmp_path / "run")
        assert str(weights) in str(caught.value)
    with pytest.raises(ConfigError, match="say --weights deit-tiny"):
        vitreous.fit(tmp_path / "nothing", model="deit-tiny", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Brought by hand


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """A machine without a network and with empty caches; gives the folder for what is brought."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "ours"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "ours" / "weights"


def bring(known, model):
    vitreous.save(model, pretrained.place(known), format="timm")


def test_offline_the_line_says_which_files_to_bring_and_where(offline):
    with pytest.raises(HubError) as caught:
        vitreous.load("deit-tiny")
    line_of(caught.value, "deit-tiny is not on this machine", FILES, KNOWN.page)
    line_of(caught.value, offline / "deit-tiny")


def test_files_brought_by_hand_are_the_model(offline):
    model = small()
    bring(UNKNOWN, model)
    loaded = vitreous.load("vit-tiny")
    assert_same_model(loaded, model)
    assert loaded.source["path"] == UNKNOWN.source
    (offline / "vit-tiny" / "config.json").unlink()
    with pytest.raises(HubError) as caught:  # without it the preprocessing would be a guess
        vitreous.load("vit-tiny")
    line_of(caught.value, "lacks config.json", UNKNOWN.page)


def test_a_wrong_file_brought_by_hand_is_refused_and_kept(offline):
    bring(KNOWN, small())
    with pytest.raises(HubError) as caught:
        vitreous.load("deit-tiny")
    file = offline / "deit-tiny" / WEIGHTS_FILE
    line_of(caught.value, file, str(KNOWN.sha256)[:12], "by its path")
    assert file.is_file()
    assert_same_model(vitreous.load(file.parent), small())


def test_a_folder_of_that_name_wins(offline):
    model = small(seed=3)
    vitreous.save(model, "deit-tiny", format="timm")
    assert_same_model(vitreous.load("deit-tiny"), model)
    assert vitreous.load("deit-tiny").source["path"] == "deit-tiny"


# A hub on this machine


@pytest.fixture(scope="module")
def server():
    with hub_server.running() as server:
        yield server


@pytest.fixture
def online(offline, server, tmp_path, monkeypatch):
    """The hub is the one here, and holds both kinds of rows; gives what it has been asked for."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    point_at(server.address, monkeypatch)
    server.sent.clear()
    server.seen.clear()
    for known in (KNOWN, UNKNOWN):
        files = vitreous.save(small(), tmp_path / "made" / known.name, format="timm")
        server.files[hub.repository(known.source)[0]] = {file.name: file.read_bytes() for file in files}
    return server


def point_at(address, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    values = {"ENDPOINT": address, "HUGGINGFACE_CO_URL_TEMPLATE": template, "HF_HUB_DISABLE_XET": True}
    for name, value in (values | {"HF_HUB_DISABLE_PROGRESS_BARS": True}).items():
        monkeypatch.setattr(constants, name, value)


def kept(tmp_path) -> list[str]:
    """Files of weights in the hub's cache, whole or not."""
    return [p.name for p in (tmp_path / "hub").rglob("*") if p.is_file() and p.stat().st_size > 5_000]


def fetches(server, known) -> int:
    """How often the weights were sent."""
    repository, commit = hub.repository(known.source)
    return server.seen.count(f"GET /{repository}/resolve/{commit or hub_server.COMMIT}/{WEIGHTS_FILE}")


def refused(known, *words):
    with pytest.raises(HubError) as caught:
        vitreous.load(known.name)
    return line_of(caught.value, known.name, *words)


def test_a_short_name_is_fetched_once_and_checked_each_time(online, tmp_path, monkeypatch):
    """No digest in the table: the one that the hub states holds, at once and later."""
    assert not pretrained.is_here(UNKNOWN)
    assert online.seen == [], "nothing is fetched before it is named"
    for _ in range(2):
        assert_same_model(vitreous.load("vit-tiny"), small())
    assert fetches(online, UNKNOWN) == 1
    assert pretrained.is_here(UNKNOWN)
    (link,) = (tmp_path / "hub").rglob(f"snapshots/*/{WEIGHTS_FILE}")
    file = link.resolve()
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    refused(UNKNOWN, "the cached vit-tiny is not right", WEIGHTS_FILE, "run the command again")
    assert kept(tmp_path) == []
    assert_same_model(vitreous.load("vit-tiny"), small())
    assert fetches(online, UNKNOWN) == 2
    point_at("http://127.0.0.1:9", monkeypatch)
    assert_same_model(vitreous.load("vit-tiny"), small())  # the cache needs no hub


def test_a_file_with_the_digest_of_the_table_is_the_one_we_know(online, monkeypatch):
    """The row is real but for its digest, which is that of the small file here; its commit is asked for by name."""
    own = hub_server.sha256(online.files[hub.repository(KNOWN.source)[0]][WEIGHTS_FILE])
    monkeypatch.setitem(PRETRAINED, "deit-tiny", replace(KNOWN, sha256=own))
    for _ in range(2):
        assert_same_model(vitreous.load("deit-tiny"), small())
    assert fetches(online, KNOWN) == 1


def test_another_file_than_the_one_we_know_is_refused_and_not_kept(online, tmp_path):
    refused(
        KNOWN, "what the hub sent for deit-tiny is not right", str(KNOWN.sha256)[:12], f"bring {FILES} of {KNOWN.page}"
    )
    assert kept(tmp_path) == []


@pytest.mark.parametrize("file", ["config.json", WEIGHTS_FILE])
@pytest.mark.parametrize("name", ["vit-tiny", UNKNOWN.source])
def test_other_bytes_than_the_hub_states_are_refused_and_not_kept(online, tmp_path, file, name):
    """So for hub names as for short ones."""
    repository = hub.repository(UNKNOWN.source)[0]
    raw = online.files[repository][file]
    online.sent[f"{repository}/{file}"] = raw[:-2] + b" \n"
    with pytest.raises(HubError) as caught:
        vitreous.load(name)
    line_of(caught.value, name, "is not right", file, "try again")
    assert not list((tmp_path / "hub").rglob(f"snapshots/*/{file}"))
    online.sent.clear()
    assert_same_model(vitreous.load(name), small())


@pytest.mark.parametrize("file", ["config.json", WEIGHTS_FILE])
def test_a_download_that_is_cut_short_leaves_nothing_to_load(online, tmp_path, file):
    repository = hub.repository(UNKNOWN.source)[0]
    online.sent[f"{repository}/{file}"] = online.files[repository][file][:-9]
    refused(UNKNOWN, "broke off", "try again", tmp_path / "ours" / "weights" / "vit-tiny")
    assert kept(tmp_path) == []
    online.sent.clear()
    assert_same_model(vitreous.load("vit-tiny"), small())


def test_a_hub_that_is_away_or_refuses_is_answered_with_what_to_bring(online, tmp_path, monkeypatch):
    online.closed = {"vit_tiny"}
    refused(UNKNOWN, "the hub refused", UNKNOWN.page)
    online.closed = set()
    del online.files[hub.repository(UNKNOWN.source)[0]]
    refused(UNKNOWN, "the hub refused", UNKNOWN.page)
    point_at("http://127.0.0.1:9", monkeypatch)
    refused(UNKNOWN, "is not on this machine and the hub cannot be reached", UNKNOWN.page)
    assert kept(tmp_path) == []


def test_without_the_extra_the_line_says_both_ways(offline, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert not pretrained.is_here(KNOWN)
    refused(KNOWN, "pip install 'vitreous[hub]'", f"bring {FILES} of {KNOWN.page}", offline / "deit-tiny")
    bring(UNKNOWN, small())
    assert_same_model(vitreous.load("vit-tiny"), small())
