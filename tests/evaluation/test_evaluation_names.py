"""The public names of the room are functions, whichever of their files was imported first."""

import subprocess
import sys

import pytest

from vitreous import evaluation

FUNCTIONS = ["extract", "fewshot", "ridge", "episodes", "probe", "score", "curve", "label_errors", "suite"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_is_a_function(name):
    assert getattr(evaluation, name).__name__ == name


def test_a_file_imported_first_does_not_hide_its_function():
    program = """
import vitreous.evaluation.few_shot, vitreous.evaluation.learning_curve
from vitreous.evaluation.episodic import draw
from vitreous.evaluation import episodes, probes
import vitreous
assert vitreous.evaluation.fewshot.__name__ == "fewshot" and callable(vitreous.evaluation.fewshot)
assert callable(vitreous.evaluation.curve) and callable(episodes) and callable(draw)
assert probes.__name__ == "vitreous.evaluation.probes"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(AttributeError, match="no 'train'; it has: extract, fewshot"):
        evaluation.train  # noqa: B018
