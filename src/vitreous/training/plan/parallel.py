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
UNIT_NUMBERS = 25_000_000  # fewest weights that fsdp gathers at once: each gather costs the host a millisecond
IMAGES_IN_A_PART = 16  # on a device; smaller parts use it badly, so blocks are recomputed first


@dataclass(frozen=True)
class Strategy:
    """How a stage trains.  parts: the fewest that a step's images are split into; why: for people."""

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


def choose(
    asked: str,
    needs: Callable[[Kind, int, bool], Memory],
    *,
    world: int,
    room: int,
    on_each: int,
    parts: Iterable[int] = (1,),
    checkpointing: bool | None = None,
) -> Strategy:
    """The fastest strategy that fits: ddp, fsdp, then each in more parts, with checkpointing, in very small parts.

    needs(kind, parts, checkpointing): memory of one device.  room: bytes of a device.  on_each: images of a step on it.
    checkpointing: None chooses.  If nothing fits, the most frugal is tried.
    """
    kinds: tuple[Kind, ...] = ("ddp", "fsdp") if asked == "auto" and world > 1 else (_kind(asked, world),)
    again = (False, True) if checkpointing is None else (checkpointing,)
    counts = list(parts)
    usual = [count for count in counts if count == 1 or on_each // count >= IMAGES_IN_A_PART]
    small = [count for count in counts if count not in usual]
    ways = [
        (count, recompute, kind) for some in (usual, small) for recompute in again for count in some for kind in kinds
    ]
    least: Strategy | None = None
    for count, recompute, kind in ways:
        need = needs(kind, count, recompute).total
        told = f"{need / 2**30:.1f} of {room / 2**30:.1f} GiB a device by estimate"
        least = Strategy(kind, recompute, count, told if asked == "auto" else f"as asked; {told}")
        if need <= ROOM_SHARE * room:
            return least
    assert least is not None, "parts has a first number"
    return Strategy(least.kind, least.checkpointing, least.parts, f"{least.why}, which may not fit")


def _kind(asked: str, world: int) -> Kind:
    if asked == "fsdp":
        return "fsdp"
    return "ddp" if world > 1 else "alone"


def unit_sizes(blocks: Iterable[int]) -> list[int]:
    """How many blocks in a row fsdp gathers together.  blocks: the numbers of weights in each."""
    sizes, count, held = [], 0, 0
    for weights in blocks:
        count, held = count + 1, held + weights
        if held >= UNIT_NUMBERS:
            sizes.append(count)
            count = held = 0
    return [*sizes, count] if count else sizes
