"""What is judged at the end is decoded beside a training on a GPU, and after one on a CPU."""

import dataclasses
import threading

import numpy as np
import pytest
import torch
from small_runs import CPU, MODEL, PLAIN, SIDE, picture_folder

from vitreous.images.imageset import TEST
from vitreous.ranks import Ranks
from vitreous.training.plan import plan as plans
from vitreous.training.plan.estimate import Estimate
from vitreous.training.plan.plan import plan
from vitreous.training.run import protocols
from vitreous.training.run.runtime import Around

GPU = torch.device("cuda")  # only its name: nothing here is computed on it


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """One whose test pictures two networks are judged on."""
    folder = picture_folder(tmp_path_factory.mktemp("sets") / "shapes", 60)
    asked = {"model": MODEL, "weights": None, "recipe": PLAIN.change(image_size=SIDE), "overrides": {}}
    found = plan(folder, device=CPU, checked=False, folds=0, say=print, **asked)
    return dataclasses.replace(found, estimate=Estimate(1, 2, 2, 0.5, 0.0, 1.0, 0.0))


def around(device):
    return Around(device, Ranks(), 0, "stop", (), None, None, lambda event: None)


@pytest.mark.parametrize("device", [CPU, GPU])
def test_the_same_pixels_in_time(job, device):
    judged = job.data.split(TEST)
    expected = plans.for_judging(job, judged, Ranks())
    with protocols._decoding(job, judged, around(device)) as decoded:
        found = decoded()
    assert not found.is_encoded
    assert len(found) == len(judged) > 5
    np.testing.assert_array_equal(found.ids, expected.ids)
    for i in range(len(judged)):
        np.testing.assert_array_equal(found.read(i), expected.read(i))


def test_on_a_gpu_they_come_while_it_trains(job, monkeypatch):
    begun, is_trained, threads = threading.Event(), threading.Event(), []

    def slowly(job, judged, ranks, **how):
        threads.append(threading.current_thread())
        begun.set()
        assert is_trained.wait(20)
        return judged

    monkeypatch.setattr(plans, "for_judging", slowly)
    with protocols._decoding(job, job.data.split(TEST), around(GPU)) as decoded:
        assert begun.wait(20)
        is_trained.set()
        assert len(decoded()) > 5
    assert threads != [threading.current_thread()]


def test_a_training_that_ends_early_waits_for_no_picture(job, monkeypatch):
    begun, counts = threading.Event(), []

    def without_end(job, judged, ranks, *, threads, progress):
        while True:
            counts.append(1)
            begun.set()
            progress(len(counts), 10**9)

    monkeypatch.setattr(plans, "for_judging", without_end)
    with (
        pytest.raises(KeyboardInterrupt),
        protocols._decoding(job, job.data.split(TEST), around(GPU)),
    ):
        assert begun.wait(20)
        raise KeyboardInterrupt


@pytest.mark.parametrize("device", [CPU, GPU])
def test_where_nothing_is_apart_to_judge_nothing_is_decoded(job, device):
    with protocols._decoding(job, None, around(device)) as decoded:
        assert decoded() is None
