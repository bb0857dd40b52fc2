"""Experiments: cells by content, results that survive, verdicts from files alone, and one clear line for bad input."""

import json
import re
from dataclasses import replace

import pytest
from commands import run_all
from papers.small_experiment import EXPERIMENT, STEPS, TINY, gain

from vitreous import papers
from vitreous.cli import paper
from vitreous.errors import ConfigError, DataError
from vitreous.papers import results as files
from vitreous.papers.claims import HOW_TO_READ, States, find, states
from vitreous.papers.experiment import ArmTable, Cell, rank_correlation
from vitreous.papers.experiments.speed import EXPERIMENT as SPEED
from vitreous.papers.outcome import PaperOutcome
from vitreous.papers.results import DIVERGED, DONE, Results, new_record, read
from vitreous.papers.runner import _fits
from vitreous.papers.sets import Sets, named_sets, plain_name
from vitreous.papers.setting import setting
from vitreous.papers.verdict import Effect
from vitreous.papers.worker import compute, new_bench
from vitreous.papers.works.train import train


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The small experiment, run in this process, and its folder."""
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITREOUS_CACHE", str(folder / "cache"))
        return papers.run(EXPERIMENT, out=folder, jobs=0), folder


# Cells ---------------------------------------------------------------------------------------------------------------


def test_a_cell_is_known_by_all_that_decides_its_numbers():
    one = train(TINY, "fashion", 0, recipe=STEPS)
    others = [
        train(TINY, "fashion", 1, recipe=STEPS),
        train(TINY + " mlp=17", "fashion", 0, recipe=STEPS),
        train(TINY, "fashion", 0, recipe=STEPS, images=100),
        train(TINY, "fashion", 0, recipe=STEPS, mixup=0.2),
        train(TINY, "fashion", 0, recipe=STEPS, weights=one),
        replace(one, version=2),
    ]
    assert len({cell.key for cell in [one, *others]}) == 7
    assert train(TINY, "fashion", 0, recipe=dict(reversed(STEPS.items()))).key == one.key
    assert Cell.from_json(json.loads(json.dumps(others[4].to_json()))).key == others[4].key


def test_a_finished_cell_never_runs_again(ran, monkeypatch):
    outcome, folder = ran
    monkeypatch.setattr("vitreous.papers.runner.compute", lambda cell, bench: pytest.fail("ran again"))
    again = papers.run(EXPERIMENT, out=folder, jobs=0)
    assert again.to_json() == outcome.to_json()


def test_a_record_says_what_it_was_computed_on(ran):
    outcome, folder = ran
    records = read(folder / "small.json")
    assert len(records) == outcome.cells == 4
    for record in records:
        assert {"command", "versions", "hardware", "commit"} <= set(record.environment)
        assert record.status == DONE
        assert record.options["seed"] in (0, 1)
        assert 0 <= record.readings["accuracy"] <= 1
        assert record.readings["steps"] == 3


def test_the_same_cell_gives_the_same_numbers_and_is_set_beside_the_committed_one(ran):
    outcome, folder = ran
    found = papers.rerun(EXPERIMENT, "1", results=Results(folder))
    first = outcome.table.values("with", "accuracy")
    assert found.before.readings["accuracy"] == first[0]
    assert found.now["accuracy"] == pytest.approx(first[0], abs=0.02)  # one image or two, on another thread count
    assert "committed" in str(found)
    assert found.spread["accuracy"] == pytest.approx(abs(first[0] - first[1]) / 2**0.5)
    with pytest.raises(ConfigError, match="has no cell '9'; give a number from 1 to 4"):
        papers.rerun(EXPERIMENT, "9", results=Results(folder))


def test_a_diverged_cell_is_recorded_and_counts_as_chance(tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    cell = train(TINY, "fashion", 0, images=200, recipe=STEPS, peak_lr=1e30, clip="none", warmup=0.0, optimizer="sgd")
    answer = compute(cell, new_bench({}))
    assert answer["status"] == DIVERGED
    assert answer["readings"]["accuracy"] == pytest.approx(0.1)
    results = Results(tmp_path, committed=tmp_path / "none")
    results.add("small", new_record(cell, answer["readings"], answer["status"], 1.0))
    grid = EXPERIMENT.placed("laptop")
    outcome = PaperOutcome(EXPERIMENT, "laptop", [replace(grid[0], cell=cell), *grid[1:]], results)
    assert any("1 training diverged" in note for note in outcome.notes)
    assert outcome.table.values("with", "accuracy") == {0: pytest.approx(0.1)}


def test_a_reader_of_a_diverged_model_is_recorded_and_trains_nothing_again(tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    trained, reader = (one.cell for one in EXPERIMENT.placed("gpu")[:2])
    bench = new_bench({})
    bench.mark_diverged(trained)
    bench.train = lambda cell, bench: pytest.fail("trained again")
    answer = compute(reader, bench)
    assert answer["status"] == DIVERGED
    assert answer["readings"] == {"diverged": 1}
    results = Results(tmp_path, committed=tmp_path / "none")
    results.add("small", new_record(reader, answer["readings"], answer["status"], 1.0))
    outcome = PaperOutcome(EXPERIMENT, "gpu", EXPERIMENT.placed("gpu"), results)
    assert any("1 cell would read a model that diverged" in note for note in outcome.notes)


def test_a_run_in_a_log_is_not_silent(ran, tmp_path, monkeypatch, capsys):
    """Without a terminal each tenth of the cells is told, with the time left; of four cells each but the last."""
    monkeypatch.setattr(papers, "find_all", lambda names, scale: [EXPERIMENT])
    paper._run(["small"], "laptop", str(tmp_path), {"jobs": 0})
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("small: cells ")]
    assert [line.split(",")[0] for line in lines] == [f"small: cells {done}/4" for done in (1, 2, 3)]
    assert all(line.endswith(" left") for line in lines)


# Verdicts from files --------------------------------------------------------------------------------------------------


def with_accuracies(folder, by_arm):
    """A results file whose accuracies are these, seed by seed."""
    results = Results(folder, committed=folder / "none")
    for one in EXPERIMENT.placed("laptop", 3):
        results.add("small", new_record(one.cell, {"accuracy": by_arm[one.arm][one.seed]}, DONE, 1.0))
    return PaperOutcome(EXPERIMENT, "laptop", EXPERIMENT.placed("laptop", 3), results)


def test_a_verdict_flips_when_the_committed_numbers_flip(tmp_path):
    high, low = (0.9, 0.91, 0.89), (0.5, 0.51, 0.495)
    one = with_accuracies(tmp_path / "one", {"with": high, "without": low})
    other = with_accuracies(tmp_path / "other", {"with": low, "without": high})
    assert one.claims[0][1].verdict == "SUPPORTED"
    assert other.claims[0][1].verdict == "CONTRADICTED"
    text = str(one)
    assert "C17  SUPPORTED\n    tested: positions help\n    intervals of 97.5 %:\n" in text
    assert "+39.8 points" in text
    assert "    published: 2.6 points" in text


def test_a_claim_whose_condition_the_scale_cannot_meet_gets_no_verdict(tmp_path):
    """The effect stays, and so do the verdicts of the others."""
    first, second = EXPERIMENT.claims
    untested = replace(first, untestable={"laptop": "all data are few"})
    plain = with_accuracies(tmp_path, {"with": (0.5, 0.51, 0.495), "without": (0.9, 0.91, 0.89)})
    outcome = replace(plain, experiment=replace(EXPERIMENT, claims=(untested, second)))
    found, other = (judged for _, judged in outcome.claims)
    assert found.in_words == "NOT TESTABLE: at laptop scale all data are few"
    assert other.in_words == plain.claims[1][1].in_words
    text = str(outcome)
    assert "C17  NOT TESTABLE: at laptop scale all data are few\n    asked: positions help\n" in text
    assert "with − without  −39.8 points" in text
    assert outcome.to_json()["claims"][0]["verdict"] == "NOT TESTABLE"
    without = replace(outcome, results=Results(committed=tmp_path / "none"))
    assert without.claims[0][1].verdict == "NOT RUN"


def test_of_several_effects_each_says_its_side(tmp_path):
    def both(table):
        yield from gain(table)
        yield Effect("less", {seed: -value for seed, value in next(iter(gain(table))).values.items()}, "points")

    two = replace(EXPERIMENT, claims=(replace(EXPERIMENT.claims[0], effects=both),))
    plain = with_accuracies(tmp_path, {"with": (0.9, 0.91, 0.89), "without": (0.5, 0.51, 0.495)})
    text = str(replace(plain, experiment=two))
    assert "C17  CONTRADICTED: 1 of 2 effects against, 1 for\n" in text
    assert "    intervals of 95.0 %, 97.5 % against:\n" in text
    assert [line.split()[-1] for line in text.splitlines() if " points " in line] == ["for", "against"]


def test_seeds_that_agree_exactly_have_no_interval(tmp_path):
    outcome = with_accuracies(tmp_path, {"with": (0.75, 0.5, 0.625), "without": (0.5, 0.25, 0.375)})
    assert "with − without  +25.0 points  (all 3 alike)" in str(outcome)


def test_a_scale_says_what_it_is(ran):
    """From its cells: networks, pixels, images, steps, seeds."""
    outcome, _ = ran
    line = str(outcome).splitlines()[1]
    counts = outcome.table.values("without", "parameters")[0], outcome.table.values("with", "parameters")[0]
    said = f"ViT ({counts[0]:,} to {counts[1]:,} parameters, 1 blocks of 2 heads); 28 pixels"
    assert line == f"laptop scale: {said}; 200 images of fashion, 3 steps of 32; 2 seeds"
    (released,) = papers.verify("skips", scale="released")
    said = "deit-tiny and vit-tiny (5,717,416 parameters, 12 blocks of 3 heads); 224 pixels"
    assert released.setting == f"{said}; 5 groups of 64 images of imagenette"


@pytest.mark.parametrize("scale", ["laptop", "gpu", "full", "released"])
def test_every_scale_of_every_experiment_says_what_it_is(scale):
    nothing = Results(committed=None)
    for experiment in (one for one in papers.EXPERIMENTS.values() if scale in one.scales):
        said = setting(scale, experiment.placed(scale), nothing)
        assert said.startswith(("ViT", "hybrid", "ResNet", "deit-tiny")), experiment.name
        assert re.search(r"; \d+ (seeds|groups of 64 images of imagenette)$", said), experiment.name
        assert experiment.name == "speed" or scale == "released" or re.search(r"steps|epochs", said), experiment.name


def test_verifying_derives_the_same_from_the_file_alone(ran):
    outcome, folder = ran
    again = PaperOutcome(EXPERIMENT, "laptop", EXPERIMENT.placed("laptop"), Results(folder))
    assert again.to_json() == outcome.to_json()


def test_what_has_not_run_says_so_with_its_command(tmp_path):
    results = Results(tmp_path, committed=tmp_path / "none")
    outcome = PaperOutcome(EXPERIMENT, "gpu", EXPERIMENT.placed("gpu"), results)
    assert {found.verdict for _, found in outcome.claims} == {"NOT RUN"}
    assert outcome.notes[0] == "8 cells of 8 not run: vitreous paper run small --scale gpu --data FOLDER"


def test_a_claim_waits_for_all_of_its_effects(tmp_path):
    """With one arm of two unmeasured, nothing is judged by the other."""
    results = Results(tmp_path, committed=tmp_path / "none")
    grid = EXPERIMENT.placed("laptop", 3)
    two = replace(EXPERIMENT.claims[0], effects=lambda table: [*gain(table), table.one("with", "other", "other")])
    experiment = replace(EXPERIMENT, claims=(two,))
    for one in grid:
        results.add("small", new_record(one.cell, {"accuracy": 0.9 if one.arm == "with" else 0.1}, DONE, 1.0))
    assert PaperOutcome(experiment, "laptop", grid, results).claims[0][1].verdict == "NOT RUN"


def test_results_of_another_version_are_kept_and_marked(tmp_path):
    results = Results(tmp_path, committed=tmp_path / "none")
    one, two, *_ = EXPERIMENT.placed("laptop")
    old = new_record(replace(one.cell, version=0), {"accuracy": 0.9}, DONE, 1.0)
    results.add("small", old)
    elsewhere = replace(
        new_record(two.cell, {"accuracy": 0.2}, DONE, 1.0), environment={"versions": {"vitreous": "0.0"}}
    )
    results.add("small", elsewhere)
    outcome = PaperOutcome(EXPERIMENT, "laptop", EXPERIMENT.placed("laptop"), Results(tmp_path))
    assert any("1 cell of an older definition kept and not used" in note for note in outcome.notes)
    assert any("1 cell of vitreous 0.0, this is" in note for note in outcome.notes)
    assert outcome.table.values("with", "accuracy") == {1: 0.2}
    assert len(read(tmp_path / "small.json")) == 2


def test_a_results_file_cut_in_half_is_named(ran, tmp_path):
    _, folder = ran
    whole = (folder / "small.json").read_bytes()
    (tmp_path / "small.json").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"small\.json is not a whole results file .*; restore it, or delete it"):
        Results(tmp_path)
    (tmp_path / "small.json").write_text('{"schema": "other/1"}')
    with pytest.raises(DataError, match="schema 'other/1'"):
        Results(tmp_path)


def test_equal_environments_are_written_once(ran):
    _, folder = ran
    body = json.loads((folder / "small.json").read_text())
    assert len(body["environments"]) < len(body["cells"])
    files.write(folder / "copy.json", "small", read(folder / "small.json"))
    assert json.loads((folder / "copy.json").read_text()) == body
    (folder / "copy.json").unlink()


# Tables ---------------------------------------------------------------------------------------------------------------


def test_differences_and_slopes_pair_seeds():
    table = ArmTable({"a": {0: {"x": 1.0}, 1: {"x": 2.0}, 2: {}}, "b": {0: {"x": 0.5}, 1: {"x": 0.0}, 2: {"x": 9.0}}})
    assert table.difference("a", "b", "x").values == {0: 0.5, 1: 2.0}
    assert table.slope("s", {"a": 0.0, "b": 1.0}, "x").values == pytest.approx({0: -0.5, 1: -2.0})
    assert table.slope("s", {"a": 0.0, "b": 1.0}, "x", is_falling=True).values == pytest.approx({0: 0.5, 1: 2.0})
    assert table.values("c", "x") == {}


def test_rank_correlation_is_spearmans():
    assert rank_correlation([1, 2, 3], [10, 20, 15]) == pytest.approx(0.5)
    assert rank_correlation([1, 1, 2, 3], [4, 4, 5, 6]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)


# The ledger and bad input ---------------------------------------------------------------------------------------------


def test_every_claim_of_an_experiment_is_a_row_of_the_ledger_or_of_an_appendix():
    rows = papers.claims.ledger()
    for experiment in papers.EXPERIMENTS.values():
        for claim in experiment.claims:
            assert claim.row in rows or claim.row.startswith("P1-D."), (experiment.name, claim.row)
            assert all(row in rows for row in claim.also)
            assert claim.words
            assert claim.scales


def test_every_experiment_names_sets_that_are_described():
    for experiment in papers.EXPERIMENTS.values():
        for scale in experiment.scales:
            for one in experiment.placed(scale, 2):
                assert plain_name(one.cell.options.get("data", "fashion")) in named_sets(), (experiment.name, scale)


def test_a_row_or_a_family_finds_its_experiments():
    assert [one.name for one in find("C17")][:1] == ["positions"]
    assert "positions" in [one.name for one in find("E-POS")]
    with pytest.raises(ConfigError, match="near: positions"):
        find("postions")
    with pytest.raises(ConfigError, match="M01 has no experiment; a unit test shows it"):
        find("M01")


def test_every_row_of_the_ledger_has_a_state():
    found = {state.row.name: state for state in states()}
    assert len(found) == len(papers.claims.ledger())
    assert found["M01"].parts == ("tested",)


def test_the_legend_of_the_list_is_no_verdict_on_a_row():
    legend = str(states(names=["C18"])).splitlines()[-len(HOW_TO_READ) :]
    assert legend == list(HOW_TO_READ)
    assert not re.search(r"\b[A-Z]\d\d", " ".join(legend))


def test_a_verdict_is_listed_with_the_sentence_that_was_tested_and_what_was_not():
    (state,) = states(names=["C09"])
    (asked,) = state.asked
    assert asked.name == "C09b"
    assert asked.untested.startswith("C09a, pre-training")
    text = " ".join(str(States([state])).split())
    assert "at equal compute of fine-tuning, a ViT reaches more than a ResNet. Not tested: C09a, pre-training" in text
    outcome, *_ = papers.verify("C09", scale="laptop")
    assert "    not tested: C09a, pre-training" in str(outcome)


@pytest.mark.parametrize("name", ["C01", "C03b", "C36a", "C36b"])
def test_claims_of_much_data_or_of_halves_get_no_verdict_on_a_laptop(name):
    """In the list, in verify, on the page and in the answers."""
    found = {claim.name: judged for one in papers.verify(name, scale="laptop") for claim, judged in one.claims}[name]
    assert found.in_words.startswith("NOT TESTABLE: at laptop scale ")
    assert found.effects
    (state,) = states(names=[name[:3]])
    assert f"{name} {found.in_words} (" in state.to_json()["state"][0]


def test_claims_of_much_data_get_no_verdict_on_a_gpu_either():
    data = papers.EXPERIMENTS["data"]
    assert {claim.name for claim in data.claims if "gpu" in claim.untestable} == {"C01", "C03b"}
    assert not any("full" in claim.untestable for one in papers.EXPERIMENTS.values() for claim in one.claims)


def test_states_are_listed_of_all_names_that_are_given():
    asked = [state.row.name for state in states(names=["C17", "E-POS"])]
    assert asked[0] == "C17"
    assert len(set(asked)) == len(asked) > 1
    with pytest.raises(ConfigError, match="E-NOPE"):
        states(names=["E-POS", "E-NOPE"])


def test_bad_input_is_one_line(tmp_path):
    calls = [
        ("paper", "run", "postions"),
        ("paper", "prove", "positions"),
        ("paper", "run"),
        ("paper", "run", "positions", "--scale", "huge"),
        ("paper", "run", "positions", "--seeds", "1"),
        ("paper", "run", "positions", "--scale", "gpu"),
        ("paper", "run", "positions", "--scale", "gpu", "--data", tmp_path),
    ]
    lines = [done.line for done in run_all(calls)]
    wanted = ["near: positions", "give list, run, verify", "name an experiment or a row", "gpu, full or released"]
    wanted += ["gives no interval; give 2 or more", "give its folder: --data FOLDER", "has no tiny-imagenet100-64.npz"]
    for line, words in zip(lines, wanted, strict=True):
        assert words in line


def test_another_copy_of_a_set_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    told = []
    outcome = papers.run(EXPERIMENT, out=tmp_path, jobs=0, tell=told.append)
    assert not any("copy" in line for line in told + outcome.notes)
    assert {tuple(record.copies) for record in outcome.records} == {("fashion",)}
    known = {name: replace(one, content_id="other") for name, one in named_sets().items()}
    monkeypatch.setattr("vitreous.papers.sets.named_sets", lambda: known)
    assert any("fashion is another copy" in note for note in outcome.notes)


def test_cells_of_another_copy_or_another_machine_are_computed_again(tmp_path, monkeypatch):
    """A table never mixes two copies of a set, nor the clocks of two machines."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    trained, timed = (one.cell for one in (EXPERIMENT.placed("laptop")[0], SPEED.placed("laptop")[0]))
    here = Results(tmp_path, committed=None)
    here.add("small", new_record(trained, {"accuracy": 0.5}, DONE, 1.0, {"fashion": "another"}))
    for cell, hardware in ((timed, {"system": "another"}), (replace(timed, version=9), None)):
        record = new_record(cell, {"images_per_second": 1.0}, DONE, 1.0)
        here.add("small", record if hardware is None else replace(record, environment={"hardware": hardware}))
    fits = [_fits(record, Sets().copies([trained])) for record in read(tmp_path / "small.json")]
    assert fits == [False, False, True]
    told = []
    outcome = papers.run(EXPERIMENT, out=tmp_path, jobs=0, tell=told.append)
    assert any(line.startswith("2 cells of another machine, or of other copies") for line in told)
    assert "another" not in {copy for record in outcome.records for copy in record.copies.values()}


@pytest.mark.parametrize("name", ["fashion", "fashion:grey"])
def test_classes_of_a_set_are_parts_of_one_set_that_is_opened_once(name):
    parts = [Sets().part({"data": name, "classes": list(some)}, 0) for some in (("Bag", "Coat"), ("Bag",), ("Bag",))]
    assert {id(part.source) for part in parts} == {id(Sets().open(name).source)}
    assert [part.classes for part in parts] == [("Coat", "Bag"), ("Bag",), ("Bag",)]


def test_data_too_small_for_the_grid_says_the_smallest_that_works():
    with pytest.raises(DataError, match=r"has 8,700 training images.* at least 9,999"):
        Sets().part({"data": "fashion", "images": 9999}, 0)
