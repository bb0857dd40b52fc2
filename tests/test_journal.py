"""A journal: cut or damaged anywhere, it gives back what was whole before, and goes on."""

import errno
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from vitreous.journal import Journal, json_object

RECORDS = [{"kind": "a", "n": 1}, {"kind": "b", "words": "é\n"}, {"kind": "c", "n": 3}]
ROWS = [b"one row.", b"another.", b"a third."]


def lines(path: Path, header: bytes = b"version 1\n") -> Journal[dict[str, object]]:
    return Journal(path / "log", json_object, header=header)


def rows(path: Path, header: bytes = b"version 1\n") -> Journal[bytes]:
    return Journal(path / "log", lambda row: row[:-4], header=header, row=12)


KINDS = [(lines, RECORDS), (rows, ROWS)]


@pytest.mark.parametrize(("kind", "records"), KINDS)
def test_what_was_appended_comes_back_in_order(tmp_path, kind, records):
    journal = kind(tmp_path)
    assert journal.repair() == 0
    journal.append(records[0])
    with journal:
        journal.append(*records[1:], sync=False)
    assert list(kind(tmp_path).records()) == kind(tmp_path).whole() == records
    assert kind(tmp_path).repair() == 3


@pytest.mark.parametrize(("kind", "records"), KINDS)
def test_cut_short_at_any_byte_the_whole_records_stay_and_the_log_goes_on(tmp_path, kind, records):
    journal = kind(tmp_path)
    journal.repair()
    journal.append(*records)
    whole = journal.path.read_bytes()
    for length in range(len(whole)):
        journal.path.write_bytes(whole[:length])
        left = journal.whole()
        assert left == records[: len(left)]
        assert journal.repair() == len(left)
        journal.append(*records[len(left) :])
        assert journal.path.read_bytes() == whole


@pytest.mark.parametrize(("kind", "records"), KINDS)
def test_a_damaged_record_is_none_and_ends_what_is_whole(tmp_path, kind, records):
    journal = kind(tmp_path)
    journal.repair()
    journal.append(*records)
    raw = bytearray(journal.path.read_bytes())
    raw[raw.index(b'"b"' if kind is lines else b"another")] ^= 16
    raw[len(raw) - 3] ^= 16
    journal.path.write_bytes(raw)
    assert list(journal.records()) == [records[0], None, None]
    assert journal.whole() == records[:1]
    assert journal.repair() == 1
    assert list(journal.records()) == records[:1]


def test_a_damaged_record_amid_others_stays_where_it_is(tmp_path):
    journal = lines(tmp_path, b"")
    journal.path.write_bytes(b'{"n": 1}\nno json\n{"n": 3}\n[4]\n\0\0\0')
    assert journal.repair() == 3
    assert list(journal.records()) == [{"n": 1}, None, {"n": 3}]


@pytest.mark.parametrize(("kind", "records"), KINDS)
def test_another_versions_log_counts_as_empty_and_is_begun_anew(tmp_path, kind, records):
    old = kind(tmp_path, b"version 0 of us\n")
    old.repair()
    old.append(*records)
    new = kind(tmp_path)
    assert new.whole() == []
    assert new.repair() == 0
    assert new.path.read_bytes() == b"version 1\n"


@pytest.mark.parametrize(("kind", "records"), KINDS)
def test_cutting_keeps_the_first_records(tmp_path, kind, records):
    journal = kind(tmp_path)
    journal.repair()
    journal.append(*records)
    for count in (5, 3, 2, 0):
        journal.cut(count)
        assert journal.whole() == records[:count]


def test_a_log_that_is_not_there_has_no_whole_record(tmp_path):
    assert lines(tmp_path).whole() == []
    with pytest.raises(FileNotFoundError):
        list(lines(tmp_path).records())


def test_the_bytes_on_disk_are_plain(tmp_path):
    """Lines are JSON; a row ends in the CRC-32 of what is before."""
    for kind, records in KINDS:
        journal = kind(tmp_path, b"")
        journal.cut(0)
        journal.append(*records)
    assert journal.path.read_bytes() == b"".join(row + zlib.crc32(row).to_bytes(4, "little") for row in ROWS)
    journal = lines(tmp_path, b"")
    journal.cut(0)
    journal.append(*RECORDS)
    assert [json.loads(line) for line in journal.path.read_text().splitlines()] == RECORDS


def test_data_reaches_the_disk_before_the_record_that_says_so(tmp_path, monkeypatch):
    journal = lines(tmp_path)
    journal.repair()
    seen = []
    real = os.fsync

    def fsync(handle: int) -> None:
        seen.append((os.fstat(handle).st_ino, len(journal.whole())))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with (tmp_path / "data").open("wb") as data:
        data.write(b"held in a buffer")
        journal.append(RECORDS[0], after=[data])
        assert (tmp_path / "data").read_bytes() == b"held in a buffer"
    assert seen == [((tmp_path / "data").stat().st_ino, 0), (journal.path.stat().st_ino, 1)]


FULL = """
import resource, signal, sys
from vitreous.journal import Journal, json_object
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = Journal(sys.argv[1], json_object)
journal.repair()
journal.append({"n": 1})
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    journal.append({"words": "x" * 40}, {"words": "y" * 400})
except OSError as error:
    print(error.errno)
"""


def test_on_a_full_disk_nothing_of_an_append_stays(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path / "log"], capture_output=True, text=True)
    assert done.stdout.strip() == str(errno.EFBIG), done.stderr
    assert (tmp_path / "log").read_bytes() == b'{"n": 1}\n'
