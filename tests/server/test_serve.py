"""The command: what it says when it cannot, how it ends, and what works inside it."""

from __future__ import annotations

import io
import re
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import qr_reader
import serving
import torch
from commands import run_all
from downloaded_kinds import BEIT_LIKE, DINOV3_LIKE, EVA02_LIKE, PE_LIKE
from PIL import Image
from serving import encoded, picture, tiny, until
from tiny_models import BIT, awake

import vitreous
from vitreous.cli import serve as cli_serve
from vitreous.errors import BusyError, CheckpointError, ConfigError
from vitreous.images import examples, open_data
from vitreous.server.engine import Engine
from vitreous.server.errors import Busy
from vitreous.server.queue import Batcher, WorkQueue, share_cores
from vitreous.server.runtimes import OtherRuntime, answers_of
from vitreous.server.serve import Address, _listen, serve

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    vitreous.save(tiny(), path)
    return path


BAD = {
    "port": "is taken; choose another: --port ",
    "missing": "none.safetensors is not there; give a file or folder of weights",
    "runtime": "there is no runtime 'abacus' to serve with; choose torch, onnx, openvino",
    "token": "a token is 8 or more plain letters and digits",
    "no port": "port 70000 does not exist; choose one from 1 to 65535, or 0 for any free one",
    "workers": "0 workers answer nothing; give 1 or more, or leave it out",
    "host": "no.such.host.invalid is not an address of this machine",
    "data": "nowhere",
    "explain again": "exists and is not empty; name another folder for the pictures",
    "explain bit": "has no attention to show; leave --explain out",
}


@pytest.fixture(scope="module")
def done(file, tmp_path_factory):
    """All calls of the command that end by themselves, in one process: torch starts once."""
    folder = tmp_path_factory.mktemp("calls")
    bit = folder / "bit.safetensors"
    vitreous.save(awake(BIT), bit)
    images = []
    for place, seed in (("a", 1), ("b", 2)):
        (folder / place).mkdir()
        images.append(folder / place / "cat.png")
        picture(seed).save(images[-1])
    (folder / "broken.png").write_bytes(b"junk")
    images.append(folder / "broken.png")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        calls = {
            "port": ["serve", file, "--port", taken.getsockname()[1]],
            "missing": ["serve", folder / "none.safetensors"],
            "runtime": ["serve", file, "--runtime", "abacus"],
            "token": ["serve", file, "--token", "short"],
            "no port": ["serve", file, "--port", "70000"],
            "workers": ["serve", file, "--workers", "0"],
            "host": ["serve", file, "--host", "no.such.host.invalid"],
            "data": ["serve", file, "--data", folder / "nowhere"],
            "explain": ["predict", file, *images, "--explain", folder / "why", "--json"],
            "explain again": ["predict", file, *images, "--explain", folder / "why"],
            "explain bit": ["predict", bit, *images, "--explain", folder / "other"],
        }
        return dict(zip(calls, run_all(calls.values()), strict=True)) | {"folder": folder}


@pytest.mark.parametrize("which", BAD)
def test_each_bad_call_is_one_line(done, which):
    assert BAD[which] in done[which].line


def test_explain_writes_a_picture_for_each_answer(done):
    assert done["explain"].code == 0
    assert len(done["explain"].stdout.splitlines()) == 3
    why = done["folder"] / "why"
    assert sorted(each.name for each in why.iterdir()) == ["cat-2.png", "cat.png"]
    with Image.open(why / "cat.png") as overlay:
        assert overlay.size == (224, 224)
    assert (why / "cat.png").read_bytes() != (why / "cat-2.png").read_bytes()


def test_without_a_run_the_line_says_what_to_give(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="name a model: vitreous serve MODEL, or make one: vitreous demo"):
        serve()


def test_a_port_for_the_system_is_said(file, monkeypatch):
    def bind(self, address):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", bind)
    with pytest.raises(ConfigError, match="port 80 needs more rights; choose one above 1023"):
        serve(file, port=80)


def test_a_taken_port_is_busy(file):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(BusyError, match="is taken"):
        serve(file, port=taken.getsockname()[1])


def test_phones_are_given_the_first_address_that_is_not_this_machines_own():
    def address(*shown):
        return Address("0.0.0.0", 8000, shown, None, "tiny", 1, 1).for_phones

    assert address("http://127.0.0.1:8000/#token=x", "http://192.168.0.7:8000/#token=x") == (
        "http://192.168.0.7:8000/#token=x"
    )
    assert address("http://127.0.0.1:8000/", "http://desk:8000/") == "http://desk:8000/"
    assert address("http://127.0.0.1:8000/") is address("http://[::1]:8000/") is address("http://localhost:1/") is None


class Screen(io.StringIO):
    def __init__(self, encoding="utf-8", is_terminal=True):
        super().__init__()
        self.encoding_, self.is_terminal = encoding, is_terminal

    encoding = property(lambda self: self.encoding_)

    def isatty(self):
        return self.is_terminal


@pytest.mark.parametrize(
    ("screen", "columns", "address", "is_shown"),
    [
        (Screen(), 80, "http://192.168.0.7:8000/#token=abcdefgh", True),
        (Screen(), 40, "http://192.168.0.7:8000/#token=abcdefgh", True),
        (Screen(), 80, None, False),
        (Screen(), 80, "http://192.168.0.7:8000/#token=" + 300 * "x", False),
        (Screen(), 30, "http://192.168.0.7:8000/#token=abcdefgh", False),
        (Screen(encoding="ascii"), 80, "http://192.168.0.7:8000/#token=abcdefgh", False),
        (Screen(is_terminal=False), 80, "http://192.168.0.7:8000/#token=abcdefgh", False),
    ],
    ids=["terminal", "narrow", "this machine alone", "too long", "too narrow", "no blocks", "pipe"],
)
def test_a_terminal_shows_the_code_of_the_address_if_it_can(screen, columns, address, is_shown, monkeypatch):
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    cli_serve.show_code(address)
    lines = [line.removesuffix(cli_serve.CODE_WORDS) for line in screen.getvalue().splitlines()]
    assert bool(lines) == is_shown
    assert (cli_serve.CODE_WORDS in screen.getvalue()) == (is_shown and columns == 80)
    if is_shown:
        assert len(lines) + 4 < 24, "a terminal of 24 lines holds it with the addresses"
        assert qr_reader.read(qr_reader.modules_of(lines)).decode() == address


def test_an_answer_does_not_wait_for_the_clients_acknowledgement():
    """asyncio turns Nagle's algorithm off for a socket that says it is TCP, else every answer takes 40 ms more."""
    with _listen("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP


def test_sigterm_finishes_what_was_taken_and_lan_asks_for_the_token(file):
    """Requests under way when the signal comes get their answers; new ones find nobody; the exit says SIGTERM."""
    big = encoded(picture(1, size=(900, 700)), "JPEG")
    with serving.process(file, "--lan") as caller:
        assert caller.token
        assert serving.Caller(caller.port).get("/api/model").status == 401
        assert caller.get("/api/model").status == 200
        with ThreadPoolExecutor(4) as pool:
            pending = [
                pool.submit(caller.form, "/api/predict", [(f"{i}.jpg", big) for i in range(16)]) for _ in range(4)
            ]
            until(lambda: b"vitreous_held 0\n" not in caller.get("/metrics").body)
            caller.process.send_signal(signal.SIGTERM)
            replies = [each.result() for each in pending]
        assert caller.process.wait(30) == 143
        assert [reply.status for reply in replies] == [200] * 4
        assert all("top" in row for reply in replies for row in reply.json["images"])
        with pytest.raises(ConnectionRefusedError):
            caller.get("/healthz")
        assert "Traceback" not in caller.process.stderr.read()


def spoil(file: Path, other: bytes, caller) -> None:
    """Overwrite a file in place and cut it: the answers of a server that has opened it stay the same."""
    raw = [encoded(picture(seed)) for seed in range(3)]

    def answers():
        rows = [row for one in raw for row in caller.send("/api/predict", one).json["images"][0]["top"]]
        return {f"{i} {row['label']}": row["probability"] for i, row in enumerate(rows)}

    before = answers()
    with file.open("r+b") as same:
        same.write(other)
    assert answers() == pytest.approx(before, rel=1e-5)
    with file.open("r+b") as same:
        same.truncate(10)
    assert answers() == pytest.approx(before, rel=1e-5)
    file.unlink()
    assert answers() == pytest.approx(before, rel=1e-5)


def other_weights(folder: Path) -> bytes:
    model = tiny(seed=1)
    vitreous.save(model, folder / "other.safetensors")
    return (folder / "other.safetensors").read_bytes()


def test_a_served_model_does_not_change_with_its_file(tmp_path):
    """New weights come with a restart."""
    file = tmp_path / "mine.safetensors"
    vitreous.save(tiny(), file)
    with serving.thread(vitreous.load(file)) as (caller, _, _):
        spoil(file, other_weights(tmp_path), caller)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["torch", "onnx", "openvino"])
def test_the_process_that_serves_a_file_outlives_it(tmp_path, runtime):
    if runtime != "torch":
        pytest.importorskip({"onnx": "onnxruntime"}.get(runtime, runtime), reason=f"needs {runtime}")
        pytest.importorskip("onnxscript", reason="needs the extra export")
    file = tmp_path / "mine.safetensors"
    vitreous.save(tiny(), file)
    with serving.process(file, "--runtime", runtime) as caller:
        spoil(file, other_weights(tmp_path), caller)
        assert caller.process.poll() is None


@pytest.mark.slow
def test_memory_stays_flat_over_twenty_thousand_requests(file):
    with serving.process(file) as caller:
        files = [encoded(picture(i), "JPEG") for i in range(200)]

        def many(count):
            with ThreadPoolExecutor(8) as pool:
                replies = pool.map(lambda i: caller.send("/api/predict", files[i % 200]).status, range(count))
                assert set(replies) == {200}

        def resident():
            status = Path(f"/proc/{caller.process.pid}/status").read_text()
            return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024

        many(2_000)
        before = resident()
        many(20_000)
        assert resident() - before < 32  # MiB


def test_examples_are_of_the_data_or_of_the_classes_that_the_model_knows(tmp_path):
    for label in ("ant", "bee"):
        (tmp_path / label).mkdir()
        picture(1).save(tmp_path / label / "one.png")
    assert examples.choose(None, ("ant", "bee")) == []
    assert examples.choose(None, ()) == []
    assert {label for label, _ in examples.choose(open_data.open(tmp_path), ("ant", "bee"))} <= {"ant", "bee"}
    clothes = open_data.open("fashion").classes
    assert {label for label, _ in examples.choose(None, clothes)} <= set(clothes)
    assert len(examples.choose(None, clothes)) == examples.EXAMPLES_SHOWN


def test_the_terms_of_a_model_are_told():
    model = tiny()
    model.source = {"terms": "for learning only"}
    with serving.thread(model) as (caller, _, _):
        assert caller.get("/api/model").json["terms"] == "for learning only"


# Inside ------------------------------------------------------------------------------------------------------------


def test_workers_share_the_cores():
    for cores in range(1, 130):
        workers, threads = share_cores(cores)
        assert 1 <= workers * threads <= cores
    assert share_cores(2) == (2, 1)
    assert share_cores(16) == (4, 4)


def test_a_batch_holds_the_images_of_all_who_ask_and_gives_each_its_own():
    """What came while one batch was at work goes together in the next."""
    engine = Engine(tiny(), CPU)
    rng = np.random.default_rng(0)
    seen = [[rng.integers(0, 256, (16, 16, 3), dtype=np.uint8) for _ in range(1 + i % 3)] for i in range(24)]
    with Engine(tiny(), CPU).at_work() as alone:
        wanted = [alone.answers_to(each) for each in seen]
    first, go = threading.Event(), threading.Event()
    real = engine.answers_to

    def slow(images):
        first.set()
        go.wait(10)
        return real(images)

    engine.answers_to = slow
    batcher = Batcher(engine, limit=16)
    with ThreadPoolExecutor(24) as pool:
        found = [pool.submit(batcher.answers_to, seen[0])]
        first.wait(10)
        found += [pool.submit(batcher.answers_to, each) for each in seen[1:]]
        until(lambda: batcher._asked.qsize() == 23)
        go.set()
        for each, ours in zip(found, wanted, strict=True):
            np.testing.assert_allclose(each.result(10), ours, rtol=1e-4, atol=1e-5)
    batcher.close()
    assert batcher.images == sum(map(len, seen))
    assert batcher.batches <= 5  # 1 image, then 47 in parts of 16 to 18


def test_a_batch_that_fails_tells_all_who_asked():
    engine = Engine(tiny(), CPU)
    engine.answers_to = lambda images: 1 / 0
    batcher = Batcher(engine)
    with pytest.raises(ZeroDivisionError):
        batcher.answers_to([np.zeros((16, 16, 3), np.uint8)])
    batcher.close()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "package"), [("onnx", "onnxruntime"), ("openvino", "openvino")])
def test_another_runtime_says_what_torch_says(name, package):
    """Two workers at once, each with a session of its own."""
    pytest.importorskip(package, reason=f"needs {package}")
    pytest.importorskip("onnxscript", reason="needs the extra export")
    model = tiny()
    queue = WorkQueue(model, CPU, 100, cores=2, workers=2, runtime=OtherRuntime(model, name))
    queue.open()
    rng = np.random.default_rng(0)
    seen = [rng.integers(0, 256, (16, 16, 3), dtype=np.uint8) for _ in range(20)]
    futures = queue.submit_all(
        [lambda worker, one=one: (worker.answers_to([one]), worker.engine.answers_to([one])) for one in seen], 30
    )
    for future in futures:
        theirs, ours = future.result(30)
        np.testing.assert_allclose(theirs, ours, rtol=1e-3, atol=1e-3)
    queue.close()


def test_a_runtime_that_answers_otherwise_is_refused():
    model = tiny()
    outside = OtherRuntime.__new__(OtherRuntime)
    outside.name, outside.rule, outside._read = "onnx", model.preprocess, answers_of
    with (
        Engine(model, CPU).at_work() as engine,
        pytest.raises(ConfigError, match="onnx answers differently from torch"),
    ):
        outside._compare(lambda x: [np.zeros((1, 5), np.float32)], engine)


def test_a_closed_queue_takes_nothing():
    queue = WorkQueue(tiny(), CPU, 4, cores=1, workers=1)
    queue.open()
    (future,) = queue.submit_all([lambda worker: 7], 5)
    assert future.result(5) == 7
    queue.close()
    with pytest.raises(Busy, match="shutting down"):
        queue.submit_all([lambda worker: 7], 5)


def test_a_job_whose_time_is_over_is_not_begun():
    queue = WorkQueue(tiny(), CPU, 4, cores=1, workers=1)
    queue.open()
    (future,) = queue.submit_all([lambda worker: 7], -1)
    with pytest.raises(Busy, match="waited too long"):
        future.result(5)
    queue.close()


def test_a_network_without_attention_answers_and_can_be_covered():
    model = awake(BIT)
    with serving.thread(model) as (caller, _, _):
        raw = encoded(picture(1))
        assert caller.send("/api/predict", raw).json["images"][0]["top"]
        assert caller.get("/api/model").json["attention"] is False
        assert (
            caller.send("/api/attention", raw).error == "this model is a network of convolutions and has no attention"
        )
        found = caller.send("/api/break?" + "&".join(f"hide={i}" for i in range(25)), raw).json
        assert found["before"]["top"] != found["after"]["top"]
        assert found["before"]["rollout"] is None
        refused = caller.send("/api/break?shuffle=1", raw)
        assert refused.error == "this model has no tokens, positions or heads to break; cover squares instead"
        assert (
            caller.send("/api/similar", raw).error == "this server was given no training images; start it with --data"
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"pool": "gap", "class_token": False},
        {"pool": "map"},
        {"pool": "cls-and-gap", "registers": 2},
        {"positions": "relative"},
        {"positions": "sincos-2d", "positions_at": "every-layer"},
        {"positions": "none"},
        {"norm": "post"},
        DINOV3_LIKE,
        EVA02_LIKE,
        PE_LIKE,
        BEIT_LIKE,
    ],
    ids=str,
)
def test_every_kind_of_transformer_can_be_looked_into_and_broken(changes):
    from vitreous.server.interventions import Break

    model = tiny(**changes)
    seen = np.array(picture(3, size=(16, 16)))
    broken = Break(shuffle=1, positions=True, heads=((0, 1),), blocks=(1,), skips=((0, 1),), hide=(3,))
    with Engine(model, CPU).at_work() as engine:
        whole, found = engine.attend(seen)
        np.testing.assert_allclose(whole, engine.answers_to([seen])[0], rtol=1e-4, atol=1e-4)
        assert found.heads.shape == (2, 2, 16)
        assert (found.heads.sum(-1) <= 1 + 1e-5).all()
        assert (engine.attend(seen, None, broken)[0] != whole).any()
        without = engine.attend(seen, None, Break(positions=True))[0]
        shuffled = engine.attend(seen, None, Break(positions=True, shuffle=5))[0]
        np.testing.assert_allclose(shuffled, without, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(engine.attend(seen)[0], whole)  # nothing stays behind


def test_a_shuffle_moves_the_patches_of_the_image_itself():
    """What the page shows is what a model without convolutions gets."""
    from vitreous.server.interventions import Break

    model = tiny(image_size=32, patch=8)
    seen = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    rows, columns = model.grid
    order = Break(shuffle=5).order(rows * columns)
    high, wide = 32 // rows, 32 // columns
    moved = np.zeros_like(seen)
    for place, patch in enumerate(order):
        (r, c), (y, x) = divmod(place, columns), divmod(patch, columns)
        moved[r * high :, c * wide :][:high, :wide] = seen[y * high :, x * wide :][:high, :wide]
    with Engine(model, CPU).at_work() as engine:
        shuffled = engine.attend(seen, None, Break(shuffle=5))[0]
        np.testing.assert_allclose(shuffled, engine.answers_to([moved])[0], rtol=1e-3, atol=1e-3)


def test_a_shuffle_comes_after_the_convolutions_of_a_hybrid():
    """So a shuffle asks what positions do, not what convolutions make of edges between cells."""
    from vitreous.server.interventions import Break

    hybrid = tiny(stem="resnet", image_size=32, patch=1, units=(1,), resnet_width=0.25)
    seen = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    order = Break(shuffle=5).order(hybrid.grid[0] * hybrid.grid[1])
    pixels = hybrid.preprocess(seen[None])
    with torch.inference_mode(), vitreous.taps(hybrid, edit={"embedding.patches": lambda x: x[:, order]}):
        wanted = hybrid(pixels)[0].numpy()
    with Engine(hybrid, CPU).at_work() as engine:
        shuffled = engine.attend(seen, None, Break(shuffle=5))[0]
    np.testing.assert_allclose(shuffled[: len(wanted)], wanted, rtol=1e-3, atol=1e-3)
