"""How several devices share a training: whole copies (ddp) or shards (fsdp), by what fits into one device's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from vitreous.training.plan.memory import Memory

Kind = Literal["alone", "ddp", "fsdp"]

PARALLEL = ("auto", "ddp", "fsdp")  # what may be asked for
ROOM_SHARE = 0.9  # of a device's memory; the rest is for augmentation, messages and what torch holds back
UNITS_GATHERED = 3  # fsdp: two units' weights and one unit's gradients are whole at a time


@dataclass(frozen=True)
class Strategy:
    """How a stage trains.  parts: that a step's images are taken in, at least; why: for people."""

    kind: Kind = "alone"
    checkpointing: bool = False  # recompute each block in the backward pass
    parts: int = 1
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        names = {
            "alone": "one device",
            "ddp": "a whole copy on each device (ddp)",
            "fsdp": "weights, gradients and moments in shards (fsdp)",
        }
        more = ", blocks recomputed in the backward pass" * self.checkpointing
        return f"{names[self.kind]}{more}{f': {self.why}' if self.why else ''}"


def per_device(needs: Memory, kind: Kind, world: int, *, parts: int = 1, unit: int = 0) -> int:
    """Bytes on each of `world` devices.  needs: of one device that holds everything.  unit: bytes of the largest block.

    With fsdp, a step in several parts keeps whole gradients until its last part.
    """
    if kind != "fsdp":
        return needs.total
    shared = needs.parameters + needs.optimizer + needs.average + needs.gradients
    return -(-shared // world) + UNITS_GATHERED * unit + needs.activations + needs.gradients * (parts > 1)


def choose(
    asked: str,
    needs: Callable[[int, bool], Memory],
    *,
    world: int,
    room: int,
    unit: int = 0,
    parts: Iterable[int] = (1,),
    checkpointing: bool | None = None,
) -> Strategy:
    """The fastest strategy that fits: ddp, fsdp, then each with checkpointing, then each in more parts.

    needs(parts, checkpointing): memory of one device that holds everything.  room: bytes of a device.
    checkpointing: None chooses.  If nothing fits, the most frugal is tried.
    """
    kinds: tuple[Kind, ...] = ("ddp", "fsdp") if asked == "auto" and world > 1 else (_kind(asked, world),)
    least: Strategy | None = None
    for count in parts:
        for recompute in (False, True) if checkpointing is None else (checkpointing,):
            memory = needs(count, recompute)
            for kind in kinds:
                need = per_device(memory, kind, world, parts=count, unit=unit)
                is_asked = len(kinds) == 1 and asked != "auto"
                told = f"{need / 2**30:.1f} of {room / 2**30:.1f} GiB a device by estimate"
                why = f"as asked; {told}" if is_asked else told
                least = Strategy(kind, recompute, count, why)
                if need <= ROOM_SHARE * room:
                    return least
    assert least is not None, "parts has a first number"
    return Strategy(least.kind, least.checkpointing, least.parts, f"{least.why}, which may not fit")


def _kind(asked: str, world: int) -> Kind:
    if asked == "fsdp":
        return "fsdp"
    return "ddp" if world > 1 else "alone"
