"""Several processes (gloo, on the CPU): copies and shards give the losses of one, and states go from any to any."""

import json
import re
import shutil

import pytest
import ranks_script
from picture_files import encoded, tar_of
from small_runs import assert_equal_states, picture_folder
from torchrun import HOW, torchrun

import vitreous
from vitreous.papers.results import read
from vitreous.ranks import Ranks
from vitreous.training.run import folder as runs
from vitreous.training.run import sharded_state
from vitreous.weights.load_model import load

MUON = {"optimizer": "muon", "peak_lr": 1e-3, "eps": 1e-3}  # a small eps would make rounding a step


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return picture_folder(tmp_path_factory.mktemp("sets") / "shapes", 80)


def events(run, kind="step"):
    return [event for event in runs.read(run) if event["kind"] == kind]


def assert_same_course(ours, theirs, rel=2e-4):
    """The same losses, norms and looks at dev within rounding, and the same images judged."""
    for kind, names in (("step", ("loss", "norm")), ("dev", ("loss", "accuracy"))):
        mine, yours = events(ours, kind), events(theirs, kind)
        assert [event["step"] for event in mine] == [event["step"] for event in yours]
        for name in names:
            assert [event[name] for event in mine] == pytest.approx([event[name] for event in yours], rel=rel), name
    mine, yours = (json.loads((run / "metrics.json").read_text()) for run in (ours, theirs))
    assert mine["judged"]["images"] == yours["judged"]["images"]


@pytest.fixture(scope="module")
def alone(images, tmp_path_factory):
    """The run of one process."""
    out = tmp_path_factory.mktemp("alone") / "run"
    vitreous.fit(images, out=out, device="cpu", workers=0, check=False, **HOW)
    return out


@pytest.fixture(scope="module")
def of_four(images, tmp_path_factory):
    """Runs of four processes: copies, shards, shards of another optimiser, and one that SIGTERM stops."""
    place = tmp_path_factory.mktemp("four")
    other = picture_folder(place / "shapes", 80, first=80)
    common = {"data": str(images), **HOW}
    jobs = [
        {**common, "out": str(place / "ddp"), "parallel": "ddp", "batch": 16, "accumulation": 2},
        {**common, "out": str(place / "fsdp"), "parallel": "fsdp", "units": 1},
        {**common, "out": str(place / "muon"), "parallel": "fsdp", **MUON, "checkpointing": True, "units": 1},
        {**common, "out": str(place / "stopped"), "parallel": "fsdp", "stop": 2},
        {**common, "out": str(place / "x"), "batch": 6, "mixup": 0},
        {**common, "out": str(place / "y"), "rates": [0.5, 0.5, 0.25, 0.5]},
        {**common, "out": str(place / "z"), "places": [*[str(images)] * 3, str(other)]},
    ]
    answers, said = torchrun(4, jobs, place / "answers")
    return place, answers, said


def test_four_processes_have_the_losses_of_one(of_four, alone, images, tmp_path):
    place, answers, said = of_four
    assert answers[:3] == [[""] * 4] * 3, said
    assert_same_course(place / "fsdp", alone)
    for name, changes in (("ddp", {"batch": 16}), ("muon", MUON)):
        vitreous.fit(images, out=tmp_path / name, device="cpu", workers=0, check=False, **{**HOW, **changes})
        assert_same_course(place / name, tmp_path / name)


def test_a_run_of_shards_says_so(of_four):
    place, _, _ = of_four
    kinds = {name: json.loads((place / name / "config.json").read_text())["parallel"] for name in ("ddp", "fsdp")}
    assert {name: (kind["kind"], kind["world"]) for name, kind in kinds.items()} == {
        "ddp": ("ddp", 4),
        "fsdp": ("fsdp", 4),
    }


@pytest.fixture(scope="module")
def of_two(of_four, images, tmp_path_factory):
    """What four processes saved goes on with two: as copies, as shards, until SIGTERM; and until a disk is full."""
    place = tmp_path_factory.mktemp("two")
    how = {"copies": {"parallel": "ddp"}, "shards": {"parallel": "fsdp"}, "back": {"parallel": "fsdp", "stop": 4}}
    how["full"] = {"parallel": "fsdp", "full": 3}
    for name in ("one", *how):
        shutil.copytree(of_four[0] / "stopped", place / name)
    common = {"data": str(images), "resume": True}
    jobs = [{**common, "out": str(place / name), **words} for name, words in how.items()]
    jobs.append({"data": str(images), **HOW, "out": str(place / "whole"), "parallel": "fsdp"})
    jobs += [{"do": name, "with": words} for name, words in readings(of_four[0] / "ddp", images, place).items()]
    return place, *torchrun(2, jobs, place / "answers", variables={"VITREOUS_CACHE": str(place / "cache")}.items())


def readings(run, images, place):
    """What reads a trained model, by its name in ranks_script.py."""
    model = {"model": str(run), "data": str(images)}
    return {
        "judge": {**model, "csv": str(place / "answers.csv")},
        "few_shot": model,
        "look": {**model, "out": str(place / "look")},
        "paper": {"out": str(place / "papers")},
    }


@pytest.fixture
def of_one(of_four, images, tmp_path, monkeypatch):
    """The same, read by this process."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    words = readings(of_four[0] / "ddp", images, tmp_path)
    return {name: json.loads(ranks_script.READINGS[name](**words[name])) for name in words}


@pytest.mark.slow  # a second group of processes
def test_two_processes_judge_look_and_probe_as_one_does(of_one, of_two, tmp_path):
    """Counts are exact, numbers equal within rounding, and each file is written once."""
    place, answers, said = of_two
    for i, name in enumerate(of_one):
        ours = [json.loads(answer or "null") for answer in answers[5 + i]]
        assert ours[0] == ours[1], (name, said)
        assert flat(ours[0]) == pytest.approx(flat(of_one[name]), rel=1e-3, abs=1e-5), name
    assert json.loads(answers[5][0])[:2] == of_one["judge"][:2]
    lines = [sorted((folder / "answers.csv").read_text().split("\n")) for folder in (place, tmp_path)]
    assert [line.split(",")[0] for line in lines[0]] == [line.split(",")[0] for line in lines[1]]
    cells = [{one.key: one.readings for one in read(folder / "papers" / "small.json")} for folder in (place, tmp_path)]
    assert cells[0].keys() == cells[1].keys()
    for key, one in cells[0].items():
        assert one["steps"] == cells[1][key]["steps"] == 3
    assert (place / "look" / "look.html").is_file()


def flat(value):
    """The numbers in it."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = [value] if isinstance(value, int | float) else []
    return own + [number for each in inner for number in flat(each)]


@pytest.mark.slow  # a second group of processes
def test_sigterm_to_one_rank_saves_on_all_and_any_number_goes_on(of_four, of_two, alone, images):
    """Saved by four in shards; goes on alone, and on two as copies and as shards."""
    assert [answer.partition(":")[0] for answer in of_four[1][3]] == ["Interrupted"] * 4
    state, *_ = (of_four[0] / "stopped" / "state").glob("fit-00000003.*.shards")
    assert len(list(state.glob("*.distcp"))) == 4
    place, answers, said = of_two
    assert answers[:2] == [["", ""], ["", ""]], said
    for name in ("one", "back"):
        vitreous.fit(images, out=place / name, resume=True, device="cpu", workers=0)
    for name in ("one", "copies", "shards", "back"):
        assert_same_course(place / name, alone)


@pytest.mark.slow  # a second group of processes
def test_from_four_processes_to_one_and_back(of_four, alone, images, tmp_path):
    """Saved by four in shards, then by one in a file; goes on with four as copies and as shards."""
    shutil.copytree(of_four[0] / "stopped", tmp_path / "ddp")
    said = ranks_script.run(Ranks(), stop=4, data=str(images), out=tmp_path / "ddp", resume=True)
    assert said.startswith("Interrupted: ")
    assert any((tmp_path / "ddp" / "state").glob("fit-00000005.safetensors"))
    shutil.copytree(tmp_path / "ddp", tmp_path / "fsdp")
    names = ("ddp", "fsdp")
    jobs = [{"data": str(images), "resume": True, "out": str(tmp_path / name), "parallel": name} for name in names]
    answers, said = torchrun(4, jobs, tmp_path / "answers")
    assert answers == [[""] * 4] * 2, said
    for name in names:
        assert_same_course(tmp_path / name, alone)


@pytest.mark.slow
def test_a_shard_that_one_rank_cannot_read_is_named_and_so_is_the_rank(tmp_path):
    """Each rank has its own copy of the shards, as machines do; that of the last is cut short within the run."""
    for k in range(6):
        inside = {}
        for n in range(8 * k, 8 * k + 8):
            inside |= {f"{n:05d}.jpg": encoded(n, "JPEG"), f"{n:05d}.cls": str(n % 2).encode()}
        tar_of(tmp_path / f"train-{k}.tar", inside)
    copies = [tmp_path / "0", tmp_path / "1"]
    for copy in copies:
        copy.mkdir()
        for shard in tmp_path.glob("*.tar"):
            shutil.copy2(shard, copy)
    job = {
        "data": "",
        "places": list(map(str, copies)),
        **HOW,
        "out": str(tmp_path / "run"),
        "cut": 2,
        "length": "60 steps",
    }
    answers, said = torchrun(2, [job], tmp_path / "answers", expected=None)
    line = "is cut short at train-"
    assert answers[0][1].startswith(f"ShardError: {copies[1]}"), said
    assert line in answers[0][1]
    assert answers[0][0].startswith("RunError: rank 1 of 2 ended or did not answer within 1800 s; look at its own"), (
        said
    )


@pytest.mark.slow  # a second group of processes
def test_a_full_disk_on_one_rank_is_one_line_with_its_number(of_two):
    _, answers, said = of_two
    assert all("no room on rank 1 for " in answer and "\n" not in answer for answer in answers[3]), (answers, said)


def test_shards_become_one_file_tensor_by_tensor(of_four, alone, images, tmp_path):
    """The file is a state like any other: one process goes on from it."""
    shutil.copytree(of_four[0] / "stopped", tmp_path / "run")
    states = tmp_path / "run" / "state"
    newest, *_ = states.glob("fit-00000003.*.shards")
    sharded_state.join_shards(newest, states / "fit-00000003.safetensors")
    whole, joined = (runs.read_state(path) for path in (newest, states / "fit-00000003.safetensors"))
    assert_equal_states(joined.tensors, whole.tensors)
    for folder in states.glob("*.shards"):
        shutil.rmtree(folder)
    vitreous.fit(images, out=tmp_path / "run", resume=True, device="cpu", workers=0)
    assert_same_course(tmp_path / "run", alone)


def test_shards_that_are_damaged_or_never_finished_are_passed_over(of_four, tmp_path):
    shutil.copytree(of_four[0] / "stopped", tmp_path / "run")
    with runs.RunFolder.open(tmp_path / "run") as folder:
        newest = folder.latest_state(in_memory=False).path
        file = next(newest.glob("__2_*.distcp"))
        file.write_bytes(file.read_bytes()[:-100] + bytes(100))
        half = newest.with_name("fit-00000005.0123abcd.shards")
        half.mkdir()
        said = []
        older = folder.latest_state(say=said.append, in_memory=False)
    assert older.step < 3
    assert f"{half} was never finished; deleted" in said
    assert any("is damaged or missing" in line and "passed over for the state before it" in line for line in said)
    assert not half.exists()


def test_a_world_that_does_not_divide_the_batch_and_ranks_that_disagree_are_one_line(of_four):
    _, answers, _ = of_four
    line = "ConfigError: a batch of 6 on 4 devices has no 4 equal parts; give a multiple of 4"
    assert answers[4] == [line] * 4
    line = "rank 2 differs from rank 0: recipe: peak_lr 0.5 on rank 0, 0.25 on rank 2; "
    line += "give all ranks the same data and options"
    assert answers[5] == [f"ConfigError: {line}", *[f"ToldError: {line}"] * 3]
    line = r"rank 3 differs from rank 0: data: .+ on rank 0, .+ on rank 3; give all ranks the same data and options"
    assert re.fullmatch(f"ConfigError: {line}", answers[6][0])


@pytest.mark.slow  # a second group of processes
def test_a_killed_worker_is_started_again_and_ends_with_the_weights_of_a_run_that_was_not(of_two, images, tmp_path):
    """A sum of two numbers is the same in either order, so two ranks are bit for bit the same."""
    cut, whole = tmp_path / "cut", of_two[0] / "whole"
    job = {"data": str(images), **HOW, "parallel": "fsdp", "out": str(cut), "kill": 3}
    answers, said = torchrun(2, [job], tmp_path / "answers", "--max-restarts", "1")
    assert [*answers, of_two[1][4]] == [["", ""], ["", ""]], said
    ours, theirs = (load(run / "model.safetensors").state_dict() for run in (cut, whole))
    assert_equal_states(ours, theirs)
    assert [e["loss"] for e in events(cut)] == [e["loss"] for e in events(whole)]
