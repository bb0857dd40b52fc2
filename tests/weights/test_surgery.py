"""Another head, another image size: what changes, and that nothing else does."""

import math

import golden_cases as golden
import pytest
import torch
import torch.nn.functional as F
from tiny_models import BIT, VIT, answer, assert_same_answers, assert_same_model, awake, images, line_of
from torch import nn
from torch.testing import assert_close

import vitreous
from vitreous.errors import ConfigError, ImageSizeError
from vitreous.models.positions import resize_positions, sincos_2d


@pytest.fixture
def saved(tmp_path):
    """saved(config): a model awake, and its file."""

    def saved(config=VIT, **changes):
        model = awake(config, **changes)
        return model, vitreous.save(model, tmp_path / "m", force=True)[0]

    return saved


def equal_but(first, second, *gone) -> None:
    """All tensors but those whose name starts so are there, bit for bit, and no others."""
    a = {k: v for k, v in first.state_dict().items() if not k.startswith(gone)}
    b = {k: v for k, v in second.state_dict().items() if not k.startswith(gone)}
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


# The head


@pytest.mark.claim("M44")
@pytest.mark.parametrize("classes", [2, 7, 100])
def test_a_new_head_is_one_linear_map_of_zeros(saved, classes):
    """Pre-training head: linear, tanh, linear. Fine-tuning head: one zero D x K, so logits 0 and first loss ln K."""
    first, file = saved(representation=9)
    assert isinstance(first.representation.linear, nn.Linear)
    assert (first.representation.linear.out_features, first.head.in_features) == (9, 9)
    second = vitreous.load(file, classes=classes)
    assert second.config.readout.representation == 0
    assert not any(name.startswith("representation") for name in second.state_dict())
    assert second.head.weight.shape == (classes, 16)
    logits = second(images(second))
    assert torch.equal(logits, torch.zeros(2, classes))
    loss = F.cross_entropy(logits, torch.tensor([0, classes - 1]))
    assert loss.item() == pytest.approx(math.log(classes), abs=1e-5)
    loss.backward()
    assert second.head.weight.grad.abs().sum() > 0


@pytest.mark.claim("T01")
@pytest.mark.parametrize("name", golden.MODELS)
def test_everything_but_the_head_is_as_it_was(name):
    """Any checkpoint into a model with another number of classes."""
    said = golden.hints(name)
    first, second = vitreous.load(golden.source(name), **said), vitreous.load(golden.source(name), classes=13, **said)
    assert second.config.readout.classes == 13
    equal_but(first, second, "head.", "representation.")
    assert torch.equal(answer(second, golden.images(name)), torch.zeros(2, 13))
    if not getattr(first.config.readout, "representation", 0):
        x = golden.images(name)
        with torch.inference_mode():
            assert_same_answers(first.features(x), second.features(x))


def test_no_head_leaves_the_representation(saved):
    first, file = saved(representation=9)
    second = vitreous.load(file, classes=0)
    assert second.config.readout.representation == 9
    assert_same_answers(answer(second), first.features(images(first)).detach())
    equal_but(first, second, "head.")


def test_no_head_on_a_distilled_model_leaves_both_tokens(saved):
    two = {"distillation_token": True, "pool": "cls-and-distillation", "distillation_head": True}
    first, file = saved(**two)
    second = vitreous.load(file, classes=0)
    assert answer(second).shape == (2, 32)
    assert torch.equal(answer(vitreous.load(file, classes=3)), torch.zeros(2, 3))
    equal_but(first, second, "head.")


def test_the_models_own_number_keeps_its_head(saved):
    first, file = saved()
    assert_same_model(vitreous.load(file, classes=5), first)


def test_labels_and_temperature_go_with_the_head(tmp_path):
    first = awake()
    first.labels, first.temperature = tuple("abcde"), 2.0
    first.threshold, first.answers = 3.0, "several"
    (file,) = vitreous.save(first, tmp_path / "m")
    second = vitreous.load(file, classes=3)
    assert (second.labels, second.temperature) == (None, 1.0)
    assert (second.threshold, second.answers) == (None, "one")
    assert vitreous.load(file, classes=3, labels=["x", "y", "z"]).labels == ("x", "y", "z")
    assert vitreous.load(file, image_size=32).labels == tuple("abcde")


def test_a_head_of_less_than_nothing_is_refused(saved):
    with pytest.raises(ConfigError) as caught:
        vitreous.load(saved()[1], classes=-1)
    line_of(caught.value, "classes=-1")


# The image size


@pytest.mark.claim("T10")
def test_384_by_16_makes_577_tokens(tmp_path):
    """P stays, N grows; everything but the table is as it was."""
    first = awake(VIT.change(image_size=(224, 224), patch=(16, 16)))
    (file,) = vitreous.save(first, tmp_path / "m")
    second = vitreous.load(file, image_size=384)
    assert first.embedding.positions.table.shape == (197, 16)
    assert second.embedding.positions.table.shape == (577, 16)
    assert second.config.embedding.patch == (16, 16)
    assert second.preprocess.size == (384, 384)
    equal_but(first, second, "embedding.positions")
    assert answer(second).shape == (2, 5)


@pytest.mark.claim("T11")
@pytest.mark.parametrize("rule", ["paper", "timm", "huggingface", "torchvision"])
@pytest.mark.parametrize("size", [(32, 32), (8, 24), (20, 12), (4, 4)])
def test_a_learned_table_moves_by_the_rule(saved, rule, size):
    first, file = saved(registers=2)
    second = vitreous.load(file, image_size=size, position_resize=rule)
    old, new = first.embedding.positions.table, second.embedding.positions.table
    assert torch.equal(new[:3], old[:3])  # the tokens in front stay
    grid = size[0] // 4, size[1] // 4
    assert_close(new, resize_positions(old, (4, 4), grid, prefix=3, rule=rule))
    equal_but(first, second, "embedding.positions")


@pytest.mark.claim("T11")
def test_the_same_size_is_the_identity(saved):
    first, file = saved()
    equal_but(first, vitreous.load(file, image_size=16))
    equal_but(first, vitreous.load(file, image_size=(16, 16), position_resize="timm"))


@pytest.mark.claim("T11")
@pytest.mark.parametrize("size", [(32, 32), (64, 16), (12, 20)])
def test_constant_and_linear_fields_stay_what_they_are(saved, size, tmp_path):
    """A table that is a + b·row + c·column, measured from corner to corner, is that again on the new grid."""
    model = awake()
    a, b, c = torch.randn(3, 16, generator=torch.Generator().manual_seed(3))

    def field(rows: int, columns: int):
        y, x = torch.linspace(0, 1, rows), torch.linspace(0, 1, columns)
        return (a + y[:, None, None] * b + x[None, :, None] * c).flatten(0, 1)

    with torch.no_grad():
        model.embedding.positions.table[1:] = field(4, 4)
    (file,) = vitreous.save(model, tmp_path / "field")
    moved = vitreous.load(file, image_size=size).embedding.positions.table
    assert_close(moved[1:], field(size[0] // 4, size[1] // 4), atol=1e-5, rtol=0)


def test_learned_2d_tables_move_along_their_own_axis(saved):
    first, file = saved(positions="learned-2d")
    second = vitreous.load(file, image_size=(28, 12))
    assert second.embedding.positions.rows.shape == (7, 8)
    assert second.embedding.positions.columns.shape == (3, 8)
    old, new = first.embedding.positions.rows, second.embedding.positions.rows
    assert torch.equal(new[0], old[0])
    assert_close(new[-1], old[-1])
    assert_close(new[2], old[1])  # 2 · 3/6
    equal_but(first, second, "embedding.positions.rows", "embedding.positions.columns")
    assert answer(second).isfinite().all()


@pytest.mark.parametrize("at", ["every-layer", "every-layer-shared"])
@pytest.mark.parametrize("kind", ["learned", "learned-2d"])
def test_tables_of_every_layer_move_too(saved, at, kind):
    first, file = saved(positions_at=at, positions=kind)
    second = vitreous.load(file, image_size=(8, 24))
    equal_but(first, second, "layer_positions")
    for old, new in zip(first.layer_positions.tables, second.layer_positions.tables, strict=True):
        if kind == "learned":
            assert_close(new.table, resize_positions(old.table, (4, 4), (2, 6), prefix=1))
        else:
            assert (new.rows.shape[0], new.columns.shape[0]) == (2, 6)
    assert answer(second).isfinite().all()


def test_waves_are_made_anew(saved):
    first, file = saved(positions="sincos-2d")
    second = vitreous.load(file, image_size=(8, 24))
    equal_but(first, second)
    assert torch.equal(second.embedding.positions.waves, sincos_2d((2, 6), 16))


def test_without_positions_there_is_nothing_to_move(saved):
    first, file = saved(positions="none")
    second = vitreous.load(file, image_size=(8, 24))
    equal_but(first, second)
    assert answer(second).shape == (2, 5)


def test_relative_positions_refuse(saved):
    first, file = saved(positions="relative")
    with pytest.raises(ImageSizeError) as caught:
        vitreous.load(file, image_size=32)
    line_of(caught.value, "relative", "32x32", "16x16")
    equal_but(first, vitreous.load(file, image_size=16))


def test_a_bit_takes_any_size(saved):
    first, file = saved(BIT)
    second = vitreous.load(file, image_size=64)
    equal_but(first, second)
    assert second.config.image_size == second.preprocess.size == (64, 64)


def test_a_hybrid_moves_on_the_grid_of_its_feature_map(saved):
    config = VIT.change(stem="resnet", units=(1, 1), resnet_width=0.25, patch=(1, 1), image_size=(32, 32))
    first, file = saved(config)
    assert first.grid == (4, 4)
    second = vitreous.load(file, image_size=(48, 32))
    assert second.grid == (6, 4)
    assert_close(
        second.embedding.positions.table,
        resize_positions(first.embedding.positions.table, (4, 4), (6, 4), prefix=1),
    )


def test_a_size_that_cannot_be_cut_is_refused(saved):
    with pytest.raises(ImageSizeError) as caught:
        vitreous.load(saved()[1], image_size=(18, 16))
    line_of(caught.value, "18", "P=4")
    with pytest.raises(ConfigError):
        vitreous.load(saved()[1], image_size=0)


@pytest.mark.claim("T11")
def test_there_and_back(saved, tmp_path):
    """2n − 1 places keep the n places among them: up and back by the paper's rule is the identity."""
    first, file = saved()
    up = vitreous.load(file, image_size=28)  # 4 -> 7
    (there,) = vitreous.save(up, tmp_path / "up")
    back = vitreous.load(there, image_size=16)
    assert_close(back.embedding.positions.table, first.embedding.positions.table, atol=1e-6, rtol=0)
    assert_close(answer(back), answer(first), atol=1e-5, rtol=0)


@pytest.mark.claim("T11")
@pytest.mark.parametrize("rule", ["paper", "timm", "huggingface", "torchvision"])
def test_a_turned_table_moves_to_a_turned_grid(rule):
    table = torch.randn(1 + 12, 5, generator=torch.Generator().manual_seed(0))
    turned = torch.cat([table[:1], table[1:].unflatten(0, (3, 4)).transpose(0, 1).flatten(0, 1)])
    one = resize_positions(table, (3, 4), (6, 5), prefix=1, rule=rule)[1:].unflatten(0, (6, 5))
    other = resize_positions(turned, (4, 3), (5, 6), prefix=1, rule=rule)[1:].unflatten(0, (5, 6))
    assert_close(one.transpose(0, 1), other, atol=1e-5, rtol=0)


def test_both_changes_at_once(saved):
    first, file = saved(representation=9)
    second = vitreous.load(file, classes=3, image_size=(8, 24), dynamic_image_size=True)
    equal_but(first, second, "head", "representation", "embedding.positions")
    assert torch.equal(second(torch.randn(1, 3, 16, 16)), torch.zeros(1, 3))


def test_a_foreign_file_is_resized_by_the_papers_rule_unless_asked(tmp_path):
    """Whoever wrote it; `position_resize=` takes another's rule."""
    first = awake(activation="gelu")
    vitreous.save(first, tmp_path / "m", format="timm")
    table = first.embedding.positions.table
    for said, rule in (({}, "paper"), ({"position_resize": "timm"}, "timm")):
        moved = vitreous.load(tmp_path / "m", image_size=32, **said).embedding.positions.table
        assert_close(moved, resize_positions(table, (4, 4), (8, 8), prefix=1, rule=rule))
