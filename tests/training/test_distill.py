"""Learning from a teacher: limits of the share, the formulas by hand, and a teacher that stays as it was."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from tiny_models import BIT, VIT, awake, images, line_of
from torch.testing import assert_close

from vitreous.errors import ConfigError
from vitreous.models.preprocess import IMAGENET_MEAN, IMAGENET_STD
from vitreous.training.recipe import Recipe
from vitreous.training.run.optimizers import groups, make
from vitreous.training.run.tasks.classify import classification_loss
from vitreous.training.run.tasks.distill import Distill, distillation_loss

TWO = VIT.change(distillation_token=True, pool="cls-and-distillation", distillation_head=True)


def targets(n: int = 4) -> torch.Tensor:
    return F.one_hot(torch.arange(n) % 5, 5).float()


def task(model=None, teacher=None, **changes) -> Distill:
    model = awake(TWO) if model is None else model
    return Distill(model, awake(VIT, seed=3) if teacher is None else teacher, Recipe(**changes))


def test_the_answer_is_the_mean_of_both_heads():
    one = task()
    x = images(one.model)
    first, second = one.network(x)
    assert not torch.equal(first, second)
    assert_close(one.model(x), (first + second) / 2)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_no_share_is_plain_classification_of_the_class_token(loss):
    one = task(distillation_share=0.0, loss=loss)
    x = images(one.model, 4)
    assert_close(one.loss(x, targets(), {})[0], classification_loss(one.network(x)[0], targets(), loss))


def test_hard_is_half_the_labels_and_half_the_teachers_first_answer():
    one = task()
    x = images(one.model, 4)
    first, second = one.network(x)
    taught = one.teacher(x).argmax(-1)
    by_hand = 0.5 * F.cross_entropy(first, targets().argmax(-1)) + 0.5 * F.cross_entropy(second, taught)
    assert_close(one.loss(x, targets(), {})[0], by_hand)


def test_soft_is_the_divergence_of_softened_answers():
    one = task(distillation="soft", distillation_share=0.1, distillation_temperature=3.0)
    x = images(one.model, 4)
    first, second = one.network(x)
    p, q = (one.teacher(x) / 3).softmax(-1), (second / 3).softmax(-1)
    kl = (p * (p.log() - q.log())).sum(-1).mean()
    by_hand = 0.9 * F.cross_entropy(first, targets().argmax(-1)) + 0.1 * 9 * kl
    assert_close(one.loss(x, targets(), {})[0], by_hand)


def test_a_student_that_agrees_loses_nothing():
    answers = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    assert_close(distillation_loss(answers, answers + 7, "soft", 3.0), torch.zeros(()), atol=1e-6, rtol=0)
    assert float(distillation_loss(100 * answers, answers, "hard", 3.0)) < 1e-3


def test_each_head_learns_from_its_own_half():
    """Hard labels reach the class head alone, the teacher the distillation head alone."""
    for share, silent in ((0.0, "distillation_head"), (1.0, "class_head")):
        one = task(distillation_share=share)
        one.loss(images(one.model, 4), targets(), {})[0].backward()
        for name in ("class_head", "distillation_head"):
            gradient = getattr(one.model.head, name).weight.grad
            assert bool((gradient == 0).all()) == (name == silent)


def test_a_network_with_one_head_learns_both_with_it():
    one = task(model=awake(VIT))
    first, second = one.network(images(one.model))
    assert torch.equal(first, second)


def test_the_teacher_stays_as_it_was_and_the_student_learns():
    teacher = awake(BIT, seed=5, image_size=16)
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    one = task(teacher=teacher.train(), distillation_share=1.0)
    assert not teacher.training
    x = images(one.model, 16)
    made = make(one.network, Recipe(peak_lr=3e-3, weight_decay=0.0), torch.device("cpu"))
    losses = []
    for _ in range(40):
        loss, _ = one.loss(x, targets(16), {})
        loss.backward()
        made.step()
        made.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())
    trained = {id(p) for group in groups(one.network, Recipe()) for p in group["params"]}
    assert trained == {id(p) for p in one.model.parameters()}


def test_the_teacher_sees_the_picture_in_its_own_values_and_size():
    teacher = awake(VIT, image_size=32)
    rule = dataclasses.replace(teacher.preprocess, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    teacher.preprocess = rule
    one = task(teacher=teacher)
    grey = torch.zeros(2, 3, 16, 16)  # half of the range, by the student's rule
    seen = one.seen_by_teacher(grey)
    assert seen.shape == (2, 3, 32, 32)
    wanted = (0.5 - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
    assert_close(seen, wanted.view(1, 3, 1, 1).expand_as(seen))


def test_a_grey_student_may_have_a_colour_teacher():
    one = task(model=awake(TWO, channels=1))
    x = torch.rand(4, 1, 16, 16)
    assert_close(one.seen_by_teacher(x), x.expand(-1, 3, -1, -1))
    assert torch.isfinite(one.loss(x, targets(), {})[0])


def test_right_answers_are_those_of_the_mean():
    one = task()
    x = images(one.model, 8)
    right = one.loss(x, targets(8), {})[1]
    assert right == (one.model(x).argmax(-1) == targets(8).argmax(-1)).sum()
    assert one.host(None) == {}  # type: ignore[arg-type]
    assert one.finished() is one.model


@pytest.mark.parametrize(
    ("teacher", "words"),
    [
        (lambda: awake(VIT, classes=7), ("7 classes", "5")),
        (lambda: awake(VIT, channels=1), ("1 channels", "3")),
    ],
    ids=["classes", "channels"],
)
def test_a_teacher_that_does_not_fit_is_refused(teacher, words):
    with pytest.raises(ConfigError) as caught:
        task(teacher=teacher())
    line_of(caught.value, *words)


def test_a_teacher_of_other_classes_is_refused_by_their_names():
    model, teacher = awake(TWO), awake(VIT)
    model.labels, teacher.labels = ("a", "b", "c", "d", "e"), ("a", "b", "x", "d", "e")
    with pytest.raises(ConfigError) as caught:
        task(model, teacher)
    line_of(caught.value, "'x'", "'c'", "class 2")
