"""A check finds what is wrong, all of it, and invents nothing."""

import dataclasses
import io
import json
import re
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from pictures_in_memory import Arrays, Files, clean_files, encode, make_set, noise_picture
from PIL import Image
from shared_files import ROOT

import vitreous
from vitreous.errors import DataError, ExistsError
from vitreous.images.health import confident_errors, facts, label_noise, likely_errors, scan
from vitreous.images.health import page as pages
from vitreous.images.health.findings import FINDING_KINDS
from vitreous.images.health.judge import rules
from vitreous.report.page import Numbers, render

HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(64)


@pytest.fixture(autouse=True)
def plain(monkeypatch, tmp_path):
    """Without the extra heic, and with a cache of its own."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))


def found(report) -> dict[str, list[set[str]]]:
    """Kind to the files of each case."""
    return {f.kind: [set(case.names) for case in f.cases] for f in report.findings}


def pairs(report, kind="near-duplicate") -> set[frozenset[str]]:
    finding = report.find(kind)
    return {frozenset(case.names) for case in finding.cases} if finding else set()


def turned(image: Image.Image, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(image, exif=exif)


def planted() -> dict[str, bytes]:
    """Sixty clean pictures and twelve faults of ten kinds."""
    files = clean_files()
    files["train/ant/cut-1.jpg"] = encode(noise_picture(101))[:-700]
    files["test/bee/cut-2.png"] = encode(noise_picture(102), "PNG")[:-900]
    files["train/bee/empty.jpg"] = b""
    files["train/cat/page.jpg"] = b"<!doctype html><title>404</title>"
    files["train/cat/phone.heic"] = HEIC
    files["train/ant/really-png.jpg"] = encode(noise_picture(103), "PNG")
    files["train/bee/turned.jpg"] = turned(noise_picture(104), 6)
    files["train/ant/copy.jpg"] = files["train/ant/0000.jpg"]
    small = noise_picture(3).resize((80, 60), Image.LANCZOS)
    files["train/ant/leak.jpg"] = encode(small, quality=60)  # of test/ant/0003.jpg
    same = Image.open(io.BytesIO(files["train/bee/0004.jpg"])).convert("RGB")
    files["train/cat/conflict.png"] = encode(same, "PNG")
    files["test/cat/blank.jpg"] = encode(Image.new("RGB", (96, 72), (90, 120, 30)))
    files["train/cat/long.jpg"] = encode(noise_picture(105, 300, 60))
    return files


EXPECTED = {
    "truncated": [{"train/ant/cut-1.jpg"}, {"test/bee/cut-2.png"}],
    "unreadable": [{"train/bee/empty.jpg"}, {"train/cat/page.jpg"}],
    "heic": [{"train/cat/phone.heic"}],
    "leak": [{"train/ant/leak.jpg", "test/ant/0003.jpg"}],
    "label-conflict": [{"train/bee/0004.jpg", "train/cat/conflict.png"}],
    "exact-duplicate": [
        {"train/ant/0000.jpg", "train/ant/copy.jpg"},
        {"train/bee/0004.jpg", "train/cat/conflict.png"},
    ],
    "near-duplicate": [{"train/ant/leak.jpg", "test/ant/0003.jpg"}],
    "blank": [{"test/cat/blank.jpg"}],
    "extreme-aspect": [{"train/cat/long.jpg"}],
    "wrong-extension": [{"train/ant/really-png.jpg"}],
    "rotated": [{"train/bee/turned.jpg"}],
}


def test_twelve_planted_faults_are_found_and_none_is_invented():
    assert found(vitreous.check(make_set(planted()))) == EXPECTED


def test_a_clean_set_has_no_findings():
    report = vitreous.check(make_set(clean_files(100)))
    assert report.findings == ()
    assert report.verdict == "nothing found"
    assert report.formats == {"JPEG": 100}


def test_workers_change_nothing():
    data = make_set(planted())
    reports = [vitreous.check(data, workers=workers) for workers in (0, 1, 2)]
    assert reports[0] == reports[1] == reports[2]
    assert reports[0].to_json() == reports[2].to_json()


def test_the_order_of_files_changes_nothing():
    """Being a duplicate is symmetric: the same cases come out of the set read backwards."""
    files = planted()
    forwards = found(vitreous.check(make_set(files)))
    backwards = found(vitreous.check(make_set(dict(reversed(files.items())))))
    for kind, cases in forwards.items():
        assert sorted(map(sorted, cases)) == sorted(map(sorted, backwards.pop(kind)))
    assert not backwards


def test_names_do_not_matter_beyond_their_endings():
    def renamed(name: str) -> str:
        folder, _, file = name.rpartition("/")
        return f"{folder}/ж {file[::-1].partition('.')[2]}.{file.rpartition('.')[2]}"

    files = planted()
    after = found(vitreous.check(make_set({renamed(name): raw for name, raw in files.items()})))
    assert after == {kind: [{renamed(n) for n in case} for case in cases] for kind, cases in EXPECTED.items()}


def test_nothing_is_changed_or_dropped():
    data = make_set(planted())
    before = list(data.source.raws)
    report = vitreous.check(data)
    assert (report.images, report.checked) == (len(data), len(data))
    assert data.source.raws == before


# One picture -----------------------------------------------------------------------------------------------------


def deep(mode: str) -> bytes:
    values = np.random.default_rng(0).integers(0, 65536, (48, 64), np.uint16)
    return encode(Image.fromarray(values), mode)


TRAITS = {
    "cmyk": encode(noise_picture(501).convert("CMYK")),
    "sixteen-bit": deep("PNG"),
    "transparent": encode(Image.merge("RGBA", (*noise_picture(502).split(), noise_picture(503).convert("L"))), "PNG"),
    "palette": encode(noise_picture(504).convert("P", palette=Image.Palette.ADAPTIVE), "PNG"),
    "animated": encode(noise_picture(505), "WEBP", save_all=True, append_images=[noise_picture(506)]),
    "rotated": turned(noise_picture(507), 3),
    "blank": encode(Image.new("L", (64, 64), 128), "PNG"),
    "tiny": encode(noise_picture(508, 20, 20), "PNG"),
    "extreme-aspect": encode(noise_picture(509, 50, 400)),
    "heic": HEIC,
    "truncated": encode(noise_picture(510), "WEBP")[:-200],
    "unreadable": b"MZ\x90 a program",
}


@pytest.mark.parametrize("kind", TRAITS)
def test_each_trait_is_counted_and_alone(kind):
    ending = {"cmyk": "jpg", "rotated": "jpg", "extreme-aspect": "jpg", "animated": "webp", "truncated": "webp"}
    name = f"train/ant/it.{ending.get(kind, 'png')}"
    assert found(vitreous.check(make_set(clean_files(40) | {name: TRAITS[kind]}))) == {kind: [{name}]}


def test_an_alpha_that_hides_nothing_is_no_finding():
    opaque = encode(noise_picture(99).convert("RGBA"), "PNG")
    assert not vitreous.check(make_set(clean_files(40) | {"train/ant/it.png": opaque})).findings


def test_sixteen_bits_of_colour_are_seen_though_pillow_hides_them():
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = np.random.default_rng(0).integers(0, 65536, (40, 40 * 3)).astype(">u2")
    body = b"".join(b"\0" + row.tobytes() for row in rows)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 40, 40, 16, 2, 0, 0, 0))
    png += chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")
    assert "sixteen-bit" in found(vitreous.check(make_set(clean_files(40) | {"train/ant/it.png": png})))


def test_a_decompression_bomb_is_named_and_not_unpacked():
    bomb = encode(Image.new("1", (20_000, 20_000)), "PNG")
    report = vitreous.check(make_set(clean_files(40) | {"train/ant/bomb.png": bomb}))
    assert found(report) == {"too-large": [{"train/ant/bomb.png"}]}


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "AVIF"])
def test_a_file_cut_anywhere_is_never_taken_for_whole(format):
    """Cut in the header, in the pixels, near the end: always a fault, of a file that was fine."""
    whole = encode(noise_picture(1), format)
    assert facts.look(Files(["a"], [whole]), [0]).facts["problem"][0] == facts.READABLE
    for share in (0.02, 0.2, 0.5, 0.9):
        seen = facts.look(Files(["a"], [whole[: int(share * len(whole))]]), [0])
        assert seen.facts["problem"][0] in (facts.TRUNCATED, facts.DAMAGED, facts.NOT_AN_IMAGE), share
        assert seen.words[0]


def test_a_file_that_may_not_be_read_is_named():
    class Forbidden(Files):
        def raw(self, i):
            if i == 5:
                raise PermissionError(13, "Permission denied", self.names[i])
            return super().raw(i)

    data = make_set(clean_files(40))
    data = dataclasses.replace(data, source=Forbidden(data.source.names, data.source.raws))
    report = vitreous.check(data)
    assert found(report) == {"unreadable": [{data.name(5)}]}
    assert "Permission denied" in str(report)


def test_pictures_that_lie_decoded_are_checked_too():
    pixels = [np.asarray(noise_picture(i, 70, 70)) for i in range(40)]
    pixels[12], pixels[21] = pixels[0].copy(), np.full((70, 70, 3), 7, np.uint8)
    data = dataclasses.replace(make_set(clean_files(40)), source=Arrays(pixels))
    assert found(vitreous.check(data)) == {"exact-duplicate": [{"0", "12"}], "blank": [{"21"}]}


def test_a_large_jpeg_decoded_small_gives_the_same_verdicts():
    """A byte copy and a lossless copy of a large photograph are exact duplicates; a cut one is cut."""
    large = encode(noise_picture(501, 1100, 1050))
    pixels = Image.open(io.BytesIO(large)).convert("RGB")
    files = clean_files(40) | {
        "train/ant/large.jpg": large,
        "train/ant/copy.jpg": large,
        "train/ant/lossless.png": encode(pixels, "PNG", compress_level=1),
        "train/ant/cut.jpg": large[:-3000],
        "train/ant/other.jpg": encode(pixels, quality=50),
    }
    report = vitreous.check(make_set(files))
    assert pairs(report, "exact-duplicate") == {
        frozenset({"train/ant/large.jpg", "train/ant/copy.jpg", "train/ant/lossless.png"})
    }
    assert pairs(report) == {frozenset({"train/ant/large.jpg", "train/ant/other.jpg"})}
    assert pairs(report, "truncated") == {frozenset({"train/ant/cut.jpg"})}


# Relations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda im: im.resize((72, 54), Image.LANCZOS),
        lambda im: im.resize((192, 144), Image.BICUBIC),
        lambda im: im.point(lambda v: min(255, int(v * 1.15 + 5))),
        lambda im: im.convert("L").convert("RGB"),
    ],
    ids=["smaller", "larger", "brighter", "grey"],
)
def test_a_copy_that_was_changed_a_little_is_found(change):
    files = clean_files(40) | {"train/ant/changed.jpg": encode(change(noise_picture(1)), quality=70)}
    report = vitreous.check(make_set(files))
    assert pairs(report) == {frozenset({"train/ant/0001.jpg", "train/ant/changed.jpg"})}


def test_flat_pictures_are_not_all_one_picture():
    """Flat pictures share their hashes; only equal ones are duplicates."""
    flat = {f"train/ant/{v}.png": encode(Image.new("RGB", (64, 64), (v, v, v)), "PNG") for v in range(20, 240, 20)}
    report = vitreous.check(make_set(clean_files(40) | flat))
    assert set(found(report)) == {"blank"}
    assert len(report.find("blank").cases) == len(flat)


def test_many_copies_are_one_case():
    files = clean_files(40)
    copies = {f"train/ant/copy-{i}.jpg": files["train/ant/0000.jpg"] for i in range(200)}
    (finding,) = [f for f in vitreous.check(make_set(files | copies)).findings if f.kind == "exact-duplicate"]
    assert len(finding.cases) == 1
    assert len(finding.files) == 201
    assert "200 superfluous images" in finding.what


def test_the_distance_is_the_users():
    files = clean_files(40) | {"train/ant/leak.jpg": encode(noise_picture(1).resize((48, 36)), quality=20)}
    bits = [len(pairs(vitreous.check(make_set(files), near=near))) for near in (0, 12)]
    assert bits[1] == 1
    assert bits[0] <= bits[1]
    assert "at most 12 of 64 bits" in vitreous.check(make_set(files), near=12).rules["near-duplicate"]


# Labels ----------------------------------------------------------------------------------------------------------


def test_small_and_rare_classes_are_named():
    files = clean_files(80, ("ant", "bee")) | {
        "train/rare/a.jpg": encode(noise_picture(201)),
        "train/rare/b.jpg": encode(noise_picture(202)),
        "train/lone/c.jpg": encode(noise_picture(203)),
    }
    report = vitreous.check(make_set(files))
    small = [case.note for case in report.find("small-class").cases]
    assert small == ["class lone: 1 image, none in test", "class rare: 2 images, none in test"]
    assert [case.note for case in report.find("imbalance").cases] == ["class lone: 1", "class rare: 2"]


def test_one_class_and_no_label_and_a_wrong_label():
    one = vitreous.check(make_set(clean_files(20, ("ant",))))
    assert [f.kind for f in one.findings] == ["one-class"]
    data = make_set(clean_files(40))
    data.labels[3], data.labels[8] = -1, 7
    assert found(vitreous.check(data)) == {"unlabelled": [{data.name(3)}], "wrong-label": [{data.name(8)}]}


def test_several_labels_conflict_when_any_differs():
    files = clean_files(40)
    files["train/bee/copy.jpg"] = files["train/ant/0000.jpg"]
    data = make_set(files)
    rows = np.eye(3, dtype=np.int64)[data.labels]
    several = dataclasses.replace(data, labels=rows)
    assert pairs(vitreous.check(several), "label-conflict") == {frozenset({"train/ant/0000.jpg", "train/bee/copy.jpg"})}
    rows[-1] = rows[0]
    assert not vitreous.check(several).find("label-conflict")


def test_confident_learning_by_hand():
    """Thresholds are 0.6 and 0.7; image 2 reaches the other's, image 5 reaches none but its own."""
    p = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.1, 0.9], [0.25, 0.75], [0.55, 0.45]])
    places, suspected = confident_errors([0, 0, 0, 1, 1, 1], p)
    assert (places.tolist(), suspected.tolist()) == ([2], [1])


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_the_label_suggested_is_the_likeliest_and_likelier_than_the_one_given(classes):
    """Whatever the thresholds: a reader who sees all probabilities finds no better answer than the one suggested."""
    draw = np.random.default_rng(classes)
    sharp = np.linspace(0.5, 5, classes)  # some classes are surer than others, so thresholds differ
    p = draw.dirichlet(np.ones(classes), 400) ** sharp
    p /= p.sum(1, keepdims=True)
    labels = np.where(draw.random(400) < 0.8, p.argmax(1), draw.integers(0, classes, 400))
    places, suspected = confident_errors(labels, p)
    assert (suspected == p[places].argmax(1)).all()
    assert (p[places, suspected] > p[places, labels[places]]).all()


def test_a_class_that_is_often_sure_is_still_suggested():
    """Of image 0 class 2 reaches its threshold and class 1, which is likelier, does not: the doubt stands, and names 1.

    Of image 1 class 2 reaches its threshold, too, but the label given is likelier: no doubt.
    """
    p = np.array([[0.1, 0.5, 0.4], [0.6, 0.0, 0.4], [1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0.4, 0.3, 0.3]])
    places, suspected = confident_errors([0, 0, 0, 0, 1, 1, 2], p)
    assert (places.tolist(), suspected.tolist()) == ([0], [1])


def answered(draw, images: int, classes: int, sharpness: float) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of a model that is as often right as it says, and the labels.  sharpness: how much it knows."""
    z = sharpness * draw.normal(size=(images, classes))
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return p, (p.cumsum(1) < draw.random((images, 1))).sum(1).clip(max=classes - 1)


@pytest.mark.parametrize(("classes", "sharpness"), [(2, 6), (4, 8), (10, 3)])
def test_a_label_is_named_only_if_it_is_more_likely_wrong_than_right(classes, sharpness):
    """Of right labels hardly any is named; of swapped ones many, by a model that knows enough to see them."""
    right_alone, named, wrong = 0, 0, 0
    for seed in range(6):
        draw = np.random.default_rng(seed)
        p, labels = answered(draw, 400, classes, sharpness)
        right_alone += len(likely_errors(labels, p)[0]) > 0
        swapped = draw.choice(400, 20, replace=False)
        labels[swapped] = (labels[swapped] + draw.integers(1, classes, 20)) % classes
        places, suggested = likely_errors(labels, p)
        assert (suggested == p[places].argmax(1)).all()
        assert set(places.tolist()) <= set(confident_errors(labels, p)[0].tolist())
        named, wrong = named + len(places), wrong + np.isin(places, swapped).sum()
    assert right_alone <= 1
    assert wrong >= 0.7 * named
    assert named >= 30  # of 120


def test_a_model_that_is_often_wrong_doubts_nothing():
    """It would doubt hundreds, and nearly all of them are right."""
    draw = np.random.default_rng(0)
    p, labels = answered(draw, 1000, 5, 0.8)
    assert len(confident_errors(labels, p)[0]) > 200
    labels[:50] = (labels[:50] + 1) % 5
    assert len(likely_errors(labels, p)[0]) == 0
    always = np.tile([0.6, 0.2, 0.1, 0.05, 0.05], (1000, 1))
    assert len(likely_errors(labels, always)[0]) == 0


def test_of_very_many_rows_a_part_tells_how_many_are_wrong(monkeypatch):
    draw = np.random.default_rng(0)
    p, labels = answered(draw, 3000, 4, 8)
    labels[:150] = (labels[:150] + 1) % 4
    whole = likely_errors(labels, p)[0]
    monkeypatch.setattr(label_noise, "FITTED_ROWS", 1000)
    part = likely_errors(labels, p)[0]
    assert len(np.intersect1d(whole, part)) > 0.8 * max(len(whole), len(part)) > 50


def test_flipped_labels_are_suspected_first():
    data = make_set(clean_files(100, ("ant", "bee")))
    sure = np.random.default_rng(0).uniform(0.7, 0.999, (100, 1))
    p = np.where(np.eye(2)[data.labels] > 0, sure, 1 - sure)
    flipped = np.argsort(-sure[:, 0])[:4].tolist()  # of which it is surest
    data.labels[flipped] = 1 - data.labels[flipped]
    report = vitreous.check(data, probabilities=p)
    assert {case.images[0] for case in report.find("label-error").cases} == set(flipped)
    assert "1911.00068" in report.rules["label-error"]
    assert "perhaps" in str(report)


@pytest.mark.parametrize("has_looked", [True, False])
def test_labels_that_nobody_looked_at_are_not_called_right(has_looked):
    data = make_set(clean_files(60))
    p = np.eye(len(data.classes))[data.labels] * 0.9 + 0.1 / len(data.classes) if has_looked else None
    report = vitreous.check(data, probabilities=p)
    assert ("Nobody looked for wrong labels" in render(pages.page(report))) != has_looked
    assert ("label-error" in report.rules) == has_looked


def test_files_that_cannot_be_read_are_not_counted_as_read():
    report = vitreous.check(make_set(planted()))
    names = {"train/ant/cut-1.jpg", "test/bee/cut-2.png", "train/bee/empty.jpg", "train/cat/page.jpg"}
    assert set(report.unread) == names | {"train/cat/phone.heic"}
    assert report.read == "5 of 72 files cannot be read, 67 images read; 2 of these are copies"
    (numbers,) = (block for block in pages.page(report).top if isinstance(block, Numbers))
    assert numbers.numbers[0].value == "67"
    clean = vitreous.check(make_set(clean_files(60)))
    assert (clean.unread, clean.read) == ((), "all 60 images read")


# Large sets ------------------------------------------------------------------------------------------------------


def test_a_sample_is_stated_and_repeatable():
    data = make_set(planted())
    one, two = (vitreous.check(data, sample=30) for _ in range(2))
    assert one == two
    assert (one.images, one.checked, one.sample_seed) == (72, 30, 0)
    read = 30 - len(one.unread)
    assert 0 < read < 30
    assert f"{read} of 72 images read, of a random sample (seed 0, 30 images)" in str(one)
    clean = vitreous.check(make_set(clean_files(60)), sample=30)
    assert "30 of 60 images read, a random sample (seed 0)" in str(clean)
    assert vitreous.check(data, sample=1000) == vitreous.check(data)


def test_a_check_that_was_ended_goes_on_where_it_stopped(monkeypatch):
    data = make_set(planted())
    monkeypatch.setattr(scan, "KEEP_FACTS_FROM", 1)
    monkeypatch.setattr(scan, "IMAGES_PER_TASK", 8)
    decoded = []
    of_file = facts._of_file
    monkeypatch.setattr(facts, "_of_file", lambda raw: (decoded.append(1), of_file(raw))[1])

    def end(done, of):
        if done >= 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vitreous.check(data, workers=0, progress=end)
    assert len(decoded) == 40
    report = vitreous.check(data, workers=0)
    assert len(decoded) == 70  # all but the empty file and a byte copy, each once
    assert found(report) == EXPECTED


def test_a_damaged_cache_is_noticed(monkeypatch):
    data = make_set(planted())
    monkeypatch.setattr(scan, "KEEP_FACTS_FROM", 1)
    whole = vitreous.check(data, workers=0)
    path = scan.cache_file(data)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 255
    for damaged in (bytes(raw), bytes(raw[:-5]), bytes(raw[:70]), b"", b"something else entirely"):
        path.write_bytes(damaged)
        assert vitreous.check(data, workers=0) == whole


def test_two_checks_of_one_set_do_not_disturb_each_other(monkeypatch):
    data = make_set(planted())
    monkeypatch.setattr(scan, "KEEP_FACTS_FROM", 1)
    with scan.keep(scan.cache_file(data)):
        assert found(vitreous.check(data, workers=0)) == EXPECTED


def test_a_script_without_a_main_guard_may_check(tmp_path):
    """Workers do not run the caller's script again."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pictures_in_memory import clean_files, make_set\n"
        "import vitreous\n"
        "print(vitreous.check(make_set(clean_files(420)), workers=6, cache=False).verdict)\n"
    )
    words = [sys.executable, str(script), str(ROOT / "tests")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("nothing found\n", 0), done.stderr


# Bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"near": 99}, "near is 99; give 0 to 16 bits"),
        ({"near": -1}, "near is -1"),
        ({"sample": 0}, "sample is 0; give 1 or more"),
        ({"workers": -1}, "workers is -1; give 0"),
        ({"probabilities": np.ones((3, 3))}, r"probabilities are \(3, 3\); memory needs \(60, 3\)"),
        ({"probabilities": np.ones((60, 3))}, "each row must sum to 1"),
        ({"probabilities": np.full((60, 3), np.nan)}, "each row must sum to 1"),
    ],
)
def test_bad_input_is_answered_in_one_line(options, line):
    with pytest.raises(DataError, match=line) as error:
        vitreous.check(make_set(clean_files()), **options)
    assert "\n" not in str(error.value)


def test_an_empty_set_is_refused():
    with pytest.raises(DataError, match="memory has no images"):
        vitreous.check(make_set(clean_files()).take([]))


# Shown -----------------------------------------------------------------------------------------------------------


def test_the_table_fits_eighty_columns_with_any_names():
    from rich.cells import cell_len

    files = planted()
    files["train/ant/" + "長い名前" * 40 + ".jpg"] = b""
    files["train/ant/\x1b[31mred\n.jpg"] = b""
    text = str(vitreous.check(make_set(files)))
    assert max(map(cell_len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert "pip install 'vitreous[heic]'" in text


@pytest.mark.parametrize("is_made", [True, False])
def test_a_split_that_nobody_made_is_told_nowhere(tmp_path, is_made):
    """`images.open` sets a test split aside; the set itself has none, so no picture is said to lie in one."""
    for name, raw in planted().items():
        file = tmp_path / "set" / (name.partition("/")[2] if is_made else name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(raw)
    report = vitreous.check(tmp_path / "set", workers=0)
    assert report.data.split_was_made == is_made
    body = json.loads(json.dumps(report.to_json()))
    assert (body["splits"] == {}) == is_made
    pages.write(report, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    shown = page[page.index("<h2>Same image") : page.index("<h2>Classes")]
    assert bool(re.search(r"\b(train|test)\b", shown)) != is_made


def test_json_names_every_file():
    report = vitreous.check(make_set(planted()))
    body = json.loads(json.dumps(report.to_json()))
    assert (body["faults"], body["notices"]) == (len(report.faults), len(report.notices))
    named = {f["kind"]: [set(case["files"]) for case in f["cases"]] for f in body["findings"]}
    assert named == EXPECTED
    assert all(f["do"] and f["what"] and f["severity"] in ("fault", "notice") for f in body["findings"])


def test_a_folder_is_read_once_and_an_open_set_again(tmp_path):
    """Opening a folder without a split reads it to find copies; its check uses that reading, and says the same."""
    for name, content in planted().items():
        file = tmp_path / "set" / name.partition("/")[2]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    data, told = vitreous.images.open(tmp_path / "set"), []
    report = vitreous.check(tmp_path / "set", workers=0, progress=lambda done, all: told.append((done, all)))
    assert told.count((len(data), len(data))) == 1
    assert report.to_json() == vitreous.check(data, workers=0).to_json()
    (tmp_path / "set" / data.name(0)).write_bytes(b"")
    assert set(vitreous.check(data, workers=0).unread) - set(report.unread) == {data.name(0)}


def test_the_page_shows_the_offenders_and_loads_nothing(tmp_path):
    files = planted()
    files["train/ant/<script>alert(1)</script>.jpg"] = b""
    files |= {f"train/ant/flat-{i}.png": encode(Image.new("L", (64, 64), 3 * i), "PNG") for i in range(40)}
    path = tmp_path / "health.html"
    report = vitreous.check(make_set(files), out=path)
    text = path.read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "http" not in text.replace("http-equiv", "")
    assert text.count("data:image/") >= 30
    assert "and 17 more" in text  # 41 blank ones, 24 shown
    for finding in report.findings:
        assert finding.title in text
    with pytest.raises(ExistsError, match="--force"):
        vitreous.check(make_set(files), out=path)
    assert "<table" in report._repr_html_()


def test_every_kind_says_what_to_do():
    for name, kind in FINDING_KINDS.items():
        assert kind.do.endswith("."), name
        assert kind.severity in ("fault", "notice")
    assert set(rules(6, with_labels=True)) <= set(FINDING_KINDS)


# Real pictures ---------------------------------------------------------------------------------------------------

EXTRA = {  # found beyond near_duplicates.tsv, looked at: a copy turned grey, a burst, one photograph retouched
    frozenset({"train/boxer/162.webp", "train/boxer/172.webp"}),
    frozenset({"train/Ragdoll/160.webp", "train/Ragdoll/161.webp"}),
    frozenset({"train/newfoundland/149.webp", "train/newfoundland/172.webp"}),
    frozenset({"train/newfoundland/172.webp", "val/newfoundland/2.webp"}),
}


def listed(shared) -> set[frozenset[str]]:
    lines = (shared / "data" / "near_duplicates.tsv").read_text().splitlines()[1:]
    rows = [line.split("\t") for line in lines]
    return {frozenset(row[2:]) for row in rows if row[0] == "oxford-pets-160 / oxford-pets-160"}


def zipped(shared, name: str, only=None):
    """A set of zips, read in place, or some of it."""
    data = vitreous.images.open(str(shared / "data" / f"{name}-*.zip"))
    return data if only is None else data.take([i for i in range(len(data)) if only(i, data.name(i))])


def test_the_known_duplicates_of_the_pets_are_found(shared):
    """The listed pairs among every tenth other picture: all 42, the four more that were looked at, and no others."""
    wanted = listed(shared) | EXTRA
    names = {name for pair in wanted for name in pair}
    data = zipped(shared, "oxford-pets-160", lambda i, name: name in names or i % 10 == 0)
    report = vitreous.check(data, workers=0)
    assert pairs(report) == wanted
    leaks = {pair for pair in wanted if len({name.split("/")[0] for name in pair}) == 2}
    assert pairs(report, "leak") == leaks
    assert len(leaks & listed(shared)) == 23
    assert {f.kind for f in report.findings} == {"near-duplicate", "leak"}


@pytest.mark.slow
def test_the_whole_pets_and_imagenette(shared):
    assert pairs(vitreous.check(zipped(shared, "oxford-pets-160"))) == listed(shared) | EXTRA
    assert vitreous.check(zipped(shared, "imagenette-128")).findings == ()
