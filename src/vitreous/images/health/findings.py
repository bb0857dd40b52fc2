"""The result of a check, as plain values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vitreous.printable import printable_line
from vitreous.words import counted

if TYPE_CHECKING:
    from vitreous.images.imageset import ImageSet

FAULT, NOTICE = "fault", "notice"
TERMINAL_COLUMNS = 80  # every terminal has them
MAX_NAMES_IN_CASE = 4  # shown in a terminal


@dataclass(frozen=True)
class FindingKind:
    """One kind of finding."""

    severity: str
    title: str
    what: str  # after the number of cases; [one|many] tells one case from several
    do: str  # the remedy


WRONG_FOR_SURE = "one of the two labels is wrong for sure; which one is not known"
FAULTS = {
    "unreadable": ("Unreadable files", "[file|files] cannot be read", "Replace or delete them."),
    "truncated": (
        "Files cut short",
        "[file is|files are] cut short and cannot be read",
        "Copy or download them again.",
    ),
    "heic": (
        "HEIC images",
        "[file is|files are] HEIC, which is not read here",
        "Install the reader: pip install 'vitreous[heic]'; or turn them into JPEG.",
    ),
    "too-large": (
        "Decompression bombs",
        "[file costs|files cost] more to decode than is safe",
        "Make them smaller, or delete them if you do not know where they come from.",
    ),
    "leak": (
        "Leaks between splits",
        "[image lies|images lie] in train and in test",
        "Delete one side: the model has seen these answers, so test accuracy comes out too high.",
    ),
    "label-conflict": (
        "Same image, different labels",
        "[image lies|images lie] there under two labels",
        f"Where the pixels are the same, {WRONG_FOR_SURE}. Decide, and delete the other copy.",
    ),
    "wrong-label": (
        "Labels outside the classes",
        "[image has|images have] a label outside the classes",
        "Mend the labels, or name the classes that are missing.",
    ),
    "one-class": ("Nothing to tell apart", "[class|classes] in all", "Add images of a second class."),
    "small-class": (
        "Classes too small to split",
        "[class has|classes have] too few different images to be in train and in test",
        "Add images that are not alike, or leave the class out.",
    ),
}
NOTICES = {
    "label-error": (
        "Suspected label errors",
        "[label is|labels are] doubted by the model",
        "Look at them, the most doubtful first, and mend those that are wrong.",
    ),
    "exact-duplicate": (
        "Exact duplicates",
        "[image is|images are] there more than once",
        "Keep one of each: copies weigh double in training and in accuracy.",
    ),
    "near-duplicate": (
        "Near duplicates",
        "[pair is|pairs are] nearly the same image",
        "Keep one of each, or make sure that both stay on one side of a split.",
    ),
    "blank": ("Blank images", "[image is|images are] almost one colour", "Look, and delete them."),
    "imbalance": (
        "Imbalance",
        "[class is|classes are] far smaller than the largest",
        "Read accuracy class by class; add images of the rare classes.",
    ),
    "unlabelled": ("Images without a label", "[image has|images have] no label", "Label them, or move them away."),
    "tiny": (
        "Tiny images",
        "[image is|images are] far smaller than the others",
        "Replace thumbnails by the images they stand for.",
    ),
    "extreme-aspect": (
        "Extreme aspect",
        "[image is|images are] more than four times longer than wide",
        "Cut them: a square crop sees less than a quarter.",
    ),
    "wrong-extension": (
        "Names that say another format",
        "[file is not in the format that its name says|files are not in the format that their names say]",
        "Read by content here; rename them for other programs.",
    ),
    "rotated": (
        "Turned by EXIF",
        "[image lies turned, with a note of how to turn it|images lie turned, with a note of how to turn them] back",
        "Turned upright here; programs that ignore EXIF see them lying.",
    ),
    "cmyk": ("CMYK", "[image is|images are] CMYK", "Turned into RGB here; colours may shift."),
    "sixteen-bit": ("16 bits", "[image has|images have] 16 bits a channel", "Scaled to 8 bits here."),
    "transparent": ("Transparency", "[image is|images are] transparent in part", "Laid on white here."),
    "palette": ("Palettes", "[image has|images have] a palette", "Turned into RGB here; nothing to do."),
    "animated": ("Animations", "[file is|files are] animated", "The first frame is used; take others by hand."),
}
UNREAD_KINDS = ("unreadable", "truncated", "heic", "too-large")  # their images are not read
FINDING_KINDS = {name: FindingKind(FAULT, *words) for name, words in FAULTS.items()}
FINDING_KINDS |= {name: FindingKind(NOTICE, *words) for name, words in NOTICES.items()}


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
        """The remedy."""
        return FINDING_KINDS[self.kind].do

    @property
    def what(self) -> str:
        number = 1 if len(self.cases) == 1 else 2
        words = re.sub(r"\[(.+)\|(.+)\]", rf"\{number}", FINDING_KINDS[self.kind].what)
        text = f"{len(self.cases):,} {words}"
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
    is_split_made: bool = False  # the set has no test split of its own
    is_encoded: bool = True  # its images are files, which may be broken

    @property
    def faults(self) -> tuple[Finding, ...]:
        """Findings that make a number wrong or a file useless."""
        return tuple(f for f in self.findings if f.severity == FAULT)

    @property
    def misleading(self) -> tuple[Finding, ...]:
        """Faults that can make a number wrong; a file that cannot be read is left out and counts nowhere."""
        return tuple(f for f in self.faults if f.kind not in UNREAD_KINDS)

    @property
    def notices(self) -> tuple[Finding, ...]:
        """Findings that are handled already, or worth a look."""
        return tuple(f for f in self.findings if f.severity == NOTICE)

    @property
    def own_splits(self) -> Mapping[str, int]:
        """Images of each split that the set itself has; a split that was made says nothing about the set."""
        return {} if self.is_split_made else self.splits

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
    def unread(self) -> tuple[str, ...]:
        """The images that could not be read, by name."""
        found = [finding for finding in self.findings if finding.kind in UNREAD_KINDS]
        return tuple(sorted({name for finding in found for name in finding.files}))

    @property
    def copies(self) -> int:
        """The number of surplus images: all but one of each group of exact copies."""
        found = self.find("exact-duplicate")
        return 0 if found is None else sum(len(case.names) - 1 for case in found.cases)

    @property
    def whole(self) -> str:
        """The size of the set as text, counted in files, which may be broken, or in images."""
        return counted(self.images, "file" if self.is_encoded else "image")

    @property
    def read(self) -> str:
        """How many were read, how many cannot be, and how many are copies, as text."""
        unread, read = len(self.unread), self.checked - len(self.unread)
        copies = (
            f"; {self.copies:,} of these {'is a copy' if self.copies == 1 else 'are copies'}" if self.copies else ""
        )
        if self.sample_seed is None:
            count = f"{unread:,} of {self.whole} cannot be read, {read:,}" if unread else f"all {read:,}"
            return f"{count} {'image' if read == 1 else 'images'} read{copies}"
        sample = f"a random sample (seed {self.sample_seed})"
        if unread:
            sample = f"of {sample[:-1]}, {self.checked:,} images)"
        return f"{read:,} of {self.images:,} images read, {sample}{copies}"

    def to_json(self) -> dict[str, Any]:
        """A plain dict, every case by name."""
        return {
            "path": self.path,
            "kind": self.kind,
            "content_id": self.content_id,
            "images": self.images,
            "checked": self.checked,
            "sample_seed": self.sample_seed,
            "splits": dict(self.own_splits),
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
        return self.text()

    __repr__ = __str__  # at a prompt

    def text(self, columns: int = TERMINAL_COLUMNS) -> str:
        """The findings as text, at most `columns` wide and never wider than TERMINAL_COLUMNS."""
        return "\n".join(lines(self, columns=min(columns, TERMINAL_COLUMNS)))

    def _repr_html_(self) -> str:
        from vitreous.images.health.page import notebook

        return notebook(self)


def lines(health: Health, most: int = 3, *, columns: int) -> Iterator[str]:
    """The findings for a terminal."""
    from rich.console import Console
    from rich.text import Text

    def wrapped(text: str, start: str = "", indent: int = 0) -> Iterator[str]:
        """The text after `start`; every further line is indented by `indent` columns."""
        for line in Text(printable_line(text)).wrap(Console(), columns - indent):
            yield start + line.plain.rstrip()
            start = " " * indent

    own = ", ".join(f"{count:,} {name}" for name, count in health.own_splits.items())
    splits = f" ({own})" if own else ""
    yield from wrapped(f"{health.path}: {health.kind}, {health.whole}{splits}, {counted(len(health.classes), 'class')}")
    for line in (health.read, *health.notes):
        yield from wrapped(line)
    for finding in health.findings:
        yield ""
        yield from wrapped(f"{finding.kind}: {finding.what}", f"{finding.severity.upper():<8}", 8)
        for case in finding.cases[:most]:
            left = len(case.names) - MAX_NAMES_IN_CASE
            names = [*case.names[:MAX_NAMES_IN_CASE], *([f"and {left:,} more"] if left > 0 else [])]
            yield from wrapped(str(replace(case, names=tuple(names))), " " * 10, 12)
        if len(finding.cases) > most:
            yield f"          and {len(finding.cases) - most:,} more"
        yield from wrapped(finding.do, "        -> ", 11)
    yield ""
    yield from wrapped(health.verdict)
