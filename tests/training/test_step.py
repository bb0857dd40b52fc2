"""One step: what it changes, by how much, and what it is drawn by."""

from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from picture_sets import make_batches
from small_runs import BUSY, CPU, PLAIN, Poisoned, assert_equal_states, image_set, network, rule, sized
from torch._dynamo.utils import counters
from torch.testing import assert_close

import vitreous
from vitreous.errors import ConfigError, RunError
from vitreous.ranks import Ranks
from vitreous.training.plan.parallel import Strategy
from vitreous.training.run import step as stepping
from vitreous.training.run.step import Step, prepare
from vitreous.training.run.tasks.classify import Classify, classification_loss, right_answers

SGD = sized(PLAIN.change(optimizer="sgd", momentum=0.0, weight_decay=0.0, peak_lr=0.1))


@pytest.fixture(scope="module")
def data():
    return image_set(48)


def step_of(recipe, *, task=None, seed=0, **options):
    task = task or Classify(network(recipe, seed=seed), recipe)
    task.network.train()
    return Step(task, recipe, steps=10, rule=rule(), classes=4, device=CPU, ranks=Ranks(), **options)


def batches_of(data, recipe, count, *, batch=None, first=0):
    made = make_batches(
        data,
        batch=batch or recipe.batch,
        preprocess=rule(),
        augment=recipe.augment,
        epochs=9,
        workers=0,
        rank=0,
        world=1,
    )
    return list(islice(made, first, first + count))


def weights(step):
    return {name: tensor.clone() for name, tensor in step.network.state_dict().items()}


def trained(step, batches, *, first=0, factor=1.0):
    for number, batch in enumerate(batches, first):
        step(batch, number, factor)
    return step


SMALL = "Ti/4 width=16 depth=6 heads=2 mlp=32 drop_path=0.2"


def forget_what_is_compiled():
    stepping.compiled_once.cache_clear()
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch asks for it while it traces, and hides it
@pytest.mark.parametrize(("norm", "recomputed"), [("pre", False), ("post", False), ("pre", True)])
def test_blocks_compiled_by_themselves_are_one_graph_and_the_same_step(data, monkeypatch, norm, recomputed):
    recipe = sized(BUSY.change(dropout=0.0, optimizer="sgd"))
    made = partial(torch.compile, backend="aot_eager")
    monkeypatch.setattr(torch, "compile", made)
    forget_what_is_compiled()
    found = {}
    for compiled in ("blocks", "none"):
        model = vitreous.build(f"{SMALL} norm={norm}", image_size=16, classes=4, seed=0)
        strategy = Strategy(checkpointing=recomputed)
        step = step_of(recipe, task=Classify(model, recipe), compiled=compiled, strategy=strategy)
        counters.clear()
        found[compiled] = weights(trained(step, batches_of(data, recipe, 3)))
        if compiled == "blocks":
            assert counters["stats"]["unique_graphs"] == 3  # augmentation; the first block drops nothing; the rest
        assert "forward" not in vars(model.blocks[0])
    assert_close(found["blocks"], found["none"], rtol=1e-5, atol=1e-6)
    forget_what_is_compiled()


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_another_seed_rate_or_decay_takes_the_code_that_is_compiled(data, monkeypatch):
    """Equal networks share one compiled step; another activation is another network."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    forget_what_is_compiled()
    recipe = sized(BUSY.change(dropout=0.0, optimizer="sgd"))
    graphs = []
    counters.clear()
    for seed, changes, name in (
        (0, {}, SMALL),
        (1, {"peak_lr": 0.3, "weight_decay": 0.7}, SMALL),
        (0, {}, f"{SMALL} activation=relu"),
    ):
        model, own = vitreous.build(name, image_size=16, classes=4, seed=seed), recipe.change(seed=seed, **changes)
        trained(step_of(own, task=Classify(model, own), compiled="whole"), batches_of(data, own, 2))
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1] < graphs[2]
    forget_what_is_compiled()


# ------------------------------------------------------------------------------------------------------------ its parts


@pytest.mark.parametrize("parts", [2, 4])
def test_a_batch_in_parts_changes_the_weights_as_the_whole_does(data, parts):
    """Mixed pairs among them: a pair never lies in two parts. Dropout alone depends on the parts."""
    recipe = sized(BUSY.change(optimizer="sgd", peak_lr=0.05, dropout=0.0, cutmix=1.0))
    batches = batches_of(data, recipe, 4)
    whole, split = (trained(step_of(recipe.change(accumulation=n)), batches) for n in (1, parts))
    assert_close(split.state(), whole.state(), rtol=1e-5, atol=1e-6)
    ours, theirs = split.read(), whole.read()
    assert (ours.images, ours.accuracy) == (theirs.images, theirs.accuracy) == (32, theirs.accuracy)
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)


def test_a_step_split_further_on_the_way_goes_on_with_the_same_numbers(data):
    recipe = sized(BUSY.change(optimizer="sgd", peak_lr=0.05, dropout=0.0))
    batches = batches_of(data, recipe, 4)
    whole, split = trained(step_of(recipe), batches), trained(step_of(recipe), batches[:2])
    assert split.split_further()
    assert split.parts == 2
    assert split.split_further()
    assert split.parts == 4
    assert not split.split_further(), "a part has a pair at least"
    trained(split, batches[2:], first=2)
    assert_close(split.state(), whole.state(), rtol=1e-5, atol=1e-6)


def test_no_way_of_taking_parts_tears_a_pair_or_leaves_images_out():
    """12 images: parts of 6 are three pairs each, parts of 3 would tear one."""
    mixed = sized(PLAIN.change(batch=12, mixup=0.2))
    step = step_of(mixed)
    assert step.split_further()
    assert not step.split_further()
    assert step.parts == 2
    with pytest.raises(ConfigError, match="accumulation=4"):
        step_of(mixed.change(accumulation=4))
    step_of(sized(PLAIN.change(batch=12, accumulation=4)))  # nothing is mixed, so 3 are as good
    recipe = sized(PLAIN.change(batch=12, accumulation=4))
    with pytest.raises(ConfigError, match="accumulation=4"):
        task = Classify(network(recipe), recipe)
        Step(task, recipe, steps=1, rule=rule(), classes=4, device=CPU, ranks=Ranks(0, 2))


# ---------------------------------------------------------------------------------------------- clip, decay, the update


@pytest.mark.parametrize("clip", [0.05, None])
def test_the_change_is_the_rate_times_a_gradient_no_longer_than_the_clip(data, clip):
    recipe = SGD.change(clip="none" if clip is None else clip)
    step, (batch,) = step_of(recipe), batches_of(data, recipe, 1)
    before = weights(step)
    step(batch, 0, 0.5)
    moved = torch.stack([(before[name] - after).double().norm() for name, after in weights(step).items()]).norm()
    norm = step.read().norm
    assert norm > 0.1, "the clip would be no limit"
    assert float(moved) / (0.5 * 0.1) == pytest.approx(clip or norm, rel=1e-4)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_where_there_is_no_gradient_kernels_decay_and_all_else_stays(data, optimizer):
    class Nothing(Classify):
        def loss(self, images, targets, extra):
            loss, right = super().loss(images, targets, extra)
            return 0 * loss, right

    recipe = sized(PLAIN.change(optimizer=optimizer, peak_lr=0.01, muon_lr=0.01, weight_decay=0.5))
    step = step_of(recipe, task=Nothing(network(), recipe))
    before = weights(step)
    trained(step, batches_of(data, recipe, 1), factor=0.5)
    kernels = {
        f"{name}.weight"
        for name, module in step.network.named_modules()
        if isinstance(module, torch.nn.Linear | torch.nn.Conv2d)
    }
    assert kernels
    for name, after in weights(step).items():
        if name in kernels:
            assert_close(after, before[name] * (1 - 0.5 * 0.01 * 0.5), rtol=1e-6, atol=1e-8)
        else:
            assert torch.equal(after, before[name]), name


def test_the_loss_is_cross_entropy_by_hand(data):
    """Mean over the images; labels smoothed as (1 − s) y + s / K."""
    recipe = SGD.change(smoothing=0.1)
    step, (batch,) = step_of(recipe), batches_of(data, recipe, 1)
    with torch.no_grad():
        x, y = prepare(batch.images, batch.labels, None, rule(), 4, 0.1, cropped=True)
        assert_close(y.sum(1), torch.ones(8))
        p = step.network(x).double().softmax(-1)
    label = torch.arange(8), batch.labels
    by_hand = -(0.9 * p[label].log() + 0.1 * p.log().mean(1)).mean()
    step(batch, 0, 1.0)
    meters = step.read()
    assert meters.loss == pytest.approx(float(by_hand), rel=1e-6)
    assert meters.accuracy == float((p.argmax(1) == batch.labels).double().mean())
    assert meters.images == 8


@pytest.mark.parametrize("is_augmented", [True, False])
def test_labels_are_smoothed_with_and_without_augmentation(data, is_augmented):
    """The task is asked for (1 − s) y + s / K of each image."""
    asked = []

    class Asked(Classify):
        def loss(self, images, targets, extra):
            asked.append(targets)
            return super().loss(images, targets, extra)

    recipe = SGD.change(smoothing=0.2)
    step, (batch,) = step_of(recipe, task=Asked(network(), recipe)), batches_of(data, recipe, 1)
    step(batch if is_augmented else replace(batch, plan=None), 0, 1.0)
    assert_close(torch.cat(asked), 0.8 * F.one_hot(batch.labels, 4).float() + 0.2 / 4)


def test_losses_are_torchs_own_and_an_answer_is_right_where_the_target_leads():
    logits, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    one_hot = F.one_hot(labels, 4).float()
    assert_close(classification_loss(logits, one_hot, "softmax"), F.cross_entropy(logits, labels))
    several = torch.randint(0, 2, (6, 4)).float()
    p = logits.double().sigmoid()
    by_hand = -(several * p.log() + (1 - several) * (1 - p).log()).sum(1).mean()
    assert_close(classification_loss(logits, several, "sigmoid").double(), by_hand, rtol=1e-5, atol=1e-6)
    assert right_answers(logits, one_hot) == (logits.argmax(1) == labels).sum()
    assert right_answers(logits, torch.zeros(6, 4)) == 0, "an image with no label has no right answer"


# ----------------------------------------------------------------------------------------------------------- its draws


class Noted(Classify):
    """Writes down the answers to each picture."""

    def __init__(self, model, recipe):
        super().__init__(model, recipe)
        self.answers = {}

    def host(self, batch):
        self.epoch = batch.epoch
        return {"ids": batch.ids}

    def loss(self, images, targets, extra):
        logits = self.network(images)
        for i, answer in zip(extra["ids"].tolist(), logits.detach(), strict=True):
            self.answers[self.epoch, i] = answer
        return classification_loss(logits, targets, "softmax"), right_answers(logits, targets)


def test_which_paths_are_dropped_depends_on_seed_epoch_and_picture_alone(data):
    """Not on the order, the size of the batch, its parts, or what else torch draws."""
    recipe = sized(SGD.change(drop_path=0.5))

    def answers(data, batch, parts=1, seed=0):
        changed = recipe.change(batch=batch, accumulation=parts, seed=seed)
        task = Noted(network(recipe), changed)
        trained(step_of(changed, task=task), batches_of(data, changed, 2 * len(data) // batch), factor=0.0)
        assert len(task.answers) == 2 * len(data), "two epochs"
        return task.answers

    found = answers(data, 8)
    other = np.random.default_rng(0).permutation(len(data))
    torch.manual_seed(5)
    for again in (answers(data.take(other), 8), answers(data, 24), answers(data, 16, parts=4)):
        assert_close(again, found, rtol=1e-4, atol=1e-5)
    changed = [not torch.allclose(found[0, i], found[1, i], atol=1e-4) for i in range(len(data))]
    assert np.mean(changed) > 0.5, "another epoch drops others"
    changed = [not torch.allclose(one, found[key], atol=1e-4) for key, one in answers(data, 8, seed=1).items()]
    assert np.mean(changed) > 0.5, "another seed drops others"


def test_dropout_is_exact_for_a_seed_and_a_step(data):
    recipe = sized(SGD.change(dropout=0.3))
    (batch,) = batches_of(data, recipe, 1)

    def after(number, seed=0, noise=0):
        torch.manual_seed(noise)
        step = step_of(recipe.change(seed=seed), task=Classify(network(recipe), recipe))
        step(batch, number, 1.0)
        return weights(step)

    first = after(3)
    assert_equal_states(after(3, noise=7), first)
    for other in (after(4), after(3, seed=1)):
        assert not torch.equal(other["head.weight"], first["head.weight"])


# ----------------------------------------------------------------------------------------------------- state, bad steps


@pytest.mark.parametrize(
    ("optimizer", "average"), [("adamw", "ema"), ("muon", "tail"), ("sgd", "polyak"), ("lamb", "none"), ("adam", "ema")]
)
def test_a_state_taken_on_the_way_goes_on_bit_for_bit(data, optimizer, average):
    """Also into a step that has other weights and has made other steps."""
    recipe = sized(BUSY.change(optimizer=optimizer, average=average, average_tail=0.8))
    batches = batches_of(data, recipe, 6)
    step = trained(step_of(recipe), batches[:3])
    state = step.state()
    kept = {name: tensor.clone() for name, tensor in state.items()}
    trained(step, batches[3:], first=3)
    assert_equal_states(state, kept)
    other = trained(step_of(recipe, seed=1), batches[:2])
    other.load(state)
    assert_equal_states(other.state(), state)
    trained(other, batches[3:], first=3)
    assert_equal_states(other.state(), step.state())
    assert other.read() == step.read()


def test_a_state_of_another_network_or_recipe_is_refused_by_name(data):
    recipe = sized(PLAIN)
    state = step_of(recipe).state()
    with pytest.raises(RunError, match="average"):
        step_of(recipe.change(average="ema")).load(state)
    with pytest.raises(RunError, match=r"network\.head\.weight"):
        step_of(recipe, task=Classify(network(classes=5), recipe)).load(state)


def test_the_average_is_lent_to_the_network_and_taken_back(data):
    recipe = sized(BUSY.change(average="polyak", average_decay=0.5))
    step = trained(step_of(recipe), batches_of(data, recipe, 3))
    own = weights(step)
    with step.averaged():
        assert_equal_states({n: t for n, t in weights(step).items() if n in step.average.state}, step.average.state)
        assert not torch.equal(weights(step)["head.weight"], own["head.weight"])
    assert_equal_states(weights(step), own)


@pytest.mark.parametrize("where", ["loss", "gradient"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_a_step_that_is_not_finite_changes_nothing_and_is_named(data, where, optimizer):
    """Nor do those after it, until it is forgiven."""
    recipe = sized(BUSY.change(optimizer=optimizer))
    batches = batches_of(data, recipe, 6)
    step = step_of(recipe, task=Poisoned(network(recipe), recipe, batches[2].ids[:1], where))
    trained(step, batches[:2])
    before = step.state()
    trained(step, batches[2:4], first=2)
    after = step.state()
    told = {"meters.done", "meters.bad_at"}  # that there were steps, and which was the first bad one
    assert_equal_states(
        {n: t for n, t in after.items() if n not in told}, {n: before[n] for n in after if n not in told}
    )
    meters = step.read()
    assert meters.bad_at == 2
    assert meters.images == 16
    assert np.isfinite([meters.loss, meters.norm]).all()
    step.forgive()
    trained(step, batches[4:], first=2)
    assert step.read().bad_at is None
    clean = trained(step_of(recipe), batches[:2])
    trained(clean, batches[4:], first=2)
    assert_equal_states(weights(step), weights(clean))
