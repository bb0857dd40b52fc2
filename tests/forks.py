"""Processes that need not import torch: one has done so, and forks for every call.

`run` and `Popen` are those of `subprocess`, for a call [sys.executable, "-c", "-m" or FILE, ...].  The process has its
own words, folder, environment, pipes, signals, imports of vitreous and exit code.  Where a law is on how Python begins,
on what it imports, on its memory or on the order of sets, a test takes `subprocess` itself.
"""

from __future__ import annotations

import atexit
import inspect
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

AT_THE_START = ("PYTHON", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "ATEN_", "ONEDNN_", "TORCH", "LD_", "LC_", "LANG")
LATER = ("PYTHONPATH", "PYTHONIOENCODING")  # the child sees to these itself
EXECUTE = list(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]  # the names of its arguments
NOT_FORKED = ("preexec_fn", "pass_fds", "shell", "creationflags", "startupinfo")


class Popen(subprocess.Popen):
    """subprocess.Popen, with a fork of `_forker` in place of a new interpreter where that is the same."""

    _told: socket.socket | None = None  # says how the process ended

    def _execute_child(self, *given: Any) -> None:
        asked = dict(zip(EXECUTE, given, strict=True))
        words = [os.fsdecode(word) for word in asked["args"]]
        environment = {os.fsdecode(k): os.fsdecode(v) for k, v in (asked["env"] or os.environ).items()}
        is_plain = words[0] == sys.executable and (words[1] in ("-c", "-m") or not words[1].startswith("-"))
        if not is_plain or any(asked[name] for name in NOT_FORKED) or _begins_otherwise(environment):
            super()._execute_child(*given)
            return
        about = {"words": words[1:], "environment": environment, "folder": os.fsdecode(asked["cwd"] or Path.cwd())}
        about["is_session"] = asked["start_new_session"]
        pipes = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        pipes = [number if given == -1 else given for number, given in enumerate(pipes)]
        self._told, theirs = socket.socketpair()
        with theirs:
            self.pid = _forker().fork(about, [*pipes, theirs.fileno()])
        self._child_created = True
        self._close_pipe_fds(*(asked[n] for n in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")))

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._told is None:
            return super()._try_wait(wait_flags)
        self._told.setblocking(not wait_flags & os.WNOHANG)
        try:
            status = self._told.recv(4)
        except BlockingIOError:
            return 0, 0
        assert status, "the process that forks has died"
        self._told.close()
        return self.pid, struct.unpack("i", status)[0]

    def _internal_poll(self, *given: Any, **more: Any) -> int | None:
        if self._told is None:
            return super()._internal_poll(*given, **more)
        with self._waitpid_lock:
            if self.returncode is None and (found := self._try_wait(os.WNOHANG))[0]:
                self._handle_exitstatus(found[1])
        return self.returncode


def run(words: Sequence[Any], *, input: Any = None, timeout: float | None = None, check=False, **how: Any) -> Any:
    """subprocess.run, by the Popen above."""
    if how.pop("capture_output", False):
        how |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        how["stdin"] = subprocess.PIPE
    with Popen(words, **how) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _begins_otherwise(environment: dict[str, str]) -> bool:
    """Whether Python, torch or a library would begin in another way than in the process that forks."""
    ours, theirs = (
        {name: value for name, value in each.items() if name.startswith(AT_THE_START) and name not in LATER}
        for each in (_forker().environment, environment)
    )
    return ours != theirs


class _Forker:
    """The process that has imported torch, as seen from a test."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self.control, theirs = socket.socketpair()
        words = [sys.executable, __file__, str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self.lock = threading.Lock()

    def fork(self, about: dict[str, Any], files: list[int]) -> int:
        """The number of a new process.  files: for input, output, errors, and to tell how it ended."""
        text = json.dumps(about).encode()
        with self.lock:
            socket.send_fds(self.control, [struct.pack("i", len(text))], files)
            self.control.sendall(text)
            return struct.unpack("i", self.control.recv(4))[0]

    def end(self) -> None:
        self.control.close()
        self.process.wait()


@cache
def _forker() -> _Forker:
    forker = _Forker()
    atexit.register(forker.end)
    return forker


# The process that forks


def serve(control: socket.socket) -> Callable[[], None]:
    """Fork for every request.  Only a child returns, with its program; the process that forks ends with its caller."""
    own = {Path(path).absolute() for path in os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    installed = [path for path in sys.path[1:] if Path(path).absolute() not in own]
    awake, waker = os.pipe()
    for end in (awake, waker):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and they end this
    under_way: dict[int, int] = {}  # a process, and the file to tell its end to
    while True:
        ready, _, _ = select.select([control, awake], [], [])
        if awake in ready:
            os.read(awake, 4096)
            _bury(under_way)
        if control not in ready:
            continue
        size, files, _, _ = socket.recv_fds(control, 4, 4)
        if not size:
            sys.exit()
        text = b""
        while len(text) < struct.unpack("i", size)[0]:
            text += control.recv(65536)
        if child := os.fork():
            under_way[child] = files.pop()
            control.sendall(struct.pack("i", child))
            for file in files:
                os.close(file)
            continue
        for number, file in enumerate(files[:3]):
            os.dup2(file, number)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        control.close()
        for file in [awake, waker, *files, *under_way.values()]:
            os.close(file)
        return _program(json.loads(text), installed)


def _bury(under_way: dict[int, int]) -> None:
    """Take note of the processes that have ended."""
    while under_way:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        file = under_way.pop(child)
        try:
            os.write(file, struct.pack("i", status))
        except BrokenPipeError:  # nobody wants to know
            pass
        os.close(file)


def _program(asked: dict[str, Any], installed: list[str]) -> Callable[[], None]:
    """Become the process that was asked for, up to its first line."""
    if asked["is_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    numpy.random.seed()  # noqa: NPY002 - as in a process that begins
    encoding, _, strictness = os.environ.get("PYTHONIOENCODING", "").partition(":")
    encoding = encoding or sys.stdout.encoding
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        errors = "backslashreplace" if name == "stderr" else strictness or "strict"
        stream = open(number, mode, encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
        stream.reconfigure(line_buffering=name == "stderr" or stream.isatty())
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    given = [str(Path(path).absolute()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    how, *words = asked["words"]
    if how == "-c":
        code, *words = words
        first, sys.argv = "", ["-c", *words]
        main = sys.modules["__main__"] = type(sys)("__main__")
        program = partial(exec, compile(code, "<string>", "exec"), main.__dict__)
    elif how == "-m":
        module, *words = words
        first, sys.argv = str(Path.cwd()), [module, *words]
        program = partial(runpy.run_module, module, run_name="__main__", alter_sys=True)
    else:
        first, sys.argv = str(Path(how).absolute().parent), [how, *words]
        program = partial(runpy.run_path, how, run_name="__main__")
    sys.path[:] = [first, *given, *installed]
    importlib.invalidate_caches()
    return program


def _to_its_end(program: Callable[[], None]) -> None:
    """Run it, and leave before Python takes the modules apart: that lasts as long as many a program."""
    code = None

    @atexit.register  # the first registered runs last
    def leave() -> None:
        if code is not None and "multiprocessing.popen_spawn_posix" not in sys.modules:  # whose semaphores want an end
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            except (OSError, ValueError):
                return  # Python says it in its own way
            os._exit(code)

    try:
        program()
        code = 0
    except SystemExit as end:
        code = end.code & 255 if isinstance(end.code, int) else int(end.code is not None)
        raise
    except Exception:
        code = 1
        raise


if __name__ == "__main__":
    import gc
    import importlib
    import runpy
    import select
    from functools import partial

    import jinja2  # noqa: F401
    import msgspec  # noqa: F401
    import numpy
    import numpy.random
    import torch  # noqa: F401

    gc.collect()
    gc.freeze()  # a collection in a child would copy the pages of all that is imported
    _to_its_end(serve(socket.socket(fileno=int(sys.argv[1]))))
