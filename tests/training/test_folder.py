"""A run's folder: killed at any instant it gives back a whole state, and its events read as if nothing had happened."""

import errno
import json
import math
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import forks
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vitreous
from vitreous.errors import BusyError, CheckpointError, DataError, ExistsError
from vitreous.training.run.folder import RunFolder, differences, next_name, read, read_state, without_clocks

CONFIG = {"data": {"images": 312}, "recipe": {"peak_lr": 1e-3}}


@pytest.fixture
def folder(tmp_path):
    with RunFolder.create(tmp_path / "run", CONFIG) as folder:
        yield folder


def tensors(step: int = 0) -> dict[str, torch.Tensor]:
    return {"a.weight": torch.full((3, 4), float(step)), "step": torch.tensor(step)}


def save(folder: RunFolder, step: int, stage: str = "main", **more: object) -> None:
    folder.save_state(tensors(step), {"stage": stage, "step": step}, **more)


def names(folder: RunFolder) -> list[str]:
    return sorted(path.name for path in (folder.path / "state").iterdir() if path.name != ".lock")


def program(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return forks.run(words, capture_output=True, text=True, timeout=500)


def damage(path: Path, place: float) -> None:
    """Turn one bit over, at a share of the file's length."""
    raw = bytearray(path.read_bytes())
    raw[int(place * (len(raw) - 1))] ^= 1
    path.write_bytes(raw)


# States


def test_a_state_comes_back_bit_for_bit(folder):
    """Every type a network or an optimiser holds, also views, scalars and nothing; every number of `about`."""
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(5, 6, generator=generator)
    given = {
        "view": random.T[1:, ::2],
        "scalar": torch.tensor(math.pi, dtype=torch.float64),
        "none": torch.zeros(0, 3),
        "nan": torch.tensor([math.nan, math.inf, -0.0]),
        "half": random.half(),
        "brain": random.bfloat16(),
        "bits": torch.tensor([True, False]),
        "random": generator.get_state(),
        "count": torch.tensor([2**60]),
        "parameter": torch.nn.Parameter(random),
    }
    about = {"stage": "up", "step": 7, "best": -math.inf, "tenth": 0.1, "deep": {"list": [1, None, "é"]}}
    folder.save_state(given, {**about, "seen": np.float64(0.1)})
    state = folder.latest_state()
    assert state.about == {**about, "seen": 0.1}
    assert (state.stage, state.step) == ("up", 7)
    assert state.tensors.keys() == given.keys()
    for name, tensor in given.items():
        assert state.tensors[name].dtype == tensor.dtype
        assert state.tensors[name].shape == tensor.shape
        assert state.tensors[name].reshape(-1).view(torch.uint8).tolist() == (
            tensor.detach().reshape(-1).view(torch.uint8).tolist()
        )


def test_a_state_is_an_ordinary_safetensors_file(folder):
    from safetensors.torch import load_file

    save(folder, 3)
    assert load_file(folder.path / "state" / "main-00000003.safetensors")["a.weight"].eq(3).all()


def test_the_newest_two_of_a_stage_and_the_newest_of_every_other_stay(folder):
    for stage, step in [("up", 100), ("up", 200), ("up", 300), ("down", 5), ("down", 10), ("down", 15)]:
        save(folder, step, stage)
    assert names(folder) == [f"{n}.safetensors" for n in ("down-00000010", "down-00000015", "up-00000300")]
    assert folder.latest_state().about == {"stage": "down", "step": 15}
    assert folder.latest_state("up").step == 300
    assert folder.latest_state("sideways") is None


def test_a_new_folder_has_no_state(folder):
    assert folder.latest_state() is None


@pytest.mark.parametrize("place", [0.0, 0.001, 0.05, 0.3, 0.6, 0.97, 1.0])
def test_a_damaged_state_is_passed_over_for_the_one_before(folder, place):
    """Wherever the damage is: length, header, manifest, numbers."""
    save(folder, 100), save(folder, 200)
    path = folder.path / "state" / "main-00000200.safetensors"
    damage(path, place)
    said = []
    assert folder.latest_state(say=said.append).step == 100
    (line,) = said
    assert str(path) in line
    assert line.endswith("passed over for the state before it")
    save(folder, 150)
    assert names(folder) == ["main-00000100.safetensors", "main-00000150.safetensors"]


def test_any_flipped_bit_is_noticed(folder):
    save(folder, 100)
    path = folder.path / "state" / "main-00000100.safetensors"
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(CheckpointError):
            read_state(path)


def test_a_state_cut_short_is_passed_over_at_every_length(folder):
    save(folder, 100), save(folder, 200)
    path = folder.path / "state" / "main-00000200.safetensors"
    whole = path.read_bytes()
    for length in range(0, len(whole), 41):
        path.write_bytes(whole[:length])
        assert folder.latest_state().step == 100


def test_unfinished_and_foreign_files_are_passed_over_and_said(folder, tmp_path):
    save(folder, 100)
    with RunFolder.create(tmp_path / "other", CONFIG) as other:
        save(other, 900)
    state = folder.path / "state"
    foreign = (tmp_path / "other" / "state" / "main-00000900.safetensors").read_bytes()
    (state / "main-00000900.safetensors").write_bytes(foreign)
    (state / ".main-00000200.safetensors.0123abcd.part").write_bytes(b"half")
    (state / "notes.txt").write_text("mine")
    said = []
    assert folder.latest_state(say=said.append).step == 100
    assert [line.removeprefix(f"{state}/") for line in said] == [
        ".main-00000200.safetensors.0123abcd.part was never finished; deleted",
        "main-00000900.safetensors belongs to another run; passed over",
        "notes.txt is not a state of a run; passed over",
    ]
    save(folder, 110), save(folder, 120)
    assert names(folder) == [
        *(f"main-00000{n}.safetensors" for n in (110, 120, 900)),
        "notes.txt",
    ]


def test_a_safetensors_file_that_is_no_state_is_passed_over(folder):
    from safetensors.torch import save_file

    save(folder, 100)
    save_file(tensors(), folder.path / "state" / "main-00000200.safetensors")
    said = []
    assert folder.latest_state(say=said.append).step == 100
    assert "is not a state of a run" in said[0]


def test_a_state_written_in_the_background_is_there_after_wait(folder):
    about = {"stage": "main", "step": 5, "history": [1, 2]}
    folder.save_state(tensors(5), about, wait=False)
    about["history"].append(3)  # the run goes on
    folder.wait()
    assert folder.latest_state().about["history"] == [1, 2]
    save(folder, 6, wait=False)
    save(folder, 7, wait=False)
    assert folder.latest_state().step == 7, "latest_state waits for a state that is being written"


def test_an_error_in_the_background_surfaces_on_the_next_call(folder, tmp_path):
    save(folder, 1)
    state = folder.path / "state"
    state.rename(tmp_path / "away")
    state.write_text("in the way")
    save(folder, 2, wait=False)
    with pytest.raises(DataError, match=r"cannot write .*main-00000002.*; choose another place"):
        save(folder, 3)
    save(folder, 3, wait=False)
    assert folder._saving.exception()
    with pytest.raises(DataError, match="cannot write"):
        folder.event("epoch")
    state.unlink()
    (tmp_path / "away").rename(state)
    save(folder, 4)
    assert folder.latest_state().step == 4
    assert sum(thread.name.startswith("save-state") for thread in threading.enumerate()) <= 1


def test_closing_raises_what_went_wrong_in_the_background_and_masks_nothing(tmp_path):
    def fail(path: Path) -> RunFolder:
        folder = RunFolder.create(path, {})
        (path / "state").rename(path / "away")
        (path / "state").write_text("in the way")
        save(folder, 2, wait=False)
        return folder

    with pytest.raises(DataError, match="cannot write"), fail(tmp_path / "1"):
        pass
    with pytest.raises(KeyboardInterrupt) as caught, fail(tmp_path / "2"):
        raise KeyboardInterrupt
    assert "cannot write" in caught.value.__notes__[0]
    RunFolder.create(tmp_path / "1" / "away" / "new", {}).close()


FULL_DISK = """
import resource, sys, torch
from vitreous.errors import DataError
from vitreous.training.run.folder import RunFolder
path, limit = sys.argv[1], int(sys.argv[2])
folder = RunFolder.create(path, {})
folder.save_state({"a": torch.zeros(10)}, {"stage": "main", "step": 1})
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
for wait in (True, False):
    try:
        folder.save_state({"a": torch.zeros(1_000_000)}, {"stage": "main", "step": 2}, wait=wait)
        folder.wait()
    except DataError as error:
        print(error)
print(sorted(p.name for p in (folder.path / "state").iterdir()))
print(folder.latest_state().step)
folder.save_state({"a": torch.zeros(20)}, {"stage": "main", "step": 3})
print(folder.latest_state().step)
"""


def full_disk(done: subprocess.CompletedProcess[str], path: str, reason: int) -> None:
    assert done.returncode == 0, done.stderr
    line = (
        f"no room for {path}/state/main-00000002.safetensors ({os.strerror(reason)}); "
        "free some and go on with --resume: what was saved before is whole"
    )
    assert done.stdout.splitlines() == [line, line, "['.lock', 'main-00000001.safetensors']", "1", "3"]


def test_on_a_full_disk_the_earlier_state_stays_and_the_half_one_goes(tmp_path):
    full_disk(program(FULL_DISK, tmp_path / "run", 100_000), f"{tmp_path}/run", errno.EFBIG)


def test_on_a_disk_that_is_really_full(tmp_path):
    """A file system of 200 KiB, in a name space of its own."""
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=200k none {tmp_path}"
    if subprocess.run([*inside, mount], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount")
    code = [*inside, f'{mount} && exec "$@"', "sh", sys.executable, "-c", FULL_DISK, f"{tmp_path}/run", "0"]
    full_disk(subprocess.run(code, capture_output=True, text=True, timeout=100), f"{tmp_path}/run", errno.ENOSPC)


KILLED = """
import os, random, signal, struct, sys, time
import torch
from vitreous.training.run.folder import RunFolder

path, kills, in_background = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "background"
random.seed(kills)
RunFolder.create(path, {}).close()

def go_on(acknowledge):
    folder = RunFolder.open(path)
    state = folder.latest_state()
    step = state.step if state else 0
    assert step >= acknowledged, f"state {step}, {acknowledged} was acknowledged"
    assert state is None or all((t == step).all() for t in state.tensors.values()), "a state of two steps"
    os.write(acknowledge, struct.pack("q", step))
    while True:
        step += 1
        folder.event("step", stage="main", step=step)
        tensors = {str(i): torch.full((20_000,), float(step)) for i in range(3)}
        folder.save_state(tensors, {"stage": "main", "step": step}, wait=not in_background)
        os.write(acknowledge, struct.pack("q", step - in_background))

acknowledged = 0
for kill in range(kills):
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        try:
            go_on(write_end)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(7)
    os.close(write_end)
    first = os.read(read_end, 8)
    if kill % 2:  # however busy the machine is, the run gets on
        first += os.read(read_end, 8) + os.read(read_end, 8)
    time.sleep(random.uniform(0, 0.03))
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status), "the child failed"
    said = first
    while more := os.read(read_end, 2**16):
        said += more
    os.close(read_end)
    acknowledged = max(acknowledged, struct.unpack("q", said[-8:])[0])
print(acknowledged)
"""


@pytest.mark.parametrize("how", ["at once", "background"])
@pytest.mark.parametrize("kills", [30, pytest.param(1500, marks=pytest.mark.slow)])
def test_killed_at_any_instant_the_last_acknowledged_state_is_whole(tmp_path, kills, how):
    """And the events, though restored so often, are those of a run that nobody killed."""
    path = tmp_path / "run"
    done = program(KILLED, path, kills, how)
    assert done.returncode == 0, done.stderr
    with RunFolder.open(path) as folder:
        said = []
        state = folder.latest_state(say=said.append)
        assert state.step >= int(done.stdout) >= kills // 2
        assert all("was never finished" in line for line in said)
        assert len(names(folder)) <= 3
        steps = [event["step"] for event in read(path)]
    assert steps == list(range(1, state.step + 1))


def test_a_bad_batch_is_kept_with_the_names_of_its_pictures(folder):
    from safetensors import safe_open

    path = folder.keep_batch(12, {"images": torch.zeros(2, 3, 4, 4).permute(0, 2, 3, 1)}, ["a.jpg", "é.jpg"])
    assert path == str(folder.path / "bad-batch-00000012.safetensors")
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["names"]) == ["a.jpg", "é.jpg"]
        assert file.get_tensor("images").shape == (2, 4, 4, 3)


# Events


def test_events_keep_their_order_and_every_line_is_strict_json(folder):
    folder.event("data", images=np.int64(5), where=Path("a") / "b", share=torch.tensor(0.5))
    folder.event("step", stage="main", step=1, loss=math.nan, norm=math.inf, rates=(0.1, -math.inf))
    folder.event("epoch", stage="main", step=1, text="é\n\u2028", deep={"is": True, "nothing": None})

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    lines = (folder.path / "events.jsonl").read_text().split("\n")
    assert lines[-1] == ""
    events = [json.loads(line, parse_constant=refuse) for line in lines[:-1]]
    assert without_clocks(events) == [
        {"kind": "data", "images": 5, "where": "a/b", "share": 0.5},
        {"kind": "step", "stage": "main", "step": 1, "loss": None, "norm": None, "rates": [0.1, None]},
        {"kind": "epoch", "stage": "main", "step": 1, "text": "é\n\u2028", "deep": {"is": True, "nothing": None}},
    ]
    assert read(folder.path) == events


def test_clocks_are_what_another_day_changes():
    clocks = ("time", "seconds", "images_per_second", "load_seconds", "seconds_each", "time_left", "mfu", "memory")
    event = {"kind": "epoch", "loss": 5.0, "timescale": 3, "seconded": True}
    assert without_clocks([event | dict.fromkeys(clocks, 1.0)]) == [event]


@pytest.mark.parametrize("torn", [b'{"kind": "st', b"{", b'{"kind": "x"}', b"\0\0\0\0", b"\0\0\n\0\n", b'"a word"\n'])
def test_a_torn_last_line_is_tolerated_and_then_mended(tmp_path, torn):
    path = tmp_path / "run"
    with RunFolder.create(path, {}) as folder:
        folder.event("epoch", number=1)
    with (path / "events.jsonl").open("ab") as file:
        file.write(torn)
    if torn.count(b"\n") < 2:
        assert [event["number"] for event in read(path)] == [1]
    with RunFolder.open(path) as folder:
        folder.event("epoch", number=2)
    assert [event["number"] for event in read(path)] == [1, 2]
    assert len((path / "events.jsonl").read_bytes().splitlines()) == 2


def test_a_line_that_is_no_event_amid_the_others_is_named(folder):
    folder.event("epoch")
    with (folder.path / "events.jsonl").open("ab") as file:
        file.write(b"?\n")
    folder.event("epoch")
    with pytest.raises(DataError, match=r"line 2 of .*events\.jsonl is not an event; take it out"):
        read(folder.path)


def test_an_event_on_a_full_disk_leaves_whole_lines(tmp_path):
    done = program(
        """
        import resource, sys
        from vitreous.errors import DataError
        from vitreous.training.run.folder import RunFolder, read
        folder = RunFolder.create(sys.argv[1], {})
        folder.event("epoch", number=1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))
        try:
            folder.event("epoch", text="x" * 1000)
        except DataError as error:
            print(error)
        folder.event("epoch", number=2)
        print([event["number"] for event in read(folder.path)])
        """,
        tmp_path / "run",
    )
    assert done.stdout.splitlines() == [
        f"no room for {tmp_path}/run (File too large); "
        "free some and go on with --resume: what was saved before is whole",
        "[1, 2]",
    ], done.stderr


def test_no_events_is_one_clear_line(tmp_path):
    with pytest.raises(DataError, match=r"has no events \(No such file.*\); give the folder of a run"):
        read(tmp_path)


STAGES = {"up": 6, "down": 4, "last": 3}  # and how many steps each has


def run_stages(folder: RunFolder, patience: int, saved_after: set[tuple[str, int]]) -> None:
    """As fit works: every stage from its newest state, through all its steps, to a state that says it is over."""
    folder.event("start")
    folder.event("data", images=5)
    for stage, steps in STAGES.items():
        state = folder.latest_state(stage)
        at, is_over = (state.step, state.about["is_over"]) if state else (0, False)
        if not state:
            folder.event("begin", stage=stage)
            folder.save_state({"at": torch.tensor(0)}, {"stage": stage, "step": 0, "is_over": False})
        while not is_over:
            if patience == 0:
                return
            patience -= 1
            at += 1
            folder.event("step", stage=stage, step=at, loss=at / 7)
            is_over = at == steps
            if is_over or (stage, at) in saved_after:
                folder.save_state({"at": torch.tensor(at)}, {"stage": stage, "step": at, "is_over": is_over})
        folder.event("result", stage=stage)
        if patience == 0:
            return
    folder.event("end")


@settings(max_examples=20)  # each is a run of several processes' worth of files
@given(
    st.lists(st.tuples(st.integers(0, 14), st.integers(0, 3), st.booleans()), max_size=6),
    st.sets(st.tuples(st.sampled_from(list(STAGES)), st.integers(1, 6))),
)
def test_however_often_it_is_ended_a_run_reads_as_if_it_had_not_been(tmp_path_factory, ends, saved_after):
    """A process may end anywhere, leave half a line, and its newest states may be lost."""
    place = tmp_path_factory.mktemp("runs")
    with RunFolder.create(place / "whole", {}) as folder:
        run_stages(folder, 999, saved_after)
    RunFolder.create(place / "ended", {}).close()
    for patience, lost, is_torn in [*ends, (999, 0, False)]:
        with RunFolder.open(place / "ended") as folder:
            for newest in folder._newest_first()[:lost]:
                newest.unlink()
            run_stages(folder, patience, saved_after)
        if is_torn:
            with (place / "ended" / "events.jsonl").open("ab") as file:
                file.write(b'{"kind": "step", "sta')
    assert without_clocks(read(place / "ended")) == without_clocks(read(place / "whole"))
    assert [e["kind"] for e in read(place / "whole")].count("step") == sum(STAGES.values())


def test_a_rollback_within_a_process_supersedes_too(folder):
    for step in (1, 2):
        folder.event("step", stage="main", step=step)
        save(folder, step)
    folder.event("step", stage="main", step=3)
    assert folder.latest_state().step == 2
    folder.event("step", stage="main", step=3, again=True)
    assert without_clocks(read(folder.path)) == [
        {"kind": "step", "stage": "main", "step": 1},
        {"kind": "step", "stage": "main", "step": 2},
        {"kind": "step", "stage": "main", "step": 3, "again": True},
    ]


@given(st.lists(st.tuples(st.sampled_from(["up", "down"]), st.integers(0, 9)), max_size=20))
def test_a_restore_that_counts_no_lines_supersedes_its_stage_after_its_step(tmp_path_factory, restores):
    """What is left of a stage is 0, 1, …, its last step, each once, whatever was restored in between."""
    path = tmp_path_factory.mktemp("runs")
    last, lines = {"up": -1, "down": -1}, []
    for stage, step in [*restores, ("up", 9), ("down", 9)]:
        back = min(step, last[stage])
        if back >= 0:
            lines.append({"kind": "restore", "stage": stage, "step": back})
        last[stage] = back
        for _ in range(4):
            last[stage] += 1
            lines.append({"kind": "step", "stage": stage, "step": last[stage]})
    (path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for stage, end in last.items():
        assert [e["step"] for e in read(path) if e["stage"] == stage] == list(range(end + 1))


# The folder


def test_the_config_is_written_readable_and_comes_back(tmp_path):
    with RunFolder.create(tmp_path / "run", {**CONFIG, "nan": math.nan, "folder": tmp_path, "steps": 120}) as folder:
        text = (folder.path / "config.json").read_text()
    with RunFolder.open(tmp_path / "run") as folder:
        config = dict(folder.config)
    assert len(config.pop("run")) == 16
    assert config == {**CONFIG, "nan": None, "folder": str(tmp_path), "steps": 120}
    assert '\n  "data": {\n    "images": 312\n' in text


def test_a_second_process_is_refused_until_the_first_ends(tmp_path):
    path = tmp_path / "run"
    words = (
        "import sys; from vitreous.training.run.folder import RunFolder; run = RunFolder.{}; print('held', flush=True)"
    )
    first = forks.Popen(
        [sys.executable, "-c", words.format("create(sys.argv[1], {})") + "; sys.stdin.read()", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout.readline() == "held\n"
    line = f"{path} is in use by another process; wait until it ends, or give another folder with --out"
    for again in (RunFolder.open, lambda p: RunFolder.create(p, {}), lambda p: RunFolder.create(p, {}, force=True)):
        with pytest.raises(BusyError) as caught:
            again(path)
        assert str(caught.value) == line
    second = program(words.format("open(sys.argv[1])"), path)
    assert second.returncode == 1
    assert line in second.stderr
    first.kill()
    first.communicate()
    RunFolder.open(path).close()


def test_a_run_is_replaced_only_by_force_and_nobody_elses_file_goes(tmp_path):
    path = tmp_path / "run"
    with RunFolder.create(path, CONFIG) as folder:
        save(folder, 100)
        folder.event("epoch")
    (path / "report.html").touch()
    (path / "mine.txt").touch()
    with pytest.raises(ExistsError, match=r"run holds a run already; go on with --resume, or .* --force"):
        RunFolder.create(path, {})
    with RunFolder.create(path, {}, force=True) as folder:
        assert folder.latest_state() is None
        assert read(path) == []
    assert sorted(p.name for p in path.iterdir()) == ["config.json", "events.jsonl", "mine.txt", "state"]


def test_somebodys_folder_is_no_place_for_a_run(tmp_path):
    (tmp_path / "cat.jpg").touch()
    with pytest.raises(ExistsError, match=r"is not a run and holds cat\.jpg; choose an empty or new folder with --out"):
        RunFolder.create(tmp_path, {})
    assert [p.name for p in tmp_path.iterdir()] == ["cat.jpg"]


def test_a_create_that_was_killed_leaves_a_free_place(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / ".lock").touch()
    (tmp_path / ".config.json.0123abcd.part").touch()
    RunFolder.create(tmp_path, {}).close()


def test_an_unwritable_place_is_one_clear_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        DataError, match=r"cannot write .*file/run \(Not a directory\); choose another place with --out"
    ):
        RunFolder.create(tmp_path / "file" / "run", {})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"data": 1}', "\0"])
def test_a_damaged_config_is_one_clear_line(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(DataError, match=r"config\.json is damaged; begin again in another folder"):
        RunFolder.open(tmp_path)
    with pytest.raises(DataError, match="is damaged"):  # and not: in use
        RunFolder.open(tmp_path)


def test_a_folder_without_config_is_no_run(tmp_path):
    with pytest.raises(
        DataError, match=r"is not a run folder \(it has no config\.json\); give one that `vitreous fit` made"
    ):
        RunFolder.open(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_next_name_is_the_first_free_one(tmp_path):
    assert next_name(tmp_path / "runs", "pets") == tmp_path / "runs" / "pets-1"
    for _ in range(2):
        RunFolder.create(next_name(tmp_path / "runs", "pets"), {}).close()
    assert next_name(tmp_path / "runs", "pets").name == "pets-3"
    assert next_name(tmp_path, "s3://my bucket/*.jpg").name == "s3-my-bucket-.jpg-1"
    assert next_name(tmp_path, "..").name == "data-1"


def test_differences_are_plain_lines():
    then = {
        "run": "a",
        "data": {"images": 312, "classes": ["cat", "dog"], "content_id": "0123" * 16},
        "recipe": {"peak_lr": 1e-3, "augment": {"flip": True}, "betas": [0.9, 0.999]},
        "model": "S/16",
        "same": {"deep": [1, 2]},
    }
    now = {
        "data": {"images": 315, "classes": ["cat", "dog", "rat"], "content_id": "4567" * 16},
        "recipe": {"peak_lr": 3e-3, "augment": {"flip": False}, "betas": (0.9, 0.95), "clip": None},
        "model": "B/16",
        "same": {"deep": (1, 2)},
    }
    assert differences(then, now) == [
        "data: 312 images then, 315 now",
        "data: 2 classes then, 3 now",
        "data: digest of images and labels 01230123… then, 45674567… now",
        "recipe: peak_lr 0.001 then, 0.003 now",
        "recipe augment: flip true then, false now",
        "recipe: betas[1] 0.999 then, 0.95 now",
        "recipe: clip absent then, none now",
        "model: S/16 then, B/16 now",
    ]
    assert differences(then, then) == []


def test_a_run_that_has_not_ended_is_no_model_yet_and_says_how_to_go_on(tmp_path):
    folder = tmp_path / "runs" / "mine-1"
    folder.mkdir(parents=True)
    for name in ("config.json", "events.jsonl"):
        (folder / name).write_text("{}")
    with pytest.raises(CheckpointError, match=r"has not ended; go on with it: vitreous fit .*mine-1 --resume"):
        vitreous.load(folder)
