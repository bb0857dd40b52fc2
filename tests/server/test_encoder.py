"""An encoder without a head is served: it gives features and attention, and names nothing."""

import numpy as np
import pytest
import serving
import torch
from downloaded_kinds import BEIT_LIKE, DINOV3_LIKE, EVA02_LIKE, PE_LIKE
from serving import encoded, picture
from tiny_models import BIT, VIT, awake

import vitreous
from vitreous.images import open_data
from vitreous.images.pixels import decode
from vitreous.images.pixels.preprocess import normalise
from vitreous.models.model import replica
from vitreous.server.engine import Engine
from vitreous.server.images.similar import Neighbours, likeness
from vitreous.server.runtimes import OtherRuntime

CLIP_LIKE = {"representation": 6, "representation_kind": "linear", "norm_before_blocks": True, "patch_bias": False}
KINDS = {
    "plain": {},
    "CLIP": CLIP_LIKE,
    "SigLIP": {"pool": "map", "class_token": False},
    "DINOv3": DINOV3_LIKE,
    "EVA-02": EVA02_LIKE,
    "PE": PE_LIKE,
    "BEiT": BEIT_LIKE,
    "MAE": {"positions": "sincos-2d"},
}


def features_of(model, image):
    seen = normalise(decode.finish(np.asarray(image), model.preprocess), model.preprocess)
    with torch.inference_mode():
        return model.eval()(seen[None])[0].numpy()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for i in range(6):
        (folder / f"{i % 2}").mkdir(exist_ok=True)
        picture(i).save(folder / f"{i % 2}" / f"{i}.png")
    model = awake(VIT, classes=0)
    neighbours = Neighbours(replica(model), open_data.open(folder))
    with serving.thread(model, neighbours=neighbours) as (caller, served, _):
        served.neighbours.wait(60)
        yield caller, model


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_those_of_the_model(kind):
    model, image = awake(VIT, classes=0, **KINDS[kind]), picture(3)
    wanted = features_of(model, image)
    with serving.thread(model) as (caller, _, _):
        (row,) = caller.send("/api/features", encoded(image)).json["images"]
        np.testing.assert_allclose(row["features"], wanted, rtol=1e-4, atol=1e-5)
        about = caller.get("/api/model").json
        assert (about["classes"], about["features"], about["answers"]) == (0, len(wanted), "features")
        seen = caller.call("POST", f"/api/attention?image={row['image']}").json
        assert np.array(seen["maps"]).shape == (2, 2, 16)
        questions = [each["question"] for each in caller.get("/api/worksheet").json["questions"]]
        assert any("has no head" in each and f"{len(wanted)} numbers" in each for each in questions)
        assert not any("its answer" in each for each in questions)


def test_a_network_of_convolutions_gives_features_too():
    model, image = awake(BIT, classes=0), picture(3, (48, 48))
    with serving.thread(model) as (caller, _, _):
        (row,) = caller.send("/api/features", encoded(image)).json["images"]
        np.testing.assert_allclose(row["features"], features_of(model, image), rtol=1e-4, atol=1e-5)


def test_no_name_is_given_and_the_line_says_what_to_do(server):
    caller, _ = server
    reply = caller.send("/api/predict", encoded(picture(3)))
    assert reply.status == 501
    assert reply.error.startswith("this model has no head, so it names nothing; ask /api/features")
    assert "vitreous fit DATA --weights MODEL" in reply.error


def test_a_bad_file_among_several_is_a_row(server):
    caller, _ = server
    rows = caller.form("/api/features", [("a.png", encoded(picture(1))), ("b.png", b"junk")]).json["images"]
    assert len(rows[0]["features"]) == 16
    assert "error" in rows[1]
    assert "features" not in rows[1]
    assert caller.send("/api/features", b"junk").status == 415


def test_the_nearest_image_is_the_image_itself(server):
    caller, _ = server
    found = caller.send("/api/similar", encoded(picture(4))).json["similar"]
    assert found[0]["name"] == "4.png"
    assert found[0]["likeness"] == pytest.approx(1, abs=1e-3)
    assert found[0]["likeness"] > found[1]["likeness"]


def test_what_is_broken_shows_in_the_cosine(server):
    caller, model = server
    image = encoded(picture(5))
    whole = caller.send("/api/break", image).json
    assert whole["likeness"] == pytest.approx(1, abs=1e-3)
    assert "top" not in whole["before"]
    hidden = caller.send("/api/break?" + "&".join(f"hide={i}" for i in range(16)), image).json
    mean = np.zeros((1, 3, *model.preprocess.size), np.float32)
    with torch.inference_mode():
        grey = model(torch.from_numpy(mean))[0].numpy()
    assert hidden["likeness"] == pytest.approx(likeness(features_of(model, picture(5)), grey), abs=1e-3)
    assert hidden["likeness"] < 0.999


def test_a_model_with_a_head_gives_the_features_that_its_head_reads():
    model, image = serving.tiny(), picture(3)
    with serving.thread(model) as (caller, _, _):
        (row,) = caller.send("/api/features", encoded(image)).json["images"]
        assert caller.get("/api/model").json["features"] == 16
        assert caller.send("/api/break", encoded(image)).json["likeness"] is None
    with torch.inference_mode():
        logits = model.head(torch.tensor(row["features"]))
    np.testing.assert_allclose(logits, features_of(model, image), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_another_runtime_gives_the_same_features():
    pytest.importorskip("onnxruntime")
    model = awake(VIT, classes=0)
    other = OtherRuntime(model, "onnx")
    try:
        with Engine(model, torch.device("cpu")).at_work() as engine:
            seen = [decode.finish(np.asarray(picture(6)), model.preprocess)]
            np.testing.assert_allclose(other.open(engine)(seen), engine.answers_to(seen), rtol=1e-3, atol=1e-4)
    finally:
        other.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["CLIPVision", "SiglipVision", "Dinov2", "DINOv3ViT", "ViTMAE"])
def test_an_encoder_of_transformers_is_served_by_the_command(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    size |= {"image_size": 32, "patch_size": 8}
    getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**size)).save_pretrained(
        tmp_path / "m"
    )
    model, image = vitreous.load(tmp_path / "m"), picture(2, (32, 32))
    with serving.process(tmp_path / "m") as caller:
        (row,) = caller.send("/api/features", encoded(image)).json["images"]
        np.testing.assert_allclose(row["features"], features_of(model, image), rtol=1e-3, atol=1e-4)
        assert caller.call("POST", f"/api/attention?image={row['image']}&patch=3").json["query"] == 3
