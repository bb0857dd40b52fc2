"""What the API answers is what the library answers, for any image, whoever else is asking."""

from __future__ import annotations

import io
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from serving import LABELS, encoded, picture, process, thread, tiny, until
from small_runs import image_set
from torch.testing import assert_close

import vitreous
from vitreous.images.pixels import decode
from vitreous.images.pixels.preprocess import normalise
from vitreous.measures.rollout import rollout
from vitreous.models.taps import taps
from vitreous.server.guard import Access
from vitreous.server.images.similar import Neighbours
from vitreous.server.interventions import Break


@pytest.fixture(scope="module")
def model():
    return tiny()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Three classes of four pictures."""
    folder = tmp_path_factory.mktemp("photos")
    for i in range(12):
        place = folder / LABELS[i % 3]
        place.mkdir(exist_ok=True)
        picture(100 + i).save(place / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def server(model, photos, tmp_path_factory):
    file = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    vitreous.save(model, file)
    with process(file, "--data", photos) as caller:
        yield caller


def animated() -> bytes:
    frames = [picture(seed) for seed in (1, 2, 3)]
    return encoded(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=50)


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(picture(4), "JPEG", exif=exif)


FILES = {
    "colour.png": encoded(picture(1)),
    "photo.jpg": encoded(picture(2), "JPEG"),
    "turned.jpg": turned(),
    "print.jpg": encoded(picture(5, mode="CMYK"), "JPEG"),
    "grey.png": encoded(picture(6, mode="L")),
    "deep.png": encoded(Image.fromarray((np.arange(1200).reshape(30, 40) * 54).astype(np.uint16))),
    "palette.gif": encoded(picture(7, mode="P"), "GIF"),
    "clear.png": encoded(picture(8, mode="RGBA")),
    "page.tiff": encoded(picture(9), "TIFF"),
    "web.webp": encoded(picture(10), "WEBP"),
    "new.avif": encoded(picture(11), "AVIF"),
    "old.bmp": encoded(picture(12), "BMP"),
    "pixel.png": encoded(picture(13, size=(1, 1))),
    "moving.gif": animated(),
}


@pytest.mark.parametrize("name", FILES)
def test_the_server_answers_as_predict_does(server, model, tmp_path, name):
    """The same file, the same labels and the same calibrated confidence."""
    (tmp_path / name).write_bytes(FILES[name])
    (said,) = vitreous.predict(model, str(tmp_path / name), top=3)
    (row,) = server.send("/api/predict?top=3", FILES[name]).json["images"]
    assert row["said"] == list(said.said)
    assert [each["label"] for each in row["top"]] == list(said.labels)
    assert_close(torch.tensor([each["probability"] for each in row["top"]]), torch.tensor(said.probabilities))
    assert_close(row["score"], said.score, rtol=1e-4, atol=1e-4)
    assert ("first frame" in row.get("note", "")) == (name == "moving.gif")


def test_several_images_come_back_in_their_order_and_a_bad_one_has_its_own_line(server):
    files = [("a.png", FILES["colour.png"]), ("folder/b.txt", b"hello"), ("c.jpg", FILES["photo.jpg"])]
    rows = server.form("/api/predict", files).json["images"]
    assert [row["name"] for row in rows] == ["a.png", "b.txt", "c.jpg"]
    assert rows[1] == {
        "name": "b.txt",
        "error": "b.txt is not an image that this server reads; send JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF",
    }
    alone = [server.send("/api/predict", raw).json["images"][0] for _, raw in (files[0], files[2])]
    assert [rows[0]["top"], rows[2]["top"]] == [each["top"] for each in alone]
    assert [rows[0]["image"], rows[2]["image"]] == [each["image"] for each in alone]  # the same bytes, the same id


def test_an_image_can_be_asked_about_again_by_its_id(server):
    (row,) = server.send("/api/predict", FILES["photo.jpg"]).json["images"]
    (again,) = server.call("POST", f"/api/predict?image={row['image']}").json["images"]
    assert again["top"] == row["top"]
    assert server.call("POST", "/api/predict?image=0123").status == 404
    seen = Image.open(io.BytesIO(server.get(f"/api/seen?image={row['image']}").body))
    assert seen.size == (16, 16)


def photo_of(server, key):
    reply = server.get(f"/api/photo?image={key}")
    return reply.headers["content-type"], Image.open(io.BytesIO(reply.body))


def test_the_whole_image_is_kept_for_whoever_asks(server):
    (row,) = server.send("/api/predict", FILES["turned.jpg"]).json["images"]
    assert row["box"] == [0, 0, 1, 1]
    refused = server.get(f"/api/photo?image={row['image']}")
    assert refused.status == 404
    assert refused.error == "the server has not kept the whole of that image; send it again with photo=true"
    (again,) = server.send("/api/predict?photo=true", FILES["turned.jpg"]).json["images"]
    assert again["image"] == row["image"]
    kind, photo = photo_of(server, row["image"])
    assert (kind, photo.size) == ("image/png", (30, 40)), "upright"
    server.send("/api/predict", FILES["turned.jpg"])  # a program that does not ask takes it from nobody
    assert photo_of(server, row["image"])[0] == "image/png"
    assert photo_of(server, "example-0")[0] == "image/png"


def test_a_large_image_is_kept_small_enough_for_a_page(server):
    large = encoded(picture(3, size=(3000, 1500)), "JPEG")
    (row,) = server.send("/api/predict?photo=true", large).json["images"]
    kind, photo = photo_of(server, row["image"])
    assert (kind, photo.size) == ("image/jpeg", (1024, 512))
    wanted = Image.open(io.BytesIO(large)).resize((64, 32), Image.Resampling.BOX)
    found = photo.resize((64, 32), Image.Resampling.BOX)
    assert np.abs(np.array(wanted, int) - np.array(found, int)).mean() < 3


def by_hand(model, raw, edit=None):
    seen = decode.finish(np.array(Image.open(io.BytesIO(raw)).convert("RGB")), model.preprocess)
    x = normalise(seen, model.preprocess)[None]
    with torch.inference_mode(), taps(model, "blocks.*.attention.weights", edit=edit) as found:
        logits = model(x)[0]
    return logits, list(found.values())


def test_attention_is_the_models_own(server, model):
    _, weights = by_hand(model, FILES["colour.png"])
    found = server.send("/api/attention", FILES["colour.png"]).json
    assert found["grid"] == [4, 4]
    assert np.shape(found["maps"]) == (2, 2, 16)
    ours = torch.stack([layer[0, :, 0, 1:] for layer in weights])  # the class token's row
    assert_close(torch.tensor(found["maps"]), ours, rtol=0, atol=1e-5)
    flow = rollout(weights)[0, 0, 1:]  # the class token is what the head reads
    assert_close(torch.tensor(found["rollout"]), flow, rtol=0, atol=1e-5)


def test_a_patchs_row_is_where_that_patch_looks(server, model):
    _, weights = by_hand(model, FILES["colour.png"])
    found = server.send("/api/attention?patch=5&layer=1&head=0", FILES["colour.png"]).json
    assert (found["query"], found["layers"], found["heads"]) == (5, [1], [0])
    assert_close(torch.tensor(found["maps"][0][0]), weights[1][0, 0, 6, 1:], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "edit"),
    [
        ("block=1", {"blocks.1.attention.output": torch.zeros_like, "blocks.1.mlp.output": torch.zeros_like}),
        ("skip=0.1", {"blocks.0.skip1": torch.zeros_like}),
        ("skip=1.2", {"blocks.1.skip2": torch.zeros_like}),
        ("head=0.1", {"blocks.0.attention.per_head": lambda x: x * torch.tensor([1.0, 0.0])[:, None, None]}),
    ],
)
def test_breaking_is_an_edit_of_a_tap(server, model, words, edit):
    logits, _ = by_hand(model, FILES["colour.png"], edit)
    found = server.send(f"/api/break?top=5&{words}", FILES["colour.png"]).json
    shares = {each["label"]: each["probability"] for each in found["after"]["top"]}
    ours = (logits / model.temperature).softmax(-1)
    assert_close(torch.tensor([shares[label] for label in LABELS]), ours, rtol=1e-4, atol=1e-5)
    assert found["before"]["top"] != found["after"]["top"]
    assert len(found["broken"]) == 1


def shares(answer):
    return torch.tensor([each["probability"] for each in sorted(answer["top"], key=lambda each: each["class"])])


def test_nothing_broken_changes_nothing(server):
    found = server.send("/api/break", FILES["colour.png"]).json
    assert found["before"] == found["after"]
    assert found["broken"] == []
    assert found["order"] is None


def test_without_positions_the_order_of_the_patches_says_nothing(server):
    """f(Px) = f(x): order enters through positions alone."""
    without, both, shuffled = (
        server.send(f"/api/break?{words}", FILES["colour.png"]).json
        for words in ("positions=true", "positions=true&shuffle=3", "shuffle=3")
    )
    assert_close(shares(both["after"]), shares(without["after"]), rtol=1e-4, atol=1e-5)
    assert (shares(shuffled["after"]) - shares(shuffled["before"])).abs().max() > 1e-3
    assert sorted(shuffled["order"]) == list(range(16))
    moved = np.array(without["after"]["rollout"])[both["order"]]
    np.testing.assert_allclose(both["after"]["rollout"], moved, atol=2e-5)


def test_a_picture_with_every_patch_hidden_is_any_other(server):
    every = "&".join(f"hide={i}" for i in range(16))
    first, second = (server.send(f"/api/break?{every}", FILES[name]).json for name in ("colour.png", "photo.jpg"))
    assert_close(shares(first["after"]), shares(second["after"]))
    assert_close(shares(first["before"]), shares(server.send("/api/break", FILES["colour.png"]).json["before"]))


def test_what_one_client_breaks_another_does_not_see(server):
    """Workers share the weights and nothing else: hooks of one never touch the other's forward."""
    (alone,) = server.send("/api/predict", FILES["photo.jpg"]).json["images"]
    labels = [each["label"] for each in alone["top"]]

    def ask(i):
        if i % 2:
            return server.send("/api/break?block=0&skip=1.1&positions=true", FILES["colour.png"]).status
        (found,) = server.send("/api/predict", FILES["photo.jpg"]).json["images"]
        assert [each["label"] for each in found["top"]] == labels
        assert_close(shares(found), shares(alone), rtol=0, atol=1e-5)  # others may lie in the same batch
        return True

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(60))) == {True, 200}


def test_only_training_images_are_shown_as_similar(model):
    assert Neighbours(model, image_set(12, test=4)).total == 8
    assert Neighbours(model, image_set(12, test=12)).total == 12  # where there are no others
    made = replace(image_set(12, test=4), about={"split": {"made": True}})
    assert Neighbours(model, made).total == 12, "nobody set any aside"


@pytest.mark.parametrize("grid", [(2, 4), (4, 2), (1, 3), (7, 7)])
def test_a_hidden_patch_is_its_own_place_in_the_image(grid):
    """Patches are counted row by row, also where there are more columns than rows."""
    x = torch.ones(1, 3, 4 * grid[0], 4 * grid[1])
    for patch in range(grid[0] * grid[1]):
        row, column = divmod(patch, grid[1])
        wanted = x.clone()
        wanted[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 0
        assert torch.equal(Break(hide=(patch,)).shown(x, grid, (0, 0, 1, 1)), wanted)


def test_hidden_squares_of_a_hybrid_lie_around_its_places_and_cover_the_image():
    x = torch.ones(1, 1, 28, 28)
    cells = (-3.5 / 28, -3.5 / 28, 28.5 / 28, 28.5 / 28)  # of three convolutions of stride 2
    hidden = [(Break(hide=(place,)).shown(x, (4, 4), cells) == 0)[0, 0] for place in range(16)]
    assert torch.equal(torch.stack(hidden).sum(0), torch.ones(28, 28, dtype=torch.int64))
    assert hidden[0].nonzero().amax(0).tolist() == [4, 4]  # around pixel 0.5
    assert hidden[5].nonzero().amin(0).tolist() == [5, 5]  # around pixel 8.5
    assert hidden[5].nonzero().amax(0).tolist() == [12, 12]


def test_a_training_image_is_most_like_itself(server, photos):
    until(lambda: server.get("/api/model").json["similar"]["is_ready"])
    names = set()
    for file in sorted(photos.rglob("*.png")):
        found = server.send("/api/similar?count=3", file.read_bytes()).json
        assert len(found["similar"]) == 3
        likeness = [each["likeness"] for each in found["similar"]]
        assert likeness == sorted(likeness, reverse=True)
        assert max(map(abs, likeness)) < 1.001  # cosines
        first = found["similar"][0]
        assert first["picture"].startswith("data:image/")
        if first["name"] == file.name:  # the others were set aside as test
            assert first["likeness"] > 0.999
            assert first["label"] == file.parent.name
            names.add(file.name)
    assert len(names) >= 8


def test_the_model_and_its_limits_are_told(server):
    about = server.get("/api/model").json
    assert about["schema"] == "vitreous.serve/1"
    assert about["name"] == "tiny.safetensors"
    assert about["labels"] == list(LABELS)
    assert (about["depth"], about["heads"], about["grid"]) == (2, 2, [4, 4])
    assert about["limits"] == {"upload": 20 * 2**20, "pixels": 50_000_000, "files": 32, "seconds": 30.0}


def test_examples_can_be_asked_about_at_once(server):
    examples = server.get("/api/examples").json["examples"]
    assert {each["label"] for each in examples} <= set(LABELS)
    row = server.call("POST", f"/api/predict?image={examples[0]['image']}").json["images"][0]
    assert row["top"][0]["label"] in LABELS


@pytest.mark.parametrize("learned", [True, False])
def test_examples_that_the_model_has_learned_from_are_called_so(learned):
    with thread(learned=learned) as (caller, _, _):
        assert caller.get("/api/examples").json["learned"] == learned


def test_tokens_are_those_of_the_model(server, model):
    found = server.send("/api/tokens?numbers=16", FILES["colour.png"]).json["tokens"]
    seen = decode.finish(np.array(picture(1)), model.preprocess)
    with torch.inference_mode(), taps(model, "embedding.tokens") as taken:
        model(normalise(seen, model.preprocess)[None])
    assert_close(torch.tensor(found), taken["embedding.tokens"][0], rtol=0, atol=1e-5)


def test_counts_are_prometheus_text(server):
    before = counts(server)
    server.send("/api/predict", FILES["colour.png"])
    server.send("/api/predict", b"junk")
    after = counts(server)
    route = 'route="/api/predict"'
    for line in (
        f'vitreous_requests_total{{{route},status="200"}}',
        f'vitreous_requests_total{{{route},status="415"}}',
    ):
        assert after[line] == before.get(line, 0) + 1
    assert after["vitreous_images_total"] == before["vitreous_images_total"] + 1
    line = f"vitreous_request_seconds_count{{{route}}}"
    assert after[line] == before.get(line, 0) + 2  # none, where this test comes first
    until(lambda: counts(server)["vitreous_held"] == 0)  # given back after the answer has gone out


def counts(server):
    text = server.get("/metrics").body.decode()
    rows = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in rows}


def test_the_docs_page_tells_every_route_and_loads_nothing(server):
    schema = server.get("/openapi.json").json
    reply = server.get("/docs")
    html = reply.body.decode()
    for path in schema["paths"]:
        assert path.replace("/", "/<wbr>") in html or path in html
    assert "<script" not in html
    assert " src=" not in html
    assert "http-equiv" in html or "style-src 'sha256-" in reply.headers["content-security-policy"]
    assert f"curl -F images=@photo.jpg http://127.0.0.1:{server.port}/api/predict" in html
    assert f"curl http://127.0.0.1:{server.port}/api/seen?image=ID" in html
    assert "/api/predict" in schema["paths"]
    assert json.dumps(schema).count(vitreous.__version__) == 0


def test_the_docs_name_the_address_that_they_are_read_at_and_the_token_that_is_needed():
    """Nothing of a Host header goes into the page unless it is a plain host."""
    with thread(access=Access(token="correct-horse")) as (caller, _, _):
        for host, shown in (("localhost:91", "localhost:91"), ("[::1]:92", "[::1]:92"), ("127.0.0.1:<b>", None)):
            html = caller.get("/docs", Host=host).body.decode()
            line = f"curl -H &#39;Authorization: Bearer TOKEN&#39; http://{shown or '127.0.0.1:8000'}/api/model"
            assert line in html
            assert "<b>" not in html
        assert f"curl http://127.0.0.1:{caller.port}/healthz" in caller.get("/docs").body.decode()
        assert b"correct-horse" not in caller.get("/docs").body


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("/api/attention?patch=16", "there is no patch 16; choose from 0 to 15"),
        ("/api/attention?layer=2", "there is no layer 2; choose from 0 to 1"),
        ("/api/attention?head=-1", "head does not fit: input should be greater than or equal to 0"),
        ("/api/break?head=7.0", "there is no block 7; choose from 0 to 1"),
        ("/api/break?head=0.9", "there is no head 9; choose from 0 to 1"),
        ("/api/break?skip=0.3", "there is no skip 3; a block has skip 1, around attention, and 2, around the MLP"),
        ("/api/break?skip=../../etc/passwd", "'passwd' names no skip; write BLOCK.NUMBER, such as 3.1"),
        ("/api/break?hide=99", "there is no patch 99; choose from 0 to 15"),
        ("/api/predict?top=0", "top does not fit: input should be greater than or equal to 1"),
        (
            "/api/predict?top=x",
            "top does not fit: input should be a valid integer, unable to parse string as an integer",
        ),
    ],
)
def test_words_that_do_not_fit_are_named(server, path, line):
    reply = server.send(path, FILES["colour.png"])
    assert reply.status == 422
    assert reply.error == line


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/none", 404), ("GET", "/api/predict", 405)])
def test_what_is_not_there_points_to_the_docs(server, method, path, status):
    reply = server.call(method, path)
    assert reply.status == status
    assert reply.error.endswith("see /docs")
