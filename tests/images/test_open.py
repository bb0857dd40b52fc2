"""`images.open`: one grammar for DATA, one content id for one content, and words for what was found."""

import contextlib
import os
import shutil
import sys
from pathlib import Path
from textwrap import dedent

import forks
import numpy as np
import pytest
from picture_files import class_folders, encoded, idx_bytes, tar_of, zip_of
from shared_files import needs_shared

import vitreous
from vitreous import images
from vitreous.errors import DataError
from vitreous.images.imageset import Source
from vitreous.images.sources import SOURCES


@pytest.fixture
def folder(tmp_path):
    return class_folders(tmp_path / "set", {f"{s}/{c}": 2 for s in ("train", "test") for c in "ab"})


def test_it_is_handed_out_by_the_room():
    assert vitreous.images.open is images.open
    assert images.open("fashion").kind in SOURCES


def test_the_content_id_is_of_the_content_alone(folder, tmp_path, monkeypatch):
    first = images.open(folder).content_id
    monkeypatch.chdir(tmp_path)
    assert images.open("set").content_id == first
    copy = tmp_path / "elsewhere"
    for file in sorted(folder.rglob("*.png"), reverse=True):  # another order on the disk, another time
        place = copy / file.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
        os.utime(place, (1, 1))
    assert images.open(copy).content_id == first
    (folder / "train" / "a" / ".DS_Store").write_bytes(b"x")
    assert images.open(folder).content_id == first


@pytest.mark.parametrize("change", ["picture", "size", "label", "more", "less", "split", "name"])
def test_the_content_id_changes_with_the_content(folder, change):
    first = images.open(folder).content_id
    one = folder / "train" / "a" / "0.png"
    raw = bytearray(one.read_bytes())
    if change == "picture":  # of the same size
        raw[-20] ^= 1
        one.write_bytes(raw)
    elif change == "size":
        one.write_bytes(encoded(99))
    elif change == "label":
        one.rename(folder / "train" / "b" / "zero.png")
    elif change == "more":
        (folder / "train" / "a" / "9.png").write_bytes(encoded(9))
    elif change == "less":
        one.unlink()
    elif change == "split":
        one.rename(folder / "test" / "a" / "zero.png")
    else:
        one.rename(one.with_name("zero.png"))
    assert images.open(folder).content_id != first


def test_a_zips_content_id_does_not_know_its_name_or_order(tmp_path):
    files = {f"{c}/{i}.png": encoded(10 * (c == "b") + i) for c in "ab" for i in range(3)}
    first = images.open(zip_of(tmp_path / "one.zip", files)).content_id
    (tmp_path / "sub").mkdir()
    assert images.open(zip_of(tmp_path / "sub" / "two.zip", dict(reversed(files.items())))).content_id == first
    files["a/0.png"] = files["a/0.png"][:-1] + b"x"
    assert images.open(zip_of(tmp_path / "three.zip", files)).content_id != first


def test_numbers_do_not_depend_on_the_order_on_the_disk(tmp_path):
    files = {f"{c}/{i}.png": encoded(10 * (c == "b") + i) for c in "ab" for i in range(3)}
    one = images.open(zip_of(tmp_path / "one.zip", files))
    two = images.open(zip_of(tmp_path / "two.zip", dict(reversed(files.items()))))
    assert [one.name(i) for i in range(6)] == [two.name(i) for i in range(6)]
    assert one.raw(4) == two.raw(4)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "nowhere",
            "nowhere is not there; name a folder, a file, a pattern, an address or fashion",
        ),
        ("no*.zip", r"no file matches no\*\.zip; check the pattern"),
        ("", "no data was named"),
        ("{0..99999999}.tar", "names more than a million files"),
    ],
)
def test_what_is_not_there_is_said(name, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=line):
        images.open(name)


def test_a_name_beside_that_is_nearly_the_same_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("PHOTOS", "sub/holiday.zip", ".hidden"):
        Path(name).mkdir(parents=True)
    for asked, meant in (("PHOTO", "PHOTOS"), ("photos", "PHOTOS"), ("sub/holidya.zip", "sub/holiday.zip")):
        if not Path(asked).exists():  # some disks do not tell capitals apart
            with pytest.raises(DataError, match=rf"^{asked} is not there; did you mean {meant}\?$"):
                images.open(asked)
    for asked in ("scans", ".hiddn", "none/photos"):
        with pytest.raises(DataError, match=f"{asked} is not there; name a folder"):
            images.open(asked)


def test_a_file_that_is_no_set_is_said(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"notes\.txt is not a set of images"):
        images.open(tmp_path / "notes.txt")


def test_every_source_keeps_the_contract():
    data = images.open("fashion")
    assert isinstance(data.source, Source)
    assert len(data) == len(data.ids) == len(data.labels) == len(data.splits)


def test_it_says_what_it_found(folder):
    text = str(images.open(folder))
    assert text.startswith(f"{folder}: folders, 8 images (4 train, 4 test), 2 classes (a, b; 4 images each)")


def test_one_image_of_each_class_is_one_image(folder):
    data = images.open(folder)
    one = data.take([data.labels.tolist().index(k) for k in (0, 1)])
    assert "2 classes (a, b; 1 image each)" in str(one)


def test_an_open_set_may_be_opened_further(folder):
    data = images.open(folder)
    assert len(images.open(data, split="test", limit=2)) == 2


def test_a_source_from_outside_is_one_file_and_one_line(tmp_path):
    (tmp_path / "out_of_tree.py").write_text(
        dedent('''
        """Pictures that are one colour each: a text file of numbers."""
        import numpy as np
        from vitreous.images.sources.labels import by_name
        from vitreous.images.sources.source import FoundImages, SourceKind

        class Greys:
            def __init__(self, levels): self.levels = levels
            def __len__(self): return len(self.levels)
            def name(self, i): return f"line {i}"
            def raw(self, i): return None
            def read(self, i): return np.full((8, 8, 3), self.levels[i], np.uint8)

        def open_greys(place):
            levels = [int(line) for line in open(place.files[0])]
            labels, classes = by_name(["dark" if level < 128 else "light" for level in levels])
            return FoundImages(Greys(levels), labels, classes, [""] * len(levels), [str(level) for level in levels])

        GREYS = SourceKind("greys", "greys", lambda place: bool(place.ending(".greys")), open_greys)
        ''')
    )
    record = tmp_path / "out_of_tree-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: out-of-tree\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text("[vitreous.sources]\ngreys = out_of_tree:GREYS\n")
    (tmp_path / "a.greys").write_text("\n".join(map(str, range(0, 256, 16))))
    code = "from vitreous import images; d = images.open('a.greys'); "
    code += "print(d.kind, d.classes, len(d), len(images.sources.SOURCES))"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = forks.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split("\n")[0] == f"greys ('dark', 'light') 16 {len(SOURCES) + 1}"


@needs_shared
def test_the_thousand_of_imagenet_are_all_test(shared):
    data = images.open(shared / "data" / "imagenet-sample-1000.zip")
    assert (len(data), len(data.classes), set(data.splits.tolist())) == (1000, 1000, {"test"})
    assert "there is no train split; all images are test" in str(data)
    assert np.array_equal(data.labels, np.arange(1000))


@needs_shared
def test_real_near_duplicates_are_kept_together(shared):
    """The pairs of near_duplicates.tsv that lie in six breeds of the pets, found again from the pictures."""
    pairs = [line.split("\t") for line in (shared / "data" / "near_duplicates.tsv").read_text().splitlines()]
    pairs = [(a, b) for sets, _, a, b, *_ in pairs if sets == "oxford-pets-160 / oxford-pets-160"]
    breeds = sorted({a.split("/")[1] for a, _ in pairs})[:6]
    pets = images.open(shared / "data" / "oxford-pets-160-*.zip", classes=breeds)
    where = {pets.name(i): i for i in range(len(pets))}
    wanted = [(where[a], where[b]) for a, b in pairs if a in where and b in where]
    groups, told = images.splits.find_groups(pets)
    assert len(wanted) >= 6
    assert all(groups[a] == groups[b] for a, b in wanted)
    assert (np.bincount(groups) > 1).sum() <= len(wanted) + 1  # and hardly anything else
    assert told.startswith("kept together: 0 exact copies")


def test_a_large_set_is_known_by_sizes_heads_and_tails(folder, monkeypatch):
    monkeypatch.setattr("vitreous.images.sources.folders.HASH_WHOLE_BELOW", 0)
    one = folder / "train" / "a" / "0.png"
    one.write_bytes(encoded(1) + bytes(20_000))
    first = images.open(folder).content_id
    assert images.open(folder).content_id == first
    one.write_bytes(encoded(1) + bytes(19_999) + b"x")
    assert images.open(folder).content_id != first


def test_a_set_too_large_to_look_at_is_split_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("vitreous.images.splits.MAX_IMAGES_COMPARED", 10)
    data = images.open(class_folders(tmp_path, {"a": 10, "b": 10}))
    assert len(data.split("test")) == 4
    assert "more than 10 images, so near duplicates were not looked for" in str(data)


@pytest.mark.parametrize("kind", ["zip", "tar", "npz", "idx"])
def test_a_damaged_file_is_one_line_and_never_another_error(kind, tmp_path):
    """Cut anywhere, or with bits turned anywhere: it opens and names the picture, or is refused."""
    rng = np.random.default_rng(0)
    if kind == "zip":
        path = zip_of(tmp_path / "a.zip", {f"{c}/{i}.png": encoded(i) for c in "ab" for i in range(2)}, 8)
    elif kind == "tar":
        files = {f"{i}.{ending}": raw for i in range(3) for ending, raw in (("jpg", encoded(i)), ("cls", b"1"))}
        path = tar_of(tmp_path / "a.tar", files)
    elif kind == "npz":
        path = tmp_path / "a.npz"
        np.savez(path, images=np.zeros((4, 5, 5), np.uint8), labels=np.arange(4))
    else:
        path = tmp_path / "train-images-idx3-ubyte"
        path.write_bytes(idx_bytes(np.zeros((4, 5, 5))))
        (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(4)))
    raw = path.read_bytes()
    for turn in range(60):
        hurt = bytearray(raw[: rng.integers(0, len(raw))] if turn % 3 == 0 else raw)
        low = 0 if turn % 3 == 1 else max(len(hurt) - 300, 0)
        for place in rng.integers(low, len(hurt), 6) if turn % 3 and hurt else ():
            hurt[place] ^= int(rng.integers(1, 256))
        path.write_bytes(hurt)
        with contextlib.suppress(DataError):
            data = images.open(path)
            for i in range(len(data)):
                with contextlib.suppress(DataError):
                    data.read(i)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"fraction": "0.5"}, "fraction='0.5' is not a number; say one above 0 and at most 1"),
        ({"fraction": True}, "fraction=True is not a number"),
        ({"limit": 5.5}, "limit=5.5 is not a whole number; say how many images, 1 or more"),
        ({"limit": "5"}, "limit='5' is not a whole number"),
        ({"group_by": 5}, "group_by=5 is not text"),
    ],
)
def test_options_of_another_kind_are_one_line_before_anything_is_read(options, line, folder):
    for data in ("nowhere", images.open(folder)):
        with pytest.raises(DataError, match=line):
            images.open(data, **options)
    assert len(images.open(folder, limit=np.int64(3))) == 3


def test_an_open_set_takes_no_groups(folder):
    with pytest.raises(DataError, match="is open and split already; give group_by where it is opened by its path"):
        images.open(images.open(folder), group_by="a")
