"""What tests of transfer begin with."""

import pytest
from small_runs import network

import vitreous


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory):
    """Features that other tests have kept are not found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITREOUS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Random, but for a head of other classes."""
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    vitreous.save(network(classes=7), path)
    return str(path)
