"""hf:OWNER/NAME and timm:NAME: from a cache laid out as the hub lays it out, from a hub that runs here, and to it."""

import json
import os

import commands
import hub_server
import pytest
from tiny_models import assert_same_model, awake, line_of

import vitreous
from vitreous.errors import HubError
from vitreous.weights import hub

constants = pytest.importorskip("huggingface_hub.constants")
GELU = {"activation": "gelu"}
HASH, OTHER = "a" * 40, "b" * 40


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """cache("owner/name", model, format): the model lies in the hub's cache; offline."""
    root = tmp_path / "cache"
    root.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(root))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def put(name, model, format, *, commit=HASH, ref="main"):
        place = root / ("models--" + name.replace("/", "--"))
        for folder in ("blobs", "refs", f"snapshots/{commit}"):
            (place / folder).mkdir(parents=True, exist_ok=True)
        (place / "refs" / ref).write_text(commit)
        made = tmp_path / "made" / commit / name
        target = made if format in ("timm", "huggingface") else made / "model"
        for file in vitreous.save(model, target, format=format):
            blob = place / "blobs" / vitreous.weights.save_model.digest(file)
            blob.write_bytes(file.read_bytes())
            (place / "snapshots" / commit / file.name).symlink_to(os.path.relpath(blob, place / "snapshots" / commit))
        return place

    return put


@pytest.mark.parametrize("format", ["huggingface", "timm", "google", "vitreous"])
def test_a_repository_in_the_cache_is_a_model(cache, format):
    first = awake(**(GELU if format in ("huggingface", "timm") else {}))
    cache("owner/some.name-1", first, format)
    second = vitreous.load("hf:owner/some.name-1")
    assert_same_model(second, first)
    if format != "vitreous":
        assert second.source["path"] == "hf:owner/some.name-1"
    assert vitreous.load("hf:owner/some.name-1", classes=3).config.readout.classes == 3


def test_timm_names_its_own_page(cache):
    first = awake(**GELU)
    cache("timm/vit_tiny.augreg", first, "timm")
    for name in ("timm:vit_tiny.augreg", "hf:timm/vit_tiny.augreg", "timm:timm/vit_tiny.augreg"):
        assert_same_model(vitreous.load(name), first)


def test_a_revision_is_a_branch_a_tag_or_a_commit(cache):
    one, two = awake(**GELU), awake(seed=1, **GELU)
    cache("o/n", one, "timm")
    cache("o/n", two, "timm", commit=OTHER, ref="v2")
    for name, want in (("hf:o/n", one), ("hf:o/n@main", one), ("hf:o/n@v2", two), (f"hf:o/n@{OTHER}", two)):
        assert_same_model(vitreous.load(name), want)


def says(source, *words):
    with pytest.raises(HubError) as caught:
        vitreous.load(source)
    return line_of(caught.value, *words)


def test_what_is_not_in_the_cache_cannot_be_had_offline(cache):
    says("hf:owner/name", "hf:owner/name", "HF_HUB_OFFLINE")
    says("timm:name", "timm:name", "HF_HUB_OFFLINE")
    cache("o/n", awake(**GELU), "timm")
    says("hf:o/n@v9", "hf:o/n@v9", "HF_HUB_OFFLINE")
    (place,) = cache("o/half", awake(**GELU), "timm").glob("snapshots/*")
    (place / "model.safetensors").unlink()  # only a config was fetched
    says("hf:o/half", "hf:o/half", "HF_HUB_OFFLINE")


@pytest.mark.parametrize(
    "source",
    [
        "hf:",
        "hf:name",
        "hf:a/b/c",
        "hf:/b",
        "hf:a/",
        "hf:../../etc",
        "hf:a/..",
        "hf:a/b@",
        "hf:a/b@../../x",
        "hf:a/b@@",
        "hf:a b/c",
        "hf:a/b?x",
        "timm:",
        "timm:a/b/c",
        "hf:a/b\nc",
        "hf:-a/b",
        "hf:a/b@x y",
        "hf:a--b/c",
        "hf:ä/b",
    ],
)
def test_what_names_no_repository_is_refused(source, cache):
    with pytest.raises(HubError) as caught:
        vitreous.load(source)
    assert "names no repository" in str(caught.value)
    with pytest.raises(HubError, match="names no repository"):
        hub.repository(source)


def test_an_existing_path_wins(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (file,) = vitreous.save(awake(), tmp_path / "hf:o" / "n" / "model")
    assert file.exists()
    assert_same_model(vitreous.load("hf:o/n"), awake())


# Another process, so that the library reads its environment anew


def run(*calls, before="", **environment) -> list[commands.Done]:
    """The command line called with each list of words, all in one process of its own."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    return commands.run_all(calls, before=before, environment=clean | environment)


def environment(server, tmp_path) -> dict[str, str]:
    return {
        "HF_ENDPOINT": server.address,
        "HF_HOME": str(tmp_path / "home"),
        "HF_TOKEN": "hf_nobody",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }


AWAY = {"HF_ENDPOINT": "http://127.0.0.1:9"}


@pytest.fixture(scope="module")
def server():
    with hub_server.running() as server:
        yield server


def test_without_the_extra_the_line_says_how_to_get_it(tmp_path):
    (file,) = vitreous.save(awake(), tmp_path / "mine")
    calls = (
        ["convert", "hf:owner/name", tmp_path / "m", "--to", "google"],
        ["convert", file, "hf:me/name", "--to", "vitreous", "--yes"],
    )
    for done in run(*calls, before="import sys; sys.modules['huggingface_hub'] = None"):
        assert "pip install 'vitreous[hub]'" in done.line


def test_without_yes_the_files_are_listed_and_nothing_leaves(server, tmp_path):
    (file,) = vitreous.save(awake(**GELU), tmp_path / "mine")
    before = len(server.seen)
    call = ["convert", file, "hf:me/tiny", "--to", "huggingface"]
    as_json, plain = run([*call, "--json"], call, **environment(server, tmp_path))
    assert (as_json.code, as_json.stderr) == (0, "")
    body = json.loads(as_json.stdout)
    assert body["schema"] == "vitreous.convert/1"
    assert body["pushed"] is False
    assert [text.split()[0] for text in body["files"]] == FILES
    assert all("bytes) to hf:me/tiny" in text for text in body["files"])
    assert plain.stdout.startswith("would push config.json (")
    assert len(server.seen) == before


FILES = ["config.json", "preprocessor_config.json", "model.safetensors", "vitreous.json"]


def test_pushed_and_fetched_again_it_is_the_same_model(server, tmp_path):
    """--yes makes the repository and one commit; a cold cache fetches it; a warm one needs no hub."""
    first = awake(**GELU)
    (file,) = vitreous.save(first, tmp_path / "mine")
    there = environment(server, tmp_path)
    server.files["me/pushed"] = {"pytorch_model.bin": b"heavy", "notes.txt": b"not ours"}
    (pushed, fetched) = run(
        ["convert", file, "hf:me/pushed", "--to", "huggingface", "--yes", "--json"],
        ["convert", "hf:me/pushed", tmp_path / "one", "--to", "vitreous"],
        **there,
    )
    assert pushed.code == fetched.code == 0, pushed.stderr + fetched.stderr
    assert json.loads(pushed.stdout)["pushed"] is True
    assert "me/pushed" in server.made
    assert set(FILES) < set(server.files["me/pushed"])
    assert not any(path.endswith((".bin", ".txt")) for path in server.seen)  # safetensors are enough
    (again,) = run(["convert", "hf:me/pushed", tmp_path / "two", "--to", "vitreous"], **(there | AWAY))
    assert again.code == 0, again.stderr
    for name in ("one.safetensors", "two.safetensors"):
        assert_same_model(vitreous.load(tmp_path / name), first)


def test_a_hub_that_refuses_is_answered_in_one_line(server, tmp_path):
    (file,) = vitreous.save(awake(**GELU), tmp_path / "mine")
    server.closed, server.files["me/empty"] = {"closed"}, {"README.md": b"hello"}
    out = tmp_path / "m"
    nowhere, pushed, closed, empty = run(
        ["convert", "hf:me/nowhere", out, "--to", "timm"],
        ["convert", file, "hf:me/closed", "--to", "huggingface", "--yes"],
        ["convert", "hf:me/closed", out, "--to", "timm"],
        ["convert", "hf:me/empty", out, "--to", "timm"],
        **environment(server, tmp_path),
    )
    assert "hf:me/nowhere" in nowhere.line
    assert "could not be pushed" in pushed.line
    assert "hf auth login" in pushed.line
    assert "hf:me/closed" in closed.line
    assert "holds no weights" in empty.line
    assert not out.exists()


def test_a_hub_that_is_not_there_is_answered_in_one_line(server, tmp_path):
    (done,) = run(["convert", "hf:o/n", tmp_path / "m", "--to", "timm"], **(environment(server, tmp_path) | AWAY))
    assert "cannot be reached" in done.line


def test_a_wrong_target_is_refused_before_any_work(tmp_path):
    (file,) = vitreous.save(awake(**GELU), tmp_path / "mine")
    for target in ("hf:me", "hf:me/a b", "timm:a/b/c", "timm:x"):
        with pytest.raises(HubError) as caught:
            vitreous.convert(file, target, to="timm")
        line_of(caught.value, target)


@pytest.mark.parametrize(
    ("files", "light", "heavy"),
    [
        (["model.safetensors"], True, True),
        (["model-00001-of-00002.safetensors"], True, True),
        (["B_16.npz"], True, True),
        (["adapter.safetensors", "pytorch_model.bin"], False, True),
        (["training_args.bin", "onnx/model.safetensors"], False, False),
    ],
)
def test_what_counts_as_weights_is_what_is_fetched(files, light, heavy):
    """Weights of another name do not keep those that we read from being fetched."""
    assert hub.has_weights(files, hub.SAFE_WEIGHT_PATTERNS) is light
    assert hub.has_weights(files, hub.ALL_WEIGHT_PATTERNS) is heavy
