"""CARD.md: what an exported folder holds, for the engineer who receives it."""

from __future__ import annotations

import html
from typing import Any

from vitreous.exports.parity import Parity
from vitreous.exports.target import Target
from vitreous.models.model import Model
from vitreous.models.pooling import find_pool
from vitreous.models.preprocess import Preprocess

OPEN_A_PAGE = [
    "```",
    "python -m http.server 8000    # in this folder; then open http://127.0.0.1:8000/",
    "```",
    "",
    "Or upload the whole folder to any static host. It needs `https` there (or 127.0.0.1) for the camera and to work "
    "offline, and `.js` files sent as `text/javascript`. Nothing is asked of any other host, and no photo leaves the "
    "visitor's machine. `runtime/` is onnxruntime-web, by Microsoft, under the MIT licence.",
]


def card(
    model: Model, target: Target, parity: Parity, about: dict[str, Any], details: dict[str, dict[str, Any]]
) -> str:
    """The text of CARD.md.

    about: the content of export.json.  details: for each form, what `target.describe` says about its file.
    """
    lines = [*_head(target, parity, about), *_terms(about["terms"]), *_forms(model, about, details)]
    lines += [*_preprocessing(model.preprocess), *_meaning(model)]
    lines += ["## Parity with PyTorch", "", "```", *parity.rows(), "```", "", *_operators(details)]
    return "\n".join(lines)


def terms_of(model: Model) -> str:
    """The terms of the images that the weights learned from, in one line; empty if unknown."""
    return " ".join(str(model.source.get("terms") or "").split())


def _head(target: Target, parity: Parity, about: dict[str, Any]) -> list[str]:
    lines = [
        f"# {about['network']}, for {parity.target}",
        "",
        f"{_answers(about)}, {parity.precision}. Written by vitreous {about['vitreous']}.",
        "",
    ]
    if target.runner is not None:
        lines += ["```", f"pip install numpy pillow {target.runner.package.name}", "python run.py photo.jpg", "```", ""]
    if target.is_page:
        lines += [*OPEN_A_PAGE, ""]
    if not parity.passed:
        lines += ["**It does not agree with PyTorch within the limits; it was kept with --anyway.**", ""]
    return lines


def _answers(about: dict[str, Any]) -> str:
    return f"{about['classes']:,} classes" if about["classes"] else f"{about['features']:,} features, no head"


def _terms(terms: str) -> list[str]:
    safe = html.escape(terms, quote=False)  # the author of the weights wrote it
    return ["## Terms of what the weights have learned from", "", safe, ""] if terms else []


def _forms(model: Model, about: dict[str, Any], details: dict[str, dict[str, Any]]) -> list[str]:
    (rows, columns), channels = model.preprocess.size, len(model.preprocess.mean)
    of_pool = ", pool_weights B H 1 P" if about["attention"] and find_pool(model)[1] else ""
    weights = f", attention_weights B L H N N{of_pool}" if about["attention"] else ""
    seen = ", attention_map rows columns" if about["attention"] else ""
    size = f"{channels} {rows} {columns}"
    of_image, of_tensor, of_fixed = "probabilities K, score", "logits B K, score B", "logits 1 K, score 1"
    if not about["classes"]:
        of_image, of_tensor, of_fixed = "features D", "features B D", "features 1 D"
    forms = {
        "image": (f"image: uint8, height width {channels}, any size", of_image + seen),
        "tensor": (f"images: float32, B {size}", of_tensor + weights),
        "fixed": (f"images: float32, 1 {size}, no dynamic axis", of_fixed + weights),
        "page": ("a photo: dropped, pasted, chosen or by the camera", "the answer in words, and where it came from"),
    }
    lines = ["## Files", "", "| file | MB | input | outputs |", "|---|---|---|---|"]
    for form, (given, got) in ((form, forms[form]) for form in about["files"]):
        lines.append(f"| {about['files'][form]} | {details[form]['bytes'] / 1e6:.2f} | {given} | {got} |")
    beside = "`labels.txt`: line k is class k. " if about["classes"] else ""
    beside += "`vectors/`: ten images with their tensors and the outputs to expect. "
    return [*lines, "", beside + "`parity.json`: how this export was compared.", ""]


def _preprocessing(rule: Preprocess) -> list[str]:
    title = "## Preprocessing (inside the image form and the page; the other forms need it done before)"
    return [title, "", *(f"{i}. {step}" for i, step in enumerate(steps(rule), 1)), ""]


def steps(rule: Preprocess) -> list[str]:
    """The rule in at most ten lines, exact enough to reimplement."""
    (rows, columns), grey = rule.size, len(rule.mean) == 1
    colours = "grey: 0.299 R + 0.587 G + 0.114 B" if grey else "RGB"
    first = f"Decode to 8 bits a channel, turn as EXIF says, lay transparency on white, make it {colours}."
    before = rule.size
    if rule.fit != "squash" and rule.short_side is not None:
        before = rule.short_side * rows // min(rule.size), rule.short_side * columns // min(rule.size)
    if rule.fit == "crop":
        least = f"the short side is {rule.short_side}"
        least = least if rows == columns else f"it just covers {before[0]} rows and {before[1]} columns"
        size = f"so that {least}; the other side in proportion, rounded down"
    else:
        size = f"to {before[0]} rows and {before[1]} columns, whatever its shape"
    if not rule.antialias:
        how = "sampled at half-pixel centres without antialias, the border's pixel beyond the border"
    elif rule.resized_by == "pillow":
        how = "as Pillow does: antialiased, columns then rows, rounded to bytes after each (rows first if they lose "
        how += "more than twice as many pixels as the columns)"
    else:
        how = "antialiased in floating point"
    found = [first, f"Resize {size}: {rule.interpolation}, {how}.", "Round to whole numbers of 0 … 255."]
    if rule.fit != "squash":
        edge = "to the nearest even number" if rule.centre == "round" else "down"
        found.append(f"Cut the centre out, {rows} rows by {columns} columns; a half pixel is rounded {edge}.")
        found.append("If the resized image is smaller, frame it in black.")
    mean, std = ([round(value, 6) for value in values] for values in (rule.mean, rule.std))
    return [
        *found,
        f"x / 255, then (x − mean) / std, mean {mean}, std {std}.",
        "Order the axes as channel, row, column.",
    ]


def _meaning(model: Model) -> list[str]:
    if not model.config.readout.classes:
        what = "The features are what the encoder makes of an image: compare two images by the cosine of theirs."
        return ["## What the numbers mean", "", what, ""]
    spread = "1 / (1 + exp(−z / T)) for every class" if model.answers == "several" else "softmax(z / T)"
    lines = [
        "## What the numbers mean",
        "",
        f"Probabilities are {spread} of the logits z with the temperature T = {model.temperature:.6g}, fitted so that "
        "about 80 % of the answers given with 80 % are right (T = 1: not fitted).",
        "",
        "The score is the largest logit, before the temperature."
        if model.familiarity is None
        else "The score says how much an image resembles what the model learned: the cosine of its features to the "
        "nearest mean of a class; −1 for a blank image.",
    ]
    if model.threshold is not None:
        lines.append(f"An image with a score below {model.threshold:.6g} is none of these classes.")
    else:
        lines.append("This model has no threshold: it cannot say that an image is none of these classes.")
    if model.track_record is not None:
        lines.append(_sentence(model.track_record.about_right))
        lines += [_sentence(model.track_record.about_unsure)] if model.track_record.about_unsure else []
    if model.answers == "several":
        lines.append("An image may have several labels: those with a probability of at least 1/2.")
    return [*lines, ""]


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _operators(details: dict[str, dict[str, Any]]) -> list[str]:
    lines = ["## Operators", ""]
    for form, found in ((form, found) for form, found in details.items() if found["operators"]):
        versions = ", ".join(
            f"{key} {_plain(value)}" for key, value in found.items() if key not in ("operators", "bytes")
        )
        names = ", ".join(f"{name} {count}" for name, count in found["operators"].items())
        lines += [f"**{form}** ({versions}): {names}", ""]
    return lines


def _plain(value: Any) -> str:
    return " ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
