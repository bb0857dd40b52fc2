"""The score behind "none of these": cosine to the nearest class mean, −1 for a blank image, the same in every file."""

import numpy as np
import pytest
import torch
from tiny_models import BIT, VIT, awake, images

import vitreous
from vitreous.errors import CheckpointError, ConfigError
from vitreous.evaluation.inference import ready
from vitreous.models.familiarity import BLANK_SCORE, Familiarity, from_json
from vitreous.models.model import head_shape


def familiar(model, **how):
    classes, width = head_shape(model)
    means = torch.randn(classes, width, generator=torch.Generator().manual_seed(3))
    model.familiarity, model.threshold = Familiarity(means, **how), 0.1
    return model


def scores(model, pixels):
    with ready(model, torch.device("cpu")) as answer:
        return answer(pixels)[:, -1]


def noise(model, count=4):
    shape = (count, model.config.channels, *model.config.image_size)
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, np.uint8))


@pytest.mark.parametrize("config", [VIT, BIT])
def test_the_score_is_the_cosine_to_the_nearest_class_mean(config):
    model = familiar(awake(config))
    x = images(model, 3)
    features = model.features(x).detach().numpy()
    means = model.familiarity.means.numpy()
    cosines = features @ means.T / np.outer(np.linalg.norm(features, axis=1), np.linalg.norm(means, axis=1))
    found = model.score(x, torch.from_numpy(features), torch.zeros(3, 5))
    np.testing.assert_allclose(found.numpy(), cosines.max(1), atol=1e-5)


def test_without_means_the_score_is_the_largest_logit():
    model = awake(VIT)
    with ready(model, torch.device("cpu")) as answer:
        rows = answer(noise(model))
    assert rows.shape == (4, 6)
    np.testing.assert_array_equal(rows[:, -1], rows[:, :-1].amax(1))


@pytest.mark.parametrize(("contrast", "is_blank"), [(0.2, True), (0.0, False)])
def test_a_blank_image_resembles_nothing_unless_blank_images_were_learned(contrast, is_blank):
    model = familiar(awake(VIT), least_contrast=contrast)
    flat = torch.arange(0, 250, 50, dtype=torch.uint8)[:, None, None, None].expand(5, 3, 16, 16)
    assert ((scores(model, flat.contiguous()) == BLANK_SCORE) == is_blank).all()
    assert (scores(model, noise(model)) > BLANK_SCORE).all()


def test_a_file_keeps_the_score(tmp_path):
    model = familiar(awake(VIT), least_contrast=0.25)
    vitreous.save(model, tmp_path / "model")
    vitreous.save(model, tmp_path / "theirs", format="timm")
    for path in (tmp_path / "model.safetensors", tmp_path / "theirs"):
        again = vitreous.load(path)
        torch.testing.assert_close(again.familiarity.means, model.familiarity.means, rtol=0, atol=0)
        assert (again.familiarity.least_contrast, again.threshold) == (0.25, 0.1)
        torch.testing.assert_close(scores(again, noise(model)), scores(model, noise(model)), rtol=0, atol=1e-5)


def test_two_models_share_no_means_and_each_has_them_where_its_weights_lie():
    """Means are found on the CPU, and the model may be on a GPU; a copy of a model may go elsewhere."""
    ours, theirs = familiar(awake(VIT)), awake(VIT).to("meta")
    theirs.familiarity = ours.familiarity
    assert theirs.familiarity.means.is_meta
    assert not ours.familiarity.means.is_meta


def test_a_new_head_forgets_the_old_classes(tmp_path):
    vitreous.save(familiar(awake(VIT)), tmp_path / "model")
    again = vitreous.load(tmp_path / "model.safetensors", classes=3)
    assert again.familiarity is None
    assert again.threshold is None


@pytest.mark.parametrize(
    "record",
    [
        7,
        {},
        {"shape": [5], "means": "", "least_contrast": 0},
        {"shape": [5, 16], "means": "AAAA", "least_contrast": 0},
        {"shape": [5, 16], "means": "§", "least_contrast": 0},
        {"shape": [-5, -16], "means": "", "least_contrast": 0},
        {"shape": [1, 1], "means": "AHw=", "least_contrast": 0},  # infinite
        {"shape": [1, 1], "means": "AAA=", "least_contrast": float("nan")},
        {"shape": [10**30, 1], "means": "AAA=", "least_contrast": 0},
    ],
)
def test_damaged_means_are_refused_in_one_line(record):
    with pytest.raises(ConfigError, match="familiarity"):
        from_json(record)


def test_a_damaged_file_names_what_is_wrong(tmp_path, monkeypatch):
    model = familiar(awake(VIT))
    monkeypatch.setattr(Familiarity, "to_json", lambda self: {"shape": [1]})
    vitreous.save(model, tmp_path / "model")
    with pytest.raises(CheckpointError, match="familiarity does not hold the means of classes"):
        vitreous.load(tmp_path / "model.safetensors")


def test_means_of_other_classes_are_not_used(tmp_path):
    """They fit the head of another model: no score is better than a wrong one."""
    model = awake(VIT)
    model.familiarity, model.threshold = Familiarity(torch.ones(2, 16)), 0.1
    vitreous.save(model, tmp_path / "model")
    again = vitreous.load(tmp_path / "model.safetensors")
    assert again.familiarity is None
    assert again.threshold is None
