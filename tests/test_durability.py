"""After a power cut: a name leads to whole content, and a journal speaks only of what the disk has."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from picture_sets import photos, tar_shards
from tiny_models import awake

from vitreous import files
from vitreous.evaluation import features
from vitreous.files import atomic_folder, atomic_write
from vitreous.images.stores import disk as disk_module
from vitreous.training.run.folder import RunFolder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no handle on a folder to sync")

NAMES = ("replace", "rename", "link", "exchange")  # the steps of files.py that give content a name


@dataclass(frozen=True)
class Step:
    """sync or name: of which file or folder, and how long every file was then."""

    what: str
    of: str
    sizes: dict[str, int]


class Disk:
    """The order in which what lies under `root` was synced and named; random parts of names are left out."""

    def __init__(self, root: Path):
        self.root, self.steps = root, list[Step]()

    def note(self, what: str, inode: int) -> None:
        paths = sorted([self.root, *self.root.rglob("*")], key=lambda path: not path.name.endswith(".part"))
        there = {path.stat().st_ino: path for path in paths}  # of a file with two names, the one that stays
        if inode in there:
            sizes = {self.plain(path): path.stat().st_size for path in there.values() if path.is_file()}
            self.steps.append(Step(what, self.plain(there[inode]), sizes))

    def plain(self, path: Path) -> str:
        return re.sub(r"\.[0-9a-f]{8}\.part", ".part", path.relative_to(self.root).as_posix())

    def places(self, what: str, of: str) -> list[int]:
        return [i for i, step in enumerate(self.steps) if (step.what, step.of) == (what, of)]

    def synced_sizes(self, of: str) -> list[int]:
        return [step.sizes[of] for step in self.steps if (step.what, step.of) == ("sync", of)]

    def check_journal(self, journal: str, *others: str) -> None:
        """Whenever the journal reaches the disk, what it speaks of is there; its first line promises nothing."""
        header = min(size for size in self.synced_sizes(journal) if size)
        promises = [at for at in self.places("sync", journal) if self.steps[at].sizes[journal] > header]
        assert promises
        for at in promises:
            for other in others:
                before = [step.sizes[other] for step in self.steps[:at] if (step.what, step.of) == ("sync", other)]
                assert before, f"{journal} reaches the disk before {other}"
                assert before[-1] == self.steps[at].sizes[other]


@pytest.fixture
def disk(tmp_path, monkeypatch):
    disk, fsync = Disk(tmp_path), os.fsync

    def noted_fsync(file):
        number = file if isinstance(file, int) else file.fileno()
        fsync(number)
        disk.note("sync", os.fstat(number).st_ino)

    def noted(real):
        def call(one, other):
            inode = Path(one).stat().st_ino
            result = real(one, other)
            if result is not False:
                disk.note("name", inode)
            return result

        return call

    monkeypatch.setattr(os, "fsync", noted_fsync)
    for name in NAMES:
        if hasattr(files, name):
            monkeypatch.setattr(files, name, noted(getattr(files, name)))
    return disk


# Files and folders -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("force", [False, True])
def test_a_file_has_its_name_only_when_the_disk_has_its_content(force, tmp_path, disk):
    """And the call returns only when the disk has the name."""
    atomic_write(tmp_path / "a.txt", lambda file: file.write(b"x" * 100_000), force=force)
    (content,), (named,) = disk.places("sync", ".a.txt.part"), disk.places("name", "a.txt")
    assert disk.synced_sizes(".a.txt.part") == [100_000]
    assert content < named < disk.places("sync", ".")[-1]


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_has_its_name_only_when_the_disk_has_all_of_it(force, tmp_path, disk):
    """Every file, every folder inside, and its own list of names; afterwards the folder that it lies in."""
    if force:
        with atomic_folder(tmp_path / "ours") as folder:
            (folder / "a").write_bytes(b"old")
        disk.steps.clear()
    with atomic_folder(tmp_path / "ours", force=force) as folder:
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "a").write_bytes(b"new")
        (folder / "deep" / "er" / "b").write_bytes(b"x" * 100_000)
    named = disk.places("name", "ours")[-1]
    for inside in ("", "/a", "/deep", "/deep/er", "/deep/er/b"):
        assert any(place < named for place in disk.places("sync", f".ours.part{inside}")), inside
    assert disk.synced_sizes(".ours.part/deep/er/b") == [100_000]
    assert disk.places("sync", ".")[-1] > named


def test_syncing_is_asked_of_the_system(tmp_path, disk):
    """The two functions that everything above goes through."""
    with (tmp_path / "a").open("wb") as file:
        files.fsync(file)
    files.fsync_folder(tmp_path)
    assert [step.of for step in disk.steps] == ["a", "."]


# Journals ----------------------------------------------------------------------------------------------------------


def test_no_state_of_a_run_outlives_the_events_before_it(tmp_path, disk):
    with RunFolder.create(tmp_path / "run", {}) as run:
        for step in (1, 2):
            run.event("step", step=step)
            written = (tmp_path / "run" / "events.jsonl").stat().st_size
            run.save_state({"x": torch.zeros(3)}, {"stage": "main", "step": step})
            named = disk.places("name", f"run/state/main-{step:08d}.safetensors")[0]
            before = [s.sizes[s.of] for s in disk.steps[:named] if (s.what, s.of) == ("sync", "run/events.jsonl")]
            assert before[-1:] == [written]


def test_a_pack_speaks_only_of_pixels_that_the_disk_has(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(disk_module, "IMAGES_PER_CHUNK", 4)
    monkeypatch.setattr(disk_module, "SYNC_SECONDS", 0.0)
    disk_module.pack(photos(12), tmp_path / "set.pack", short_side=16, workers=0)
    work = ".set.pack.packing"
    disk.check_journal(f"{work}/{disk_module.JOURNAL_FILE}", f"{work}/{disk_module.PIXELS_FILE}")
    sizes = disk.synced_sizes(f"{work}/{disk_module.JOURNAL_FILE}")
    assert len(set(sizes)) == 4  # the header, and three chunks
    assert (
        disk.synced_sizes(f"{work}/{disk_module.PIXELS_FILE}")[-1]
        == (tmp_path / "set.pack" / disk_module.PIXELS_FILE).stat().st_size
    )


def test_kept_features_speak_only_of_rows_that_the_disk_has(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(features, "SYNC_SECONDS", 0.0)
    features.extract(awake(), photos(12), workers=0, batch=4, cache=tmp_path)
    (journal,) = tmp_path.rglob("journal.jsonl")
    name = journal.relative_to(tmp_path).as_posix()
    folder = journal.relative_to(tmp_path).parent.as_posix()
    disk.check_journal(name, f"{folder}/values.bin", f"{folder}/places.bin")
    assert len(disk.synced_sizes(name)) == 6  # empty, the header, three parts, and that they are all
    assert disk.synced_sizes(name)[-1] == journal.stat().st_size


def test_a_shard_that_was_read_is_on_the_disk_before_the_next_is_read(tmp_path, disk):
    tar_shards(tmp_path, [2, 2, 2])
    disk_module.index(tmp_path)
    sizes = disk.synced_sizes("vitreous-index.jsonl.part")
    assert len(sizes) == 3
    assert sizes == sorted(set(sizes))
