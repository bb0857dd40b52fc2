"""Nothing half-written is taken for whole, nothing is overwritten unasked, and a lock dies with its holder."""

import hashlib
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import forks
import pytest
from kills import each_kill, killed_at

from vitreous import files
from vitreous.errors import BusyError, ExistsError
from vitreous.files import atomic_folder, atomic_write, digest, lock, restore_folder

OLD, NEW = b"old" * 1000, b"new" * 1000


def program(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A real process running `code`, which can be killed."""
    words = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return forks.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill_when_it_speaks(process: subprocess.Popen[str]) -> None:
    assert process.stdout.readline() == "half\n", process.communicate()
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def test_a_file_is_written_whole_and_leaves_nothing_beside(tmp_path):
    path = tmp_path / "new" / "folder" / "file"
    atomic_write(path, lambda file: file.write(NEW))
    assert path.read_bytes() == NEW
    assert list(path.parent.iterdir()) == [path]


def test_a_file_has_the_permissions_of_any_other(tmp_path):
    (tmp_path / "plain").touch()
    atomic_write(tmp_path / "ours", lambda file: file.write(NEW))
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_file_is_overwritten_only_by_force(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(OLD)
    with pytest.raises(ExistsError, match=r"file exists already; .* --force"):
        atomic_write(path, lambda file: file.write(NEW))
    assert path.read_bytes() == OLD
    atomic_write(path, lambda file: file.write(NEW), force=True)
    assert path.read_bytes() == NEW


@pytest.mark.parametrize("force", [True, False])
def test_an_error_while_writing_leaves_what_was_there(tmp_path, force):
    path = tmp_path / "file"
    if force:
        path.write_bytes(OLD)

    def fail(file):
        file.write(NEW)
        raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="disk on fire"):
        atomic_write(path, fail, force=force)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([OLD] if force else [])


def test_a_process_killed_while_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(OLD)
    kill_when_it_speaks(
        program(
            """
            import sys, time
            from vitreous.files import atomic_write
            def write(file):
                file.write(b"ne"); file.flush()
                print("half", flush=True)
                time.sleep(60)
            atomic_write(sys.argv[1], write, force=True)
            """,
            path,
        )
    )
    assert path.read_bytes() == OLD
    atomic_write(path, lambda file: file.write(NEW), force=True)  # and the next attempt is not in its way
    assert path.read_bytes() == NEW


def test_of_two_processes_that_race_for_a_file_exactly_one_wins(tmp_path):
    path = tmp_path / "file"
    code = """
        import sys
        from vitreous.errors import ExistsError
        from vitreous.files import atomic_write
        def write(file):
            file.write(sys.argv[2].encode() * 100_000)
            print("ready", flush=True)
            sys.stdin.readline()
        try:
            atomic_write(sys.argv[1], write)
        except ExistsError:
            sys.exit(3)
        """
    words = [sys.executable, "-c", textwrap.dedent(code), str(path)]
    racers = [forks.Popen([*words, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for name in "ab"]
    for racer in racers:  # both hold a full part before either may rename
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        racer.communicate()
    assert sorted(racer.returncode for racer in racers) == [0, 3]
    winner = "ab"[[racer.returncode for racer in racers].index(0)]
    assert path.read_text() == winner * 100_000
    assert list(tmp_path.iterdir()) == [path]


def write_pair(folder: Path, content: bytes) -> None:
    (folder / "a").write_bytes(content)
    (folder / "deep").mkdir()
    (folder / "deep" / "b").write_bytes(content)


def test_a_folder_appears_whole(tmp_path):
    path = tmp_path / "folder"
    with atomic_folder(path) as part:
        write_pair(part, NEW)
        assert not path.exists()
    assert (path / "a").read_bytes() == (path / "deep" / "b").read_bytes() == NEW
    assert list(tmp_path.iterdir()) == [path]


def test_an_empty_folder_counts_as_free(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    with atomic_folder(path) as part:
        write_pair(part, NEW)
    assert (path / "a").read_bytes() == NEW


def test_a_folder_is_replaced_only_by_force(tmp_path):
    path = tmp_path / "folder"
    with atomic_folder(path) as part:
        write_pair(part, OLD)
    with pytest.raises(ExistsError, match="folder exists already"), atomic_folder(path) as part:
        write_pair(part, NEW)
    with atomic_folder(path, force=True) as part:
        write_pair(part, NEW)
    assert (path / "a").read_bytes() == NEW
    assert list(tmp_path.iterdir()) == [path]


def test_force_never_deletes_somebody_elses_files(tmp_path):
    (tmp_path / "letters").write_text("dear")
    with pytest.raises(ExistsError, match="also holds letters"), atomic_folder(tmp_path, force=True) as part:
        write_pair(part, NEW)
    assert [p.name for p in tmp_path.iterdir()] == ["letters"]


def test_a_folder_taken_meanwhile_is_left_alone(tmp_path):
    path = tmp_path / "folder"
    with pytest.raises(ExistsError), atomic_folder(path) as part:
        write_pair(part, NEW)
        path.mkdir()
        (path / "theirs").touch()
    assert [p.name for p in path.iterdir()] == ["theirs"]


def test_a_process_killed_while_filling_a_folder_leaves_the_old_one(tmp_path):
    path = tmp_path / "folder"
    with atomic_folder(path) as part:
        write_pair(part, OLD)
    kill_when_it_speaks(
        program(
            """
            import sys, time
            from vitreous.files import atomic_folder
            with atomic_folder(sys.argv[1], force=True) as part:
                (part / "a").write_bytes(b"ne")
                print("half", flush=True)
                time.sleep(60)
            """,
            path,
        )
    )
    assert (path / "a").read_bytes() == (path / "deep" / "b").read_bytes() == OLD


def test_an_error_while_filling_a_folder_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "folder") as part:
        write_pair(part, NEW)
        raise RuntimeError
    assert not any(tmp_path.iterdir())


# A kill at every step ----------------------------------------------------------------------------------------------


def write_folder(path: Path, content: bytes) -> None:
    with atomic_folder(path, force=True) as part:
        write_pair(part, content)


def whole(path: Path) -> bytes:
    """The content of a pair that is whole."""
    assert (path / "a").read_bytes() == (path / "deep" / "b").read_bytes()
    assert sorted(p.name for p in path.rglob("*")) == ["a", "b", "deep"]
    return (path / "a").read_bytes()


def without_exchange(monkeypatch) -> None:
    monkeypatch.setattr(files, "exchange", lambda one, other: False)


def can_exchange(tmp_path: Path) -> bool:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    return files.exchange(tmp_path / "one", tmp_path / "other")


def test_a_file_is_the_old_or_the_new_wherever_its_writer_is_killed(tmp_path, monkeypatch):
    found = [
        (folder / "file").read_bytes()
        for folder in each_kill(
            tmp_path,
            monkeypatch,
            lambda folder: (folder / "file").write_bytes(OLD),
            lambda folder: atomic_write(folder / "file", lambda file: file.write(NEW), force=True),
        )
    ]
    assert set(found) == {OLD, NEW}
    assert found == sorted(found, reverse=True)  # once new, never old again


def test_a_folder_is_the_old_or_the_new_wherever_its_writer_is_killed(tmp_path, monkeypatch):
    """Where the system exchanges two folders in one call, nobody ever sees a moment without either."""
    if not can_exchange(tmp_path):
        pytest.skip("this file system cannot exchange two folders in one call")
    found = []
    for folder in each_kill(
        tmp_path,
        monkeypatch,
        lambda folder: write_folder(folder / "ours", OLD),
        lambda folder: write_folder(folder / "ours", NEW),
    ):
        found.append(whole(folder / "ours"))
        write_folder(folder / "ours", NEW)  # the next writer is not in its way
        assert whole(folder / "ours") == NEW
    assert set(found) == {OLD, NEW}
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("next_one", ["reads", "writes"])
def test_without_an_exchange_the_next_reader_or_writer_puts_the_folder_back(tmp_path, monkeypatch, next_one):
    without_exchange(monkeypatch)
    found, was_away = [], False
    for folder in each_kill(
        tmp_path,
        monkeypatch,
        lambda folder: write_folder(folder / "ours", OLD),
        lambda folder: write_folder(folder / "ours", NEW),
    ):
        path = folder / "ours"
        was_away = was_away or not path.exists()
        if next_one == "reads":
            restore_folder(path)
        else:
            with pytest.raises(ExistsError), atomic_folder(path):
                raise AssertionError("a folder is there")
        found.append(whole(path))
        write_folder(path, NEW)
        assert whole(path) == NEW
        assert not [p for p in folder.iterdir() if p.name.endswith(".replaced")]
    assert was_away
    assert set(found) == {OLD, NEW}
    assert found == sorted(found, reverse=True)


def test_a_folder_that_is_there_or_was_never_kept_is_left_as_it_is(tmp_path):
    write_folder(tmp_path / "ours", OLD)
    (tmp_path / ".ours.replaced").mkdir()
    for path in (tmp_path / "ours", tmp_path / "none", Path(), Path("/"), tmp_path / ("x" * 5000), tmp_path / "a\0b"):
        restore_folder(path)
    assert whole(tmp_path / "ours") == OLD
    assert sorted(p.name for p in tmp_path.iterdir()) == [".ours.replaced", "ours"]


def test_a_folder_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path, monkeypatch):
    """The second rename fails: the first is taken back."""
    without_exchange(monkeypatch)
    write_folder(tmp_path / "ours", OLD)
    real, calls = files.rename, []

    def rename(part, path):
        calls.append(part)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        real(part, path)

    monkeypatch.setattr(files, "rename", rename)
    with pytest.raises(OSError, match="Input/output error"):
        write_folder(tmp_path / "ours", NEW)
    assert whole(tmp_path / "ours") == OLD
    assert [p.name for p in tmp_path.iterdir()] == ["ours"]


@pytest.mark.parametrize("exchanges", [True, False])
def test_the_old_folder_is_deleted_only_when_the_disk_knows_the_new_name(tmp_path, monkeypatch, exchanges):
    if not exchanges:
        without_exchange(monkeypatch)
    elif not can_exchange(tmp_path):
        pytest.skip("this file system cannot exchange two folders in one call")
    write_folder(tmp_path / "ours", OLD)
    done = killed_at(100, monkeypatch, lambda: write_folder(tmp_path / "ours", NEW))
    first = done.index("exchange") if exchanges else done.index("rename")
    assert "fsync_folder" in done[first : done.index("remove")]
    assert done[:2] == ["fsync", "fsync"]  # both files


@pytest.mark.slow
def test_a_process_killed_at_any_moment_leaves_a_whole_folder(tmp_path):
    """Real SIGKILLs, some of them between two system calls."""
    path = tmp_path / "ours"
    write_folder(path, OLD)
    writer = """
        import sys
        from pathlib import Path
        from vitreous.files import atomic_folder
        print("half", flush=True)
        for i in range(10**6):
            with atomic_folder(sys.argv[1], force=True) as part:
                (part / "a").write_bytes(b"%d" % i * 1000)
                (part / "deep").mkdir()
                (part / "deep" / "b").write_bytes(b"%d" % i * 1000)
        """
    for i in range(25):
        process = program(writer, path)
        assert process.stdout.readline() == "half\n", process.communicate()
        time.sleep(0.005 * (1 + i % 7) + 0.0007 * i)
        process.kill()
        process.communicate()
        restore_folder(path)
        whole(path)


# Digests and locks -------------------------------------------------------------------------------------------------


def test_a_digest_is_sha256_of_bytes_or_of_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(NEW)
    expected = hashlib.sha256(NEW).hexdigest()
    assert (
        digest(NEW)
        == digest(bytearray(NEW))
        == digest(memoryview(NEW))
        == digest(path)
        == digest(str(path))
        == expected
    )


def test_a_lock_keeps_others_out_and_lets_them_in_afterwards(tmp_path):
    path = tmp_path / "lock"
    with lock(path), pytest.raises(BusyError, match=r"lock is held by another process"), lock(path, seconds=0):
        pass
    with lock(path, seconds=0):
        pass


def test_threads_take_a_lock_in_turn(tmp_path):
    count = 0

    def add() -> None:
        nonlocal count
        for _ in range(20):
            with lock(tmp_path / "lock"):
                before = count
                os.sched_yield() if hasattr(os, "sched_yield") else None
                count = before + 1

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == 60


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    path = tmp_path / "lock"
    holder = program(
        """
        import sys, time
        from vitreous.files import lock
        with lock(sys.argv[1]):
            print("half", flush=True)
            time.sleep(60)
        """,
        path,
    )
    try:
        assert holder.stdout.readline() == "half\n"
        with pytest.raises(BusyError), lock(path, seconds=0.1):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with lock(path, seconds=5):
        pass


def test_json_and_bytes_are_written_whole_and_never_over_something(tmp_path):
    path = tmp_path / "new" / "a.json"
    files.write_json(path, {"é": [1, None]})
    assert path.read_text() == '{\n  "\\u00e9": [\n    1,\n    null\n  ]\n}\n'
    with pytest.raises(ExistsError):
        files.write_json(path, {})
    files.write_json(path, {"é": 1}, force=True, indent=None, ensure_ascii=False)
    assert path.read_text("utf-8") == '{"é": 1}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(path, math.nan, force=True)
    files.write_bytes(path, b"\0", force=True)
    assert path.read_bytes() == b"\0"
    assert [file.name for file in path.parent.iterdir()] == ["a.json"]


def test_a_place_that_is_taken_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path):
        with pytest.raises(ExistsError, match="exists already; choose another place, or overwrite it with --force"):
            files.claim(path, force=False)
        with pytest.raises(ExistsError):
            files.claim(path, force=False, is_folder=True)
        files.claim(path, force=True)
    (tmp_path / "empty").mkdir()
    for free in (None, tmp_path / "new", tmp_path / "empty"):
        files.claim(free, force=False, is_folder=True)


def test_a_deleted_name_is_gone_from_the_disk_too(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(files, "fsync_folder", synced.append)
    (tmp_path / "a").touch()
    files.delete_file(tmp_path / "a")
    assert (synced, list(tmp_path.iterdir())) == ([tmp_path], [])
