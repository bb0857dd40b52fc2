"""The measured tables of docs/evidence/inductive-bias.md, made anew: every cell is an answer of a check."""

from collections.abc import Callable

import torch
from torch import Tensor

from . import causes, digits, places
from .layers import MessageLayer, convolution, fully_connected, recurrent, some_graph, tiny_vit
from .measuring import (
    GRID,
    PLACES,
    WIDTH,
    Layer,
    any_order,
    apart,
    delay,
    holds,
    influence,
    noise,
    randomise,
    shift,
    window,
)

ORDER = any_order(PLACES)


def markdown(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows])


def verdict(gap: float) -> str:
    return "holds" if holds(gap) else f"fails ({gap:.2f})"


def relation(heard: Tensor, edges: Tensor) -> str:
    """What the pattern of who hears whom is called, and how many places one output hears."""
    joined = torch.eye(PLACES, dtype=torch.bool)
    joined[edges[1], edges[0]] = True
    every = torch.ones(PLACES, PLACES, dtype=torch.bool)
    patterns = {
        "all-to-all": every,
        "itself alone": torch.eye(PLACES, dtype=torch.bool),
        "local: a 3 × 3 window": window(3),
        "sequential: itself and what came before": every.tril(),
        "the edges of the graph": joined,
    }
    names = [name for name, pattern in patterns.items() if torch.equal(heard, pattern)]
    assert len(names) == 1, "a pattern without a name"
    few, many = int(heard.sum(1).min()), int(heard.sum(1).max())
    return f"{names[0]} ({few if few == many else f'{few} to {many}'} of {PLACES})"


def symmetries(layer: Layer, x: Tensor, renumber: Callable[[Tensor], Layer] | None = None) -> dict[str, float]:
    """How far f(Tx) is from T f(x) for each kind of movement. A graph's edges are renumbered with its nodes."""
    across = torch.arange(PLACES).unflatten(0, GRID).roll((1, 2), (0, 1)).flatten()
    renumber = renumber or (lambda order: layer)
    return {
        "any order": apart(renumber(ORDER)(x[ORDER]), layer(x)[ORDER]),
        "shift on the grid": apart(renumber(across)(shift(x, 1, 2)), shift(layer(x), 1, 2)),
        "delay in time": apart(layer(delay(x, 1)), delay(layer(x), 1)),
    }


def assumptions() -> dict[str, tuple[str, str, dict[str, str]]]:
    """Layer to (entities, relations, symmetry to verdict): the five rows of row M65."""
    x, (edges, about) = noise(PLACES, WIDTH), some_graph()
    messages, vit = randomise(MessageLayer()), tiny_vit()
    block, tokens = vit.blocks[0], noise(PLACES, 8)
    place = vit.embedding.positions.table[1:].detach()

    def graph(x: Tensor) -> Tensor:
        return messages(x, edges, about)

    def renumbered(order: Tensor) -> Layer:
        return lambda x: messages(x, order.argsort()[edges], about)

    def attention(x: Tensor) -> Tensor:
        return block.attention(x[None])[0]

    plain = {
        "fully connected": ("units", fully_connected()),
        "convolutional": ("grid elements", convolution()),
        "recurrent": ("timesteps", recurrent()),
        "graph": ("nodes", graph),
    }
    rows = {}
    for name, (entities, layer) in plain.items():
        gaps = symmetries(layer, x, renumbered if name == "graph" else None)
        rows[name] = entities, relation(influence(layer, x), edges), {k: verdict(v) for k, v in gaps.items()}
    without = symmetries(lambda x: block(x[None])[0], tokens)
    with_positions = symmetries(lambda x: block((x + place)[None])[0], tokens)
    by_attention, by_mlp = (relation(influence(f, tokens), edges) for f in (attention, block.mlp))
    rows["ViT"] = (
        "patches",
        f"attention {by_attention}; MLP {by_mlp}",
        {k: f"{verdict(without[k])} without positions, {verdict(with_positions[k])} with them" for k in without},
    )
    return rows


def assumptions_table() -> str:
    rows = assumptions()
    moves = list(rows["ViT"][2])
    head = ["layer", "entities", "one output listens to", *(f"f(Tx) = T f(x), T = {move}" for move in moves)]
    return markdown(head, [[f"**{name}**", a, b, *(c[m] for m in moves)] for name, (a, b, c) in rows.items()])


def properties_table() -> str:
    every = causes.SIDE**2
    head = [
        "layer",
        "equivariant: f(Tx) = T f(x)",
        "invariant: f(Tx) = f(x)",
        "values a shift by 1 pixel leaves as they are",
    ]
    rows = [
        [
            name,
            "one place, nothing to move" if p.equivariant is None else f"{p.equivariant} of {every} shifts",
            f"{p.invariant} of {every} shifts",
            f"{p.unchanged:.0%}",
        ]
        for name, p in causes.properties().items()
    ]
    return markdown(head, rows)


def causes_table() -> str:
    words = {
        (True, True): "shared weights, pooled",
        (True, False): "shared weights, not pooled",
        (False, True): "untied weights, pooled",
        (False, False): "untied weights, not pooled",
    }
    accuracy = causes.class_by_cause()
    head = ["features", "class right, at places learned", "class right, at places never seen"]
    return markdown(head, [[words[case], f"{seen:.0%}", f"{unseen:.0%}"] for case, (seen, unseen) in accuracy.items()])


def digits_table() -> str:
    names = "MLP on the flat image", "MLP on every patch, mean"
    head = ["shift in pixels", "weights", *map(str, digits.SHIFTS)]
    rows = [
        [name, f"{sum(p.numel() for p in model.parameters()):,}".replace(",", " "), *(f"{a:.0%}" for a in accuracy)]
        for name, model in zip(names, digits.models(), strict=True)
        for accuracy in [digits.accuracy_by_shift(model)]
    ]
    return markdown(head, rows)


def places_table() -> str:
    lines = {places.line_of(place) for place in places.found()}
    listed = {role: sorted(line for line in lines if places.KNOWN.get(line) == role) for role in places.KNOWN.values()}
    rows = [[role, ", ".join(f"`{line}`" for line in found)] for role, found in listed.items()]
    return markdown(["what it does", "where"], rows)


SECTIONS = {
    "assumptions": assumptions_table,
    "properties": properties_table,
    "causes": causes_table,
    "digits": digits_table,
    "places": places_table,
}
