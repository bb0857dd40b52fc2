"""The result of a check, as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vitreous.printable import printable_line

if TYPE_CHECKING:
    from vitreous.images.imageset import ImageSet

FAULT, NOTICE = "fault", "notice"
TERMINAL_COLUMNS = 80  # every terminal has them


@dataclass(frozen=True)
class FindingKind:
    """One kind of finding. one, many: the sentence after the number of cases; do: the remedy."""

    severity: str
    title: str
    one: str
    many: str
    do: str


FINDING_KINDS = {
    "unreadable": FindingKind(
        FAULT, "Unreadable files", "file cannot be read", "files cannot be read", "Replace or delete them."
    ),
    "truncated": FindingKind(
        FAULT, "Files cut short", "file is cut short", "files are cut short", "Copy or download them again."
    ),
    "heic": FindingKind(
        FAULT,
        "HEIC images",
        "file is HEIC, which is not read here",
        "files are HEIC, which is not read here",
        "Install the reader: pip install 'vitreous[heic]'; or turn them into JPEG.",
    ),
    "too-large": FindingKind(
        FAULT,
        "Decompression bombs",
        "file costs more to decode than is safe",
        "files cost more to decode than is safe",
        "Make them smaller, or delete them if you do not know where they come from.",
    ),
    "leak": FindingKind(
        FAULT,
        "Leaks between splits",
        "image lies in train and in test",
        "images lie in train and in test",
        "Delete one side: the model has seen these answers, so test accuracy comes out too high.",
    ),
    "label-conflict": FindingKind(
        FAULT,
        "Same image, different labels",
        "image carries different labels",
        "images carry different labels",
        "Decide which label is right and delete the other copy.",
    ),
    "wrong-label": FindingKind(
        FAULT,
        "Labels outside the classes",
        "image has a label outside the classes",
        "images have a label outside the classes",
        "Mend the labels, or name the classes that are missing.",
    ),
    "one-class": FindingKind(
        FAULT, "Nothing to tell apart", "class in all", "classes in all", "Add images of a second class."
    ),
    "small-class": FindingKind(
        FAULT,
        "Classes too small to split",
        "class has too few images to be in train and in test",
        "classes have too few images to be in train and in test",
        "Add images, or leave the class out.",
    ),
    "label-error": FindingKind(
        NOTICE,
        "Suspected label errors",
        "label is doubted by the model",
        "labels are doubted by the model",
        "Look at them, the most doubtful first, and mend those that are wrong.",
    ),
    "exact-duplicate": FindingKind(
        NOTICE,
        "Exact duplicates",
        "image is there more than once",
        "images are there more than once",
        "Keep one of each: copies weigh double in training and in accuracy.",
    ),
    "near-duplicate": FindingKind(
        NOTICE,
        "Near duplicates",
        "pair is nearly the same image",
        "pairs are nearly the same image",
        "Keep one of each, or make sure that both stay on one side of a split.",
    ),
    "blank": FindingKind(
        NOTICE, "Blank images", "image is almost one colour", "images are almost one colour", "Look, and delete them."
    ),
    "imbalance": FindingKind(
        NOTICE,
        "Imbalance",
        "class is far smaller than the largest",
        "classes are far smaller than the largest",
        "Read accuracy class by class; add images of the rare classes.",
    ),
    "unlabelled": FindingKind(
        NOTICE, "Images without a label", "image has no label", "images have no label", "Label them, or move them away."
    ),
    "tiny": FindingKind(
        NOTICE,
        "Tiny images",
        "image is far smaller than the others",
        "images are far smaller than the others",
        "Replace thumbnails by the images they stand for.",
    ),
    "extreme-aspect": FindingKind(
        NOTICE,
        "Extreme aspect",
        "image is more than four times longer than wide",
        "images are more than four times longer than wide",
        "Cut them: a square crop sees less than a quarter.",
    ),
    "wrong-extension": FindingKind(
        NOTICE,
        "Names that say another format",
        "file is not in the format that its name says",
        "files are not in the format that their names say",
        "Read by content here; rename them for other programs.",
    ),
    "rotated": FindingKind(
        NOTICE,
        "Turned by EXIF",
        "image lies turned, with a note of how to turn it back",
        "images lie turned, with a note of how to turn them back",
        "Turned upright here; programs that ignore EXIF see them lying.",
    ),
    "cmyk": FindingKind(NOTICE, "CMYK", "image is CMYK", "images are CMYK", "Turned into RGB here; colours may shift."),
    "sixteen-bit": FindingKind(
        NOTICE, "16 bits", "image has 16 bits a channel", "images have 16 bits a channel", "Scaled to 8 bits here."
    ),
    "transparent": FindingKind(
        NOTICE, "Transparency", "image is transparent in part", "images are transparent in part", "Laid on white here."
    ),
    "palette": FindingKind(
        NOTICE, "Palettes", "image has a palette", "images have a palette", "Turned into RGB here; nothing to do."
    ),
    "animated": FindingKind(
        NOTICE, "Animations", "file is animated", "files are animated", "The first frame is used; take others by hand."
    ),
}


@dataclass(frozen=True)
class Case:
    """One instance of a finding: the images concerned (places in the set, with their names), and a note."""

    images: tuple[int, ...]
    names: tuple[str, ...]
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"files": list(self.names), **({"note": self.note} if self.note else {})}

    def __str__(self) -> str:
        return " = ".join(self.names) + (f"{': ' if self.names else ''}{self.note}" if self.note else "")


@dataclass(frozen=True)
class Finding:
    """One kind of problem, with every case."""

    kind: str
    cases: tuple[Case, ...]
    detail: str = ""  # a sentence about all cases together

    @property
    def severity(self) -> str:
        return FINDING_KINDS[self.kind].severity

    @property
    def title(self) -> str:
        return FINDING_KINDS[self.kind].title

    @property
    def do(self) -> str:
        """What helps."""
        return FINDING_KINDS[self.kind].do

    @property
    def what(self) -> str:
        kind = FINDING_KINDS[self.kind]
        text = f"{len(self.cases):,} {kind.one if len(self.cases) == 1 else kind.many}"
        return f"{text}; {self.detail}" if self.detail else text

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all images concerned, each once."""
        return tuple(dict.fromkeys(name for case in self.cases for name in case.names))

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "severity": self.severity,
            "what": self.what,
            "do": self.do,
            "count": len(self.cases),
            "cases": [case.to_json() for case in self.cases],
        }


@dataclass(frozen=True)
class Health:
    """What a check found. A check changes and removes nothing."""

    path: str
    kind: str
    content_id: str
    images: int  # in the set
    checked: int  # of these images
    sample_seed: int | None  # of the random sample; None: all were read
    splits: Mapping[str, int]
    classes: tuple[str, ...]
    counts: tuple[int, ...]  # images of each class
    formats: Mapping[str, int]
    sizes: Mapping[str, tuple[int, int, int]]  # width, height: smallest, median, largest
    findings: tuple[Finding, ...]
    rules: Mapping[str, str]  # the rule behind each kind
    notes: tuple[str, ...] = ()
    data: ImageSet | None = field(default=None, repr=False, compare=False)

    @property
    def faults(self) -> tuple[Finding, ...]:
        """Findings that make a number wrong or a file useless."""
        return tuple(f for f in self.findings if f.severity == FAULT)

    @property
    def notices(self) -> tuple[Finding, ...]:
        """Findings that are handled already, or worth a look."""
        return tuple(f for f in self.findings if f.severity == NOTICE)

    def find(self, kind: str) -> Finding | None:
        """The finding of that kind, if there is one."""
        return next((f for f in self.findings if f.kind == kind), None)

    @property
    def verdict(self) -> str:
        """One line."""
        if not self.findings:
            return "nothing found"
        parts = [
            f"{len(found):,} {word}{'s' if len(found) > 1 else ''}: {', '.join(f.kind for f in found)}"
            for word, found in ((FAULT, self.faults), (NOTICE, self.notices))
            if found
        ]
        return "; ".join(parts)

    @property
    def read(self) -> str:
        """How many images were read, as text."""
        if self.sample_seed is None:
            return f"all {self.images:,} images read"
        return f"{self.checked:,} of {self.images:,} images read, a random sample (seed {self.sample_seed})"

    def to_json(self) -> dict[str, Any]:
        """A plain dict, every case by name."""
        return {
            "path": self.path,
            "kind": self.kind,
            "content_id": self.content_id,
            "images": self.images,
            "checked": self.checked,
            "sample_seed": self.sample_seed,
            "splits": dict(self.splits),
            "classes": dict(zip(self.classes, self.counts, strict=True)),
            "formats": dict(self.formats),
            "sizes": {side: list(numbers) for side, numbers in self.sizes.items()},
            "faults": len(self.faults),
            "notices": len(self.notices),
            "findings": [finding.to_json() for finding in self.findings],
            "rules": dict(self.rules),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return "\n".join(lines(self))

    def _repr_html_(self) -> str:
        from vitreous.images.health.page import notebook

        return notebook(self)


def lines(health: Health, most: int = 3) -> Iterator[str]:
    """The table for a terminal, at most TERMINAL_COLUMNS wide."""
    splits = ", ".join(f"{count:,} {name}" for name, count in health.splits.items())
    yield from _wrapped(
        f"{health.path}: {health.kind}, {health.images:,} images ({splits}), {len(health.classes):,} classes"
    )
    yield from _wrapped(health.read)
    for note in health.notes:
        yield from _wrapped(note)
    for finding in health.findings:
        yield ""
        yield from _wrapped(f"{finding.severity.upper():<8}{finding.kind}: {finding.what}", 8)
        for case in finding.cases[:most]:
            yield from _case(case)
        if len(finding.cases) > most:
            yield f"          and {len(finding.cases) - most:,} more"
        yield from (f"        {line}" for line in _wrapped(f"-> {finding.do}", 3, TERMINAL_COLUMNS - 8))
    yield ""
    yield from _wrapped(health.verdict)


def _case(case: Case) -> Iterator[str]:
    names = [shorten(printable_line(name), TERMINAL_COLUMNS - 14) for name in case.names[:4]]
    more = [f"and {len(case.names) - 4:,} more"] if len(case.names) > 4 else []
    together = " = ".join([*names, *more])
    parts = (
        [together]
        if cells(together) <= TERMINAL_COLUMNS - 10
        else [names[0], *(f"= {name}" for name in names[1:]), *more]
    )
    if note := printable_line(case.note):
        if parts[-1] and cells(parts[-1]) + 2 + cells(note) <= TERMINAL_COLUMNS - 10:
            parts[-1] += f": {note}"
        else:
            parts += _wrapped(note, width=TERMINAL_COLUMNS - 12)
    first, *rest = [part for part in parts if part]
    yield f"          {first}"
    yield from (f"            {part}" for part in rest)


def shorten(text: str, width: int) -> str:
    """Shorten the middle of a text to at most `width` columns."""
    if cells(text) <= width:
        return text
    head, tail = text[: width // 3], text[-(width - width // 3 - 1) :]
    while cells(head) + 1 + cells(tail) > width:  # letters two columns wide
        head, tail = (head[:-1], tail) if cells(head) > width // 3 else (head, tail[1:])
    return f"{head}…{tail}"


def cells(text: str) -> int:
    """Columns that a terminal needs for a text."""
    from rich.cells import cell_len

    return cell_len(text)


def _wrapped(text: str, indent: int = 0, width: int = TERMINAL_COLUMNS) -> Iterator[str]:
    words, line = printable_line(text).split(" "), ""
    for word in words:
        candidate = f"{line} {word}" if line else word
        if line.strip() and cells(candidate) > width:
            yield line
            line = " " * indent + word
        else:
            line = candidate
        while cells(line) > width:
            yield line[: width - indent] if line.isascii() else shorten(line, width)
            line = " " * indent + line[width - indent :] if line.isascii() else ""
    if line:
        yield line


def names_of(data: ImageSet, places: Sequence[int]) -> tuple[str, ...]:
    """The names of these images."""
    return tuple(data.name(place) for place in places)
