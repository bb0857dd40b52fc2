"""What each rank of tests/training/test_parallel.py runs: fits one after the other in one process group.

python -m torch.distributed.run … ranks_script.py JOBS.json ANSWERS.  A job: the arguments of `fit`; and
stop: SIGTERM to rank 0 at this step;  kill: SIGKILL to the last rank at this step, in its first life;
full: the last rank may write no more at this step;  cut: its shards are cut short;  slow: it sleeps;
rates, places: a learning rate, and images, for each rank;  units: weights that fsdp gathers together, at least.
Or do: a name of READINGS, and its arguments `with`; the answer is what it returns.
"""

import functools
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import torch

import vitreous
from vitreous import ranks
from vitreous.images import imageset
from vitreous.training.plan import parallel
from vitreous.training.run import loop, protocols


def main():
    jobs, answers = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    loop.QUESTION_STEPS = 1
    protocols.Loop = functools.partial(protocols.Loop, save_seconds=0.0)
    with ranks.group(torch.device("cpu")) as (_, own):
        for number, job in enumerate(jobs):
            answer = READINGS[job["do"]](**job["with"]) if "do" in job else run(own, **job)
            (answers / f"{number}-{own.rank}").write_text(answer)
            if not {"slow", "cut"} & set(job):
                ranks.together(own)


def judge(model, data, csv):
    found = vitreous.evaluate(model, data, split="all", csv=csv, device="cpu", workers=0)
    return json.dumps([found.right, found.images, round(found.loss, 5)])


def few_shot(model, data):
    found = vitreous.evaluate(model, data, shots=(1, 2), seeds=2, device="cpu", workers=0)
    return json.dumps(found.right.tolist())


def look(model, data, out):
    only = ["attention-distance", "positions", "similarity"]
    found = vitreous.look(model, data, only=only, images=16, out=out, device="cpu", workers=0)
    return json.dumps([found.found[name] for name in only])


def paper(out):
    sys.path.insert(0, str(Path(__file__).parent))
    from papers.small_experiment import EXPERIMENT

    outcome = vitreous.papers.run(EXPERIMENT, out=out, jobs=0, device="cpu")
    return json.dumps(outcome.failures)


READINGS = {"judge": judge, "few_shot": few_shot, "look": look, "paper": paper}


def run(
    own,
    *,
    stop=None,
    kill=None,
    full=None,
    rates=None,
    places=None,
    slow=None,
    cut=None,
    units=parallel.UNIT_NUMBERS,
    **words,
):
    """The error as one line, empty if there is none."""
    is_last = own.rank == own.world - 1
    before = loop.Loop._take

    def take(self, batch):
        at = self.at.step
        if at == stop and own.is_first:
            os.kill(os.getpid(), signal.SIGTERM)
        if at == kill and is_last and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        if at == full and is_last:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        if at == slow and is_last:
            time.sleep(60)
        if at == cut and is_last:
            for shard in Path(words["data"]).glob("train-*.tar"):
                os.truncate(shard, 100)
        before(self, batch)

    if rates is not None:
        words["peak_lr"] = rates[own.rank]
    if places is not None:
        words["data"] = places[own.rank]
    if cut is not None:
        imageset.STREAMED_FROM = 1
    loop.Loop._take, parallel.UNIT_NUMBERS = take, units
    try:
        vitreous.fit(device="cpu", workers=0, check=False, **words)
    except (vitreous.errors.VitreousError, vitreous.errors.Interrupted) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        loop.Loop._take = before
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return ""


if __name__ == "__main__":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file that may grow no more is an error of the system
    main()
