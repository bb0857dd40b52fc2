"""Answers are the model's own, however they are asked for."""

import itertools
import json
import subprocess
import sys
import warnings

import forks
import numpy as np
import pytest
import torch
from picture_files import class_folders, encoded
from picture_sets import arrays, make_batches, photos
from PIL import Image
from shared_files import ROOT
from tiny_models import VIT, awake, line_of

import vitreous
from vitreous.errors import ConfigError, DataError, VitreousError
from vitreous.evaluation import calibration
from vitreous.evaluation.inference import choose_batch, logits
from vitreous.evaluation.predict import predict
from vitreous.images.pixels import preprocess


@pytest.fixture
def model():
    return awake()


def by_hand(model, data) -> np.ndarray:
    x = torch.stack([preprocess.apply(data.read(i), model.preprocess) for i in range(len(data))])
    with torch.inference_mode():
        return model(x).numpy()


# Logits of a set


def test_every_row_is_the_models_own_answer(model):
    """The model's rule does not antialias, so batches round to bytes: half a level of 255."""
    model.preprocess = preprocess.Preprocess(size=(16, 16), antialias=True)
    data = photos(13)
    found = logits(model, data, batch=4, workers=0)
    np.testing.assert_allclose(found.values, by_hand(model, data), atol=1e-5)
    assert (found.labels == data.labels).all()
    assert (found.ids == data.ids).all()
    assert (found.places == np.arange(13)).all()
    assert found.values.dtype == np.float32
    assert found.coverage.is_exact


def test_batches_and_workers_change_nothing(model):
    data = photos(11)
    first = logits(model, data, batch=11, workers=0)
    for batch, workers in ((1, 0), (3, 2), (64, 1)):
        again = logits(model, data, batch=batch, workers=workers)
        np.testing.assert_allclose(again.values, first.values, atol=1e-5)
        assert (again.labels == first.labels).all()


def test_the_model_is_left_as_it_was(model):
    model.train()
    model.blocks[0].eval()
    before = [module.training for module in model.modules()]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    logits(model, arrays(5, 16), workers=0)
    list(predict(model, arrays(3, 16)))
    assert [module.training for module in model.modules()] == before
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())
    model(torch.zeros(1, 3, 16, 16)).sum().backward()  # no inference tensor was left inside


def test_dropout_plays_no_part():
    model = awake(VIT.change(dropout=0.5, drop_path=0.5)).train()
    data = arrays(6, 16)
    assert (logits(model, data, workers=0).values == logits(model, data, workers=0).values).all()


def test_a_subset_keeps_its_ids(model):
    data = arrays(10, 16).take([7, 2, 5])
    found = logits(model, data, workers=0)
    assert found.ids.tolist() == [7, 2, 5]
    np.testing.assert_allclose(found.values, logits(model, arrays(10, 16), workers=0).values[[7, 2, 5]], atol=1e-5)


def test_an_unreadable_picture_stops_or_is_told(model):
    data = photos(6)
    data.source.files[2] = data.source.files[2][:100]
    with pytest.raises(DataError, match=r"set/2\.jpg"):
        logits(model, data, workers=0)
    found = logits(model, data, batch=4, workers=0, skip_unreadable=True)
    assert found.places.tolist() == [0, 1, 3, 4, 5]
    assert len(found.coverage.skipped) == 1


def test_batches_are_taken_as_they_are_and_again(model):
    data = arrays(9, 16)
    batches = make_batches(data, batch=4, preprocess=model.preprocess, workers=0)
    first, second = logits(model, batches), logits(model, batches)
    assert (first.values == second.values).all()
    assert (first.values == logits(model, data, batch=4, workers=0).values).all()
    assert second.coverage.is_exact
    with pytest.raises(ConfigError, match="without augment, shuffle"):
        logits(model, make_batches(data, batch=4, preprocess=model.preprocess, shuffle=True))


TOGETHER = """
import sys
sys.path.insert(0, {tests!r})
import torch.distributed as group
from picture_sets import photos
from tiny_models import awake
from vitreous.evaluation.inference import logits
from vitreous.ranks import Ranks
group.init_process_group("gloo", init_method="file://{file}", rank=int(sys.argv[1]), world_size=2)
found = logits(awake(), photos(11), batch=3, workers=0, ranks=Ranks(int(sys.argv[1]), 2))
assert found.coverage.is_exact
print(found.places.tolist(), found.values.tolist(), flush=True)
group.destroy_process_group()
"""


def test_ranks_share_the_work_and_all_have_all_of_it(model, tmp_path):
    code = TOGETHER.format(tests=str(ROOT / "tests"), file=tmp_path / "meet")
    calls = [[sys.executable, "-c", code, str(rank)] for rank in (0, 1)]
    processes = [forks.Popen(call, stdout=subprocess.PIPE, text=True) for call in calls]
    first, second = (process.communicate()[0] for process in processes)
    assert first == second
    places, values = first.strip().replace("] [[", "]|[[").split("|")
    assert json.loads(places) == list(range(11))
    np.testing.assert_allclose(json.loads(values), logits(model, photos(11), workers=0).values, atol=1e-5)


def test_progress_ends_at_the_end(model):
    told = []
    logits(model, arrays(10, 16), batch=4, workers=0, progress=lambda done, of: told.append((done, of)))
    assert told == [(4, 10), (8, 10), (10, 10)]


def test_a_wrapped_model_answers_the_same(model):
    data = arrays(5, 16)
    wrapped = torch.nn.DataParallel(model)
    np.testing.assert_allclose(
        logits(wrapped, data, workers=0).values, logits(model, data, workers=0).values, atol=1e-6
    )


def test_a_model_of_another_precision_answers_in_float32(model):
    data = arrays(5, 16)
    values = logits(model, data, workers=0).values
    double = logits(model.double(), data, workers=0).values
    assert double.dtype == np.float32
    np.testing.assert_allclose(double, values, atol=1e-4)


def test_batches_suit_the_device():
    cuda = torch.device("cuda")
    assert choose_batch((224, 224), torch.device("cpu")) == 32
    assert [choose_batch((n, n), cuda) for n in (32, 224, 480)] == [1024, 256, 64]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"precision": "half"}, ["'half'", "auto, float32 or bfloat16"]),
        ({"precision": "bfloat16", "device": "cpu"}, ["bfloat16 on cpu", "float32"]),
        ({"device": "gpu"}, ["gpu is not a device"]),
        ({"batch": 0}, ["batch of 0"]),
    ],
)
def test_bad_options_are_one_line(model, options, words):
    with pytest.raises(VitreousError) as caught:
        logits(model, arrays(3, 16), **{"workers": 0} | options)
    line_of(caught.value, *words)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_said(model):
    with pytest.raises(ConfigError, match="no GPU here"):
        logits(model, arrays(3, 16), device="cuda")


def test_a_model_without_a_head_answers_nothing():
    with pytest.raises(ConfigError, match="has no head"):
        logits(awake(VIT.change(classes=0)), arrays(3, 16), workers=0)


# One picture after the other


def test_an_answer_is_the_softmax_of_the_logits_over_the_temperature(model):
    model.labels, model.temperature = tuple("abcde"), 1.7
    data = photos(7)
    values = logits(model, data, workers=0).values
    answers = list(predict(model, data, top=3, batch=3))
    assert [answer.name for answer in answers] == [data.name(i) for i in range(7)]
    for answer, z in zip(answers, values, strict=True):
        order = np.argsort(-z)[:3]
        np.testing.assert_allclose(answer.probabilities, calibration.softmax(z, 1.7)[order], atol=1e-5)
        assert answer.labels == tuple("abcde"[k] for k in order)
        assert answer.said == answer.labels[:1]
        assert answer.score == pytest.approx(z.max(), abs=1e-4)


def test_none_of_these_is_what_lies_below_the_threshold(model):
    data = photos(20)
    scores = logits(model, data, workers=0).values.max(1)
    assert not any(answer.is_unlike for answer in predict(model, data))
    model.threshold = float(np.median(scores))
    answers = list(predict(model, data))
    assert [answer.is_unlike for answer in answers] == (scores < model.threshold).tolist()
    unlike = next(answer for answer in answers if answer.is_unlike)
    assert unlike.said == ()
    assert str(unlike) == f"{unlike.name}: none of these (nearest: {unlike.labels[0]})"  # a confidence contradicts it
    assert unlike.to_json()["top"][0]["probability"] == unlike.probabilities[0]


def test_several_labels_are_said_each_by_itself(model):
    model.answers, model.temperature = "several", 2.0
    data = photos(8)
    values = logits(model, data, workers=0).values
    for answer, z in zip(predict(model, data), values, strict=True):
        np.testing.assert_allclose(sorted(answer.probabilities), sorted(1 / (1 + np.exp(-z / 2))), atol=1e-5)
        assert set(answer.said) == {f"class {k}" for k in np.flatnonzero(z >= 0)}


def test_files_folders_patterns_arrays_and_pictures(model, tmp_path):
    root = class_folders(tmp_path / "set", {"cat": 3, "dog": 2})
    (root / "notes.txt").write_text("no image")
    (root / ".hidden.png").write_bytes(encoded(1))
    names = [str(root / name) for name in ("cat/0.png", "cat/1.png", "cat/2.png", "dog/0.png", "dog/1.png")]
    by_folder = list(predict(model, root))
    assert [answer.name for answer in by_folder] == names
    pixels = [np.array(Image.open(name)) for name in names]
    for images in (names, str(root / "*/*.png"), pixels, [Image.open(name) for name in names], np.stack(pixels)):
        assert [answer.probabilities for answer in predict(model, images)] == [a.probabilities for a in by_folder]
    assert len(list(predict(model, [names[0], root / "dog", pixels[0]]))) == 4
    assert len(list(predict(model, names[1]))) == 1


def test_a_set_by_its_name(model):
    first = next(iter(predict(model, "fashion")))
    assert first.error is None


def test_what_cannot_be_read_says_so_in_its_row(model, tmp_path):
    good, cut, text = (tmp_path / name for name in ("good.png", "cut.png", "text.jpg"))
    good.write_bytes(encoded(1))
    cut.write_bytes(encoded(2)[:60])
    text.write_text("not an image")
    absent = tmp_path / "absent.png"
    answers = list(predict(model, [cut, good, text, absent], batch=2))
    assert [answer.error is None for answer in answers] == [False, True, False, False]
    for answer, words in zip(answers, ("cut.png", "", "is not an image", "absent.png cannot be read"), strict=True):
        assert words in (answer.error or "")
        assert "error" in answer.to_json() or answer.said
        json.dumps(answer.to_json(), allow_nan=False)
    assert len(list(predict(model, [text, text]))) == 2  # a batch of nothing readable


def test_turned_grey_and_transparent_pictures_are_read_as_everywhere(model, tmp_path):
    names = []
    for mode in ("L", "RGBA", "P", "CMYK", "I;16"):
        image = (
            Image.fromarray(np.arange(400, dtype=np.uint16).reshape(20, 20))
            if mode == "I;16"
            else Image.new(mode, (20, 20))
        )
        names.append(tmp_path / f"{mode[0]}{len(mode)}.{'tif' if mode == 'CMYK' else 'png'}")
        image.save(names[-1])
    assert [answer.error for answer in predict(model, names)] == [None] * 5


def test_memory_holds_a_few_batches_however_many_there_are(model):
    """The first answer comes when three batches have been asked for, of an endless row of pictures."""
    asked = itertools.count()
    picture = np.zeros((16, 16, 3), np.uint8)

    def endless():
        while True:
            next(asked)
            yield picture

    answers = predict(model, endless(), batch=8)
    for _ in range(50):
        next(answers)
    answers.close()
    assert next(asked) <= 50 + 5 * 8


def test_leaving_early_gives_the_model_back(model):
    model.train()
    answers = predict(model, [np.zeros((16, 16, 3), np.uint8)] * 100, batch=4)
    next(answers)
    answers.close()
    assert model.training
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize(
    ("images", "options", "words"),
    [
        ("absent.png", {}, ["absent.png is not there"]),
        ("no/*.png", {}, ["no file matches"]),
        ([], {}, ["holds no images"]),
        ("{tmp}", {}, ["holds no images"]),
        ([3], {}, ["a int is not an image"]),
        ([np.zeros((4, 4, 3), np.uint8)], {"top": 0}, ["top=0", "give 1 or more"]),
        ([np.zeros((4, 4, 3), np.uint8)], {"batch": 0}, ["batch of 0"]),
    ],
)
def test_bad_questions_are_one_line(model, images, options, words, tmp_path):
    images = str(tmp_path) if images == "{tmp}" else images
    with pytest.raises(VitreousError) as caught:
        predict(model, images, **options)
    line_of(caught.value, *words)


def test_an_array_that_is_no_picture_says_so_in_its_row(model):
    (answer,) = predict(model, [np.zeros((4, 4, 3), np.float32)])
    assert "is not an image" in answer.error


# On a GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_is_never_waited_for_batch_by_batch():
    model = vitreous.build("Ti/16", classes=10, image_size=32, patch=8).cuda()
    data = arrays(600, 32)
    batches = make_batches(data, batch=32, preprocess=model.preprocess, device="cuda", workers=0)
    first = logits(model, batches)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls the mode a prototype
            torch.cuda.set_sync_debug_mode("error")
        again = logits(model, batches)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (first.values == again.values).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_agrees_with_the_cpu(model):
    data = photos(20)
    cpu = logits(model, data, device="cpu", workers=0).values
    assert next(model.parameters()).device.type == "cpu"
    np.testing.assert_allclose(logits(model, data, device="cuda", precision="float32").values, cpu, atol=1e-3)
    np.testing.assert_allclose(logits(model, data, device="cuda").values, cpu, atol=0.3)
    assert next(model.parameters()).device.type == "cpu"
