"""Machines that are lost: agents of torchrun that are killed, kills at any moment, and ranks that do not answer."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pytest
from small_runs import MODEL, assert_equal_states, picture_folder
from torchrun import HOW, SECONDS, kill_all, torchrun

from vitreous.training.run import folder as runs
from vitreous.weights.load_model import load

STATES_ALWAYS = """
import functools, sys
from vitreous.cli import main
from vitreous.training.run import loop, protocols
loop.QUESTION_STEPS = 1
protocols.Loop = functools.partial(protocols.Loop, save_seconds=0.0)
main(sys.argv[1:])
"""
PORT = 29_431  # of the rendezvous


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return picture_folder(tmp_path_factory.mktemp("sets") / "shapes", 80)


@pytest.fixture
def program(tmp_path):
    script = tmp_path / "often.py"
    script.write_text(STATES_ALWAYS)
    return script


def fit_words(images, out, steps):
    words = ["fit", str(images), "--model", MODEL, "--recipe", "small-data", "--steps", str(steps), "--folds", "0"]
    words += ["--device", "cpu", "--workers", "0", "--no-check", "--parallel", "fsdp", "--out", str(out)]
    changes = ("image_size=16", "batch=8", "dev=0.2", "evaluate_every=5", "mixup=0.3", "average=ema")
    return words + [word for change in changes for word in ("--set", change)]


def resume_words(images, out):
    words = ["fit", str(images), "--resume", "--device", "cpu", "--workers", "0", "--parallel", "fsdp"]
    return [*words, "--out", str(out)]


@dataclass(frozen=True)
class Machine:
    """Where an agent of torchrun runs.  namespace: of the network, with an address of its own; empty: this machine."""

    address: str = "127.0.0.1"
    namespace: str = ""
    cable: str = ""

    @property
    def prefix(self):
        return ["ip", "netns", "exec", self.namespace] if self.namespace else []

    def set_cable(self, state):
        """Without a cable nobody hears that a process died."""
        if self.namespace:
            subprocess.run([*self.prefix, "ip", "link", "set", self.cable, state], check=True)


@pytest.fixture(scope="module", params=["loopback", "namespaces"])
def machines(request):
    """The one that hosts the rendezvous, and another: on loopback; and two with a cable between them."""
    if request.param == "loopback":
        yield Machine(), Machine()
        return
    names = [f"vitreous-{os.getpid()}-{side}" for side in "ab"]
    pair = [Machine(f"10.231.77.{i + 1}", name, f"vt{os.getpid()}{'ab'[i]}") for i, name in enumerate(names)]
    first, second = (one.cable for one in pair)
    made = [f"netns add {name}" for name in names]
    made += [f"link add {first} type veth peer name {second}"]
    made += [f"link set {one.cable} netns {one.namespace}" for one in pair]
    for one in pair:
        made += [f"-n {one.namespace} addr add {one.address}/24 dev {one.cable}"]
        made += [f"-n {one.namespace} link set {device} up" for device in (one.cable, "lo")]
    try:
        for words in made:
            try:
                subprocess.run(["ip", *words.split()], check=True, capture_output=True, text=True)
            except (OSError, subprocess.CalledProcessError) as error:
                why = getattr(error, "stderr", None) or str(error)
                pytest.skip(f"network namespaces are not allowed here: {why.strip()}")
        yield pair
    finally:
        for name in names:
            with suppress(OSError):
                subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@contextmanager
def agent(program, words, machine, host, *, port=PORT):
    """The agent of one of two machines.  host: the machine that has the rendezvous."""
    is_host = machine is host
    options = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "job"]
    options += ["--rdzv-endpoint", f"{host.address}:{port}", "--max-restarts", "3", "--rdzv-conf"]
    options += [f"is_host={str(is_host).lower()},last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"]
    call = [*machine.prefix, sys.executable, "-m", "torch.distributed.run", *options]
    call += ["--local-addr", machine.address, str(program), *words]
    variables = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "VITREOUS_RANK_TIMEOUT": "120"}
    variables |= {"GLOO_SOCKET_IFNAME": machine.cable} if machine.cable else {}
    with subprocess.Popen(
        call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **variables}
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                machine.set_cable("down")
                kill_with_children(process.pid)
                machine.set_cable("up")


def kill_with_children(pid):
    """An agent and the workers that it started, as when a machine is lost."""
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    for one in (pid, *map(int, children.stdout.split())):
        os.kill(one, signal.SIGKILL)


def wait_for_states(out, step, *processes):
    """Until a state after this step is whole."""
    end = time.monotonic() + SECONDS
    while not any(int(one.parent.name.split("-")[1][:8]) > step for one in out.glob(f"state/*/{runs.MANIFEST}")):
        for process in processes:
            assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.05)


def finished(out):
    return load(out / "model.safetensors").state_dict()


@pytest.fixture(scope="module")
def whole(images, tmp_path_factory):
    """A run of two ranks that nobody ended."""
    place = tmp_path_factory.mktemp("whole")
    (place / "often.py").write_text(STATES_ALWAYS)
    call = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    call += [str(place / "often.py"), *fit_words(images, place / "run", 60)]
    subprocess.run(call, check=True, capture_output=True, timeout=SECONDS, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return place / "run"


@pytest.mark.slow
def test_a_machine_that_is_lost_and_started_again_changes_no_bit(images, whole, program, machines, tmp_path):
    """Two agents; the one that does not host the rendezvous is lost mid-run with its worker, and started again."""
    words, (host, other) = fit_words(images, tmp_path / "run", 60), machines
    with agent(program, words, host, host) as first:
        with agent(program, words, other, host) as second:
            wait_for_states(tmp_path / "run", 5, first, second)
        with agent(program, words, other, host) as second:
            said = first.communicate(timeout=SECONDS)[0]
            assert first.returncode == 0, said
            second.communicate(timeout=SECONDS)
    assert_equal_states(finished(tmp_path / "run"), finished(whole))


@pytest.mark.slow
def test_after_the_host_of_the_rendezvous_is_lost_resume_takes_over(images, whole, program, machines, tmp_path):
    """The other agent is ended and started too; the machine that was not the host is it now."""
    out, (host, other) = tmp_path / "run", machines
    words = fit_words(images, out, 60)
    with (
        agent(program, words, other, host, port=PORT + 1) as second,
        agent(program, words, host, host, port=PORT + 1) as first,
    ):
        wait_for_states(out, 5, first, second)
    again = resume_words(images, out)
    with (
        agent(program, again, other, other, port=PORT + 2) as first,
        agent(program, again, host, other, port=PORT + 2) as second,
    ):
        said = first.communicate(timeout=SECONDS)[0]
        assert first.returncode == 0, said
        second.communicate(timeout=SECONDS)
    assert_equal_states(finished(out), finished(whole))


@pytest.mark.slow
def test_kills_at_ten_moments_lose_nothing_but_the_steps_since_the_last_state(images, whole, program, tmp_path):
    """Every step saves, so kills fall into saves too."""
    out, draw = tmp_path / "run", random.Random(28)
    words = fit_words(images, out, 60)
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    for _ in range(10):
        is_begun = (out / runs.CONFIG).exists()
        call = [*start, *(resume_words(images, out) if is_begun else words)]
        with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            before = lines(out)
            while process.poll() is None and lines(out) == before:
                time.sleep(0.01)
            time.sleep(draw.random() * 0.7)
            kill_all(str(out))
            process.communicate()
    last = [*start, *resume_words(images, out)]
    subprocess.run(last, check=True, capture_output=True, timeout=SECONDS)
    assert_equal_states(finished(out), finished(whole))
    assert [e["loss"] for e in runs.read(out) if e["kind"] == "step"] == [
        e["loss"] for e in runs.read(whole) if e["kind"] == "step"
    ]


def lines(out):
    events = out / runs.EVENTS
    return events.read_bytes().count(b"\n") if events.exists() else 0


@pytest.mark.slow
def test_a_rank_that_does_not_answer_is_named(images, tmp_path):
    """The last rank sleeps within a step; the others wait as long as they were told, and say whom they wait for."""
    job = {"data": str(images), **HOW, "batch": 12, "slow": 2}
    variables = {"VITREOUS_RANK_TIMEOUT": "8"}.items()
    for parallel in ("ddp", "fsdp"):
        words = {**job, "parallel": parallel, "out": str(tmp_path / parallel)}
        answers, said = torchrun(3, [words], tmp_path / f"answers-{parallel}", expected=None, variables=variables)
        line = "RunError: rank 2 of 3 ended or did not answer within 8 s; look at its own messages, then go on with "
        assert answers[0][0] == f"{line}--resume (VITREOUS_RANK_TIMEOUT sets the seconds)", said
