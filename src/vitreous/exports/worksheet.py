"""Questions for a class about one model, and the words they use. Each answer follows from the model itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vitreous.models import architecture
from vitreous.models.architecture import ModelPart
from vitreous.models.convolutions import halved
from vitreous.models.layers import HIDDEN_WIDTHS_READ
from vitreous.models.model import Model
from vitreous.models.vit import ViT


@dataclass(frozen=True)
class Question:
    """answer: the result, with the way to it."""

    question: str
    answer: str


def questions(model: Model) -> list[Question]:
    """From the image to the answer, in the order of the lesson."""
    parts = architecture.parts(model.config)
    inside = _of_vit(model, parts) if isinstance(model, ViT) else _of_bit(parts)
    return [_pixels(model), *inside, *_answer(model, parts)]


def words(model: Model) -> dict[str, str]:
    """What each word of the lesson, the drawing and the questions means, for somebody who knows no code."""
    end = "answer" if model.config.readout.classes else "features"
    found = {"parameter": "a number that the model has learned; all its tables are made of them"}
    if isinstance(model, ViT):
        config = model.config
        what, stem = architecture.places(config), config.embedding.stem
        if stem != "patch":
            found["convolution"] = "a small window that moves over the image and sums what it sees, by learned weights"
            found["map"] = "the sums of one convolution, laid out as the image was"
            found["place"] = "one square of the last map; it takes the role of a patch"
            found["ReLU"] = "below zero becomes zero"
        else:
            found["patch"] = "one of the squares that the image is cut into"
        found |= {
            "token": f"the list of {config.encoder.width:,} numbers that stands for one of the {what}",
            "position": "numbers that tell a token where it stands" if config.knows_places else "not in this model",
            "table": "learned numbers that turn one list of numbers into another; a bias is added at the end",
            "attention": "each token takes from all tokens, by shares that sum to 1",
            "head": "one of the attentions that look side by side"
            + ("; the last table of the model is also called head" if config.readout.classes else ""),
            "query, key, value": "what a token asks, what it offers to be found by, and what it then gives",
            "softmax": "turns scores into shares that sum to 1",
            "MLP": "two tables one after the other, for each token by itself",
            "norm": "brings the numbers of a token to a common scale"
            + (", or between convolutions those of whole maps" if stem != "patch" else ""),
            "skip": "what came into a part is added to what leaves it, so nothing is lost",
            "block, layer": "two words for one thing: attention and then an MLP, each with norm and skip",
            "rollout": f"the shares of all layers followed from the {end} back to the image",
        }
        found[config.encoder.activation] = f"between the two tables of an MLP: {_bend(config.encoder.activation)}"
        if config.embedding.class_token:
            found["class token"] = f"a token that is no part of the image and collects the {end}"
    else:
        found |= {
            "convolution": "a small window that moves over the image and sums what it sees, by learned weights",
            "map": "the sums of one convolution, laid out as the image was",
            "place": "one square of a map",
            "stage": "some convolutions one after the other, at one size of map",
            "norm": "brings the numbers of a map to a common scale",
            "ReLU": "below zero becomes zero",
        }
        if model.config.readout.classes:
            found["head"] = "the last table: it turns what is left into a score for each class"
    if not model.config.readout.classes:
        found["features"] = "the list of numbers that the model gives of an image; those of like images are alike"
    return found | {"pool": "makes one list of numbers of all of them"}


def _bend(activation: str) -> str:
    if activation == "swiglu":
        return "one half of the numbers times the other half, of which what is below zero becomes almost zero"
    return "below zero becomes zero" if activation == "relu" else "below zero becomes almost zero"


def _pixels(model: Model) -> Question:
    (h, w), channels = model.config.image_size, model.config.channels
    each = "1 number" if channels == 1 else f"{channels} numbers"
    return Question(
        f"The model takes an image of {h} × {w} pixels, and each pixel is {each}. How many numbers does it get?",
        f"{_times(h, w, *([] if channels == 1 else [channels]))}",
    )


def _of_vit(model: ViT, parts: list[ModelPart]) -> Iterator[Question]:
    config, encoder = model.config, model.config.encoder
    what, one, width = architecture.places(config), architecture.place(config), encoder.width
    (rows, columns), front = model.grid, architecture.front_tokens(config.embedding)
    end = "answer" if config.readout.classes else "features"
    yield from _cut(model, parts)
    in_front = f" and puts {architecture.listed(front)} in front" if front else ""
    tokens = rows * columns + len(front)
    yield Question(
        f"Every {one} becomes a token. The model has {rows} × {columns} {what}{in_front}. How many tokens are there?",
        f"{_times(rows, columns)}" + (f", and {rows * columns:,} + {len(front)} = {tokens:,}" if front else ""),
    )
    table, numbers = model.embedding.projection, model.embedding.projection.in_features
    bias = table.bias is not None
    yield Question(
        f"One table turns the {numbers:,} numbers of a {one} into the {width:,} numbers of a token"
        f"{', and adds one learned number (the bias) to each' if bias else ''}. How many numbers has the model "
        "learned for it?",
        _sum([(numbers, width)], [width] if bias else []),
    )
    if config.readout.pool in architecture.POOL_SENTENCES:  # none of these reads an order
        yield Question(
            f"Somebody shuffles the {what} before they become tokens. Can the model notice? Why?",
            f"No. It has no positions, so the tokens are a bag: the same ones in another order give the same {end}."
            if not config.knows_places
            else "Yes, it can: its positions tell each token where it stands. Without them it would see a bag of "
            "tokens. How much it does, its training decides. Try it on the first page of `vitreous serve`: shuffle "
            "them, then take the positions away too. Now no order changes the answer.",
        )
    each = width // encoder.heads
    yield Question(
        f"In each block {encoder.heads} attention head{'s' * (encoder.heads > 1)} share the {width:,} numbers of a "
        "token evenly. How many numbers does one head work with?",
        f"{width:,} ÷ {encoder.heads} = {each:,}",
    )
    shares = tokens * tokens
    yield Question(
        f"In a head every token gives every token a share of its look. How many shares is that in one head? And in "
        f"all heads of all {encoder.depth} blocks?",
        f"{_times(tokens, tokens)}; {_times(shares, encoder.heads, encoder.depth)}",
    )
    yield Question(
        "If a token looked at all tokens alike, how large would each share be?",
        f"1 ÷ {tokens:,} = {_share(1 / tokens)}",
    )
    wide = encoder.mlp * HIDDEN_WIDTHS_READ.get(encoder.activation, 1)
    back = "these" if wide == encoder.mlp else f"{encoder.mlp:,} numbers made of them"
    yield Question(
        f"The MLP of a block turns the {width:,} numbers of a token into {wide:,} by one table, and {back} back into "
        f"{width:,} by another.{' Each table adds a bias.' * encoder.branch_bias} How many numbers has one block "
        "learned for them?",
        _sum([(width, wide), (encoder.mlp, width)], [wide, width] if encoder.branch_bias else []),
    )
    pooled = next(part for part in parts if part.name == "pool")
    yield Question(
        f"The lesson says from what the model reads its {end} after the last block. From what?", f"From {pooled.about}."
    )


def _cut(model: ViT, parts: list[ModelPart]) -> Iterator[Question]:
    """How the image becomes patches, or a map of places."""
    config, patch, (rows, columns) = model.config, model.embedding.patch, model.grid
    (h, w), maps = config.image_size, [part for part in parts if len(part.shape) == 3]
    if not maps:
        yield Question(
            f"It cuts the image into patches of {patch[0]} × {patch[1]} pixels. How many patches lie below each "
            "other, and how many beside each other?",
            f"{h} ÷ {patch[0]} = {rows}; {w} ÷ {patch[1]} = {columns}",
        )
        return
    sizes = " → ".join(f"{a} × {b}" for a, b in [(h, w), *(part.shape[1:] for part in maps)])
    if config.embedding.stem == "convolutions":
        yield Question(
            f"{len(maps)} convolution{'s' * (len(maps) > 1)} come first. The window of each moves two pixels at a "
            "time, so rows and columns are halved and rounded up. How large is the map after each of them?",
            sizes,
        )
    else:
        left, halvings = h, 0
        while left > maps[-1].shape[1]:
            left, halvings = halved(left), halvings + 1
        yield Question(
            f"A ResNet comes first. It halves the rows again and again, until {left} of {h} are left. How often?",
            f"{halvings} times ({sizes})",
        )


def _of_bit(parts: list[ModelPart]) -> Iterator[Question]:
    maps = [part for part in parts if part.kind == "convolution"]
    for part in maps:
        channels, rows, columns = part.shape
        yield Question(
            f"After {'the root' if part.name == 'root' else part.name} there are {channels:,} maps of {rows} × "
            f"{columns} places. How many numbers is that?",
            _times(channels, rows, columns),
        )
    channels, rows, columns = maps[-1].shape
    yield Question(
        f"The mean over all places is taken of each of the {channels:,} maps. How many numbers are left, and the mean "
        "of how many is each?",
        f"{channels:,} numbers; each is the mean of {_times(rows, columns)}",
    )
    largest = max(maps, key=lambda part: part.parameters)
    yield Question("Which of its stages has learned most numbers?", f"{largest.name}: {largest.parameters:,}")


def _answer(model: Model, parts: list[ModelPart]) -> Iterator[Question]:
    total, classes = sum(part.parameters for part in parts), model.config.readout.classes
    if classes and model.answers == "one":
        yield Question(
            f"The model tells {classes:,} classes apart. If it knew nothing, what share would it give each class?",
            f"1 ÷ {classes:,} = {_share(1 / classes)}",
        )
    if not classes:
        count = parts[-1].shape[-1]
        yield Question(
            f"The model has no head: it names nothing and gives each image {count:,} numbers, its features. Each takes "
            "4 bytes. How many bytes are the features of 1,000 images?",
            _times(count, 4, 1000),
        )
    largest = max(parts, key=lambda part: part.parameters)
    name = f"the {largest.copies} blocks" if largest.legs and largest.copies > 1 else largest.name
    yield Question(
        f"The model has learned {total:,} numbers, and {largest.parameters:,} of them in {name}. What share is that?",
        f"{largest.parameters:,} ÷ {total:,} = {_share(largest.parameters / total)}",
    )


def _share(share: float) -> str:
    """6.25 %"""
    return f"{100 * share:.3g} %"


def _times(*factors: int) -> str:
    """4 × 4 = 16"""
    product = 1
    for factor in factors:
        product *= factor
    return f"{' × '.join(f'{factor:,}' for factor in factors)} = {product:,}"


def _sum(tables: list[tuple[int, int]], biases: list[int]) -> str:
    """64 × 128 + 128 = 8,320"""
    terms = [f"{a:,} × {b:,}" for a, b in tables] + [f"{bias:,}" for bias in biases]
    return f"{' + '.join(terms)} = {sum(a * b for a, b in tables) + sum(biases):,}"
