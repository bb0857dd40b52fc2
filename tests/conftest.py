"""What all tests share. One thread each: two test workers with spinning threads would starve each other."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import gc
from pathlib import Path

import pytest
from hypothesis import settings
from shared_files import SHARED, WHY_ABSENT

settings.register_profile("vitreous", deadline=None, print_blob=True)
settings.register_profile("quick", settings.get_profile("vitreous"), max_examples=10)
settings.load_profile("vitreous")
gc.disable()


def pytest_collection_finish() -> None:
    """What is imported stays: to look through it for garbage, again and again, took a sixth of the suite's time."""
    gc.freeze()
    gc.set_threshold(10_000)  # with Python's own 700, models that a test makes have all others looked through
    gc.enable()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recorded outputs, weights and data that are too large for the repository."""
    if not SHARED.is_dir():
        pytest.skip(WHY_ABSENT)
    return SHARED
