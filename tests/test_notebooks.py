"""In a notebook: a cell shows progress while `fit` runs, and results show themselves, whatever strangers named."""

import ast
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from types import ModuleType, SimpleNamespace

import forks
import numpy as np
import pytest
import torch
from picture_files import photo
from PIL import Image
from shared_files import ROOT
from small_runs import fitted, image_set
from tiny_models import awake, line_of
from torch.testing import assert_close

import vitreous
from vitreous.errors import DataError
from vitreous.evaluation.predict import Answers, Prediction
from vitreous.training.run import events
from vitreous.training.run.live_cell import LiveCell, notebook_shell

HOSTILE = "<script>alert(1)</script>\"'&"
ELEMENTS_THAT_ACT = {"script", "iframe", "object", "embed", "link", "form"}


class Read(HTMLParser):
    """Tags, attributes and words of a piece of HTML."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.names, self.words = set(), set(), []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.words.append(data)


def harmless(html, *words, most=200_000):
    """It holds these words as text, runs nothing, fetches nothing, and is small."""
    read = Read(html)
    assert not read.tags & ELEMENTS_THAT_ACT
    assert not [name for name in read.names if name.startswith("on")]
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", html)
    text = "".join(read.words)
    for word in words:
        assert word in text, word
    assert len(html) < most
    return text


@pytest.fixture(scope="module")
def data():
    """Images of a class with a hostile name."""
    found = image_set(60)
    return replace(found, classes=(HOSTILE, *found.classes[1:]), path=HOSTILE)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    return fitted(data, tmp_path_factory.mktemp("runs") / "run", folds=2)


# ------------------------------------------------------------------------------------------------------------- results


def test_a_set(data):
    text = harmless(data._repr_html_(), HOSTILE, "60", "images", "classes", most=60_000)
    assert text.count(HOSTILE) == 2  # its path, and a class
    many = replace(image_set(60), classes=tuple(f"class {k}" for k in range(30)))
    assert "and 22 more" in harmless(many._repr_html_())
    assert "and " not in harmless(image_set(8)._repr_html_()).split("images")[-1]


def test_sets_of_few_or_odd_images_are_shown(data):
    assert "0" in harmless(data.take([])._repr_html_())
    several = image_set(6, labels=np.eye(6, 3, dtype=int))
    harmless(several._repr_html_(), "fact 0")
    plain = replace(image_set(4), labels=np.full(4, -1), classes=())
    assert plain._repr_html_().count("<img") == 4
    broken = image_set(4)
    broken.source.read = lambda i: (_ for _ in ()).throw(DataError("torn"))
    harmless(broken._repr_html_(), "cannot be shown")


def test_a_check(data):
    harmless(vitreous.check(data)._repr_html_(), HOSTILE, most=60_000)


def test_a_run(run):
    harmless(run._repr_html_(), HOSTILE, str(run), "found", most=60_000)
    masked = type(run)("runs/m", {"task": "masked-patches", "loss": 1.0, "steps": 4})
    text = harmless(masked._repr_html_(), str(masked))
    assert "weakest" not in text


def test_a_look(data):
    model = awake(classes=2)
    found = vitreous.look(model, data, images=8, batch=8, only=["rollout", "positions"])
    text = harmless(found._repr_html_(), HOSTILE, "rollout", "positions")
    assert found._repr_html_().count('class="chart"') == 1  # where photos are, they alone
    assert "Where the answer came from" in text
    charts = vitreous.look(model, data, images=8, only=["positions", "skip-ratio"])
    assert "Cosine of each place" in harmless(charts._repr_html_())
    assert charts._repr_html_().count('class="chart"') == 2  # the first, no more


def test_answers(run, data):
    answers = vitreous.predict(run.load(), data)
    assert isinstance(answers, Answers)
    shown = harmless(answers._repr_html_(), "chance", "More come", most=60_000)
    assert harmless(answers._repr_html_()) == shown  # showing takes none away
    plain = list(vitreous.predict(run.load(), data))
    assert [each.name for each in answers] == [each.name for each in plain]
    assert "No answers are left" in harmless(answers._repr_html_())


def test_an_answer():
    said = Prediction(HOSTILE, (HOSTILE, "cat"), (0, 1), (0.75, 0.25), 0.9)
    assert "75.0 %" in harmless(said._repr_html_(), f"{HOSTILE}: {HOSTILE}", most=60_000)
    unlike = replace(said, is_unlike=True)
    assert "75.0 %" not in harmless(unlike._repr_html_(), f"none of these (nearest: {HOSTILE})")
    harmless(Prediction(HOSTILE, error=f"{HOSTILE} is torn")._repr_html_(), f"{HOSTILE} is torn")

    def stream():
        yield from (said, unlike, Prediction("a.jpg", error="a.jpg is torn"))

    text = harmless(Answers(stream())._repr_html_(), f"none of these (nearest: {HOSTILE})", "a.jpg is torn")
    assert text.count("75.0 %") == 1  # no chance where the answer is none of these
    assert "More come" not in text


# ------------------------------------------------------------------------------------------------------------ progress


class Handle:
    """What IPython's display returns: the cell can be written again."""

    def __init__(self, shown):
        self.shown = shown

    def update(self, bundle, *, raw):
        assert raw
        self.shown.append(bundle)


@pytest.fixture
def notebook(monkeypatch):
    """As ipykernel answers: a shell with a kernel, and a display that keeps what it is given."""
    shown = []

    def display(bundle, *, raw, display_id):
        assert raw
        assert display_id
        shown.append(bundle)
        return Handle(shown)

    module, part = ModuleType("IPython"), ModuleType("IPython.display")
    module.get_ipython = lambda: SimpleNamespace(kernel=object())
    part.display = display
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", part)
    return SimpleNamespace(shown=shown, module=module)


def test_a_cell_shows_progress_while_fit_runs(notebook, data, tmp_path, monkeypatch):
    monkeypatch.setattr("vitreous.training.run.live_cell.SECONDS_BETWEEN", 0.0)
    fitted(data, tmp_path / "run")
    steps = [bundle for bundle in notebook.shown if 'value="' in bundle["text/html"]]
    shares = [float(re.search(r'value="([\d.]+)"', bundle["text/html"])[1]) for bundle in steps]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert re.search(r"step 4 of 4, .*loss [\d.]+", steps[-1]["text/plain"])
    for bundle in notebook.shown:
        harmless(bundle["text/html"], most=10_000)
        assert "<" not in bundle["text/plain"].replace(HOSTILE, "")
    assert "<b>found</b>" in steps[-1]["text/html"]  # facts stay above the bar
    assert "writing the report" in "".join(bundle["text/plain"] for bundle in notebook.shown)
    assert "<progress" not in notebook.shown[-1]["text/html"]  # the bar goes when the run ends


def test_steps_that_come_fast_are_drawn_now_and_then_and_the_last_always(notebook):
    cell = LiveCell()
    for step in range(1, 1001):
        cell(events.StepLogged(step=step, steps=1000, loss=1.0, accuracy=0.5, epoch=1.0, lr=0.1, images_per_second=9.0))
    assert len(notebook.shown) < 50
    assert "100 %" in notebook.shown[-1]["text/plain"]


def test_lines_of_strangers_are_escaped(notebook):
    cell = LiveCell()
    cell(events.Noted(f"{HOSTILE} is torn\x1b[31m"))
    cell(events.Fact(HOSTILE, f"{HOSTILE} is odd"))
    cell(events.Working(f"reading {HOSTILE}"))
    harmless(notebook.shown[-1]["text/html"], f"{HOSTILE} is torn", f"{HOSTILE} is odd", f"reading {HOSTILE}")
    assert "\x1b" not in notebook.shown[-1]["text/plain"]


def test_outside_a_notebook_nothing_is_shown(notebook, data, tmp_path):
    notebook.module.get_ipython = lambda: SimpleNamespace()  # IPython in a terminal has no kernel
    assert notebook_shell() is None
    fitted(data, tmp_path / "a")
    notebook.module.get_ipython = lambda: None  # imported by a script
    fitted(data, tmp_path / "b")
    assert notebook.shown == []


def test_a_listener_of_ones_own_is_asked_instead(notebook, data, tmp_path):
    told = []
    fitted(data, tmp_path / "run", tell=told.append)
    assert told
    assert notebook.shown == []


# ----------------------------------------------------------------------------------------- how an image becomes a batch


@pytest.fixture(scope="module")
def model():
    network = awake(classes=3)
    network.preprocess = replace(network.preprocess, fit="crop", short_side=20, antialias=True)
    return network


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "scene.png"
    photo(3, (50, 30)).save(path)
    return path


def test_a_file_an_image_and_an_array_are_one_batch(model, file):
    image = Image.open(file)
    batch = model.preprocess([file, str(file), image, np.asarray(image)])
    assert batch.shape == (4, 3, 16, 16)
    assert batch.dtype == torch.float32
    for other in batch[1:]:
        assert torch.equal(batch[0], other)
    for one in (file, image, np.asarray(image), np.asarray(image)[None], [image]):
        assert torch.equal(model.preprocess(one), batch[:1])
    whole = model.preprocess(vitreous.images.open(file))
    assert torch.equal(whole, batch[:1])


def test_it_is_what_predict_sees(model, file):
    (answer,) = vitreous.predict(model, file, top=3)
    with torch.inference_mode():
        chances = model(model.preprocess(file)).softmax(-1)[0]
    assert_close(chances[list(answer.classes)], torch.tensor(answer.probabilities), rtol=1e-4, atol=1e-5)


def test_a_photo_is_turned_upright_and_grey_becomes_the_models_channels(model, file, tmp_path):
    image = Image.open(file)
    exif = Image.Exif()
    exif[0x0112] = 6
    image.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    assert torch.equal(model.preprocess(tmp_path / "turned.png"), model.preprocess(file))
    assert torch.equal(model.preprocess(Image.open(tmp_path / "turned.png")), model.preprocess(file))
    assert model.preprocess(np.zeros((9, 9), np.uint8)).shape == (1, 3, 16, 16)


def test_what_is_no_image_is_one_line(model, file, tmp_path):
    (tmp_path / "torn.png").write_bytes(file.read_bytes()[:60])
    cases = {
        tmp_path / "no.png": ["no.png"],
        tmp_path / "torn.png": ["torn.png"],
        tmp_path: ["is a folder", "vitreous.images.open"],
        7: ["a int is not an image", "array H×W×C of uint8"],
        (): ["there is no image"],
    }
    for given, words in cases.items():
        with pytest.raises(DataError) as error:
            model.preprocess(given)
        line_of(error.value, *words)
    with pytest.raises(DataError, match="a Tensor is not an image"):
        model.preprocess(torch.zeros(3, 16, 16))
    with pytest.raises(DataError, match="of float64 is not an image"):
        model.preprocess(np.zeros((9, 9, 3)))


def test_it_needs_no_other_import(file, tmp_path):
    vitreous.save(awake(classes=3), tmp_path / "vit.safetensors")
    code = "import sys, vitreous; print(vitreous.load(sys.argv[1]).preprocess(sys.argv[2]).shape)"
    call = [sys.executable, "-c", code, str(tmp_path / "vit.safetensors"), str(file)]
    assert forks.run(call, capture_output=True, text=True, check=True).stdout == "torch.Size([1, 3, 16, 16])\n"


def test_what_shows_itself_in_a_cell_shows_itself_at_a_prompt(data, run):
    """Not as its fields, which fill the screen."""
    silent = []
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                own = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
                own |= {name.id for item in node.body if isinstance(item, ast.Assign) for name in item.targets}
                silent += [node.name] if "_repr_html_" in own and "__repr__" not in own else []
    assert silent == []
    assert repr(run) == str(run)
    assert repr(data) == str(data)
    answers = Answers(iter([]))
    assert "loop" in repr(answers)
