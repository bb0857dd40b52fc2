"""Shards in a store: memory, a server that knows ranges and fails now and then, and S3. What is bad is one line."""

import json
import pickle
import sys

import numpy as np
import pytest
from picture_files import encoded, tar_of
from range_server import serving

from vitreous import images
from vitreous.errors import DataError, MissingExtraError, ShardError
from vitreous.files import cache_folder
from vitreous.images.batches.batches import Batches, Loading, Order
from vitreous.images.health import check
from vitreous.images.pixels.augment import Augment
from vitreous.images.sources import parquet as parquets
from vitreous.images.sources import remote
from vitreous.images.sources import shards as tars
from vitreous.images.sources.paths import Place
from vitreous.images.stores import disk
from vitreous.models.preprocess import Preprocess
from vitreous.ranks import Ranks

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

EACH, SHARDS = 6, 4
PATTERN = "train-{000..003}.tar"
RULE = Preprocess(size=(8, 8), antialias=True)
SECRET = "hush-1234"


@pytest.fixture(autouse=True)
def soon(monkeypatch, tmp_path_factory):
    """No test waits for a store, or sees what another kept."""
    monkeypatch.setattr(remote, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(remote, "_told", {})
    monkeypatch.setattr(remote, "_systems", {})
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def near(tmp_path_factory):
    """The same shards in a folder."""
    folder = tmp_path_factory.mktemp("near")
    for k in range(SHARDS):
        files = {}
        for n in range(EACH * k, EACH * k + EACH):
            files |= {f"{n:05d}.jpg": encoded(n, "JPEG"), f"{n:05d}.cls": str(n % 3).encode()}
        tar_of(folder / f"train-{k:03d}.tar", files)
    return folder


def contents(near):
    return {f"set/{path.name}": path.read_bytes() for path in sorted(near.glob("*.tar"))}


@pytest.fixture
def server(near):
    with serving(contents(near)) as running:
        yield running


@pytest.fixture
def memory(near):
    store = fsspec.filesystem("memory")
    for name, raw in contents(near).items():
        store.pipe(f"/{name}", raw)
    yield store
    store.rm("/set", recursive=True)


def feed(data, *, start=None, rank=0, world=1, **how):
    """Training batches of 4."""
    order = Order(batch=4, seed=3, start=start, ranks=Ranks(rank, world))
    loading = Loading(preprocess=RULE, augment=Augment(size=(8, 8)), resident=False, **({"workers": 2} | how))
    return Batches(data, order, loading)


def same(one, other):
    return one.classes == other.classes and all(one.raw(i) == other.raw(i) for i in range(len(one)))


# ------------------------------------------------------------------------------------------------- the same, anywhere


def test_a_server_is_read_by_the_ranges_that_are_needed(near, server):
    data = images.open(f"{server.address}/set/{PATTERN}")
    here = images.open(near / PATTERN)
    assert (data.labels == here.labels).all()
    assert same(data, here)
    assert (data.splits == here.splits).all()
    server.asked.clear()
    server.sent = 0
    raw = data.raw(9)
    assert server.sent == len(raw)
    assert [path for path, _ in server.asked] == ["set/train-001.tar"]


def test_images_that_lie_together_are_one_request(server):
    data = images.open(f"{server.address}/set/{PATTERN}")
    server.asked.clear()
    found = data.fetch([0, 7, 3, 1, 8])
    assert len(server.asked) == 2  # of two shards
    assert found == {i: data.raw(i) for i in (0, 1, 3, 7, 8)}


@pytest.mark.parametrize(
    "how", [{"workers": 0}, {"workers": 2}, pytest.param({"processes": True}, marks=pytest.mark.slow)]
)
def test_batches_from_a_store_are_those_of_a_disk(near, server, how):
    far, here = (images.open(place) for place in (f"{server.address}/set/{PATTERN}", near / PATTERN))
    for one, other in zip(feed(far, **how), feed(here), strict=True):
        assert (one.ids == other.ids).all()
        assert (one.images == other.images).all()
    sizes = [len(list(feed(far, rank=rank, world=2))) for rank in (0, 1)]
    assert sizes[0] == sizes[1]


def test_an_evaluation_sees_each_image_once(server):
    data = images.open(f"{server.address}/set/{PATTERN}")
    batches = Batches(data, Order(batch=5), Loading(preprocess=RULE, workers=2, resident=False))
    list(batches)
    assert batches.coverage().is_exact


def test_memory_is_read_in_this_process_alone(memory):
    data = images.open("memory://set/train-*.tar")
    assert data.source.stays_here
    assert len(list(feed(data, workers=4, reads=10**6))) == 6


def test_a_run_stopped_within_a_shard_goes_on_with_the_next_image(server):
    data = images.open(f"{server.address}/set/{PATTERN}")
    whole = np.concatenate([batch.ids for batch in feed(data)])
    first = feed(data)
    running = iter(first)
    next(running)
    running.close()
    rest = [np.concatenate([b.ids for b in feed(data, start=first.state(), rank=r, world=2)]) for r in (0, 1)]
    assert (np.concatenate([part.reshape(-1, 2) for part in rest], 1).ravel() == whole[4:]).all()


def test_shards_in_a_store_have_an_index_beside_them(memory, near, server):
    written = disk.index("memory://set/train-{000..001}.tar")
    assert (written.scanned, sum(written.counts.values())) == (2, 12)
    written = disk.index(f"memory://set/{PATTERN}")
    assert (written.scanned, sum(written.counts.values())) == (2, 24)
    server.files["set/vitreous-index.jsonl"] = memory.cat("/set/vitreous-index.jsonl")
    memory.rm("/set/vitreous-index.jsonl")
    table = tars._OpenShards([f"{server.address}/set/train-{k:03d}.tar" for k in range(SHARDS)], Place("set")).table()
    assert [path for path, _ in server.asked if path.endswith(".tar")] == []
    assert len(table) == EACH * SHARDS


def test_a_server_that_takes_nothing_gets_no_index(server):
    with pytest.raises(DataError, match=r"no index can be written beside .*train-000\.tar .*; index the shards where"):
        disk.index(f"{server.address}/set/{PATTERN}")


# ------------------------------------------------------------------------------------------------- a table that is kept


def test_a_large_set_keeps_its_table_and_workers_get_its_place(near, monkeypatch, tmp_path):
    before = images.open(near)
    monkeypatch.setattr(tars, "KEEP_TABLE_FROM", 1)
    first = images.open(near)
    assert first.source.table.folder.parent == cache_folder() / "shards"
    assert same(first, before)
    assert [first.name(i) for i in range(24)] == [before.name(i) for i in range(24)]
    assert len(pickle.dumps(first.source)) < 1_000
    assert same(pickle.loads(pickle.dumps(first)), before)
    monkeypatch.setattr(tars, "index_shard", lambda file: pytest.fail("it was read again"))
    assert same(images.open(near), before)


def test_a_damaged_table_is_made_again(near, monkeypatch):
    monkeypatch.setattr(tars, "KEEP_TABLE_FROM", 1)
    folder = images.open(near).source.table.folder
    (folder / "start.bin").write_bytes(b"12345678")
    assert len(images.open(near)) == 24
    (folder / "table.json").write_bytes(b"{")
    assert same(images.open(near), images.open(near))


# ------------------------------------------------------------------------------------------------ a store that fails


def test_a_store_that_fails_now_and_then_is_asked_again_and_told_once(near, server, caplog):
    server.fault = lambda number, path: {0: 503, 3: "cut"}.get(number % 7)
    data = images.open(f"{server.address}/set/{PATTERN}")
    assert same(data, images.open(near / PATTERN))
    assert len(list(feed(data))) == 6
    lines = [record.getMessage() for record in caplog.records if record.name == "vitreous.data"]
    assert len(lines) == 1
    assert "asking again, up to 4 times" in lines[0]


def test_a_store_that_fails_for_good_is_asked_so_often_and_named(server):
    data = images.open(f"{server.address}/set/{PATTERN}")
    server.fault = lambda number, path: 503
    server.asked.clear()
    with pytest.raises(ShardError, match=r"train-000\.tar cannot be read, asked 5 times \(HTTP 503\); try again when"):
        data.raw(1)
    assert len(server.asked) == 5


def test_a_server_without_ranges_is_refused(server):
    server.has_ranges = False
    with pytest.raises(ShardError, match=r"sends whole files where a range is asked for; use one that serves ranges"):
        images.open(f"{server.address}/set/{PATTERN}")


@pytest.mark.parametrize("how", [{"workers": 2}, pytest.param({"processes": True}, marks=pytest.mark.slow)])
def test_a_shard_that_goes_bad_stops_the_run_unless_told_otherwise(server, how):
    address = f"{server.address}/set/{PATTERN}"
    stops, goes_on = images.open(address), images.open(address, skip_bad_shards=True)
    del server.files["set/train-002.tar"]
    with pytest.raises(ShardError, match=r"train-002\.tar is not there; check the address"):
        list(feed(stops, on_unreadable="replace", **how))
    batches = feed(goes_on, on_unreadable="replace", **how)
    shown = np.concatenate([batch.ids for batch in batches])
    assert not set(shown.tolist()) & set(range(12, 18))
    assert {name.split("/")[0] for name, _ in batches.replaced} == {"train-002.tar"}
    with pytest.raises(ShardError, match=r"train-002\.tar is not there"):
        check(stops)
    assert len(check(goes_on).unread) == int((goes_on.ids // EACH == 2).sum())


# ------------------------------------------------------------------------------------------------- bad from the start


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("set/train-{000..005}.tar", r"train-004\.tar is not there; check the address \(2 of 6 shards fail\)"),
        ("set/none.tar", r"none\.tar is not there; check the address"),
        ("set/*.tar", r"lists no files; name them, such as train-\{0000\.\.0123\}\.tar"),
    ],
)
def test_what_a_server_does_not_have_is_one_line(server, name, words):
    with pytest.raises(DataError, match=words) as caught:
        images.open(f"{server.address}/{name}")
    assert "\n" not in str(caught.value)


def test_an_empty_pattern_and_an_empty_place_are_named(memory):
    with pytest.raises(DataError, match=r"no file matches memory://set/none-\*\.tar; check the pattern"):
        images.open("memory://set/none-*.tar")
    with pytest.raises(DataError, match=r"memory://nowhere is not there; check the address"):
        images.open("memory://nowhere")


@pytest.mark.parametrize(("address", "extra"), [("gs://bucket/a.tar", "gs"), ("s3://bucket/a.tar", "s3")])
def test_an_extra_that_is_not_installed_is_named(monkeypatch, address, extra):
    for package in ("gcsfs", "s3fs"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(sys.modules["fsspec.registry"], "_registry", {})
    with pytest.raises(MissingExtraError) as caught:
        images.open(address)
    assert str(caught.value) == f"reading {address} needs the extra '{extra}'; pip install 'vitreous[{extra}]'"


def test_a_shard_cut_in_half_is_named_or_skipped_with_its_loss(memory):
    disk.index(f"memory://set/{PATTERN}")
    raw = memory.cat("/set/train-001.tar")
    memory.pipe("/set/train-001.tar", raw[:9_000])
    with pytest.raises(DataError, match=r"train-001\.tar is cut short"):
        images.open(f"memory://set/{PATTERN}")
    data = images.open(f"memory://set/{PATTERN}", skip_bad_shards=True)
    assert "skipped 1 bad shards: 6 samples are lost (memory://" in str(data)
    memory.rm("/set/vitreous-index.jsonl")
    data = images.open(f"memory://set/{PATTERN}", skip_bad_shards=True)
    assert len(data) == 18
    assert "skipped 1 bad shards: 0 samples are lost, and all of 1 that no index tells of" in str(data)


def test_a_missing_shard_keeps_its_samples_where_an_index_knows_them(memory):
    disk.index(f"memory://set/{PATTERN}")
    whole = images.open(f"memory://set/{PATTERN}")
    memory.rm("/set/train-003.tar")
    data = images.open(f"memory://set/{PATTERN}", skip_bad_shards=True)
    assert (data.content_id, len(data)) == (whole.content_id, 24)
    with pytest.raises(DataError, match=r"train-003\.tar is not there"):
        data.raw(20)


# ------------------------------------------------------------------------------------------------------------- secrets


def test_secrets_of_an_address_are_told_nowhere(server):
    server.token = f"token={SECRET}"
    address = f"{server.address}/set/{PATTERN}?token={SECRET}"
    data = images.open(address)
    told = [str(data), data.path, *data.names, json.dumps(data.about), str(check(data)), check(data).path]
    assert data.path.endswith(".tar?***")
    del server.files["set/train-000.tar"]
    with pytest.raises(DataError) as caught:
        data.raw(0)
    told.append(str(caught.value))
    with pytest.raises(DataError) as caught:
        images.open(address)
    told.append(str(caught.value))
    assert SECRET not in "".join(told)
    with pytest.raises(DataError, match=r"may not be read \(HTTP 403\); check your credentials"):
        images.open(f"{server.address}/set/train-001.tar?other=1")


# ------------------------------------------------------------------------------------------------------------- Parquet


def rows(path, numbers, *, labels=None, group=3):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pictures = pa.array([{"bytes": encoded(n), "path": None} for n in numbers], image)
    table = pa.table({"image": pictures, "label": labels or [n % 3 for n in numbers]})
    parquet.write_table(table, path, row_group_size=group)
    return path.read_bytes()


@pytest.fixture
def parquet_server(tmp_path):
    files = {f"set/train-{k}.parquet": rows(tmp_path / f"{k}.parquet", range(8 * k, 8 * k + 8)) for k in range(3)}
    with serving(files) as running:
        yield running


def test_parquet_is_read_from_a_store_by_ranges(parquet_server, tmp_path):
    data = images.open(f"{parquet_server.address}/set/train-{{0..2}}.parquet")
    here = images.open(tmp_path / "{0..2}.parquet")
    assert same(data, here)
    assert (data.labels == here.labels).all()
    assert data.name(9) == "train-1.parquet/1"


def test_a_bad_parquet_file_is_named_or_skipped(parquet_server):
    address = f"{parquet_server.address}/set/train-{{0..2}}.parquet"
    parquet_server.files["set/train-1.parquet"] = parquet_server.files["set/train-1.parquet"][:500]
    with pytest.raises(ShardError, match=r"train-1\.parquet is not a whole Parquet file"):
        images.open(address)
    data = images.open(address, skip_bad_shards=True)
    assert len(data) == 16
    assert "skipped 1 bad files, and all their rows" in str(data)


def test_row_groups_beyond_memory_are_shuffled_in_windows_and_read_once(tmp_path, monkeypatch):
    rows(tmp_path / "a.parquet", range(60), group=5)
    data = images.open(tmp_path / "a.parquet")
    assert data.source.window is None
    monkeypatch.setattr(parquets, "KEPT_BYTES", int(data.source.size.sum()) // 2)
    assert 5 <= data.source.window <= 15
    read = []
    plain = parquets.Rows._read_group
    monkeypatch.setattr(parquets.Rows, "_read_group", lambda self, *place: read.append(place) or plain(self, *place))
    order = Order(batch=4, seed=1, shuffle=True, drop_last=False)
    loading = Loading(preprocess=RULE, workers=0, resident=False)
    shown = np.concatenate([batch.ids for batch in Batches(data, order, loading)])
    assert sorted(shown.tolist()) == list(range(60))
    assert len(read) <= 12 + 60 // data.source.window
    assert (np.diff(shown) != 1).mean() > 0.5


# ------------------------------------------------------------------------------------------------------------------ S3


@pytest.fixture
def bucket(near, monkeypatch):
    """A real S3 server on this machine, with the shards in a bucket."""
    moto = pytest.importorskip(
        "moto.server", reason="the S3 server is not installed: pip install moto flask flask-cors"
    )
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'vitreous[s3]'")
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    told = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": SECRET}
    for name, value in (told | {"AWS_DEFAULT_REGION": "us-east-1"}).items():
        monkeypatch.setenv(name, value)
    store = fsspec.filesystem("s3", skip_instance_cache=True)
    store.mkdir("photos")
    for name, raw in contents(near).items():
        store.pipe(f"photos/{name}", raw)
    yield store
    server.stop()
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def test_s3_is_read_by_pattern_braces_and_folder(near, bucket):
    here = images.open(near)
    for name in (f"s3://photos/set/{PATTERN}", "s3://photos/set/train-*.tar", "s3://photos/set"):
        data = images.open(name)
        assert same(data, here)
        assert SECRET not in str(data)
    ours, theirs = feed(data), feed(here)
    assert all((one.images == other.images).all() for one, other in zip(ours, theirs, strict=True))
    assert disk.index("s3://photos/set").scanned == SHARDS
    assert disk.index("s3://photos/set").scanned == 0
    assert same(images.open(f"s3://photos/set/{PATTERN}"), here)
    for name, words in (
        ("s3://nosuchbucket/a.tar", "is not there; check the address"),
        ("s3://photos/set/none-*.tar", "no file matches"),
        ("s3://photos/set/train-{003..004}.tar", r"train-004\.tar is not there; check the address"),
    ):
        with pytest.raises(DataError, match=words):
            images.open(name)
