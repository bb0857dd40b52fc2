"""Equation 4: tokens become one vector, and the vector an answer; the sizes of the paper's table."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.functional import jacobian
from torch.testing import assert_close

import vitreous
from vitreous.models.catalog import SIZES, blueprint, build, describe, names, parse
from vitreous.models.pooling import POOLS


def exactly(actual, expected):
    assert_close(actual, expected, rtol=0, atol=1e-10)


@pytest.mark.claim("M42")
def test_the_class_is_read_from_the_class_token_alone(vit, images):
    """After the last block any other token may change: logits are bit-equal. The class token may not."""

    def stir(places):
        def edit(z):
            z = z.clone()
            z[:, places] += torch.randn_like(z[:, places])
            return z

        with vitreous.taps(vit, edit={"blocks.1.output": edit}):
            return vit(images)

    assert torch.equal(stir(slice(1, None)), vit(images))
    assert (stir(slice(0, 1)) - vit(images)).abs().max() > 0.1


@pytest.mark.claim("M43", "Q04b")
def test_the_class_token_reads_every_patch(vit, images):
    """∂z_L⁰/∂xⱼ ≠ 0 for each patch j."""
    with vitreous.taps(vit, "embedding.tokens") as seen:
        vit(images[:1])
    reach = jacobian(lambda z: vit.encode(z, vit.grid)[0, 0], seen["embedding.tokens"].detach())  # D B N D
    assert (reach[:, 0].abs().amax((0, 2)) > 1e-6).all()


@pytest.mark.claim("M43", "Q04b")
def test_it_learns_of_the_image_by_attention_only(vit, images):
    """With its row of every attention cut to itself, logits are the same for all images."""

    def alone(weights):
        weights = weights.clone()
        weights[:, :, 0] = F.one_hot(torch.tensor(0), weights.shape[-1]).to(weights)
        return weights

    with vitreous.taps(vit, edit={"blocks.*.attention.weights": alone}):
        one, other = vit(images)
    exactly(one, other)
    one, other = vit(images)
    assert (one - other).abs().max() > 0.01


@pytest.mark.claim("M44")
def test_the_pretraining_head_is_two_linear_maps_with_tanh_between(make, images):
    """tanh(y R + r), then D → K; the fine-tuning head is one linear map."""
    vit = make(representation=16)
    y = vit.norm(vit.encode(vit.embedding(images, vit.grid), vit.grid))[:, 0]
    layer = vit.representation.linear
    exactly(vit.features(images), torch.tanh(y @ layer.weight.T + layer.bias))
    exactly(vit(images), vit.features(images) @ vit.head.weight.T + vit.head.bias)
    for model, count in [(vit, 2), (make(), 1)]:
        after = [m for part in (model.representation, model.head) for m in part.modules() if isinstance(m, nn.Linear)]
        assert len(after) == count


@pytest.mark.claim("M44")
@pytest.mark.parametrize("classes", [2, 10])
def test_a_new_head_answers_nothing_and_its_first_loss_is_ln_k(vit_config, images, classes):
    """A head starts at zero: logits are exactly 0 and the first loss is ln K."""
    logits = build(vit_config.change(classes=classes))(images.float())
    assert not logits.any()
    assert F.cross_entropy(logits, torch.tensor([0, 1])).item() == pytest.approx(math.log(classes), abs=1e-5)


@pytest.mark.claim("M44")
def test_loading_for_other_classes_takes_the_whole_pretraining_head_off(make, images, tmp_path):
    """Both maps are gone, one zero D × K stands in their place, every other tensor is bit-equal; loss ln K."""
    pretrained = make(representation=16).float()
    vitreous.save(pretrained, tmp_path / "model.safetensors")
    tuned = vitreous.load(tmp_path / "model.safetensors", classes=7)
    assert tuned.head.weight.shape == (7, 16)
    assert not [m for m in tuned.representation.modules() if isinstance(m, nn.Linear)]
    before, after = pretrained.state_dict(), tuned.state_dict()
    assert before.keys() - after.keys() == {"representation.linear.weight", "representation.linear.bias"}
    for name in after.keys() - {"head.weight", "head.bias"}:
        assert torch.equal(after[name], before[name])
    logits = tuned(images.float())
    assert not logits.any()
    assert F.cross_entropy(logits, torch.tensor([0, 6])).item() == pytest.approx(math.log(7), abs=1e-5)


@pytest.mark.claim("M45")
def test_average_pooling_needs_no_class_token(make, images):
    """N tokens; logits = head(mean of the normalised tokens)."""
    vit = make(pool="gap", class_token=False)
    with vitreous.taps(vit, ["embedding.tokens", "norm"]) as seen:
        logits = vit(images)
    assert seen["embedding.tokens"].shape == (2, 12, 16)
    assert not [name for name, _ in vit.named_parameters() if "class_token" in name]
    exactly(logits, seen["norm"].mean(1) @ vit.head.weight.T + vit.head.bias)


@pytest.mark.claim("M45")
def test_by_name_average_pooling_brings_no_class_token_unless_asked():
    assert not parse("S/16 pool=gap").embedding.class_token
    assert parse("S/16 pool=gap class_token=true").embedding.class_token
    assert parse("S/16 pool=cls-and-gap").embedding.class_token


@pytest.mark.claim("Q04a")
def test_read_outs_can_be_chosen(make, images):
    """The first token, the mean or the largest of the patches, a patch, or attention to all, after the norm."""
    for pool, read in {
        "cls": lambda z: z[:, 0],
        "gap": lambda z: z[:, 3:].mean(1),
        "max": lambda z: z[:, 3:].amax(1),
        "middle": lambda z: z[:, 3 + 6],
        "cls-and-gap": lambda z: torch.cat([z[:, 0], z[:, 3:].mean(1)], -1),
    }.items():
        vit = make(pool=pool, registers=2)
        with vitreous.taps(vit, "norm") as seen:
            y = vit.features(images)
        exactly(y, read(seen["norm"]))
    assert {"cls", "gap", "max", "map"} <= set(POOLS)


@pytest.mark.claim("Q04a")
def test_attention_pooling_asks_all_patches_with_one_probe(make, images):
    """y = MHA(probe, z, z); y + MLP(LN(y)): torch's own attention with the weights copied; registers are not asked."""
    vit = make(pool="map", registers=2)
    pool = vit.pool
    theirs = nn.MultiheadAttention(16, 2, batch_first=True, dtype=torch.float64)
    theirs.load_state_dict(
        {
            "in_proj_weight": torch.cat([pool.query.weight, pool.key_value.weight]),
            "in_proj_bias": torch.cat([pool.query.bias, pool.key_value.bias]),
            "out_proj.weight": pool.merge.weight,
            "out_proj.bias": pool.merge.bias,
        }
    )
    with vitreous.taps(vit, ["norm", "pool.weights"]) as seen:
        vit(images)
    z = seen["norm"][:, 3:]
    y, weights = theirs(pool.probe.expand(2, 1, -1), z, z, average_attn_weights=False)
    y = y[:, 0]
    hidden = F.gelu(pool.expand(F.layer_norm(y, (16,), pool.norm.weight, pool.norm.bias, 1e-6)), approximate="tanh")
    exactly(seen["pool.weights"], weights)
    exactly(vit.features(images), y + pool.contract(hidden))


@pytest.mark.parametrize("pool", ["cls", "gap", "max", "cls-and-gap"])
def test_the_norm_stands_before_or_after_the_pool(make, images, pool):
    """mean-first: y = LN(pool(z)), one norm of the pooled vector's width; for cls alone the order is no difference."""
    vit = make(pool=pool, pool_order="mean-first")
    with vitreous.taps(vit, "blocks.1.output") as seen:
        y = vit.features(images)
    pooled, norm = POOLS[pool](vit.config)(seen["blocks.1.output"]), vit.pool.norm
    exactly(y, F.layer_norm(pooled, pooled.shape[1:], norm.weight, norm.bias, 1e-6))
    first = make(pool=pool)
    if pool == "cls":
        exactly(vit(images), first(images))
    elif pool != "cls-and-gap":
        assert (vit(images) - first(images)).abs().max() > 1e-3


def test_a_distilled_deit_answers_with_the_mean_of_two_heads(make, images):
    vit = make(distillation_token=True, pool="cls-and-distillation", distillation_head=True)
    with vitreous.taps(vit, "norm") as seen:
        logits = vit(images)
    one = vit.head.class_head(seen["norm"][:, 0])
    two = vit.head.distillation_head(seen["norm"][:, 1])
    exactly(logits, (one + two) / 2)


def test_without_a_head_the_answer_is_the_representation(make, images):
    for changes in ({}, {"representation": 7}):
        vit = make(classes=0, **changes)
        assert vit(images).shape == (2, changes.get("representation", 16))
        assert torch.equal(vit(images), vit.features(images))


@pytest.mark.claim("M46")
@pytest.mark.parametrize(
    ("name", "depth", "width", "mlp", "heads"),
    [
        ("B/16", 12, 768, 3072, 12),
        ("B/32", 12, 768, 3072, 12),
        ("L/16", 24, 1024, 4096, 16),
        ("L/32", 24, 1024, 4096, 16),
        ("H/14", 32, 1280, 5120, 16),
    ],
)
def test_the_papers_table(name, depth, width, mlp, heads):
    row = describe(name)
    assert name in names()
    assert (row.depth, row.width, row.mlp, row.heads) == (depth, width, mlp, heads)
    assert row.patch == int(name.partition("/")[2])


@pytest.mark.claim("M46")
@pytest.mark.parametrize("size", ["Ti", "S", "B", "L", "H"])
def test_small_variants_keep_the_proportions(size):
    """D_mlp = 4D and D_h = D/k, a whole number."""
    width, _, heads, mlp = SIZES[size]
    assert mlp == 4 * width
    assert width % heads == 0


COUNTS = {  # without a head, with 1000 classes, with the pre-training head; millions published
    "B/16": (85_798_656, 86_567_656, 87_158_248, 86),
    "B/32": (87_455_232, 88_224_232, 88_814_824, 86),
    "L/16": (303_301_632, 304_326_632, 305_376_232, 307),
    "L/32": (305_510_400, 306_535_400, 307_585_000, 307),
    "H/14": (630_764_800, 632_045_800, 633_685_480, 632),
}


@pytest.mark.claim("M47")
@pytest.mark.parametrize("name", COUNTS)
def test_exact_counts_by_formula_and_by_tensor(name):
    """N = (224/P)²;  3P²D + D  +  D  +  (N+1)D  +  L(4D² + 2DM + 9D + M)  +  2D  [+ D² + D]  [+ DK + K]."""
    config, (bare, with_head, with_rep, published) = parse(name), COUNTS[name]
    d, m, depth, p = config.encoder.width, config.encoder.mlp, config.encoder.depth, config.embedding.patch[0]
    tokens = (224 // p) ** 2 + 1
    formula = 3 * p * p * d + d + d + tokens * d + depth * (4 * d * d + 2 * d * m + 9 * d + m) + 2 * d
    for changes, count in [
        ({"classes": 0}, formula),
        ({}, formula + 1000 * d + 1000),
        ({"representation": d}, formula + d * d + d + 1000 * d + 1000),
    ]:
        assert sum(t.numel() for t in blueprint(config.change(**changes)).parameters()) == count
    assert (formula, formula + 1000 * d + 1000, formula + d * d + d + 1000 * d + 1000) == (bare, with_head, with_rep)
    assert abs(with_head / 1e6 / published - 1) < (0.03 if name == "B/32" else 0.015)
