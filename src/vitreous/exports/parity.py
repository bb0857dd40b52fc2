"""Does the exported file answer as the model does? Compared image by image, judged by limits, kept beside the files.

N images   K classes
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.evaluation import calibration
from vitreous.evaluation.tie_breaking import TIE_FLOAT32, best_class
from vitreous.exports.graphs import Network
from vitreous.exports.target import Array, OpenedForms
from vitreous.images.pixels import decode, preprocess
from vitreous.models.model import Model

IMAGE_FORMS = frozenset({"image", "page"})  # take an image and give probabilities; others take a tensor and give logits
COMPARED_AT_ONCE = 8  # images
MAX_FILES_NAMED = 8
SAME_FEATURES = 0.999  # cosine
IMAGE_FORM_IMAGES, FIXED_FORM_IMAGES = 200, 10  # at most; both forms hold the same network as the tensor form


@dataclass(frozen=True)
class Tolerance:
    """What passes. difference: of logits; None: not judged.  drop: of accuracy, as a share; None: not judged."""

    agreement: float
    difference: float | None = None
    grey_levels: float = 1.0
    drop: float | None = None


TOLERANCES = {
    "float32": Tolerance(agreement=0.99, difference=1e-4),
    "float16": Tolerance(agreement=0.99),
    "int8": Tolerance(agreement=0.95, drop=0.01),
}


@dataclass(frozen=True)
class FormComparison:
    """One form against PyTorch.

    difference: max |theirs − ours| / max(1, max |ours|), of logits (tensor, fixed) or probabilities (image, page).
    agreement: share of images with the same first answer, which may be "none of these"; of an encoder without a head,
    with the same features: a cosine of at least SAME_FEATURES.
    """

    form: str
    images: int
    difference: float
    agreement: float
    of: str = "answer"  # or features

    @property
    def others(self) -> int:
        """How many images have another first answer."""
        return round((1 - self.agreement) * self.images)

    def __str__(self) -> str:
        same = f"{100 * self.agreement:.1f} % the same {self.of}"
        return f"{self.form:<8}{self.images:>6,} images   max difference {self.difference:.1e}   {same}"


def compare(
    form: str, theirs: Array, ours: Array, is_same: Array | bool = True, *, of: str = "answer"
) -> FormComparison:
    """Compare the outputs of one form with the model's, both N K.  is_same: N, what else must be the same.

    of: answer, or features of an encoder without a head.
    """
    theirs, ours = np.asarray(theirs, np.float64), np.asarray(ours, np.float64)
    scale = max(1.0, float(np.abs(ours).max(initial=0)))
    difference = float(np.abs(theirs - ours).max(initial=0)) / scale
    if of == "features":
        same = _cosine(theirs, ours) >= SAME_FEATURES
    else:
        same = (best_class(theirs, TIE_FLOAT32) == best_class(ours, TIE_FLOAT32)) & is_same
    agreement = float(same.mean()) if len(ours) else math.nan
    return FormComparison(form, len(ours), difference if np.isfinite(theirs).all() else math.inf, agreement, of)


def _cosine(theirs: Array, ours: Array) -> Array:
    """Of each row; 1 if both are zero.  N."""
    sizes = np.linalg.norm(theirs, axis=1) * np.linalg.norm(ours, axis=1)
    return np.where(sizes > 0, (theirs * ours).sum(1) / np.maximum(sizes, 1e-30), np.all(theirs == ours, axis=1))


@dataclass(frozen=True)
class AccuracyChange:
    """How many answers are right, from the model (before) and from the export (after), on the same images.

    caution: why these shares say little about new images; then the change alone is told.
    """

    images: int
    before: int
    after: int
    caution: str = ""

    @property
    def drop(self) -> float:
        """As a share; below 0 when the export is right more often."""
        return (self.before - self.after) / self.images

    @property
    def about_drop(self) -> str:
        """By how much the accuracy falls, for a fault."""
        if self.caution:
            return f"accuracy falls by {100 * self.drop:.1f} points on {self.images:,} images"
        return f"{self}: falls by {100 * self.drop:.1f} points"

    def __str__(self) -> str:
        if self.caution:
            how = "falls" if self.drop > 0 else "rises"
            change = f"{how} by {abs(100 * self.drop):.1f} points" if self.drop else "is unchanged"
            return f"accuracy {change} on {self.images:,} images; {self.caution}"
        before, after = (100 * n / self.images for n in (self.before, self.after))
        return f"accuracy {before:.1f} % -> {after:.1f} % on {self.images:,} images"


@dataclass(frozen=True)
class Parity:
    """What `vitreous.export` found; `passed` is its verdict."""

    target: str
    precision: str
    data: str  # the images compared on, in words
    forms: tuple[FormComparison, ...]
    limits: Tolerance
    grey_levels: float | None = None  # the largest error of a pixel after the graph's preprocessing
    accuracy: AccuracyChange | None = None
    folder: str | None = None  # None: not kept
    files: dict[str, int] = field(default_factory=dict)  # bytes
    notes: tuple[str, ...] = ()  # what else people should know, a line each

    @property
    def passed(self) -> bool:
        return not self.faults

    @property
    def faults(self) -> list[str]:
        """One line for each limit that is not met."""
        return list(self._faults())

    def _faults(self) -> Iterator[str]:
        limits = self.limits
        for form in self.forms:
            bar = limits.difference if form.form not in IMAGE_FORMS else None
            if not math.isfinite(form.difference) or (bar is not None and form.difference > bar):
                yield f"{form.form} form: max difference {form.difference:.1e}, above {bar or 0:.0e}"
            most = max(1, (1 - limits.agreement) * form.images + 1e-9)  # one image may always lie on the edge
            if form.others > most:
                least = 100 * limits.agreement
                yield f"{form.form} form: {100 * form.agreement:.1f} % the same {form.of}, below {least:.0f} %"
        if self.grey_levels is not None and self.grey_levels > limits.grey_levels + 1e-3:
            yield f"preprocessing: a pixel is {self.grey_levels:.2f} grey levels off, above {limits.grey_levels:g}"
        if self.accuracy is not None and limits.drop is not None and self.accuracy.drop > limits.drop + 1e-9:
            yield f"{self.accuracy.about_drop}, above {100 * limits.drop:.0f}"

    def to_json(self) -> dict[str, Any]:
        body = asdict(self)
        return {"passed": self.passed, "faults": self.faults} | body | {"forms": [asdict(form) for form in self.forms]}

    def rows(self) -> Iterator[str]:
        verdict = "agrees with PyTorch" if self.passed else "does not agree with PyTorch"
        yield f"{self.target}, {self.precision}: {verdict}, on {self.data}"
        yield from (f"  {form}" for form in self.forms)
        if self.grey_levels is not None:
            yield f"  pixels are at most {self.grey_levels:.2f} grey levels off"
        if self.accuracy is not None:
            yield f"  {self.accuracy}"
        yield from (f"  {note}" for note in self.notes)
        yield from (f"  fault: {fault}" for fault in self.faults)
        if self.folder is not None:
            size = sum(self.files.values()) / 1e6
            names = ", ".join(self.files) if len(self.files) <= MAX_FILES_NAMED else f"{len(self.files)} files"
            yield f"written to {self.folder}: {names} ({size:.1f} MB)"

    def __str__(self) -> str:
        return "\n".join(self.rows())

    __repr__ = __str__  # at a prompt

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


# Measuring ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """An image, H W C, and the model's index of its class, if it is known."""

    pixels: NDArray[np.uint8]
    label: int | None = None


def compare_files(
    model: Model,
    opened: OpenedForms,
    samples: Iterator[Sample],
    count: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[tuple[FormComparison, ...], float | None, AccuracyChange | None]:
    """Run the files and the model on the same images, once.

    Returns each form's comparison, the largest error of preprocessing in grey levels, and both accuracies.
    """
    files, prepare = opened.forms, opened.prepare
    rule, network = model.preprocess, Network(model)
    of = "answer" if model.config.readout.classes else "features"
    ours: list[Any] = []
    our_scores: list[float] = []
    theirs: dict[str, list[Any]] = {form: [] for form in files}
    scores: dict[str, list[float]] = {form: [] for form in files}
    labels: list[int | None] = []
    grey = None if prepare is None else 0.0
    while part := list(itertools.islice(samples, COMPARED_AT_ONCE)):
        images = [decode.with_channels(sample.pixels, len(rule.mean)) for sample in part]
        x = torch.stack([preprocess.normalise(decode.finish(image, rule), rule) for image in images])  # B C H W
        with torch.inference_mode():
            mine, own_score = _with_score([part.numpy() for part in network.answers(x)], of)
        ours += list(mine)
        our_scores += own_score.tolist()
        answers, score = _with_score(files["tensor"](x.numpy()), of)
        theirs["tensor"] += list(answers)
        scores["tensor"] += score.tolist()
        for i, image in enumerate(images):
            if "fixed" in files and len(theirs["fixed"]) < FIXED_FORM_IMAGES:
                answers, score = _with_score(files["fixed"](x[i : i + 1].numpy()), of)
                theirs["fixed"].append(answers[0])
                scores["fixed"].append(float(score[0]))
            for form in files.keys() & IMAGE_FORMS:
                if len(theirs[form]) < IMAGE_FORM_IMAGES:
                    answers, score = _with_score(files[form](image), of)
                    theirs[form].append(answers)
                    scores[form].append(float(score if of == "answer" else 0))
                    assert prepare is not None
                    grey = max(grey or 0.0, _grey_levels(prepare(image)[0], x[i : i + 1].numpy(), rule.std))
        labels += [sample.label for sample in part]
        if progress is not None:
            progress(len(ours), count)
    if not ours:
        raise DataError("no image can be read, so nothing can be compared; name others with --data")
    logits = np.stack(ours)  # N K
    spread = calibration.sigmoid if model.answers == "several" else calibration.softmax
    shares = spread(logits, model.temperature) if of == "answer" else logits
    wanted = {form: shares if form in IMAGE_FORMS else logits for form in files}
    limit = -math.inf if model.threshold is None else model.threshold
    is_none = {form: np.array(found) < limit for form, found in (scores | {"ours": our_scores}).items()}
    forms = tuple(
        compare(form, np.stack(rows), wanted[form][: len(rows)], is_none[form] == is_none["ours"][: len(rows)], of=of)
        for form, rows in theirs.items()
    )
    return forms, grey, _accuracy(np.stack(theirs["tensor"]), logits, labels)


def _with_score(outputs: list[Array], of: str) -> tuple[Array, Array]:
    """The first output and the score; an encoder without a head has none, and gets zeros."""
    return (outputs[0], outputs[1]) if of == "answer" else (outputs[0], np.zeros(len(outputs[0])))


def _grey_levels(theirs: NDArray[Any], ours: NDArray[Any], std: tuple[float, ...]) -> float:
    """The largest difference of a pixel, before normalisation.  Both: 1 C H W."""
    return float((np.abs(theirs - ours) * np.array(std).reshape(-1, 1, 1) * 255).max())


def _accuracy(theirs: NDArray[Any], ours: NDArray[Any], labels: list[int | None]) -> AccuracyChange | None:
    known = [i for i, label in enumerate(labels) if label is not None]
    if not known:
        return None
    truth = np.array([labels[i] for i in known])
    before, after = (int((best_class(logits[known]) == truth).sum()) for logits in (ours, theirs))
    return AccuracyChange(len(known), before, after)
