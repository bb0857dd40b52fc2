"""What one GPU shows of scale, within 200 seconds.   python benchmarks/scale.py [--toy] [--out FILE]

memory   the most that torch holds over 3 steps of `fit` (torch.cuda.max_memory_allocated) against what `vitreous
         plan` says for a step that is compiled alike, as predicted / measured. Goal: within 10 %.
fsdp     seconds of a step in shards on one device over those of a plain step. Goal: below 1.03. Plain steps are `fit`'s
         own (compiled whole, captured as a graph), and one that is compiled block by block as the one in shards is.
host     the same for a batch of 2, which costs the device nothing: what the host pays.
ddp      a step of copies on one device (NCCL) over the plain one.
timm     a bare step of timm's H/14 over ours, as benchmarks/train_speed.py does it. It needs timm.
tests    the tests of tests/training/test_gpu.py on shards and copies. They need pytest.

Each case is a process of its own. All of them compile at once; then those of a group take turns, a second each, while
the others wait, and a ratio is taken within a round. --toy rehearses all of it on a CPU, tiny: memory is not measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import queue
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from train_speed import spread, their_step

from vitreous.machine import GIB, record
from vitreous.models.catalog import parse
from vitreous.ranks import group
from vitreous.training.plan.memory import memory
from vitreous.training.plan.parallel import Kind, Strategy
from vitreous.training.plan.trial import make_steps, seconds_each
from vitreous.training.recipe import Recipe
from vitreous.training.run.step import Compiled

ROUND_SECONDS = 0.7  # that each case of a group takes in a round, about
TIMING_SHARE = 0.27  # of all the time; the rest is for compiling
AT_ONCE = 14  # cases that prepare themselves side by side
SPARE = 10 * GIB  # of the device, for kernels and libraries of many processes
COMPILES_FOR = 30  # seconds at least that compiling a whole network takes, before its first step takes memory
KINDS: tuple[Kind, ...] = ("alone", "fsdp")
TRIES = 5  # of a case that finds the device's memory full
WARM_UP, MEASURED = 3, 3  # steps of a case before and while its memory is measured


@dataclass(frozen=True)
class Case:
    """group: cases that are timed in turn, its first against the others.  peer: timm's name of the network."""

    model: str
    batch: int
    compiled: Compiled = "none"
    kind: Kind = "alone"
    checkpointing: bool = False
    captured: bool = False
    peer: str | None = None
    group: str | None = None
    tests: bool = False

    @property
    def name(self) -> str:
        words = ["timm" if self.peer is not None else self.kind, self.compiled]
        words += ["checkpointing"] * self.checkpointing + ["captured"] * self.captured
        return "tests" if self.tests else f"{self.model.split()[0]}, {self.batch}: {' '.join(words)}"

    def predicted(self, device: torch.device) -> int:
        precision = "bfloat16" if device.type == "cuda" else "float32"
        return memory(
            parse(self.model), self.batch, "adamw", precision, checkpointing=self.checkpointing, parallel=self.kind,
            compiled=self.compiled,
        ).total  # fmt: skip


def cases() -> Iterator[Case]:
    """The cases that compile longest first; then many short ones."""
    large, middle, base = Case("H/14", 48, "whole"), Case("L/16", 160, "whole"), Case("B/16", 384, "whole")
    yield replace(large, captured=True, group="timm")
    yield replace(large, peer="vit_huge_patch14_224", group="timm")
    shared = [replace(network, group=f"shards of {network.model}") for network in (middle, base)]
    for network in shared:
        yield replace(network, captured=True)
        yield replace(network, compiled="blocks", kind="fsdp")
        yield replace(network, compiled="blocks")
    alone = [Case("H/14", 32), Case("L/16", 64), Case("B/16", 128), Case("BiT-R50x1", 128)]
    for network in alone:
        for checkpointing in (False, True):
            yield replace(network, checkpointing=checkpointing)
    yield replace(shared[1], kind="ddp")
    for kind in KINDS:
        yield Case("B/16", 2, "blocks", kind, group="host")
    yield Case("tests", 0, tests=True)
    yield replace(alone[3], compiled="whole")
    for network in reversed(alone):
        yield replace(network, compiled="whole", checkpointing=True)
    yield replace(alone[0], compiled="blocks", checkpointing=True)


def toy_cases() -> Iterator[Case]:
    tiny = Case("Ti/16 depth=2 width=32 heads=2 mlp=64 image_size=32 classes=10", 8)
    yield replace(tiny, group="timm")
    yield replace(tiny, peer="", group="timm")
    yield replace(tiny, group="shards")
    yield replace(tiny, kind="fsdp", compiled="blocks", group="shards")
    yield replace(tiny, kind="ddp", group="shards")
    yield replace(tiny, checkpointing=True)
    yield replace(tiny, model=f"{tiny.model} heads=3")  # cannot be built: it must stop no other
    yield Case("tests", 0, tests=True)


# --------------------------------------------------------------------------------------------------- one case's process


def one(case: Case, device: torch.device) -> None:
    """Prepare the steps, report the memory they take, then take as many as each line of the input says."""
    if case.tests:
        say(run_tests())
        return
    begin = time.monotonic()
    with nullcontext() if case.kind == "alone" else group(device, even_alone=True):
        take = begun(case, device)
        held = peak(take, device)
        if case.captured and device.type == "cuda":
            take.step.is_captured = True  # type: ignore[attr-defined]  # it is not timm's
            take()
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"] if case.compiled != "none" else 0
        say({"memory": held, "reserved": release(device), "graphs": graphs, "prepared_in": time.monotonic() - begin})
        for line in sys.stdin:
            say({"seconds": seconds_each(take, int(line), device)})


def say(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


def begun(case: Case, device: torch.device) -> Callable[[], None]:
    """Steps that run; retries while others hold the device's memory."""
    for _ in range(TRIES):
        try:
            take = steps_of(case, device)
            for _ in range(WARM_UP):
                take()
            return take
        except torch.OutOfMemoryError as error:
            print(error, file=sys.stderr)
        take = None
        release(device)
        time.sleep(5)
    raise RuntimeError("the device's memory stayed full")


def steps_of(case: Case, device: torch.device) -> Callable[[], None]:
    config = parse(case.model)
    if case.peer is not None:
        return their_step(case.peer, config.image_size[0], config.readout.classes, case.batch, device)
    strategy = Strategy(case.kind, checkpointing=case.checkpointing)
    return make_steps(
        config, Recipe(batch=case.batch), device, compiled=case.compiled, captured=False, strategy=strategy
    )


def peak(take: Callable[[], None], device: torch.device) -> int | None:
    """The most bytes that torch holds during steps, after the compiler has tried its kernels."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    for _ in range(MEASURED):
        take()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device)


def release(device: torch.device) -> int:
    """Give back what is not in use; returns how much is kept."""
    if device.type != "cuda":
        return 0
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device)


def run_tests() -> dict[str, Any]:
    root = Path(__file__).parents[1]
    words = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "shards or copies or answers",
        "tests/training/test_gpu.py",
    ]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=root, check=False)
    return {"code": done.returncode, "said": (done.stdout + done.stderr).splitlines()[-60:]}


# -------------------------------------------------------------------------------------------------------- all processes


class Process:
    """One case in a process of its own."""

    def __init__(self, case: Case, device: torch.device, folder: Path):
        self.case, self.begin = case, time.monotonic()
        self.most = need(case, device)  # bytes of the device that it may take from now on
        self.found: dict[str, Any] | None = None  # what it said when it was ready; or why it never was
        self.lines: queue.Queue = queue.Queue()
        self.log = folder / f"{time.monotonic_ns()}.log"
        cores = "2" if device.type == "cuda" else "1"
        environment = os.environ | {"OMP_NUM_THREADS": cores, "TORCHINDUCTOR_COMPILE_THREADS": cores}
        with self.log.open("w") as errors:
            self.popen = subprocess.Popen(
                [sys.executable, __file__, "--one", json.dumps(asdict(case)), device.type],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment,
            )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with self.popen.stdout as lines:
            for line in lines:
                if line.startswith("{"):
                    self.lines.put(json.loads(line))
        self.lines.put(None)

    def look(self) -> bool:
        """Whether it became ready, or ended, since the last look."""
        if self.found is not None or self.lines.empty():
            return False
        self.found = self.lines.get()
        if self.found is None:
            self.popen.wait()
            self.end(f"it ended with {self.popen.returncode}")
        elif self.case.group is None:
            self.end()
        else:
            self.most = self.found["reserved"] + GIB
        return True

    @property
    def now(self) -> int:
        """Bytes of the device that it may take now."""
        is_compiling = self.found is None and self.case.compiled == "whole"
        return 4 * GIB if is_compiling and time.monotonic() < self.begin + COMPILES_FOR else self.most

    @property
    def later(self) -> int:
        """The same half a minute from now: a case that is not compiled is over then."""
        return 0 if self.found is None and self.case.compiled == "none" else self.most

    def seconds(self, steps: int) -> float:
        """Seconds of a step, in a turn of `steps`."""
        self.popen.stdin.write(f"{steps}\n")
        self.popen.stdin.flush()
        found = self.lines.get(timeout=60)
        if found is None:
            raise RuntimeError(f"{self.case.name} ended in its turn: {self.errors()}")
        return found["seconds"]

    def errors(self) -> list[str]:
        return self.log.read_text(errors="replace").strip().splitlines()[-12:]

    def end(self, why: str = "") -> None:
        """It gets no more turns.  why: its fault, if it failed."""
        with suppress(OSError):  # it died before it read its last turn
            self.popen.stdin.close()
        if why:
            self.found = {"error": why, "said": self.errors()}
            self.popen.kill()
        try:
            self.popen.wait(5)
        except subprocess.TimeoutExpired:
            self.popen.kill()
        self.most = 0


def need(case: Case, device: torch.device) -> int:
    """Bytes of the device that a case may take until it is ready."""
    if device.type != "cuda":
        return 0
    return 6 * GIB if case.tests else case.predicted(device) + 2 * GIB


def prepare(
    waiting: list[Case], running: list[Process], device: torch.device, until: float, write: Callable[[], None]
) -> None:
    """Start all that fit side by side, until each is ready, has failed, or the time is over. Write what is known."""
    folder = Path(tempfile.mkdtemp(prefix="vitreous-scale-"))
    is_gpu = device.type == "cuda"
    room = torch.cuda.get_device_properties(device).total_memory - SPARE if is_gpu else math.inf
    while time.monotonic() < until and (waiting or any(process.found is None for process in running)):
        for case in list(waiting):
            busy, own = sum(process.found is None for process in running), need(case, device)
            now = sum(process.now for process in running) + (0 if case.compiled == "whole" else own)
            later = sum(process.later for process in running) + (0 if case.compiled == "none" else own)
            if busy < (AT_ONCE if is_gpu else 2) and now <= room and later <= room:
                running.append(Process(case, device, folder))
                waiting.remove(case)
        if any(process.look() for process in running):
            write()
        time.sleep(0.05)
    for process in running:
        if process.found is None:
            process.end("it was not ready in time")


def turns(some: list[Process], until: float, rounds: int) -> dict[str, list[float]]:
    """Seconds of a step of each, round by round, in turn."""
    for process in some:
        process.seconds(WARM_UP)  # it takes back the device's memory that it released
    steps = max(1, round(ROUND_SECONDS / some[0].seconds(2)))
    found: dict[str, list[float]] = {process.case.name: [] for process in some}
    for k in range(rounds):
        if time.monotonic() > until:
            break
        for process in some if k % 2 == 0 else some[::-1]:
            found[process.case.name].append(process.seconds(steps))
    return found


def compared(seconds: dict[str, list[float]], some: list[Process]) -> dict[str, Any]:
    """Each of a group over each of its plain steps; 10th, 50th and 90th percentile over the rounds."""
    plain = [process.case.name for process in some if process.case.kind == "alone" and process.case.peer is None]
    ratios = {
        f"{other} / {own}": spread([b / a for a, b in zip(seconds[own], seconds[other], strict=True)])
        for own in plain
        for other in seconds
        if other != own and len(seconds[own]) > 1
    }
    rates = {
        process.case.name: round(process.case.batch / statistics.median(seconds[process.case.name]))
        for process in some
        if seconds[process.case.name]
    }
    return {"ratios_10_50_90": ratios, "images_per_second": rates, "rounds": len(seconds[some[0].case.name])}


def report(running: list[Process], waiting: list[Case], device: torch.device) -> dict[str, Any]:
    """What is known of each case."""
    rows = []
    for process in running:
        case, found = process.case, process.found or {}
        row = {"case": case.name, **found}
        if "memory" in found and case.peer is None:
            row["predicted"] = case.predicted(device)
            row["ratio"] = round(row["predicted"] / found["memory"], 4) if found["memory"] else None
        rows.append(row)
    return {"cases": rows, "not_begun": [case.name for case in waiting]}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--toy", action="store_true")
    arguments.add_argument("--one", nargs=2, help="a case as JSON, and the device")
    arguments.add_argument("--seconds", type=float, default=195, help="for all")
    arguments.add_argument("--rounds", type=int, default=9)
    arguments.add_argument("--out", type=Path)
    arguments.add_argument("--only", default="", help="cases whose name or group this pattern finds")
    asked = arguments.parse_args()
    if asked.one:
        one(Case(**json.loads(asked.one[0])), torch.device(asked.one[1]))
        return
    begin = time.monotonic()
    device = torch.device("cpu" if asked.toy else "cuda")
    running: list[Process] = []
    every = toy_cases() if asked.toy else cases()
    waiting = [case for case in every if re.search(asked.only, f"{case.name}, {case.group}")]
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp(prefix="vitreous-inductor-"))
    body: dict[str, Any] = {"benchmark": "scale", "groups": {}} | record()

    def write() -> None:
        body.update(report(running, waiting, device) | {"seconds": round(time.monotonic() - begin, 1)})
        if asked.out:
            asked.out.write_text(json.dumps(body, indent=1) + "\n")

    prepare(waiting, running, device, begin + (1 - TIMING_SHARE) * asked.seconds, write)
    write()
    ready = [process for process in running if process.case.group and "error" not in (process.found or {})]
    groups = {process.case.group: [p for p in ready if p.case.group == process.case.group] for process in ready}
    for number, (name, some) in enumerate(groups.items()):
        left = begin + asked.seconds - time.monotonic()
        try:
            seconds = turns(some, time.monotonic() + left / (len(groups) - number), asked.rounds)
            body["groups"][name] = {"seconds": seconds, **compared(seconds, some)}
        except (RuntimeError, OSError, queue.Empty) as error:
            body["groups"][name] = {"error": str(error)}
        for process in some:
            process.end()
        write()
    print(json.dumps(body, indent=1))


if __name__ == "__main__":
    main()
