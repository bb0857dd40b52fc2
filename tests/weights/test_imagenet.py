"""ImageNet's 1,000 classes: a table of facts, which checkpoints answer with it, and real photographs."""

import io
import json
import zipfile

import pytest
import torch
from PIL import Image
from shared_files import SHARED, needs_shared
from tiny_models import awake

import vitreous
from vitreous.files import digest
from vitreous.images.pixels.preprocess import apply
from vitreous.weights import imagenet, starter

PETS = SHARED / "data" / "oxford-pets-160-val.zip"
SAMPLE = SHARED / "data" / "imagenet-sample-1000.zip"
BREEDS = {  # a folder of the pets -> the class of ImageNet
    "pug": "pug",
    "boxer": "boxer",
    "samoyed": "Samoyed",
    "Siamese": "Siamese cat",
}


def test_the_table_has_a_thousand_classes_in_the_order_of_their_ids():
    ids = [number for number, _ in imagenet.classes()]
    assert len(ids) == 1000
    assert ids == sorted(set(ids))
    assert all(number[0] == "n" and number[1:].isdecimal() and len(number) == 9 for number in ids)
    assert all(names and all(name == name.strip() != "" for name in names) for _, names in imagenet.classes())


def test_no_two_labels_are_alike_even_without_capitals():
    labels = imagenet.labels()
    assert len({label.casefold() for label in labels}) == 1000
    assert not [label for label in labels if "," in label]
    assert labels[254] == "pug"
    assert labels[134] == "crane (bird)"
    assert labels[517] == "crane (machine)"


def test_labels_are_known_as_imagenets_by_any_of_their_names():
    wholes = [", ".join(names) for _, names in imagenet.classes()]
    for labels in (imagenet.labels(), wholes, [number for number, _ in imagenet.classes()]):
        assert imagenet.are_classes(labels)
        assert not imagenet.are_classes(labels[:999])
        assert not imagenet.are_classes([*labels[1:], labels[0]])
    assert not imagenet.are_classes([f"LABEL_{i}" for i in range(1000)])


@pytest.mark.skipif(not starter.is_there(), reason="this package has no starter")
def test_the_starter_answers_with_names_of_imagenet():
    known = {name for _, names in imagenet.classes() for name in names}
    assert set(vitreous.load("starter").labels) <= known


# Which checkpoints answer with them


def timm_folder(path, classes=1000, **config):
    """A tiny model in timm's format, with this config beside it."""
    vitreous.save(awake(classes=classes, activation="gelu"), path, format="timm")
    file = path / "config.json"
    stated = json.loads(file.read_text())
    stated["pretrained_cfg"] |= config.pop("pretrained_cfg", {})
    file.write_text(json.dumps(stated | config))
    (path / "vitreous.json").unlink(missing_ok=True)
    return vitreous.load(path)


@pytest.mark.parametrize(
    "tag", ["fb_in1k", "in1k", "augreg_in21k_ft_in1k", "fb_in22k_ft_in1k_384", "goog_teacher_in21k_ft_in1k_384"]
)
def test_a_config_that_says_imagenet_1k_gives_the_names(tmp_path, tag):
    assert timm_folder(tmp_path / "m", pretrained_cfg={"tag": tag}).labels == imagenet.labels()


def test_an_architecture_with_its_tag_says_so_too(tmp_path):
    named = timm_folder(tmp_path / "m", architecture="vit_base_patch16_224.augreg_in21k_ft_in1k")
    assert named.labels == imagenet.labels()


@pytest.mark.parametrize("tag", ["", "augreg_in21k", "mine", "in1k_like", "in1000", 7, None])
def test_a_thousand_classes_alone_are_nobodys(tmp_path, tag):
    assert timm_folder(tmp_path / "m", pretrained_cfg={"tag": tag}).labels is None


def test_names_are_for_a_thousand_classes_that_have_none(tmp_path):
    says_so = {"tag": "fb_in1k"}
    assert timm_folder(tmp_path / "few", classes=999, pretrained_cfg=says_so).labels is None
    own = [f"thing {i}" for i in range(1000)]
    assert timm_folder(tmp_path / "own", pretrained_cfg=says_so, label_names=own).labels == tuple(own)
    assert vitreous.load(tmp_path / "own", classes=5).labels is None  # a new head
    assert vitreous.build("Ti/16").labels is None


def test_the_names_of_published_files_say_so(tmp_path):
    """Google's by the data set in their name; torch.hub's only if the name carries the file's own digest."""
    model = awake(classes=1000)
    google = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0--{}-steps_20k-lr_0.03-res_224.npz"
    for data, labels in (("imagenet2012", imagenet.labels()), ("cifar1000", None)):
        (file, *beside) = vitreous.save(model, tmp_path / google.format(data), format="google")
        for other in beside:
            other.unlink()
        assert vitreous.load(file).labels == labels
    (file, *beside) = vitreous.save(model, tmp_path / "mine.pth", format="torchvision", anyway=True)
    for other in beside:
        other.unlink()
    right, wrong = digest(file)[:8], "0" * 8
    for name, labels in ((f"vit_b_16-{right}", imagenet.labels()), (f"vit_b_16-{wrong}", None), (f"x-{right}", None)):
        file = file.rename(tmp_path / f"{name}.pth")
        assert vitreous.load(file, heads=2).labels == labels


@pytest.mark.parametrize("to", ["vitreous", "timm", "huggingface", "google"])
def test_names_go_with_the_model_into_every_format(tmp_path, to):
    model = timm_folder(tmp_path / "in", pretrained_cfg={"tag": "fb_in1k"})
    file = vitreous.save(model, tmp_path / "out", format=to, anyway=True)[0]
    place = file.parent if to in ("timm", "huggingface") else file
    assert vitreous.load(place).labels == imagenet.labels()


# Real weights on real photographs


@needs_shared
def test_the_names_are_those_of_the_breeds_in_the_photographs():
    """Folders named by people, of another data set: DeiT's commonest answer for each breed is its name."""
    model = vitreous.load(SHARED / "weights" / "deit-tiny")
    assert model.labels == imagenet.labels()
    for breed, name in BREEDS.items():
        with zipfile.ZipFile(PETS) as file:
            inside = [n for n in file.namelist() if n.startswith(f"val/{breed}/") and n.endswith(".webp")][:6]
            photos = [apply(Image.open(io.BytesIO(file.read(n))).convert("RGB"), model.preprocess) for n in inside]
        with torch.inference_mode():
            answers = [model.labels[k] for k in model(torch.stack(photos)).argmax(1).tolist()]
        assert max(set(answers), key=answers.count) == name, answers


@needs_shared
def test_the_ids_of_the_table_are_the_classes_of_the_weights(tmp_path):
    """Every 40th photograph of the sample, whose folders are WordNet ids: eval finds each class by its id."""
    data = vitreous.images.open(SAMPLE)
    few = data.take(list(range(0, 1000, 40)))
    result = vitreous.evaluate(SHARED / "weights" / "deit-tiny", few, split="all", workers=0)
    print(result)
    assert result.right >= 14  # 18.6 are expected
