"""Where a run goes, and which run goes on: what cannot be is said before any picture is read."""

import json
import os

import pytest
from commands import run_all
from small_runs import MODEL, SMALL, Death, die_at, fitted, picture_folder
from tiny_models import line_of

import vitreous
from vitreous.errors import BusyError, ConfigError, DataError, ExistsError, RunError
from vitreous.training.plan import plan as plans
from vitreous.training.run import folder as runs
from vitreous.training.run.folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    return picture_folder(tmp_path / "shapes", 60)


@pytest.fixture
def unread(monkeypatch):
    """No plan is made: a refusal that comes after it fails here."""

    def plan(*given, **options):
        pytest.fail("the pictures were looked at first")

    monkeypatch.setattr(plans, "make", plan)


@pytest.fixture
def ended(folder, tmp_path):
    """A run in folds that was ended at its second step."""
    with pytest.raises(Death):
        fitted(folder, tmp_path / "run", folds=2, length="3 steps", seed=3, tell=die_at(2, "fold-1"))
    return tmp_path / "run"


def files_of(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


# --------------------------------------------------------------------------------------- a place that cannot be written


@pytest.mark.parametrize("name", ["file", "file/run", "file/deep/run"])
@pytest.mark.parametrize("force", [False, True])
def test_a_file_in_the_way_is_said_before_pictures_are_read(folder, tmp_path, unread, name, force):
    (tmp_path / "file").write_text("mine")
    before = files_of(tmp_path)
    with pytest.raises(DataError) as error:
        fitted(folder, tmp_path / name, force=force)
    line_of(error.value, tmp_path / name, f"{tmp_path / 'file'} is not a folder", "--out")
    assert files_of(tmp_path) == before


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="permission bits do not bind root")
def test_a_folder_that_may_not_be_written_to_is_said_before_pictures_are_read(folder, tmp_path, unread):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    with pytest.raises(DataError) as error:
        fitted(folder, locked / "run")
    line_of(error.value, locked / "run", "may not be written to", "--out")


def test_a_place_without_the_right_to_write_is_said_before_pictures_are_read(folder, tmp_path, unread, monkeypatch):
    """As the system answers to those who are not root."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(DataError) as error:
        fitted(folder, tmp_path / "new" / "run")
    line_of(error.value, f"{tmp_path} may not be written to", "--out")
    assert not (tmp_path / "new").exists()


def test_what_lies_there_is_said_before_pictures_are_read(folder, tmp_path, unread):
    with RunFolder.create(tmp_path / "run", {}), pytest.raises(BusyError):
        fitted(folder, tmp_path / "run", force=True)
    with pytest.raises(ExistsError) as error:
        fitted(folder, tmp_path / "run")
    line_of(error.value, tmp_path / "run", "--resume", "--force")
    with pytest.raises(ExistsError) as error:
        fitted(folder, folder)
    line_of(error.value, "is not a run and holds cross")


def test_both_places_of_a_pair_are_looked_at(folder, tmp_path, unread):
    RunFolder.create(tmp_path / "run", {}).close()
    with pytest.raises(ExistsError) as error:
        fitted(folder, tmp_path / "run", then=folder)
    line_of(error.value, tmp_path / "run", "--force")
    assert not (tmp_path / "run-first").exists()


def test_a_name_of_ours_needs_a_folder_to_lie_in(folder, tmp_path, unread, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("mine")
    with pytest.raises(DataError) as error:
        fitted(folder, None)
    line_of(error.value, "runs is not a folder", "--out")


@pytest.mark.parametrize("resume", [False, True])
def test_a_log_that_is_none_is_said_before_pictures_are_read(folder, tmp_path, unread, resume):
    with pytest.raises(ConfigError) as error:
        fitted(folder, tmp_path / "run", log=["nonsense"], resume=resume)
    line_of(error.value, "'nonsense'", "tensorboard")
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------------------------------------- a run in place of pictures


def test_a_run_named_as_pictures_is_told_what_it_is(folder, ended, tmp_path, unread):
    for option in ("data", "then"):
        given = {"data": folder, option: ended}
        with pytest.raises(DataError) as error:
            fitted(given["data"], tmp_path / "new", then=given.get("then"))
        line_of(error.value, f"{ended} is an unfinished run, not images", f"vitreous fit {ended} --resume")
    assert not (tmp_path / "new").exists()


def test_a_finished_run_named_as_pictures_tells_which_it_learned_from(folder, tmp_path):
    run = fitted(folder, tmp_path / "run", length="1 steps")
    with pytest.raises(DataError) as error:
        fitted(run.path, tmp_path / "new")
    line_of(error.value, f"{run.path} is a finished run, not images", f"vitreous fit {folder}", "--weights")


def test_the_first_of_two_runs_learns_from_images_too(folder, ended, unread):
    with pytest.raises(DataError) as error:
        fitted(ended, None, then=folder, resume=True)
    line_of(error.value, f"{ended} is an unfinished run")


def test_pictures_beside_a_strange_config_are_pictures(folder, tmp_path):
    (folder / runs.CONFIG).write_text(json.dumps({"name": "not ours"}))
    assert fitted(folder, tmp_path / "run", length="1 steps").metrics["steps"] == 1


# -------------------------------------------------------------------------------------------------- which run may go on


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"folds": 0}, ["folds: 2 then, 0 now"]),
        ({"folds": 5}, ["folds: 2 then, 5 now"]),
        ({"length": "9 steps"}, ["length: 3 steps then, 9 steps now"]),
        ({"length": "3 epochs"}, ["length: 3 steps then, 3 epochs now"]),
        ({"length": "3 seconds"}, ["length: 3 steps then, 3 seconds now"]),
        ({"seed": 4}, ["seed: 3 then, 4 now"]),
        ({"peak_lr": 1.0}, ["peak_lr: 0.003 then, 1.0 now"]),
        ({"flip": 0.5}, ["flip: 0.0 then, 0.5 now"]),
        ({"model": "S/16"}, [f"model: {MODEL} then, S/16 now"]),
        ({"weights": "none.safetensors"}, ["weights: none then, none.safetensors now"]),
        ({"recipe": "small-data"}, ["recipe: small then, small-data now"]),
        ({"recipe": SMALL.change(clip=None)}, ["recipe: clip 1.0 then, none now"]),
        ({"policy": "head"}, ["policy: full then, head now"]),
        ({"sweep": True}, ["sweep: False then, True now"]),
        ({"sweep": (0.1, 0.2)}, ["sweep: False then, (0.1, 0.2) now"]),
    ],
)
def test_what_is_asked_anew_and_differs_is_refused_by_name(folder, ended, asked, words):
    for data in (ended, folder):
        with pytest.raises(ConfigError) as error:
            vitreous.fit(data, out=ended, resume=True, **asked)
        line_of(error.value, ended, "began with other options", *words)


def test_a_check_left_out_of_a_checked_run_is_refused(folder, tmp_path):
    with pytest.raises(Death):
        fitted(folder, tmp_path / "run", check=True, tell=die_at(2))
    with pytest.raises(ConfigError) as error:
        vitreous.fit(tmp_path / "run", resume=True, check=False)
    line_of(error.value, "check: true then, false now")


def test_two_ways_to_say_which_run_are_refused(folder, ended, tmp_path):
    with pytest.raises(ConfigError) as error:
        vitreous.fit(ended, resume=True, force=True)
    line_of(error.value, "--resume", "--force", "give one")
    with pytest.raises(ConfigError) as error:
        vitreous.fit(ended, resume=True, out=tmp_path / "other")
    line_of(error.value, ended, tmp_path / "other", "give one")


@pytest.mark.parametrize("asked", [{"then_recipe": "small-data"}, {"then_overrides": {"seed": 1}}])
def test_how_to_fine_tune_means_nothing_without_images_for_it(folder, tmp_path, asked, unread):
    with pytest.raises(ConfigError) as error:
        fitted(folder, tmp_path / "run", **asked)
    line_of(error.value, "--then DATA")


def test_what_the_run_began_with_may_be_said_again_in_other_words(folder, ended):
    """Also what was not asked for then, and is what was chosen."""
    again = {"folds": 2, "length": "3 step", "seed": "3", "batch": 8, "peak_lr": "3e-3", "policy": "full", "flip": 0}
    run = vitreous.fit(folder, out=ended, resume=True, check=False, model=MODEL, weights="none", **again)
    assert run.metrics["steps"] == 3


def test_what_decides_no_number_may_change(ended):
    how = {"device": "cpu", "workers": 1, "compiled": "none", "on_nan": "rollback"}
    assert vitreous.fit(ended, resume=True, **how).metrics["steps"] == 3


def test_a_log_may_be_asked_for_on_resuming(ended):
    pytest.importorskip("tensorboard")
    vitreous.fit(ended, resume=True, device="cpu", workers=0, log=["tensorboard"])
    assert list((ended / "tensorboard").iterdir())


def test_a_finished_run_asked_for_otherwise_is_not_shown_as_if_it_were_that(folder, tmp_path):
    run = fitted(folder, tmp_path / "run", length="1 steps")
    with pytest.raises(ConfigError) as error:
        vitreous.fit(run.path, resume=True, length="9 steps")
    line_of(error.value, "length: 1 steps then, 9 steps now")


def test_a_pair_goes_on_as_it_began(folder, tmp_path):
    """The second run is planned after the first: what it was asked for is written down with the first."""
    options = {"then": folder, "then_recipe": SMALL, "then_overrides": {"length": "2 steps"}}
    with pytest.raises(Death):
        fitted(folder, tmp_path / "run", tell=die_at(2), **options)
    assert not (tmp_path / "run").exists()
    others = [{"then_overrides": {"length": "3 steps"}}, {"then_recipe": "small-data"}, {"then": tmp_path / "other"}]
    picture_folder(tmp_path / "other", 40, first=100)
    for other in others:
        with pytest.raises(ConfigError, match=r"then.* then, .* now"):
            fitted(folder, tmp_path / "run", resume=True, **{**options, **other})
    with pytest.raises(RunError, match="has changed since the run began"):
        fitted(tmp_path / "other", tmp_path / "run", resume=True, **options)
    assert fitted(folder, tmp_path / "run", resume=True, **options).metrics["steps"] == 2


def test_pictures_beside_a_strange_config_go_on_too(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (folder / runs.CONFIG).write_text(json.dumps({"name": "not ours"}))
    for out in (None, tmp_path / "run"):
        with pytest.raises(Death):
            fitted(folder, out, tell=die_at(2))
        assert fitted(folder, out, resume=True).metrics["steps"] == 4


def test_one_that_was_killed_before_its_first_event_goes_on(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Death):
        fitted(folder, None, tell=die_at(1))
    (run,) = (tmp_path / "runs").iterdir()
    for state in (run / runs.STATES).glob("*.safetensors"):
        state.unlink()
    (run / runs.EVENTS).unlink()
    assert fitted(folder, None, resume=True).path == f"runs/{run.name}"


def test_a_path_may_be_said_from_another_folder(folder, tmp_path, monkeypatch):
    """`other` from here, `../other` from elsewhere, and a link to the run are the same."""
    monkeypatch.chdir(tmp_path)
    options = {"then_recipe": SMALL, "then_overrides": {"length": "2 steps"}}
    with pytest.raises(Death):
        fitted("shapes", "run", then="shapes", tell=die_at(2), **options)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    def die_in_second(event):
        if event["kind"] == "step" and event["steps"] == 2:
            raise Death

    with pytest.raises(Death):
        fitted("../shapes", "../run", then="../shapes", resume=True, tell=die_in_second, **options)
    (tmp_path / "elsewhere" / "link").symlink_to(tmp_path / "run")
    first = "../run-first/model.safetensors"
    assert vitreous.fit("../run", out="link", weights=first, resume=True, device="cpu").metrics["steps"] == 2
    assert fitted("../shapes", "link/../run", then="../shapes", resume=True, **options).metrics["steps"] == 2


def test_the_command_says_the_same(folder, ended):
    """--epochs, --steps, --seconds, --folds and --no-check, as words of the shell."""
    begin = ["fit", ended, "--resume", "--device", "cpu", "--workers", "0"]
    calls = {
        "length: 3 steps then, 9 epochs now": ["--epochs", "9"],
        "length: 3 steps then, 9 steps now": ["--steps", "9"],
        "length: 3 steps then, 9 seconds now": ["--seconds", "9"],
        "folds: 2 then, 3 now": ["--folds", "3"],
        "seed: 3 then, 9 now": ["--seed", "9"],
        "batch: 8 then, 4 now": ["--set", "batch=4"],
        "--resume goes on with a run": ["--force"],
        "give the images too: --then DATA": ["--then-set", "batch=4"],
    }
    *refused, last = run_all([*([*begin, *more] for more in calls.values()), [*begin, "--steps", "3", "--folds", "2"]])
    for words, done in zip(calls, refused, strict=True):
        assert words in done.line
    assert last.code == 0, last.stderr
