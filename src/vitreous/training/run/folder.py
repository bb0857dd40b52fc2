"""The folder of a run: what it is, what happened, and states from which it resumes after any end.

    config.json     what was asked for: command, recipe, model, data, versions
    events.jsonl    one JSON object a line, only ever appended to
    start.safetensors   the network that the run began with, if it came from memory; deleted when the run is finished
    state/          STAGE-00001234.safetensors: tensors, and a sealed manifest with the rest; the newest two are kept
                    STAGE-00001234.TOKEN.shards: a folder that all ranks of an FSDP run write, its manifest last

A state knows how many lines the events had when it was taken. `latest_state` appends a line `restore` with that number,
and `read` leaves out the lines between. What is left is what an uninterrupted run would have written.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from vitreous.errors import (
    HIDDEN,
    BusyError,
    CheckpointError,
    ConfigError,
    DataError,
    ExistsError,
    RoomError,
    RunError,
    VitreousError,
    without_secrets,
)
from vitreous.evaluation.learned_images import LEARNED
from vitreous.files import (
    DISK_FULL,
    atomic_write,
    digest,
    fsync_folder,
    lock,
    sealed,
    unsealed,
    write_bytes,
    write_json,
)
from vitreous.images.imageset import ImageSet
from vitreous.journal import Journal, json_object
from vitreous.training.run.events import StateRestored, StateSaved, from_json
from vitreous.weights.own_format import tensor_digest
from vitreous.weights.tensor_files import check_safetensors, each_safetensor, write_safetensors
from vitreous.words import one_line, shortened

CONFIG, EVENTS, STATES = "config.json", "events.jsonl", "state"
START = "start.safetensors"
MODEL, METRICS, REPORT, CARD = "model.safetensors", "metrics.json", "report.html", "README.md"
OURS = (CONFIG, EVENTS, STATES, START, METRICS, MODEL, REPORT, CARD, LEARNED)
FIRST = "-first"  # what the name of the first of two runs ends in
STATE_KEY, STATE_VERSION = "vitreous.state", 1
BOOKKEEPING = frozenset({"start", "restore", "save", "end-of-process"})
CLOCKS = re.compile(r"(.*_)?(time|seconds?|memory|mfu)(_.*)?")  # fields that another day or machine would change
LOCK = ".lock"
LOCK_SECONDS = 1.0  # the system may still be clearing away a process that was killed
PART = re.compile(rf"\.({'|'.join(map(re.escape, OURS))})\.[0-9a-f]+\.part")  # of a process that was killed
STATE_NAME = re.compile(r"(?P<stage>[A-Za-z0-9][\w.-]*)-(?P<step>\d{8,})\.(safetensors|[0-9a-f]{8}\.shards)")
SHARDS = ".shards"  # the ending of a state that is a folder
MANIFEST = "manifest.json"  # of such a state: written last, so without it the state is not whole

Say = Callable[[str], object]  # called with one line for people


@dataclass(frozen=True)
class State:
    """Everything a run needs to resume: tensors, and the plain values `about`, with stage and step.

    events: how many lines the events had when the state was taken.
    """

    tensors: dict[str, Tensor]
    about: dict[str, Any]
    path: Path
    events: int

    @property
    def stage(self) -> str:
        return str(self.about["stage"])

    @property
    def step(self) -> int:
        return int(self.about["step"])


class RunFolder:
    """A run's folder, held by this process alone until `close`. Made by `create` or `open`; used by rank 0 only."""

    def __init__(self, path: Path, config: dict[str, Any], held: ExitStack):
        self.path, self.config = path, config
        self._held = held
        self._writing = threading.Lock()  # of events: the thread that saves a state writes one too
        self._saver = ThreadPoolExecutor(1, "save-state")
        self._saving: Future[None] | None = None
        self._is_shared = False  # all ranks save it, and raise what went wrong together
        self._damaged: set[Path] = set()
        with one_line_for(path):
            self._events = _events(path)
            self._lines = self._events.repair()
            held.enter_context(self._events)
        self._before = self._lines  # of earlier processes, until `latest_state` decides which of them count

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        config: Mapping[str, Any],
        *,
        force: bool = False,
        write_start: Callable[[Path], object] | None = None,
    ) -> RunFolder:
        """A new run at `path`, which must be free. `force` deletes an older run there, but no other files.

        write_start: writes the network that the run begins with to the path it is given. It is called before
        config.json is written, so every run that can be resumed has its network.
        """
        path = Path(path)
        config = {"run": secrets.token_hex(8), **_plain(config)}
        with one_line_for(path), ExitStack() as held:
            if not force:
                _refuse_strangers(path)
            _hold(path, held)
            _refuse_older(path, force)
            _make_free(path)
            if write_start is not None:
                write_start(path / START)
            write_json(path / CONFIG, config, ensure_ascii=False)
            run = cls(path, config, held)
            run._held = held.pop_all()
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """The run at `path`, to resume it; its `config` is what `differences` compares."""
        path = Path(path)
        config_of(path)  # before a lock is made there
        with one_line_for(path), ExitStack() as held:
            _hold(path, held)
            run = cls(path, config_of(path), held)
            run._held = held.pop_all()
        return run

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self.close()
        except VitreousError as late:
            if error is None:
                raise
            error.add_note(str(late))

    def abandon(self) -> None:
        """Undo `create`: the run's own files go, and the folder with them if nothing else is in it."""
        self.close()
        _make_free(self.path)
        for lock_file in (self.path / STATES).glob(".*"):
            lock_file.unlink(missing_ok=True)
        for folder in (self.path / STATES, self.path):
            with suppress(OSError):  # somebody's file is in it
                folder.rmdir()

    @property
    def has_steps(self) -> bool:
        """Whether a state after the first step was saved, from which a run can resume."""
        names = (STATE_NAME.fullmatch(state.name) for state in (self.path / STATES).iterdir())
        return any(int(name["step"]) > 0 for name in names if name is not None)

    def forget_states(self) -> None:
        """A finished run needs neither its states nor the network that it began with."""
        self.wait()
        (self.path / START).unlink(missing_ok=True)
        for path in (self.path / STATES).iterdir():
            if STATE_NAME.fullmatch(path.name):
                _delete(path)

    def close(self) -> None:
        """Wait for a state that is still being written, raising what went wrong with it; then release the folder."""
        try:
            self.wait()
        finally:
            self._saver.shutdown()
            self._held.close()

    def event(self, kind: str, **fields: Any) -> None:
        """Append one line. NaN and infinite numbers become null; `time` is in seconds since 1970."""
        if kind != "save" and self._saving is not None and self._saving.done() and not self._is_shared:
            self.wait()  # raise a failed save now, not at the next one
        event = _plain({"kind": kind, **fields, "time": round(time.time(), 3)})
        with self._writing, one_line_for(self.path):
            self._events.append(event, sync=False)  # a state waits for those before it
            self._lines += 1

    def save_state(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any], *, wait: bool = True) -> None:
        """Save tensors (on the CPU, unchanged until written) and the plain values `about` as a state.

        about: JSON, with `stage` (a word) and `step`. Once the state is safely on disk, older ones are deleted.
        wait: False lets a thread write it; the next call waits for that thread and raises its error.
        """
        self.wait()
        path = self._state_path(about, ".safetensors")
        tensors = {name: tensor.detach() for name, tensor in tensors.items()}
        self._is_shared = False
        self._saving = self._saver.submit(self._save, path, tensors, self._new_manifest(about))
        if wait:
            self.wait()

    def new_shards(self, about: Mapping[str, Any]) -> Path:
        """Where the next state in shards goes: a name that no state has."""
        return self._state_path(about, f".{secrets.token_hex(4)}{SHARDS}")

    def save_shards(self, path: Path, about: Mapping[str, Any], write: Callable[[], dict[str, str]]) -> None:
        """Save a state in shards. A thread calls `write`, which all ranks share: it returns the files with digests."""
        self.wait()
        self._is_shared = True
        self._saving = self._saver.submit(self._seal, path, write, self._new_manifest(about))

    def _state_path(self, about: Mapping[str, Any], ending: str) -> Path:
        path = self.path / STATES / f"{about['stage']}-{about['step']:08d}{ending}"
        assert STATE_NAME.fullmatch(path.name), path.name
        return path

    def _new_manifest(self, about: Mapping[str, Any]) -> dict[str, Any]:
        with self._writing:
            lines = self._lines
        return {"version": STATE_VERSION, "run": self.config["run"], "events": lines, "about": _copy(about)}

    def wait(self) -> None:
        """Wait until no state is being written; raise what went wrong with it."""
        if self._saving is not None:
            try:
                self._saving.result()
            finally:
                if self._saving.done():  # else a signal ended the wait
                    self._saving = None

    def latest_state(
        self, stage: str | None = None, say: Say = lambda line: None, *, in_memory: bool = True
    ) -> State | None:
        """The newest whole state (of `stage`), to resume from; events written after it no longer count.

        in_memory: False checks its tensors without keeping them.

        None: the stage has no state and starts anew; if it is the first stage of a reopened folder, so does the run.
        Damaged, unfinished and foreign files are passed over; `say` gets a line about each.
        """
        self.wait()
        for part in sorted((self.path / STATES).glob(".*.part")):
            part.unlink(missing_ok=True)
            say(f"{part} was never finished; deleted")
        for half in sorted((self.path / STATES).glob(f"*{SHARDS}")):
            if STATE_NAME.fullmatch(half.name) and not (half / MANIFEST).exists():
                _delete(half)
                say(f"{half} was never finished; deleted")
        for path in self._newest_first(say):
            if stage is not None and _stage(path) != stage:
                continue
            try:
                state = read_state(path) if in_memory else check_state(path)
            except (VitreousError, OSError) as error:
                self._pass_over(path, error, say)
                continue
            self.event(**StateRestored(state.stage, state.step, state.events))
            self._before = 0
            return state
        if self._before:
            self.event(**StateRestored(events=0, since=self._before))
            self._before = 0
        return None

    def keep_batch(self, step: int, tensors: Mapping[str, Tensor], names: Sequence[str]) -> str:
        """Write down the batch that a step failed on, with the names of its images; returns where."""
        from safetensors.torch import save

        path = self.path / f"bad-batch-{step:08d}.safetensors"
        raw = save({n: t.contiguous() for n, t in tensors.items()}, metadata={"names": json.dumps(list(names))})
        with one_line_for(path):
            write_bytes(path, raw, force=True)
        return str(path)

    def _save(self, path: Path, tensors: dict[str, Tensor], manifest: dict[str, Any]) -> None:
        digests = {name: tensor_digest(tensor) for name, tensor in tensors.items()}
        metadata = {STATE_KEY: sealed({**manifest, "tensors": digests})}
        with one_line_for(path):
            self._events.append()  # no state outlives the events before it
            atomic_write(path, lambda file: write_safetensors(file, tensors, metadata), force=True)
            self._damaged.discard(path)
            self._prune(path)
        self.event(**StateSaved(manifest["about"]["stage"], manifest["about"]["step"]))

    def _seal(self, path: Path, write: Callable[[], dict[str, str]], manifest: dict[str, Any]) -> None:
        """The manifest comes last: with it, the state counts."""
        with one_line_for(path):
            files = write()
            self._events.append()  # no state outlives the events before it
            fsync_folder(path)
            write_bytes(path / MANIFEST, sealed({**manifest, "files": files}).encode(), force=True)
            self._prune(path)
        self.event(**StateSaved(manifest["about"]["stage"], manifest["about"]["step"]))

    def _prune(self, new: Path) -> None:
        """Called when `new` is safe: keep the newest two of its stage and the newest of every other."""
        whole = [path for path in self._newest_first() if path not in self._damaged]
        useful = [path for path in whole if _stage(path) == _stage(new)][:2]
        useful += {_stage(path): path for path in reversed(whole)}.values()
        for path in {*whole, *self._damaged} - {*useful}:
            with suppress(OSError):  # some systems keep a file that is mapped
                _delete(path)
        self._damaged.clear()

    def _newest_first(self, say: Say = lambda line: None) -> list[Path]:
        """States of this run whose headers can be read."""
        found = []
        for path in sorted((self.path / STATES).iterdir()):
            if path.name.startswith("."):
                continue
            if not STATE_NAME.fullmatch(path.name):
                say(f"{path} is not a state of a run; passed over")
                continue
            try:
                manifest = _manifest_at(path)
            except (VitreousError, OSError) as error:
                self._pass_over(path, error, say)
                continue
            if manifest["run"] == self.config["run"]:
                found.append((manifest["events"], manifest["about"]["step"], path))
            else:
                say(f"{path} belongs to another run; passed over")
        return [path for _, _, path in sorted(found, reverse=True)]

    def _pass_over(self, path: Path, error: Exception, say: Say) -> None:
        self._damaged.add(path)
        say(f"{str(error).partition('; ')[0]}; passed over for the state before it")


def read_state(path: Path) -> State:
    """The state at `path`, every tensor checked. Any rank may call it without a lock; for shards, all must."""
    if path.suffix == SHARDS:
        from vitreous.training.run import sharded_state

        state = check_state(path)
        return replace(state, tensors=sharded_state.read_whole(path))
    tensors: dict[str, Tensor] = {}
    return replace(_checked(path, tensors.__setitem__), tensors=tensors)


def check_state(path: Path) -> State:
    """The state at `path` without its tensors, which are checked one after the other."""
    if path.suffix != SHARDS:
        return _checked(path, lambda name, tensor: None)
    manifest = _manifest_at(path)
    for name, wanted in manifest["files"].items():
        if not (path / name).is_file() or digest(path / name) != wanted:
            raise CheckpointError(
                f"{path / name} is damaged or missing (its digest does not fit); go on from another state"
            )
    return State({}, manifest["about"], path, manifest["events"])


def _checked(path: Path, keep: Callable[[str, Tensor], object]) -> State:
    """The state in a file; `keep` gets each tensor that fits its digest."""
    manifest = _manifest_at(path)
    names = set()
    for name, tensor in each_safetensor(path):
        names.add(name)
        if manifest["tensors"].get(name, "") != tensor_digest(tensor) and name in manifest["tensors"]:
            raise CheckpointError(
                f"tensor {name} of {path} is damaged (its digest does not fit); go on from another state"
            )
        keep(name, tensor)
    if manifest["tensors"].keys() != names:
        raise CheckpointError(f"{path} has other tensors than its manifest says; go on from another state")
    return State({}, manifest["about"], path, manifest["events"])


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The events of the run at `path` as if nothing had ended it: without superseded events and bookkeeping.

    A restore that counts no lines supersedes what its stage did after its step.
    """
    path = Path(path)
    try:
        lines = list(_events(path).records())
    except OSError as error:
        raise DataError(f"{path} has no events ({error.strerror}); give the folder of a run") from None
    if None in lines[:-1]:
        number = lines.index(None) + 1
        raise DataError(f"line {number} of {path / EVENTS} is not an event; take it out, or give another run")
    kept: list[dict[str, Any]] = []
    gap = range(0)  # lines that a later restore made void
    ends: dict[Any, float] = {}  # stage: the last step that counts
    for i, line in reversed([(i, line) for i, line in enumerate(lines) if line is not None]):
        stage, step = line.get("stage"), line.get("step")
        if i in gap or (stage in ends and isinstance(step, int) and step > ends[stage]):
            continue
        restored = from_json(line) if line["kind"] == "restore" else None
        if isinstance(restored, StateRestored) and isinstance(restored.events, int):
            gap = range(restored.events, restored.since or i)
        elif isinstance(restored, StateRestored):
            ends[stage] = min(restored.step or 0, ends.get(stage, math.inf))
        elif line["kind"] not in BOOKKEEPING:
            kept.append(line)
    return kept[::-1]


def seconds_before(path: Path, since: float) -> float:
    """How long the run's earlier sessions took, each until its last line.  since: when this one began, from 1970."""
    total, last = 0.0, None
    for line in _events(path).records():
        if line is not None and line["time"] < since:
            total += float(line.get("waited", 0))
            total += max(line["time"] - last, 0.0) if last is not None and line["kind"] != "restore" else 0.0
            last = line["time"]
    return total


def without_clocks(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The events without what another day, or another machine's load, would change."""
    return [{name: value for name, value in event.items() if not CLOCKS.fullmatch(name)} for event in events]


def config_of(path: Path) -> dict[str, Any]:
    """The config that the run at `path` began with."""
    if not (path / CONFIG).is_file():
        raise DataError(f"{path} is not a run folder (it has no {CONFIG}); give one that `vitreous fit` made")
    try:
        config = json.loads((path / CONFIG).read_bytes())
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict) or not isinstance(config.get("run"), str):
        raise DataError(f"{path / CONFIG} is damaged; begin again in another folder")
    return config


def is_run(path: Path) -> bool:
    """Whether a run lies there; a foreign config.json does not count."""
    try:
        return bool(config_of(path))
    except (DataError, OSError):
        return False


def is_finished(path: Path) -> bool:
    """Whether the run wrote its model and its numbers, which come last."""
    return (path / METRICS).is_file() and (path / MODEL).is_file()


def runs_of(new: Path, ending: str = "") -> list[Path]:
    """Runs of the same data as `new`: folders named DATA-N and this ending, given without it."""
    word = re.escape(new.name.rpartition("-")[0])
    folders = new.parent.iterdir() if new.parent.is_dir() else iter(())
    names = [folder.name for folder in folders if re.fullmatch(rf"{word}-\d+{ending}", folder.name)]
    return [new.parent / name.removesuffix(ending) for name in names]


def unfinished(data: Any, data_name: str, out: str | os.PathLike[str] | None) -> tuple[Path, Any]:
    """The run to resume, and its images if the user named them."""
    is_ours = isinstance(data, str | os.PathLike) and _looks_like_run(Path(data))
    if out is not None and is_ours and Path(data).resolve() != Path(out).resolve():
        raise ConfigError(f"{data} and --out {out} each say which run goes on; give one")
    if out is not None:
        return Path(out), None if is_ours else data
    if is_ours:
        return Path(data), None
    found = [
        folder
        for folder in runs_of(next_name("runs", data_name))
        if (folder / CONFIG).is_file() and not (folder / METRICS).is_file()
    ]
    if not found:
        raise RunError(f"there is no unfinished run of {data_name} under runs; start one without --resume")
    return max(found, key=_last_written), data


def _last_written(path: Path) -> float:
    """When the run wrote its last event; if it was killed before the first, when it began."""
    events = path / EVENTS
    return (events if events.is_file() else path / CONFIG).stat().st_mtime


def _looks_like_run(path: Path) -> bool:
    """True for a run folder, even a damaged one; a foreign config.json does not count."""
    return is_run(path) or ((path / CONFIG).is_file() and (path / STATES).is_dir())


def data_name(data: Any) -> str:
    """What a person calls the images: the last part of their path."""
    path = data.path if isinstance(data, ImageSet) else without_secrets(os.fspath(data)).removesuffix(f"?{HIDDEN}")
    if Path(path).is_dir():
        path = Path(path).resolve().name
    return Path(str(path).rstrip("/*")).name.partition("*")[0].strip(".-_") or "data"


def check_writable(path: Path) -> None:
    """Refuse a place where no run can be written, without writing anything."""
    there = next(place for place in (path, *path.parents) if os.path.lexists(place))
    if not there.is_dir():
        raise DataError(f"cannot write {path} ({there} is not a folder); choose another place with --out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise DataError(f"cannot write {path} ({there} may not be written to); choose another place with --out")


def check_free(path: Path, *, force: bool) -> None:
    """Refuse a place that `RunFolder.create` would refuse for what lies there, without writing anything."""
    with one_line_for(path), ExitStack() as held:
        if not force:
            _refuse_strangers(path)
        if (path / STATES / LOCK).exists():
            _hold(path, held)
        _refuse_older(path, force)


def next_name(folder: str | os.PathLike[str], name: str) -> Path:
    """FOLDER/NAME-N with the first N that is free and not reserved for the second of two runs."""
    word = re.sub(r"[^\w.-]+", "-", name).strip(".-")[:60] or "data"
    number = 1
    while any(os.path.lexists(Path(folder) / f"{word}-{number}{end}") for end in ("", FIRST)):
        number += 1
    return Path(folder) / f"{word}-{number}"


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What changed between two configs, a plain line each: "data: 312 images then, 315 now"."""
    old, new = ({name: value for name, value in config.items() if name != "run"} for config in (then, now))
    return list(_differences((), _plain(old), _plain(new)))


_ABSENT = object()
IN_WORDS = {"content_id": "digest of images and labels"}  # names in a config, as people read them


def _differences(names: tuple[str, ...], then: Any, now: Any) -> Iterable[str]:
    if isinstance(then, dict) and isinstance(now, dict):
        for name in [*then, *(name for name in now if name not in then)]:
            yield from _differences((*names, name), then.get(name, _ABSENT), now.get(name, _ABSENT))
    elif isinstance(then, list) and isinstance(now, list) and len(then) != len(now):
        yield _difference(names, str(len(then)), str(len(now)), is_count=True)
    elif isinstance(then, list) and isinstance(now, list):
        for i, pair in enumerate(zip(then, now, strict=True)):
            yield from _differences((*names[:-1], f"{names[-1]}[{i}]"), *pair)
    elif then != now:
        is_count = all(type(value) is int for value in (then, now)) and names[-1].endswith("s")
        yield _difference(names, _shown(then), _shown(now), is_count=is_count)


def _difference(names: tuple[str, ...], then: str, now: str, *, is_count: bool) -> str:
    *above, last = *names[:-1], IN_WORDS.get(names[-1], names[-1])
    if not above:
        return f"{last}: {then} then, {now} now"
    return f"{' '.join(above)}: " + (f"{then} {last} then, {now} now" if is_count else f"{last} {then} then, {now} now")


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "absent"
    if value is None:
        return "none"
    text = value if isinstance(value, str) and value else json.dumps(value)
    if re.fullmatch(r"[0-9a-f]{16,}", text):
        return f"{text[:8]}…"
    return shortened(text, 40)


def _hold(path: Path, held: ExitStack) -> None:
    try:
        held.enter_context(lock(path / STATES / LOCK, seconds=LOCK_SECONDS))
    except BusyError:
        raise BusyError(
            f"{path} is in use by another process; wait until it ends, or give another folder with --out"
        ) from None


def _refuse_strangers(path: Path) -> None:
    """Refuse a folder that holds files but no run: they are somebody's."""
    if path.is_dir() and not (path / CONFIG).exists():
        names = (p.name for p in path.iterdir())
        others = sorted(name for name in names if name not in OURS and not PART.fullmatch(name))
        if others:
            raise ExistsError(f"{path} is not a run and holds {others[0]}; choose an empty or new folder with --out")


def _refuse_older(path: Path, force: bool) -> None:
    if not force and os.path.lexists(path / CONFIG):
        raise ExistsError(f"{path} holds a run already; go on with --resume, or begin again with --force (force=True)")


def _make_free(path: Path) -> None:
    """config.json goes first: without it the rest does not count as a run."""
    for name in OURS:
        if name != STATES:
            (path / name).unlink(missing_ok=True)
    for batch in path.glob("bad-batch-*.safetensors"):
        batch.unlink()
    for folder in ("pack", "tensorboard", "trackio"):
        shutil.rmtree(path / folder, ignore_errors=True)
    for state in (path / STATES).iterdir():
        if STATE_NAME.fullmatch(state.name) or state.name.endswith(".part"):
            _delete(state)


def _events(path: Path) -> Journal[dict[str, Any]]:
    return Journal(path / EVENTS, _event)


def _event(line: bytes) -> dict[str, Any] | None:
    event = json_object(line)
    return event if isinstance(event.get("kind"), str) else None


def _plain(value: Any) -> Any:
    """The value as JSON holds it: numbers of numpy and torch as Python's, NaN and the infinities as null."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(name): _plain(inner) for name, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(inner) for inner in (sorted(value) if isinstance(value, set | frozenset) else value)]
        case os.PathLike():
            return os.fspath(value)
        case _ if hasattr(value, "tolist"):
            return _plain(value.tolist())
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def _copy(about: Mapping[str, Any]) -> Any:
    """The values as a state holds them: NaN and the infinities stay, unlike in events."""
    return json.loads(json.dumps(dict(about), default=lambda value: value.tolist()))


def _manifest(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    if STATE_KEY not in metadata:
        raise CheckpointError(f"{path} is not a state of a run")
    manifest = unsealed(metadata[STATE_KEY])
    if manifest is None:
        raise CheckpointError(f"the manifest of {path} is damaged")
    if manifest.get("version") != STATE_VERSION:
        found = one_line(manifest.get("version"))
        raise CheckpointError(f"{path} is of state version {found}, we read {STATE_VERSION}")
    return manifest


def _manifest_at(path: Path) -> dict[str, Any]:
    """The manifest of a state; a damaged one is refused."""
    if path.suffix != SHARDS:
        return _manifest(path, check_safetensors(path))
    return _manifest(path, {STATE_KEY: (path / MANIFEST).read_text()})


def _delete(path: Path) -> None:
    """Delete a state; of shards, the manifest goes first, so that what is left does not count."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    (path / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def _stage(path: Path) -> str:
    name = STATE_NAME.fullmatch(path.name)
    assert name is not None
    return name["stage"]


@contextmanager
def one_line_for(path: Path) -> Iterator[None]:
    """An error of the system becomes one line that names `path`."""
    try:
        yield
    except OSError as error:
        why = error.strerror or one_line(error)
        if error.errno in DISK_FULL:
            raise RoomError(
                f"no room for {path} ({why}); free some and go on with --resume: what was saved before is whole"
            ) from None
        raise DataError(f"cannot write {path} ({why}); choose another place with --out") from None
