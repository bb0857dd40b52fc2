"""The launch file of `vitreous plan --slurm`: bash reads it, sbatch's lines are right, and its torchrun line trains."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from shared_files import ROOT
from small_runs import MODEL, picture_folder

from vitreous.cli import main
from vitreous.errors import ConfigError
from vitreous.training.plan import slurm
from vitreous.training.plan.forecast import plan
from vitreous.training.run import folder as runs

SECONDS = 200  # that a run may take on a busy machine
FAKES = {  # what a cluster has: srun starts its program, scontrol names the nodes and queues jobs again
    "srun": '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
    "scontrol": '#!/bin/bash\nif [ "$1" = show ]; then echo localhost; else echo "$@" >> requeued; fi\n',
    "torchrun": f'#!/bin/bash\nexec {sys.executable} -m torch.distributed.run "$@"\n',
}


def directives(text: str) -> dict[str, str]:
    """The lines that sbatch reads: those before the first command."""
    head = text[: text.index("\ndata=")]
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", head, re.MULTILINE))


def bash_reads(text: str) -> bool:
    return subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).returncode == 0


@pytest.mark.parametrize("model", ["L/16", "BiT-R50x1", "S/16 registers=4 pool=gap"])
def test_bash_reads_the_file_and_sbatch_finds_its_lines(model):
    said = plan(model, images=1281167, epochs=90, batch=4096, devices=16, device="h100")
    text = slurm.script(said)
    assert bash_reads(text)
    assert text.startswith("#!/bin/bash\n")
    asked = directives(text)
    assert asked["nodes"] == "2"
    assert asked["ntasks-per-node"] == "1", "one torchrun for each node"
    assert asked["gpus-per-node"] == "8"
    assert re.fullmatch(r"\d\d:00:00", asked["time"])
    assert asked["signal"] == "B:TERM@180"
    assert "requeue" in asked
    assert re.fullmatch(r"vitreous-[A-Za-z0-9.+-]+", asked["job-name"])
    assert "--nproc-per-node=8" in text
    assert "{{" not in text
    assert "{%" not in text


def test_its_words_are_words_of_fit():
    """Read as the command line reads them."""
    from vitreous.cli import _application

    said = plan("S/16 registers=4", images=50_000, epochs=3, batch=4096, devices=8, device="l4")
    words = slurm._fit_words(said)
    given = _application().commands["fit"].make_context("fit", ["photos", *words]).params
    assert given["model"] == "S/16 registers=4"
    assert given["steps"] == said.steps
    assert f"batch={said.batch}" in given["set_"]


def test_a_job_is_given_more_than_the_planned_time_and_at_most_two_days():
    assert slurm._time(3000) == "02:00:00"
    assert slurm._time(10**7) == "48:00:00"
    assert slurm._time(None) == "48:00:00"
    assert slurm._time(1) == "01:00:00"


def test_nodes_that_are_not_full_are_refused():
    with pytest.raises(ConfigError, match="12 devices do not fill nodes of 8; give --devices 8"):
        slurm.script(plan("B/16", batch=768, devices=12, device="h100"))


def test_the_command_writes_the_file_and_does_not_overwrite_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["plan", "B/16", "--batch", "512", "--devices", "8", "--device", "a100", "--slurm", "job.sh"]
    for call, code in ((words, 0), (words, 2), ([*words, "--force"], 0)):
        with pytest.raises(SystemExit) as end:
            main(call)
        assert end.value.code == code
    assert bash_reads(Path("job.sh").read_text())
    assert "next     sbatch job.sh DATA OUT" in capsys.readouterr().out


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """One node with two processes on the CPU, as Slurm would describe it."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in FAKES.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    picture_folder(tmp_path / "photos", 80)
    said = plan(MODEL, images=60, steps=4, batch=8, image_size=16, devices=2, device="cpu")
    text = slurm.script(said).replace("--nproc-per-node=1", "--nproc-per-node=2")
    (tmp_path / "job.sh").write_text(text)
    own = {
        "SLURM_JOB_ID": str(20000 + os.getpid() % 20000),
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_NODELIST": "localhost",
    }
    path = {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return tmp_path, {**os.environ, **own, **path}


@pytest.mark.slow
def test_its_torchrun_line_trains_and_goes_on_with_a_run_that_is_there(cluster):
    """Two processes of one node; the second job finds a finished run and says so."""
    folder, environment = cluster
    call = ["bash", "job.sh", "photos", "run", "--workers", "0", "--no-check"]
    done = subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "run" / "model.safetensors").exists()
    steps = [event for event in runs.read(folder / "run") if event["kind"] == "step"]
    assert steps[-1]["step"] == 4
    again = subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "finished already" in again.stdout + again.stderr


@pytest.mark.slow
def test_a_job_whose_time_is_over_saves_and_is_queued_again(cluster):
    """SIGTERM to the batch shell, as --signal=B:TERM sends it, then the same job once more."""
    folder, environment = cluster
    (folder / "job.sh").write_text((folder / "job.sh").read_text().replace("--steps 4", "--steps 100000"))
    call = ["bash", "job.sh", "photos", "run", "--workers", "0", "--no-check"]
    with subprocess.Popen(
        call, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as job:
        end = time.monotonic() + SECONDS
        while not any(event["kind"] == "step" for event in _events(folder / "run")):
            assert job.poll() is None, job.communicate()[0]
            assert time.monotonic() < end
            time.sleep(0.2)
        job.send_signal(signal.SIGTERM)
        said, _ = job.communicate(timeout=SECONDS)
    assert (folder / "requeued").read_text() == f"requeue {environment['SLURM_JOB_ID']}\n", said
    assert "stopped and saved at step" in said


def _events(run):
    return runs.read(run) if (run / "events.jsonl").exists() else []
