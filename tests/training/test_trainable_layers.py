"""Which layers train, and at what rate: the four cases of transfer."""

from itertools import pairwise

import pytest
import torch
from small_runs import MODEL, SIDE

import vitreous
from vitreous.errors import ConfigError
from vitreous.training.recipe import Recipe
from vitreous.training.run import optimizers, trainable_layers

RECIPE = Recipe(peak_lr=0.01, optimizer="sgd", weight_decay=0.1)
NETWORKS = {
    "vit": lambda: vitreous.build(MODEL.replace("depth=2", "depth=4"), image_size=SIDE, classes=3, seed=0),
    "hybrid": lambda: vitreous.build(
        "Ti/16 stem=convolutions width=16 depth=4 heads=2 mlp=32", image_size=32, classes=3, seed=0
    ),
    "resnet": lambda: vitreous.build("BiT-R50x1 resnet_width=0.25 units=1-1-1-1", image_size=32, classes=3, seed=0),
}


def trained(model) -> set[str]:
    return {name for name, p in model.named_parameters() if p.requires_grad}


@pytest.fixture(params=NETWORKS)
def network(request):
    return NETWORKS[request.param]()


@pytest.mark.claim("T08")
def test_few_images_like_those_it_knows_train_the_classifier_alone(network):
    choice = trainable_layers.choose("small", "similar", network)
    trainable_layers.apply(network, RECIPE.change(policy=choice.policy))
    assert trained(network) == {"head.weight", "head.bias"}


@pytest.mark.claim("T07")
def test_few_images_unlike_those_it_knows_leave_the_lower_half(network):
    choice = trainable_layers.choose("small", "different", network)
    trainable_layers.apply(network, RECIPE.change(policy=choice.policy))
    assert choice.policy == "last-2"
    names = trained(network)
    assert not any(name.startswith(("embedding.", "stem.", "root.", "stages.0.", "stages.1.")) for name in names)
    assert not any(name.startswith(("blocks.0.", "blocks.1.")) for name in names)
    assert any(name.startswith(("blocks.2.", "stages.2.")) for name in names)
    assert any(name.startswith(("blocks.3.", "stages.3.")) for name in names)
    assert "head.weight" in names


@pytest.mark.claim("T06")
def test_many_images_like_those_it_knows_train_the_upper_part_at_a_tenth(network):
    choice = trainable_layers.choose("large", "similar", network)
    assert choice.policy == "last-3"
    recipe = trainable_layers.apply(network, RECIPE.change(policy=choice.policy))
    assert not any(
        name.startswith(("embedding.", "stem.", "root.", "blocks.0.", "stages.0.")) for name in trained(network)
    )
    for group in optimizers.groups(network, recipe):
        assert group["lr"] == pytest.approx(0.01 if group["kind"] == "head" else 0.001)


@pytest.mark.claim("T05")
def test_many_images_unlike_those_it_knows_train_everything(network):
    choice = trainable_layers.choose("large", "different", network)
    trainable_layers.apply(network, RECIPE.change(policy=choice.policy))
    assert choice.policy == "all"
    assert trained(network) == {name for name, _ in network.named_parameters()}


@pytest.mark.claim("T04")
def test_an_unknown_case_is_refused(network):
    assert set(trainable_layers.CASES) == {
        (size, like) for size in ("large", "small") for like in ("similar", "different")
    }
    with pytest.raises(ConfigError, match="size is large or small"):
        trainable_layers.choose("huge", "similar", network)


@pytest.mark.claim("T03")
def test_all_is_a_tenth_below_a_new_head_at_the_whole_rate(network):
    recipe = trainable_layers.apply(network, RECIPE.change(policy="all"))
    rates = {name: group["lr"] for group in optimizers.groups(network, recipe) for name in group["names"]}
    assert rates.pop("head.weight") == rates.pop("head.bias") == pytest.approx(0.01)
    assert all(rate == pytest.approx(0.001) for rate in rates.values())
    assert all(group["lr"] == 0.01 for group in optimizers.groups(network, trainable_layers.apply(network, RECIPE)))


@pytest.mark.claim("T03")
def test_frozen_is_frozen_through_momentum_and_decay(network):
    recipe = trainable_layers.apply(network, RECIPE.change(policy="last-1"))
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    moved = trained(network)
    steps = optimizers.make(network, recipe, torch.device("cpu"))
    torch.nn.init.normal_(network.head.weight)
    before["head.weight"] = network.head.weight.detach().clone()
    size = network.config.image_size
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    for _ in range(50 if "blocks.0.norm1.weight" in before else 5):
        network(images).square().sum().backward()
        steps.step()
        steps.zero_grad()
    after = dict(network.named_parameters())
    assert all(torch.equal(after[name], before[name]) for name in before if name not in moved)
    assert not torch.equal(after["head.weight"], before["head.weight"])


@pytest.mark.parametrize(
    ("name", "line"), [("last-9", "last-1 to last-4"), ("lower", "there are: head"), ("last-0", "last-1")]
)
def test_a_policy_that_means_nothing_is_one_line(name, line):
    with pytest.raises(ConfigError, match=line):
        trainable_layers.apply(NETWORKS["vit"](), RECIPE.change(policy=name))


def test_layer_decay_falls_from_the_head_to_the_image(network):
    recipe = trainable_layers.apply(network, RECIPE.change(policy="layer-decay"))
    rates = sorted({group["lr"] for group in optimizers.groups(network, recipe)})
    assert rates[-1] == 0.01
    assert len(rates) >= 5
    assert all(low / high == pytest.approx(0.75) for low, high in pairwise(rates))
