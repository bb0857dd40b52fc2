"""Groups of processes that torchrun starts, each of which runs tests/ranks_script.py."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import ranks_script
from small_runs import MODEL

SCRIPT = Path(ranks_script.__file__)
SECONDS = 300  # that a group may take on a busy machine
HOW = {"model": MODEL, "recipe": "small-data", "folds": 0, "length": "6 steps", "image_size": 16, "batch": 8}
HOW |= {"dev": 0.2, "evaluate_every": 0.5, "mixup": 0.3, "drop_path": 0.2, "optimizer": "sgd", "peak_lr": 0.5}
HOW |= {"average": "ema"}


def torchrun(world, jobs, folder, *options, expected=0, variables=()):
    """Each rank runs the jobs in one process group; the error of each job by rank, and what was printed.

    expected: the exit code; None: any.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    call = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world), *options]
    call += [str(SCRIPT), str(folder / "jobs.json"), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **dict(variables)}
    with subprocess.Popen(
        call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, env=environment
    ) as process:
        try:
            said, _ = process.communicate(timeout=SECONDS)
        finally:
            if process.poll() is None:
                kill_all(str(folder / "jobs.json"))
    assert expected is None or process.returncode == expected, said
    return [[_text(folder / f"{i}-{rank}") for rank in range(world)] for i in range(len(jobs))], said


def kill_all(word):
    """Everything that was called with this word: torchrun, and its ranks, which lie in sessions of their own."""
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if word in (place / "cmdline").read_bytes().decode(errors="replace").split("\0"):
                os.kill(int(place.name), signal.SIGKILL)


def _text(path):
    return path.read_text() if path.exists() else None
