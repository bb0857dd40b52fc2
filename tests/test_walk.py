"""A reader's walk through `fit`: plan, then run, then tell, each folder left behind before the next is entered."""

import importlib
import inspect
import pkgutil
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from small_runs import picture_folder

import vitreous

SOURCE = Path(vitreous.__file__).parent
MOST_EXECUTED = {"scratch": 116, "default": 125}  # files; a new one needs a reason that a user would accept
MOST_FOLLOWED = 12  # files of training/ that call three others or more; the rest are leaves, or nearly


class Walk:
    """Which functions of ours ran, in their order, by file."""

    def __init__(self):
        self.calls = []  # (file, function)
        self.hands = defaultdict(set)  # by file of training/: the other files of training/ that it calls

    def __enter__(self):
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _see(self, frame, event, _):
        name = frame.f_code.co_filename
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED  # not the body of a class or module
        if event == "call" and is_function and name.startswith(str(SOURCE)):
            file = self._named(frame)
            self.calls.append((file, frame.f_code.co_name))
            caller = frame.f_back
            while caller is not None and not caller.f_code.co_filename.startswith(str(SOURCE)):
                caller = caller.f_back
            if caller is not None and file.startswith("training/") and self._named(caller) != file:
                self.hands[self._named(caller)].add(file)

    def _named(self, frame):
        return Path(frame.f_code.co_filename).relative_to(SOURCE).as_posix()

    @property
    def files(self):
        return {file for file, _ in self.calls}

    def places(self, folder):
        """Where in the walk a folder's functions ran."""
        return [i for i, (file, _) in enumerate(self.calls) if file.startswith(folder)]

    def place(self, file, function):
        return [i for i, call in enumerate(self.calls) if call == (file, function)]


@pytest.fixture(scope="module", params=["scratch", pytest.param("default", marks=pytest.mark.slow)])
def walk(request, tmp_path_factory):
    """Modules are imported before, so that what runs at import is not counted."""
    for module in pkgutil.walk_packages(vitreous.__path__, "vitreous."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    root = tmp_path_factory.mktemp("walk")
    folder = picture_folder(root / "shapes", 16, side=32)
    options = {"weights": "none", "folds": 0, "length": "4 steps"} if request.param == "scratch" else {}
    with pytest.MonkeyPatch.context() as patch, Walk() as walk:
        patch.setenv("VITREOUS_CACHE", str(root / "cache"))
        vitreous.fit(folder, out=root / "run", device="cpu", workers=0, **options)
    walk.kind = request.param
    return walk


def test_no_file_of_the_plan_runs_after_training_has_begun(walk):
    """A field of the plan may be read; nothing is planned again."""
    begun = min(i for name in ("_with_dev", "_folds", "_solved") for i in walk.place("training/run/protocols.py", name))
    late = {walk.calls[i] for i in walk.places("training/plan/") if i > begun}
    properties = {"classes", "files", "missing", "_missing", "judges_all", "measured_seconds", "teacher"}
    properties |= {"weights_file", "_weight_files"}
    assert {function for _, function in late} - properties - {"above_chance", "accuracy", "to_json"} == set()


def test_nothing_is_told_before_training_has_ended(walk):
    ended = max(walk.place("training/run/protocols.py", "_find_rivals"))
    early = {walk.calls[i] for i in walk.places("training/tell/") if i < ended}
    assert early == set()


def test_answers_are_measured_once(walk):
    told = min(walk.places("training/tell/"))
    assert len([i for i in walk.place("evaluation/accuracy.py", "measure") if i > told]) == 1


def test_a_reader_follows_few_files(walk):
    """`python -m pytest tests/test_walk.py -s` prints them."""
    followed = sorted(file for file, others in walk.hands.items() if file.startswith("training/") and len(others) > 2)
    print(walk.kind, *followed, sep="\n  ")
    assert len(followed) <= MOST_FOLLOWED, followed


def test_no_more_files_run_than_before(walk):
    assert len(walk.files) <= MOST_EXECUTED[walk.kind], sorted(walk.files)
