"""The process group: which of how many processes this is, under torchrun or alone."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from vitreous.errors import ConfigError, RunError, ToldError
from vitreous.words import one_line

if TYPE_CHECKING:
    import torch

LONGEST_WAIT = timedelta(hours=4)  # others wait while the first rank decodes or writes
TIMEOUT = "VITREOUS_RANK_TIMEOUT"  # the variable: seconds that ranks wait for each other within a step
TIMEOUT_SECONDS = 1800
AT_THE_START = "start all ranks again"
MEETING_SECONDS = 20.0  # after a timeout, for every live rank to report itself

Value = TypeVar("Value")


@dataclass(frozen=True)
class Ranks:
    """This process is number `rank` of `world`."""

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ConfigError(f"rank {self.rank} of {self.world} does not exist; ranks count from 0 to world - 1")

    @property
    def is_first(self) -> bool:
        """True for the rank that prints and writes."""
        return self.rank == 0


def here() -> Ranks:
    """This process's rank: from torch.distributed if it runs, else from torchrun's variables, else a single rank."""
    if _alone:
        return Ranks()
    if _is_running():
        import torch.distributed as group

        return Ranks(group.get_rank(), group.get_world_size())
    return Ranks(_number("RANK", 0), _number("WORLD_SIZE", 1))


_alone: list[bool] = []


@contextmanager
def alone() -> Iterator[None]:
    """Inside it, this rank works alone: nothing that it calls involves other ranks."""
    _alone.append(True)
    try:
        yield
    finally:
        _alone.pop()


@contextmanager
def group(device: torch.device, *, even_alone: bool = False) -> Iterator[tuple[torch.device, Ranks]]:
    """Yield this process's device and rank, in the group that torchrun asks for; without torchrun, a single rank.

    even_alone: make a group for a single rank too, as FSDP needs.
    """
    ranks = here()
    if _is_running() or (ranks.world == 1 and not even_alone):
        yield _device_of_rank(device, ranks), ranks
        return
    import torch

    device = _device_of_rank(device, ranks)
    running = torch.distributed
    kind = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    arguments = _store(ranks)
    running.init_process_group(kind, timeout=_timeout(), **arguments)
    _meeting.append(arguments["store"])
    _patient.append(running.new_group(backend="gloo", timeout=LONGEST_WAIT))
    try:
        yield device, ranks
    finally:
        _patient.clear()
        _meeting.clear()
        running.destroy_process_group()


def _device_of_rank(device: torch.device, ranks: Ranks) -> torch.device:
    if device.type != "cuda" or ranks.world == 1:
        return device
    import torch

    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def _store(ranks: Ranks) -> dict[str, Any]:
    """Where ranks leave their addresses, as arguments of torch.

    When torchrun restarts workers it keeps its store, with the addresses of those that died. So rank 0 draws a word
    that prefixes the names of this life's entries.
    """
    from torch.distributed import HashStore, PrefixStore, TCPStore

    where = {"rank": ranks.rank, "world_size": ranks.world}
    if ranks.world == 1:
        return {"store": HashStore(), **where}
    host, port = os.environ.get("MASTER_ADDR"), _number("MASTER_PORT", 0)
    if not host or not port:
        missing = "MASTER_PORT" if host else "MASTER_ADDR"
        raise ConfigError(f"rank {ranks.rank} finds no rank 0: the variable {missing} is not set; start with torchrun")
    is_host = ranks.is_first and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = TCPStore(host, port, ranks.world, is_master=is_host, timeout=_timeout(), wait_for_workers=False)
    except RuntimeError as error:
        if is_host:
            raise RunError(f"rank 0 cannot listen at {host}:{port} ({one_line(error)}); take another port") from None
        raise RunError(_late(f"rank 0 of {ranks.world}", AT_THE_START)) from None
    return {"store": PrefixStore(_word_of_this_life(store, ranks), store), **where}


def _word_of_this_life(store: Any, ranks: Ranks) -> str:
    """A word that rank 0 draws and gives to each rank that is alive now."""
    drawn = secrets.token_hex(8)
    if ranks.is_first:
        store.set("vitreous", drawn)
        for rank in range(1, ranks.world):
            try:
                other = store.get(f"{drawn}/{rank}").decode()
            except RuntimeError:
                raise RunError(_late(f"rank {rank} of {ranks.world}", AT_THE_START)) from None
            store.set(f"{drawn}/{rank}/{other}", "go")
        return drawn
    end = time.monotonic() + _timeout().total_seconds()
    while time.monotonic() < end:  # the word may come from an earlier life, where nobody answers
        with suppress(RuntimeError):
            word = str(store.get("vitreous").decode())
            store.set(f"{word}/{ranks.rank}", drawn)
            store.wait([f"{word}/{ranks.rank}/{drawn}"], timedelta(seconds=1))
            return word
    raise RunError(_late(f"rank 0 of {ranks.world}", AT_THE_START))


_meeting: list[Any] = []  # the store of this life's group
_patient: list[Any] = []  # the group that waits hours for rank 0; a step's group gives up sooner


def patient_group() -> Any:
    """The group for messages between steps; None is torch's own, if another library started it."""
    return _patient[0] if _patient else None


def launch() -> str | None:
    """The name of torchrun's job, the same after its restarts; None without torchrun."""
    return os.environ.get("TORCHELASTIC_RUN_ID")


def was_restarted() -> bool:
    """Whether torchrun started any rank again after one was lost; called by all ranks."""
    return any(gather(_number("TORCHELASTIC_RESTART_COUNT", 0) > 0))


def meet(ranks: Ranks) -> None:
    """Wait until all ranks arrive here; an error names one that does not."""
    if ranks.world > 1 and _patient:
        import torch

        with naming_the_missing(ranks):
            torch.distributed.monitored_barrier(_patient[0], timeout=_timeout())


@contextmanager
def naming_the_missing(ranks: Ranks) -> Iterator[None]:
    """Turn a step's vain wait for another rank into one line with that rank's number."""
    try:
        yield
    except RuntimeError as error:
        if ranks.world == 1 or not _patient or not _is_about_ranks(error):
            raise
        raise RunError(_who_is_missing(ranks)) from None


def _is_about_ranks(error: RuntimeError) -> bool:
    text = str(error).lower()
    return any(word in text for word in ("gloo", "monitoredbarrier", "nccl", "timed out", "connection "))


def _who_is_missing(ranks: Ranks) -> str:
    """Every live rank reports once more, and rank 0 names those that do not."""
    import torch

    store, end = _meeting[0], time.monotonic() + min(MEETING_SECONDS, _timeout().total_seconds())
    missing = []
    with suppress(torch.distributed.DistNetworkError):  # the host of the store is gone
        store.set(f"here/{ranks.rank}", "")
        for other in range(1, ranks.world) if ranks.is_first else (0,):
            while not (is_here := store.check([f"here/{other}"])) and time.monotonic() < end:
                time.sleep(0.1)  # torchrun's signal is heard meanwhile
            missing += [] if is_here else [str(other)]
    return _late(f"rank {', '.join(missing)} of {ranks.world}" if missing else f"a rank of {ranks.world}")


def _late(who: str, then: str = "go on with --resume") -> str:
    return (
        f"{who} ended or did not answer within {_timeout().total_seconds():g} s; look at its own messages, then {then} "
        f"({TIMEOUT} sets the seconds)"
    )


def _timeout() -> timedelta:
    return timedelta(seconds=_number(TIMEOUT, TIMEOUT_SECONDS) or TIMEOUT_SECONDS)


def agreed(ranks: Ranks, choose: Callable[[], Any]) -> Any:
    """The first rank's choice, on every rank; its error too."""
    chosen, fault = None, None
    if ranks.is_first:
        try:
            chosen = choose()
        except Exception as error:
            fault = error
    if ranks.world > 1:
        import torch.distributed

        told: list[Any] = [chosen, None if fault is None else str(fault)]
        torch.distributed.broadcast_object_list(told, 0, group=patient_group())
        if told[1] is not None and fault is None:
            raise ToldError(told[1])
        chosen = told[0]
    if fault is not None:
        raise fault
    return chosen


@contextmanager
def first(ranks: Ranks, make: Callable[[], AbstractContextManager[Value]]) -> Iterator[Value | None]:
    """What rank 0 makes; None on the others, which wait for it."""
    made: list[AbstractContextManager[Value]] = []
    agreed(ranks, lambda: made.append(make()))
    if not made:
        yield None
        return
    with made[0] as value:
        yield value


def together(ranks: Ranks) -> None:
    """No rank continues before the first has written what others will read; one that fails does not wait."""
    if ranks.world > 1 and sys.exc_info()[0] is None:
        import torch.distributed

        torch.distributed.barrier(group=patient_group())


def gather(value: Value) -> list[Value]:
    """Every rank's value, in the order of ranks; every rank must call it."""
    where = here()
    if where.world == 1:
        return [value]
    if not _is_running():
        raise ConfigError(
            f"rank {where.rank} of {where.world} has no process group to ask; "
            "call torch.distributed.init_process_group() first"
        )
    import torch.distributed as group

    values: list[Value | None] = [None] * where.world
    group.all_gather_object(values, value, group=patient_group())
    return values  # type: ignore[return-value]  # all are filled in now


def _is_running() -> bool:
    """True if a process group runs; does not import torch, since without it there is none."""
    group = sys.modules.get("torch.distributed")
    return bool(group and group.is_available() and group.is_initialized())


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "").strip() or str(otherwise)
    if not text.isdecimal():
        raise ConfigError(f"the variable {name} is {text!r}, which is not a number; unset it, or start with torchrun")
    return int(text)
