"""How our tensors map to another library's; each rule reads and writes, so a round trip changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import dropwhile

import torch
from torch import Tensor

from vitreous.errors import CheckpointError
from vitreous.models.config import Size
from vitreous.weights.tensor_files import Tensors, by


@dataclass(frozen=True)
class Move:
    """A lossless change of layout: one or more of their tensors <-> one of ours."""

    read: Callable[[list[Tensor]], Tensor]
    write: Callable[[Tensor], list[Tensor]]


@dataclass(frozen=True)
class Rule:
    ours: str
    theirs: tuple[str, ...]
    move: Move


def rule(ours: str, *theirs: str, move: Move | None = None) -> Rule:
    return Rule(ours, theirs, move or UNCHANGED)


def pair(
    ours: str, theirs: str, *, weight: Move | None = None, names: tuple[str, str] = ("weight", "bias"), join: str = "."
) -> list[Rule]:
    """Rules for weight and bias of a layer; `names` are theirs."""
    return [
        rule(f"{ours}.weight", f"{theirs}{join}{names[0]}", move=weight),
        rule(f"{ours}.bias", f"{theirs}{join}{names[1]}"),
    ]


UNCHANGED = Move(lambda t: t[0], lambda x: [x])
TRANSPOSED = Move(lambda t: t[0].mT, lambda x: [x.mT])  # in × out <-> out × in
LEADING_AXIS = Move(lambda t: t[0].squeeze(0), lambda x: [x[None]])  # with a leading axis of length 1
STACKED_QKV = Move(lambda t: torch.cat(t), lambda x: list(x.chunk(3)))  # separate q, k, v <-> stacked rows q, k, v
STACKED_PAIR = Move(lambda t: torch.cat(t), lambda x: list(x.chunk(2)))  # separate q, v <-> stacked
KERNEL = Move(lambda t: t[0].permute(3, 2, 0, 1), lambda x: [x.permute(2, 3, 1, 0)])  # H W in out <-> out in H W
ONE_BY_ONE_CONV = Move(lambda t: t[0].flatten(1), lambda x: [x[:, :, None, None]])  # a 1×1 convolution <-> a linear map
VECTOR = Move(lambda t: t[0].flatten(), lambda x: [x])
CHANNEL_PLANES = Move(lambda t: t[0].flatten(), lambda x: [x[None, None, None]])  # 1 1 1 C <-> C


def patch_kernel(channels: int, patch: Size, *, theirs: str) -> Move:
    """The patch projection as a convolution's kernel: "torch" D C P P, or "google" P P C D <-> D C·P·P."""
    if theirs == "torch":
        return Move(lambda t: t[0].flatten(1), lambda x: [x.unflatten(1, (channels, *patch))])
    return Move(
        lambda t: t[0].permute(3, 2, 0, 1).flatten(1),
        lambda x: [x.unflatten(1, (channels, *patch)).permute(2, 3, 1, 0)],
    )


def google_in(heads: int, parts: int) -> Move:
    """D H d, once per part <-> parts·D × D."""
    return Move(
        lambda t: torch.cat([k.flatten(1).mT for k in t]),
        lambda x: [k.mT.unflatten(1, (heads, -1)) for k in x.chunk(parts)],
    )


def google_in_bias(heads: int, parts: int) -> Move:
    """H d, once per part <-> parts·D."""
    return Move(
        lambda t: torch.cat([b.flatten() for b in t]), lambda x: [b.unflatten(0, (heads, -1)) for b in x.chunk(parts)]
    )


def google_out(heads: int) -> Move:
    """H d D <-> D × D."""
    return Move(lambda t: t[0].flatten(0, 1).mT, lambda x: [x.mT.unflatten(0, (heads, -1))])


def read_with(
    rules: Iterable[Rule],
    tensors: Tensors,
    blueprint: Callable[[], Mapping[str, Tensor]],
    *,
    ignore: Callable[[str], bool],
) -> dict[str, Tensor]:
    """Convert their tensors to ours by the rules; an error names a tensor that is missing, left over, or wrong.

    blueprint: returns our tensors on the meta device. It is called only when nothing is missing, so a file cannot make
    us build a model that it does not hold.
    """
    gathered = [(r, [tensors[name] for name in r.theirs]) for r in rules]
    state: dict[str, Tensor] = {}
    left = set(tensors)
    model = blueprint()
    for r, parts in gathered:
        left.difference_update(r.theirs)
        name = ", ".join(r.theirs)
        try:
            ours = r.move.read(parts)
        except (RuntimeError, IndexError, ValueError):
            ours = torch.empty(0)
        assert r.ours in model, f"a rule names {r.ours}, which this model lacks"
        wanted = model[r.ours]
        if ours.shape != wanted.shape or not _lies_as_written(parts, r.move.write(ours)):
            found = " and ".join(by(p.shape) for p in parts)
            raise CheckpointError(
                f"tensor {name} of {tensors.path} has shape {found}; "
                f"the rest of the file asks for {by(wanted.shape)} as {r.ours}"
            )
        if ours.is_floating_point() != wanted.is_floating_point():
            raise CheckpointError(f"tensor {name} of {tensors.path} holds {ours.dtype}, not weights; convert it to F32")
        state[r.ours] = ours.to(torch.float32).contiguous() if ours.is_floating_point() else ours.contiguous()
    extra = sorted(name for name in left if not ignore(name))
    if extra:
        more = f" and {len(extra) - 3} more" if len(extra) > 3 else ""
        raise CheckpointError(
            f"{tensors.path} has tensors that belong to no part of the model: {', '.join(extra[:3])}{more}"
        )
    assert set(model) == set(state), f"no rule names {sorted(set(model) - set(state))[:3]}"
    return state


def _lies_as_written(parts: list[Tensor], written: list[Tensor]) -> bool:
    """True if each tensor has the shape we would write, ignoring leading axes of length 1, which some files have."""

    def plain(shape: torch.Size) -> tuple[int, ...]:
        return tuple(dropwhile(lambda n: n == 1, shape))

    return all(plain(a.shape) == plain(b.shape) for a, b in zip(parts, written, strict=True))


def write_with(rules: Iterable[Rule], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert our tensors to theirs by the same rules."""
    theirs: dict[str, Tensor] = {}
    for r in rules:
        for name, tensor in zip(r.theirs, r.move.write(state[r.ours]), strict=True):
            theirs[name] = tensor.detach().cpu().contiguous()
    return theirs
