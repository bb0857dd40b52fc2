"""Sharing images among cores changes when images are worked on, never what comes out."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tiny_models import BIT, VIT, awake
from torch.testing import assert_close

import vitreous
from vitreous.evaluation.inference import IMAGES_PER_CORE, in_flight, may_split, on_all_cores


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before
    torch.set_num_threads(before)


def joined(parts):
    return torch.cat(list(parts))


@given(count=st.integers(1, 3 * IMAGES_PER_CORE + 1), cores=st.integers(1, 5))
@example(count=6, cores=5)  # two each, and two cores have nothing
def test_every_image_is_answered_once_and_in_order(count, cores):
    before, seen = torch.get_num_threads(), []

    def answer(part):
        seen.append(len(part))
        return part * 2

    torch.set_num_threads(cores)
    try:
        images = torch.arange(count * 3.0).view(count, 3)
        assert (on_all_cores(answer, images, joined) == images * 2).all()
        assert torch.get_num_threads() == cores
    finally:
        torch.set_num_threads(before)
    assert sum(seen) == count
    share = -(-count // cores)
    assert max(seen) == (
        count if cores == 1 else min(share, IMAGES_PER_CORE)
    )  # nobody waits for one who has more than a share


@pytest.mark.parametrize("config", [VIT, BIT], ids=["vit", "bit"])
def test_logits_are_those_of_the_model(config):
    model = awake(config).eval()
    x = torch.rand(19, len(model.preprocess.mean), *model.config.image_size)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with torch.inference_mode():
            found = on_all_cores(torch.inference_mode()(model), x, joined)
            assert_close(found, model(x), rtol=1e-5, atol=1e-6)
    finally:
        torch.set_num_threads(before)


def test_an_error_on_a_core_comes_out_as_it_is_and_the_cores_come_back():
    def answer(part):
        raise ValueError("not this one")

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ValueError, match="not this one"):
            on_all_cores(answer, torch.zeros(32, 1), joined)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_model_that_somebody_listens_to_is_not_parted():
    model = awake(VIT).eval()
    assert may_split(model)
    with vitreous.taps(model, "blocks.0.output"):
        assert not may_split(model)
        model(torch.zeros(1, len(model.preprocess.mean), *model.config.image_size))
    assert may_split(model)


@pytest.mark.parametrize("count", [0, 1, 4, 9])
def test_work_in_flight_comes_in_order_and_no_more_of_it_is_begun(count):
    begun = []
    items = (begun.append(i) or i for i in range(6))
    for place, item in enumerate(in_flight(items, count)):
        assert item == place
        assert begun == list(range(min(place + count + 1, 6)))
    assert place == 5
