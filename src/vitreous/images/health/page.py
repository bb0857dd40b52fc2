"""Findings with their pictures: a page, and a short form for notebooks."""

from __future__ import annotations

import os
import shlex
import warnings

from PIL import Image, ImageFile

from vitreous.images.health.facts import open_or_problem
from vitreous.images.health.findings import FAULT, Case, Finding, Health
from vitreous.images.imageset import ImageSet
from vitreous.images.sources import image_file
from vitreous.report import page as pages
from vitreous.report.page import (
    Bar,
    Block,
    Code,
    Group,
    Listing,
    Note,
    Number,
    Numbers,
    Page,
    Pictures,
    Section,
    Table,
    Text,
)
from vitreous.words import counted

MAX_CASES_SHOWN = 24  # of a kind shown as pictures
MAX_COPIES_SHOWN = 4  # of one picture
MAX_NAMES_LISTED = 500  # of a kind listed
MAX_CLASSES_LISTED = 60  # listed
HANDLED_KINDS = {"rotated", "cmyk", "sixteen-bit", "transparent", "palette", "animated", "wrong-extension"}


def write(health: Health, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """One self-contained page."""
    pages.write(page(health), path, force=force)


def page(health: Health) -> Page:
    """The page as a value."""
    sections = [_section(health, finding) for finding in health.findings]
    return Page(
        title=health.path.rstrip("/\\").replace("\\", "/").rpartition("/")[2] or health.path,
        over="vitreous check",
        lead=f"{health.path}: {health.kind}, {health.whole} in {_classes_word(health)}; {health.read}.",
        top=[_verdict(health), *_about_labels(health), _numbers(health)],
        sections=[*sections, _classes(health), _files(health), _rules(health)],
        foot="Made by vitreous check. Nothing was changed, and nothing left out.",
    )


def notebook(health: Health) -> str:
    """The findings as a table, without pictures."""
    rows = [[f.severity, f.title, f"{len(f.cases):,}", f.what, f.do] for f in health.findings]
    blocks: list[Block] = [Text(f"{health.path}: {health.read}."), _verdict(health)]
    if rows:
        blocks.append(Table(["", "kind", "cases", "what", "what to do"], rows, "llrll"))
    return pages.fragment(blocks)


def _verdict(health: Health) -> Note:
    if health.faults:
        titles = ", ".join(f.title.lower().replace("heic", "HEIC") for f in health.faults)
        return Note(f"Faults that should be mended before training: {titles}.", "bad")
    if health.notices:
        return Note("No faults. Some things are worth a look.", "warn")
    return Note("Nothing found: no fault, nothing unusual.", "good")


def _about_labels(health: Health) -> list[Block]:
    """That nobody looked for wrong labels, if so."""
    if "label-error" in health.rules:
        return []
    return [
        Text("Nobody looked for wrong labels. After a fit, the model does:"),
        Code(f"vitreous check {shlex.quote(health.path)} --weights last"),
    ]


def _numbers(health: Health) -> Numbers:
    splits = [Number(f"{count:,}", f"in {name}") for name, count in health.own_splits.items()]
    faults, notices = len(health.faults), len(health.notices)
    return Numbers(
        [
            Number(f"{health.checked - len(health.unread):,}", "images read"),
            *splits,
            Number(f"{len(health.classes):,}", _classes_word(health).split(" ")[1]),
            Number(f"{faults}", "kind of fault" if faults == 1 else "kinds of fault", "bad" if faults else "good"),
            Number(
                f"{notices}", "kind of notice" if notices == 1 else "kinds of notice", "warn" if notices else "good"
            ),
        ]
    )


def _section(health: Health, finding: Finding) -> Section:
    is_fault = finding.severity == FAULT
    blocks: list[Block] = [Text(f"{finding.what[:1].upper()}{finding.what[1:]}. {finding.do}")]
    data = health.data
    with_pictures = [case for case in finding.cases if case.images]
    if data is not None and with_pictures:
        shown = with_pictures[:MAX_CASES_SHOWN]
        left = len(with_pictures) - len(shown)
        blocks.append(Pictures([_group(health, data, case) for case in shown], f"and {left:,} more" if left else ""))
    listed = [str(case) for case in finding.cases[:MAX_NAMES_LISTED]]
    left = len(finding.cases) - len(listed)
    more = f"and {left:,} more; vitreous check --json lists all" if left else ""
    if not with_pictures:
        blocks.append(Table(["class", "images"], [_class_row(case) for case in finding.cases[:MAX_NAMES_LISTED]]))
    elif len(with_pictures) > MAX_CASES_SHOWN or any(len(case.images) > MAX_COPIES_SHOWN for case in with_pictures):
        blocks.append(Listing(f"All {len(finding.cases):,} by name", listed, more))
    return Section(
        finding.title,
        blocks,
        badge=finding.severity,
        tone="bad" if is_fault else "warn" if finding.kind not in HANDLED_KINDS else "plain",
        summary=f"{len(finding.cases):,}",
    )


def _classes_word(health: Health) -> str:
    return counted(len(health.classes), "class")


def _class_row(case: Case) -> list[str]:
    name, _, images = case.note.removeprefix("class ").rpartition(": ")
    return [name, images] if name else [images, ""]


def _group(health: Health, data: ImageSet, case: Case) -> Group:
    pictures = [
        pages.picture(_shown(data, i), name, "" if len(case.images) == 1 else _place(health, data, i))
        for i, name in zip(case.images[:MAX_COPIES_SHOWN], case.names, strict=False)
    ]
    left = len(case.images) - len(pictures)
    parts = [case.note, f"and {left:,} more copies" if left else ""]
    return Group(pictures, "; ".join(part for part in parts if part))


def _place(health: Health, data: ImageSet, i: int) -> str:
    """The split of a picture, if the set has some, and its label."""
    label = data.labels[i]
    numbers = label.nonzero()[0].tolist() if data.has_many_labels else [int(label)]
    names = [data.classes[k] for k in numbers if 0 <= k < len(data.classes)]
    untold = [name for name in names if name not in data.name(i).split("/")]  # a folder's name says it already
    return " · ".join([*([] if health.is_split_made else [str(data.splits[i])]), *untold])


def _shown(data: ImageSet, i: int) -> Image.Image | None:
    """A picture as far as it can be decoded; None if none of it can."""
    before = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            raw = data.raw(i)
            if raw is None:
                pixels = data.read(i)
                return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
            image = open_or_problem(raw)
            if image.format == "JPEG":
                image.draft(image.mode, (2 * pages.SIDE, 2 * pages.SIDE))
            image.load()
            if image.mode == "RGB":
                return image_file.upright(image)
            return Image.fromarray(image_file.decode(raw, data.name(i)))
    except Exception:  # which may be why the page shows it
        return None
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


def _classes(health: Health) -> Section:
    counts = sorted(zip(health.classes, health.counts, strict=True), key=lambda pair: (-pair[1], pair[0]))
    largest = max(health.counts, default=0) or 1
    rows: list[list[str | Bar]] = [[name, Bar(f"{count:,}", count / largest)] for name, count in counts]
    if len(rows) > MAX_CLASSES_LISTED:
        half = MAX_CLASSES_LISTED // 2
        rows = [*rows[:half], [f"… {len(rows) - MAX_CLASSES_LISTED:,} more …", ""], *rows[-half:]]
    return Section("Classes", [Table(["class", "images"], rows)], summary=f"{len(health.classes):,}")


def _files(health: Health) -> Section:
    rows = [["formats", ", ".join(f"{name} {count:,}" for name, count in health.formats.items()) or "none readable"]]
    rows += [
        [side, f"{low:,} to {high:,} pixels, median {middle:,}"] for side, (low, middle, high) in health.sizes.items()
    ]
    rows += [["content id", health.content_id]]
    notes: list[Block] = [Text(note) for note in health.notes]
    return Section("Files", [Table(["", ""], rows), *notes])


def _rules(health: Health) -> Section:
    rows = [[name, rule] for name, rule in health.rules.items()]
    return Section("How it was judged", [Table(["kind", "rule"], rows)])
