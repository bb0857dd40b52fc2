"""From facts to findings: each rule once, with its numbers, in the words of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitreous.errors import DataError
from vitreous.images.health import facts as f
from vitreous.images.health.duplicates import MIN_CORRELATION, MIN_CORRELATION_SMALL, SMALL_IMAGE_SIDE, NearPair, Twins
from vitreous.images.health.facts import Facts, Seen
from vitreous.images.health.findings import FINDING_KINDS, Case, Finding
from vitreous.images.health.label_noise import likely_errors
from vitreous.images.imageset import TEST, TRAIN, ImageSet
from vitreous.images.sources.image_file import PIXEL_LIMIT, SCAN_LIMIT

MIN_IMAGES_PER_CLASS = 3  # one each for train, dev and test
UNEVEN_RATIO = 10  # largest class to this one
TINY_SIDE, ALWAYS_TINY_SIDE, TINY_SHARE = 32, 8, 0.5  # short side: in pixels, in pixels, as a share of the set's median
LONG_RATIO = 4.0  # long side to short side

FORMAT_SUFFIXES = {  # suffixes of each format; an unknown suffix is never wrong
    "JPEG": {"jpg", "jpeg", "jpe", "jfif", "jif"},
    "PNG": {"png", "apng"},
    "GIF": {"gif"},
    "WEBP": {"webp"},
    "BMP": {"bmp", "dib"},
    "TIFF": {"tif", "tiff"},
    "AVIF": {"avif", "avifs"},
    "HEIF": {"heic", "heif", "hif"},
    "PPM": {"ppm", "pgm", "pbm", "pnm"},
    "JPEG2000": {"jp2", "j2k", "jpx", "jpf"},
}
SAME_FORMAT = {"MPO": "JPEG", "DIB": "BMP"}  # Pillow's other names
TRAIT_KINDS = {"blank": f.BLANK, "cmyk": f.CMYK, "sixteen-bit": f.SIXTEEN_BIT}
TRAIT_KINDS |= {"transparent": f.ALPHA, "palette": f.PALETTE, "animated": f.ANIMATED}
TURN_WORDS = {2: "mirrored", 3: "upside down", 4: "mirrored, upside down", 5: "mirrored, on its side", 6: "on its side"}
TURN_WORDS |= {7: "mirrored, on its side", 8: "on its side"}


def rules(near: int, *, with_labels: bool) -> dict[str, str]:
    """The rule behind each kind, as text.  with_labels: whether labels are judged."""
    found = {
        "exact-duplicate": "the same upright RGB pixels, or the same bytes",
        "near-duplicate": (
            f"pHashes at most {near} of 64 bits apart; then, on 32 × 32 grey cells, 16 × 16 means that correlate at "
            f"{MIN_CORRELATION[0]} and detail at {MIN_CORRELATION[1]} or more "
            f"({MIN_CORRELATION_SMALL[0]} and {MIN_CORRELATION_SMALL[1]} below {SMALL_IMAGE_SIDE} pixels); "
            "flat images are not compared"
        ),
        "leak": "exact or near duplicates, one in train and one in test",
        "label-conflict": "exact or near duplicates under different labels",
        "label-error": (
            "confident learning (Northcutt et al., arXiv 1911.00068): another class reaches its own threshold, the "
            "mean probability of that class over the images that carry it, and is the likeliest of those that do; "
            "the class suggested is the likeliest of all, and not the one given. Listed are those more likely wrong "
            "than right, for shares of wrong labels and temperatures weighted by how well they explain all labels; "
            "none, if the model is less than half way from chance to certain"
        ),
        "blank": (
            f"the brightness of 16 × 16 cells has a standard deviation below {f.FLAT_SPREAD:g} of 255, "
            f"and the pixels of every channel one below {f.ONE_COLOUR_DEVIATION:g}"
        ),
        "imbalance": f"the largest class has {UNEVEN_RATIO} times the images of this one, or more",
        "small-class": f"fewer than {MIN_IMAGES_PER_CLASS} images, or none in train or in test where there are both",
        "tiny": f"short side below {TINY_SIDE} pixels and half the set's median, or below {ALWAYS_TINY_SIDE} pixels",
        "extreme-aspect": f"long side more than {LONG_RATIO:g} times the short side",
        "too-large": f"more than {PIXEL_LIMIT // 10**6} million pixels, or {SCAN_LIMIT} scans of a JPEG",
    }
    return found if with_labels else {kind: rule for kind, rule in found.items() if kind != "label-error"}


def judge(
    whole: ImageSet, data: ImageSet, seen: Seen, twins: Twins, probabilities: NDArray[np.float64] | None
) -> tuple[Finding, ...]:
    """All findings, in the order of FINDING_KINDS. whole: the set; data: the images of it that were read."""
    found = [*_problems(data, seen), *_relations(data, twins), *_labels(whole), *_single_images(data, seen.facts)]
    if probabilities is not None:
        found.append(_label_errors(data, probabilities))
    order = list(FINDING_KINDS)
    return tuple(sorted((x for x in found if x.cases), key=lambda x: (x.severity != "fault", order.index(x.kind))))


def check_probabilities(data: ImageSet, probabilities: ArrayLike) -> NDArray[np.float64]:
    """Out-of-fold probabilities as an array; refuses those that do not fit the set."""
    p = np.asarray(probabilities, np.float64)
    wanted = (len(data), len(data.classes))
    if data.has_many_labels:
        raise DataError(f"{data.path} gives several labels to an image; label errors are found for one label alone")
    if p.shape != wanted:
        raise DataError(f"probabilities are {p.shape}; {data.path} needs {wanted}: a row an image, a column a class")
    if not np.isfinite(p).all() or (p < 0).any() or not np.allclose(p.sum(1), 1, atol=1e-3):
        raise DataError("probabilities must lie between 0 and 1 and each row must sum to 1; give the model's softmax")
    return p


def _problems(data: ImageSet, seen: Seen) -> Iterator[Finding]:
    kinds = {f.TRUNCATED: "truncated", f.NO_HEIC: "heic", f.BOMB: "too-large"}
    cases: dict[str, list[Case]] = {}
    for place in np.flatnonzero(seen.facts["problem"] != f.READABLE).tolist():
        kind = kinds.get(int(seen.facts["problem"][place]), "unreadable")
        cases.setdefault(kind, []).append(_case(data, [place], seen.words.get(place, "")))
    for kind, those in cases.items():
        yield Finding(kind, tuple(those))


def _relations(data: ImageSet, twins: Twins) -> Iterator[Finding]:
    copies = sum(len(group) - 1 for group in twins.exact)
    yield Finding(
        "exact-duplicate",
        tuple(_case(data, group, "" if len(group) == 2 else f"{len(group)} copies") for group in twins.exact),
        f"{copies:,} superfluous {'image' if copies == 1 else 'images'}" if copies > len(twins.exact) else "",
    )
    yield Finding("near-duplicate", tuple(_case(data, [n.i, n.j], _distance(n)) for n in twins.near))
    leaks, tested = [], set()
    conflicts = []
    for one, other, near in twins.pairs():
        note = _distance(near) if near else "exact"
        if pair := _first_pair(one, other, lambda i, j: data.splits[i] != data.splits[j]):
            leaks.append(_case(data, sorted(pair, key=lambda i: data.splits[i] != TRAIN), note))
            tested |= {i for i in {*one, *other} if data.splits[i] == TEST}
        if pair := _first_pair(one, other, lambda i, j: _differ(data, i, j)):
            labels = " / ".join(_label(data, i) for i in pair)
            conflicts.append(_case(data, pair, f"{labels}; {note}"))
    test = int((data.splits == TEST).sum())
    share = f"{len(tested):,} of {test:,} test images ({len(tested) / max(test, 1):.1%}) have a twin in train"
    yield Finding("leak", tuple(leaks), share)
    yield Finding("label-conflict", tuple(conflicts))


def _labels(whole: ImageSet) -> Iterator[Finding]:
    counts, names = whole.counts, whole.classes
    if not whole.has_many_labels:
        outside = np.flatnonzero((whole.labels >= len(names)) | (whole.labels < -1)).tolist()
        yield Finding("wrong-label", tuple(_case(whole, [i], f"label {whole.labels[i]}") for i in outside))
        counts = counts[: len(names)]
        none = np.flatnonzero(whole.labels == -1).tolist()
    else:
        none = np.flatnonzero((whole.labels < 0).any(1)).tolist()
    yield Finding("unlabelled", tuple(_case(whole, [i]) for i in none))
    if len(names) == 1:
        yield Finding("one-class", (Case((), (), f"class {names[0]}"),))
    present = {s: whole.split(s).counts for s in (TRAIN, TEST) if (whole.splits == s).any()}
    small: list[Case] = []
    for k, name in enumerate(names):
        missing = [s for s, of in present.items() if len(present) == 2 and of[k] == 0]
        if counts[k] < MIN_IMAGES_PER_CLASS or missing:
            lack = f", none in {' or '.join(missing)}" if missing and counts[k] else ""
            small.append(Case((), (), f"class {name}: {counts[k]} image{'' if counts[k] == 1 else 's'}{lack}"))
    yield Finding("small-class", tuple(small))
    largest = int(counts.max(initial=0))
    rare = [
        k for k in np.argsort(counts, kind="stable").tolist() if counts[k] > 0 and largest >= UNEVEN_RATIO * counts[k]
    ]
    if rare:
        most = names[int(counts.argmax())]
        cases = tuple(Case((), (), f"class {names[k]}: {counts[k]:,}") for k in rare)
        yield Finding("imbalance", cases, f"the largest, {most}, has {largest:,} images")


def _single_images(data: ImageSet, facts: Facts) -> Iterator[Finding]:
    fine = facts["problem"] == f.READABLE
    width, height = facts["width"].astype(np.int64), facts["height"].astype(np.int64)
    short, long = np.minimum(width, height), np.maximum(width, height)
    median = float(np.median(short[fine])) if fine.any() else 0.0

    def size(i: int) -> str:
        return f"{width[i]:,} × {height[i]:,} pixels"

    def all_of(kind: str, which: NDArray[np.bool_], note: Callable[[int], str] = lambda i: "") -> Finding:
        return Finding(kind, tuple(_case(data, [i], note(i)) for i in np.flatnonzero(which & fine).tolist()))

    traits = facts["traits"]
    for kind, trait in TRAIT_KINDS.items():
        yield all_of(kind, (traits & trait) > 0)
    yield all_of("tiny", (short < ALWAYS_TINY_SIDE) | ((short < TINY_SIDE) & (short < TINY_SHARE * median)), size)
    yield all_of("extreme-aspect", (long > LONG_RATIO * short) & (short > 0), size)
    yield all_of("rotated", facts["orientation"] > 1, lambda i: TURN_WORDS[int(facts["orientation"][i])])
    wrong = []
    for i in np.flatnonzero(fine & (facts["file"].any(1))).tolist():
        format = facts["format"][i].decode()
        format = SAME_FORMAT.get(format, format)
        ending = PurePosixPath(data.name(i)).suffix[1:].lower()
        promised = next((name for name, endings in FORMAT_SUFFIXES.items() if ending in endings), None)
        if promised and promised != format:
            wrong.append(_case(data, [i], f"{format}, not {promised}"))
    yield Finding("wrong-extension", tuple(wrong))


def _label_errors(data: ImageSet, probabilities: NDArray[np.float64]) -> Finding:
    labelled = np.flatnonzero((data.labels >= 0) & (data.labels < len(data.classes)))
    places, suspected = likely_errors(data.labels[labelled], probabilities[labelled])
    cases = []
    for k, j in zip(labelled[places].tolist(), suspected.tolist(), strict=True):
        given, p = int(data.labels[k]), probabilities[k]
        note = f"{data.classes[given]} ({p[given]:.0%}), perhaps {data.classes[j]} ({p[j]:.0%})"
        cases.append(_case(data, [k], note))
    return Finding("label-error", tuple(cases))


def _case(data: ImageSet, places: Sequence[int], note: str = "") -> Case:
    return Case(tuple(places), tuple(data.name(i) for i in places), note)


def _distance(near: NearPair) -> str:
    return f"{near.bits} {'bit' if near.bits == 1 else 'bits'} apart, correlation {near.correlation:.3f}"


def _first_pair(one: Iterable[int], other: Sequence[int], is_so: Callable[[int, int], bool]) -> tuple[int, int] | None:
    return next(((i, j) for i in one for j in other if i != j and is_so(i, j)), None)


def _differ(data: ImageSet, i: int, j: int) -> bool:
    a, b = data.labels[i], data.labels[j]
    return bool(np.all(a >= 0) and np.all(b >= 0) and np.any(a != b))


def _label(data: ImageSet, i: int) -> str:
    if data.has_many_labels:
        return " + ".join(data.classes[k] for k in np.flatnonzero(data.labels[i] > 0)) or "none"
    k = int(data.labels[i])
    return data.classes[k] if k < len(data.classes) else f"label {k}"
