"""The test images are decoded beside training on a GPU, and after training on a CPU."""

import dataclasses
import threading
from functools import partial

import numpy as np
import pytest
import torch
from small_runs import CPU, MODEL, PLAIN, SIDE, picture_folder, plan_of

from vitreous.images.imageset import TEST
from vitreous.ranks import Ranks
from vitreous.training.plan.estimate import Estimate
from vitreous.training.run.decoded import decode_for_judging, decoding_beside

GPU = torch.device("cuda")  # only its name: nothing here is computed on it


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """A plan in which two networks are judged on the test images."""
    folder = picture_folder(tmp_path_factory.mktemp("sets") / "shapes", 60)
    found = plan_of(folder, model=MODEL, recipe=PLAIN.change(image_size=SIDE), check=False, folds=0)
    return dataclasses.replace(found, estimate=Estimate(1, 2, 2, 0.5, 0.0, 1.0, 0.0))


@pytest.mark.parametrize("device", [CPU, GPU])
def test_the_same_pixels_in_time(plan, device):
    judged = plan.data.split(TEST)
    expected = decode_for_judging(plan, judged, Ranks())
    with decoding_beside(device, partial(decode_for_judging, plan, judged, Ranks())) as decoded:
        found = decoded()
    assert not found.is_encoded
    assert len(found) == len(judged) > 5
    np.testing.assert_array_equal(found.ids, expected.ids)
    for i in range(len(judged)):
        np.testing.assert_array_equal(found.read(i), expected.read(i))


def test_on_a_gpu_they_come_while_it_trains(plan):
    begun, is_trained, threads = threading.Event(), threading.Event(), []

    def slowly(**how):
        threads.append(threading.current_thread())
        begun.set()
        assert is_trained.wait(20)
        return plan.data

    with decoding_beside(GPU, slowly) as decoded:
        assert begun.wait(20)
        is_trained.set()
        assert decoded() is plan.data
    assert threads != [threading.current_thread()]


def test_a_training_that_ends_early_waits_for_no_image():
    begun, counts = threading.Event(), []

    def without_end(*, threads, progress):
        while True:
            counts.append(1)
            begun.set()
            progress(len(counts), 10**9)

    with pytest.raises(KeyboardInterrupt), decoding_beside(GPU, without_end):
        assert begun.wait(20)
        raise KeyboardInterrupt
