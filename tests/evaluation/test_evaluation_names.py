"""The public names of the room are functions, whichever of its files was imported first."""

import sys

import forks
import pytest

from vitreous import evaluation

FUNCTIONS = ["extract", "fewshot", "ridge", "episodes", "probe", "score", "curve", "label_errors", "suite"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_is_a_function(name):
    assert callable(getattr(evaluation, name))
    assert getattr(evaluation, name).__name__ == name


def test_a_file_imported_first_hides_no_function():
    """Python binds an imported file in its package, so no file there may bear the name of a function."""
    program = """
import pkgutil
from importlib import import_module
from vitreous import evaluation
for file in pkgutil.walk_packages(evaluation.__path__, "vitreous.evaluation."):
    import_module(file.name)
for name in evaluation.HOME:
    assert callable(getattr(evaluation, name)), name
for name in evaluation.MODULES:
    assert getattr(evaluation, name).__name__ == f"vitreous.evaluation.{name}"
"""
    done = forks.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(AttributeError, match="no 'train'; it has: extract, fewshot"):
        evaluation.train  # noqa: B018
