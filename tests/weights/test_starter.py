"""Packed weights come back within half a step, whole or not at all; and the word `starter`."""

import json

import numpy as np
import pytest
import torch
from commands import run_all
from doc_blocks import DOCS, assert_block
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.torch import load_file, save_file
from shared_files import ROOT
from tiny_models import BIT, VIT, answer, assert_same_model, awake, line_of

import vitreous
from vitreous.errors import CheckpointError, ConfigError, VitreousError
from vitreous.files import digest
from vitreous.models import config as configs
from vitreous.models.model import state_of
from vitreous.weights import quantised, starter
from vitreous.weights.quantised import finest, pack, quantise, restore, unpack, write_quantised

WIDE = {"width": 64, "mlp": 96, "heads": 4, "classes": 10}  # kernels of 4,096 numbers and more


@pytest.fixture(scope="module")
def model():
    made = awake(VIT, **WIDE)
    made.labels = tuple("abcdefghij")
    made.temperature = 1.5
    return made


@pytest.fixture
def file(model, tmp_path):
    path = tmp_path / "packed.safetensors"
    write_quantised(model, path, fineness=6.0)
    return path


# Numbers -----------------------------------------------------------------------------------------------------------

weights = arrays.arrays(
    np.float32,
    arrays.array_shapes(min_dims=2, max_dims=2, max_side=40),
    elements=st.floats(-1e4, 1e4, width=32),
)


@given(weights, st.floats(0.5, 64))
def test_every_weight_is_within_half_a_step_of_its_row(rows, fineness):
    """|w − step · code| ≤ step / 2, whatever the row; and a row of zeros stays one."""
    w = torch.from_numpy(rows)
    codes, steps = quantise(w, fineness)
    error = (w.double() - codes.double() * steps.double()[:, None]).abs()
    assert (error <= steps.double()[:, None] * (0.5 + 1e-9)).all()
    assert codes.abs().max() <= quantised.MAX_CODE
    assert not restore(codes, steps)[w.abs().amax(1) == 0].any()


@given(st.floats(1, 16), st.integers(0, 99))
def test_the_step_is_a_share_of_the_rows_root_mean_square(fineness, seed):
    """No outlier widens it until that has no code."""
    w = torch.randn(4, 300, generator=torch.Generator().manual_seed(seed))
    _, steps = quantise(w, fineness)
    wanted = torch.maximum(w.square().mean(1).sqrt() / fineness, w.abs().amax(1) / quantised.MAX_CODE)
    torch.testing.assert_close(steps.float(), wanted, rtol=2**-10, atol=0)


def test_weights_are_packed_row_by_row():
    """A row's codes depend on that row alone, and a factor on a row is a factor on its step."""
    w = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    codes, steps = quantise(w, 5.0)
    scaled, larger = quantise(w * torch.tensor([1.0, 2, 4, 8, 16, 32])[:, None], 5.0)
    assert torch.equal(codes, scaled)
    torch.testing.assert_close(larger, steps * torch.tensor([1, 2, 4, 8, 16, 32]).half())


@given(st.lists(st.integers(1, 12), min_size=2, max_size=4), st.integers(0, 9))
def test_tensors_of_any_shape_come_back_in_it(shape, seed):
    w = torch.randn(*shape, 64, generator=torch.Generator().manual_seed(seed))
    state = {"kernel.weight": w, "bias": w.flatten()[:5], "count": torch.tensor(7)}
    found = unpack(pack(state, 8.0), {name: tensor.shape for name, tensor in state.items()}, "here")
    assert {name: (t.shape, t.dtype) for name, t in found.items()} == {
        name: (t.shape, t.dtype) for name, t in state.items()
    }
    torch.testing.assert_close(found["kernel.weight"], w, rtol=1e-3, atol=float(w.abs().max()) / 8)
    torch.testing.assert_close(found["bias"], state["bias"], rtol=1e-3, atol=1e-6)


def test_finer_is_larger_and_nearer():
    w = {"kernel.weight": torch.randn(512, 256, generator=torch.Generator().manual_seed(0))}
    shapes = {"kernel.weight": w["kernel.weight"].shape}
    sizes, errors = [], []
    for fineness in (2.0, 4.0, 8.0, 16.0):
        packed = pack(w, fineness)
        sizes.append(sum(t.nbytes for t in packed.values()))
        errors.append(float((unpack(packed, shapes, "")["kernel.weight"] - w["kernel.weight"]).square().mean()))
    assert sizes == sorted(sizes)
    assert errors == sorted(errors, reverse=True)
    bits = 8 * np.array(sizes) / w["kernel.weight"].numel()
    np.testing.assert_allclose(bits, 2.05 + np.log2([2, 4, 8, 16]), atol=0.15)  # entropy of a Gaussian, and the steps
    assert finest(w, sizes[2]) == 8.0
    with pytest.raises(ConfigError) as caught:
        finest(w, 1000)
    line_of(caught.value, "1,000 bytes", "smaller network")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e38])
def test_what_is_no_weight_is_not_packed(bad):
    w = torch.ones(64, 64)
    w[3, 3] = bad
    with pytest.raises(CheckpointError) as caught:
        pack({"kernel.weight": w}, 4.0)
    line_of(caught.value, "half precision")
    with pytest.raises(CheckpointError) as caught:
        pack({"norm.bias": w[3]}, 4.0)
    line_of(caught.value, "norm.bias")


# Files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [VIT, BIT], ids=["ViT", "BiT"])
def test_a_packed_model_is_a_model_like_any_other(config, tmp_path):
    made = awake(config) if config is BIT else awake(config, **WIDE)
    write_quantised(made, tmp_path / "a.safetensors", fineness=1000.0)  # as finely as bytes can
    back = vitreous.load(tmp_path / "a.safetensors")
    assert back.config == made.config
    assert all(p.dtype == torch.float32 and p.requires_grad for p in back.parameters())
    torch.testing.assert_close(answer(back), answer(made), rtol=0, atol=0.1 * float(answer(made).std()))
    vitreous.save(back, tmp_path / "plain.safetensors")
    assert_same_model(vitreous.load(tmp_path / "plain.safetensors"), back)


def test_what_is_beside_the_weights_comes_back(model, file):
    back = vitreous.load(file)
    assert (back.labels, back.temperature) == (model.labels, model.temperature)
    assert back.preprocess == model.preprocess
    assert vitreous.load(file, classes=3, image_size=32).config.readout.classes == 3


def test_the_same_model_gives_the_same_bytes(model, file, tmp_path):
    write_quantised(model, tmp_path / "again.safetensors", fineness=6.0)
    assert digest(file) == digest(tmp_path / "again.safetensors")
    again = vitreous.load(file)
    assert_same_model(again, vitreous.load(file))


def refused(path, *words) -> None:
    with pytest.raises(VitreousError) as caught:
        vitreous.load(path)
    line_of(caught.value, path.name, *words)


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_a_changed_byte_is_refused(shared_file, where, change):
    raw = bytearray(shared_file.read_bytes())
    raw[int(where * len(raw))] ^= change
    broken = shared_file.with_name("broken.safetensors")
    broken.write_bytes(raw)
    refused(broken)


@given(st.floats(0, 1, exclude_max=True))
def test_a_cut_file_is_refused(shared_file, where):
    cut = shared_file.with_name("cut.safetensors")
    cut.write_bytes(shared_file.read_bytes()[: int(where * shared_file.stat().st_size)])
    refused(cut)


@pytest.fixture(scope="module")
def shared_file(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("packed") / "whole.safetensors"
    write_quantised(model, path, fineness=6.0)
    return path


def metadata_of(path) -> dict[str, str]:
    raw = path.read_bytes()
    return json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]


def forged(path, tensors, metadata, version=quantised.PACKING_VERSION, **said):
    """A file of these tensors whose manifest says so, digests and all."""
    manifest = json.loads(json.loads(metadata["vitreous"])["manifest"])
    manifest |= {"tensors": quantised._digest(tensors), **said}
    text = json.dumps(manifest, sort_keys=True)
    sealed = json.dumps({"digest": digest(text.encode()), "manifest": text, quantised.QUANTISED_KEY: version})
    save_file(tensors, path, metadata={"vitreous": sealed})
    return path


KERNEL = "blocks.0.mlp.expand.weight"


def test_a_file_that_does_not_hold_what_it_says_is_refused_by_the_tensor(file, tmp_path):
    tensors, metadata = load_file(file), metadata_of(file)

    def without(name):
        return {key: tensor for key, tensor in tensors.items() if key != name}

    short = {**tensors, KERNEL: tensors[KERNEL][: len(tensors[KERNEL]) // 2].clone()}
    longer = {**tensors, KERNEL: torch.cat([tensors[KERNEL], torch.zeros(9, dtype=torch.uint8)])}
    steps = {**tensors, KERNEL + ".step": tensors[KERNEL + ".step"][:3].clone()}
    refused(forged(tmp_path / "lacks.safetensors", without(KERNEL), metadata), "lacks", KERNEL)
    refused(forged(tmp_path / "no_steps.safetensors", without(KERNEL + ".step"), metadata), KERNEL)
    refused(forged(tmp_path / "short.safetensors", short, metadata), "damaged", KERNEL)
    refused(forged(tmp_path / "longer.safetensors", longer, metadata), "damaged", KERNEL)
    refused(forged(tmp_path / "steps.safetensors", steps, metadata), "damaged", KERNEL)
    for kind in (torch.bfloat16, torch.float32):  # numpy has no bfloat16
        other = {**tensors, KERNEL: tensors[KERNEL].to(kind)}
        words = ["damaged", KERNEL, str(kind).removeprefix("torch."), "not of bytes"]
        refused(forged(tmp_path / "kind.safetensors", other, metadata), *words)
    refused(forged(tmp_path / "extra.safetensors", {**tensors, "more": torch.ones(3)}, metadata), "more")
    refused(forged(tmp_path / "version.safetensors", tensors, metadata, version=9), "version 9", "upgrade")
    save_file(tensors, tmp_path / "bare.safetensors", metadata={"vitreous": json.dumps({quantised.QUANTISED_KEY: 1})})
    refused(tmp_path / "bare.safetensors", "manifest")


LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))"


def test_a_small_file_cannot_ask_for_much_memory_and_no_starter_is_one_line(file, tmp_path):
    """Streams of some thousand bytes under a config of a billion weights; and the word, where there is nothing."""
    tensors, metadata = load_file(file), metadata_of(file)
    config = json.loads(json.loads(metadata["vitreous"])["manifest"])["config"]
    config["encoder"] |= {"width": 16_384, "mlp": 65_536, "heads": 4}
    bomb = forged(tmp_path / "bomb.safetensors", tensors, metadata, config=config)
    calls = [("convert", one, tmp_path / "out", "--to", "timm") for one in (bomb, "starter")]
    swollen, absent = run_all(calls, before=LIMITED)
    assert "bomb.safetensors" in swollen.line
    if not starter.is_there():
        assert "carries no starter" in absent.line


# The word ----------------------------------------------------------------------------------------------------------


def test_without_a_starter_the_word_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(starter, "STARTER_FILE", tmp_path / "starter.safetensors")
    monkeypatch.setattr(starter, "STARTER_CARD", tmp_path / "starter.json")
    with pytest.raises(CheckpointError) as caught:
        vitreous.load("starter")
    line_of(caught.value, "carries no starter", "hf:OWNER/NAME")
    assert not starter.is_there()
    assert not starter.suits(300, 3)
    assert starter.card() == {}


def test_the_word_loads_the_packages_own_file(model, monkeypatch, tmp_path):
    monkeypatch.setattr(starter, "STARTER_FILE", tmp_path / "starter.safetensors")
    write_quantised(model, starter.STARTER_FILE, fineness=6.0)
    found = vitreous.load("starter", classes=4)
    assert found.config.readout.classes == 4
    assert state_of(found).keys() == state_of(model).keys()
    assert starter.suits(300, 3)
    assert not starter.suits(starter.FROM_SCRATCH_ABOVE, 3)
    assert not starter.suits(300, 1)


def test_a_path_of_that_name_wins(model, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    vitreous.save(model, tmp_path / "starter" / "model.safetensors")
    assert_same_model(vitreous.load("starter"), model)
    assert not starter.is_meant("starter")


@pytest.mark.skipif(not starter.is_there(), reason="this package carries no starter yet")
def test_its_own_word_is_no_path_that_lies_here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert starter.word() == "starter"
    assert starter.is_meant("starter")
    (tmp_path / "starter").mkdir()
    assert starter.word() == str(starter.STARTER_FILE)
    assert starter.is_meant(starter.word())


@pytest.mark.skipif(not starter.is_there(), reason="this package carries no starter yet")
def test_the_starter_is_what_its_card_says():
    card = starter.card()
    assert starter.STARTER_FILE.stat().st_size <= starter.MAX_STARTER_BYTES
    assert not card["is_rehearsal"]
    assert digest(starter.STARTER_FILE) == card["packed"]["sha256"]
    found = vitreous.load("starter")
    assert sum(p.numel() for p in found.parameters()) == card["parameters"]
    assert found.config == configs.from_json(card["network"])
    assert found.source["terms"] == card["data"]["terms"]
    assert "non-commercial" in starter.terms()
    assert starter.network() == card["model"]


def test_pictures_of_enough_pixels_are_shown_larger():
    assert [starter.size_for(size) for size in ((480, 640), (96, 96), (95, 300), (28, 28))] == [96, 96, None, None]


@given(st.integers(1, 2000), st.floats(0, 1), st.floats(0.01, 0.9))
def test_an_estimate_is_clear_when_it_is_well_above_chance(seen, share, chance):
    right = round(share * seen)
    if starter.is_clear(right, seen, chance):
        assert right / seen > chance
        assert starter.is_clear(right, seen, chance / 2)
        assert starter.is_clear(seen, seen, chance)


def test_clear_is_more_than_luck_and_more_than_little():
    assert not starter.is_clear(0, 0, 0.1)
    assert not starter.is_clear(4, 10, 0.2)  # twice the chance, of ten images
    assert starter.is_clear(120, 300, 0.2)
    assert not starter.is_clear(2_600, 10_000, 0.2)  # sure, and too little


# The page ----------------------------------------------------------------------------------------------------------

RESULTS = ROOT / "benchmarks" / "results"


def read(name: str) -> dict:
    path = RESULTS / name
    return json.loads(path.read_text()) if path.is_file() else {}


def test_the_page_tells_what_packing_cost():
    found = read("packing.json")
    lines = ["| | bits per weight | entropy | right of 1,000 | same answers | divergence | weights in 3.9 MB |"]
    lines.append("|---" * 7 + "|")
    lines.append(f"| before packing | 32 | | {found['right_before']} | | | 0.98 M |")
    for row in found["rows"]:
        title = f"fineness {row['fineness']:g}" if "fineness" in row else f"{row['bits']} bits"
        each = row["bits_per_weight"]
        cells = [title, f"{each['huffman']:.2f}", f"{each['entropy']:.2f}", row["right"], row["same_answers"]]
        cells += [f"{row['divergence']:.4f}", f"{row['weights_in_room'] / 1e6:.1f} M"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    assert_block(DOCS / "evidence" / "starter.md", "packing", "\n".join(lines) + "\n")


def test_the_page_tells_whether_there_is_a_starter():
    text = "**No starter ships yet**: this package carries none, and the word says so.\n"
    if starter.is_there():
        card = starter.card()
        packed = card["packed"]
        text = (
            f"This package carries `{card['model']}`, {card['parameters']:,} parameters in {packed['bytes']:,} bytes. "
            f"Of the {packed['images']:,} pictures of tiny-imagenet100-64's val split it knows {packed['right']:,}, "
            f"before packing {packed['right_before_packing']:,}.\n"
        )
    assert_block(DOCS / "evidence" / "starter.md", "made", text)


def test_the_page_tells_what_the_starter_is_worth():
    found = read("starter_worth.json")
    lines = ["Not measured yet."]
    if found:
        assert not found["is_rehearsal"]
        lines = ["| set | arm | right | 95 % interval | above scratch | 95 % interval |", "|---" * 6 + "|"]
        for name, arms in found["summary"].items():
            for arm in ("scratch", "probe", "fine-tune"):
                if arm in arms:
                    cells = [*percent(arms[arm]), *percent(arms.get(f"{arm} above scratch"))]
                    lines.append("| " + " | ".join([name, arm, *cells]) + " |")
    assert_block(DOCS / "evidence" / "starter.md", "worth", "\n".join(lines) + "\n")


def percent(found: dict | None) -> list[str]:
    if found is None:
        return ["", ""]
    low, high = found["interval_95"]
    return [f"{100 * found['mean']:.1f}", f"{100 * low:.1f} to {100 * high:.1f}"]
