"""Images in the place of the model: one line with the command that was meant."""

import numpy as np
import pytest
from commands import run_all
from picture_files import class_folders
from tiny_models import awake

import vitreous

FIRST = "m.safetensors is the model, and the model comes first: vitreous "
LAST = " (last: the newest run)"
PHOTO = "'my photos/ant/0.png'"
LINES = {
    "image, model": FIRST + f"predict m.safetensors {PHOTO}",
    "images, model": FIRST + f"predict m.safetensors {PHOTO} {PHOTO} {PHOTO} …",
    "folder, model": FIRST + "predict m.safetensors 'my photos'",
    "image, name": f"B/16 is the model, and the model comes first: vitreous predict B/16 {PHOTO}",
    "no image": FIRST + "predict m.safetensors no.png",
    "image alone": f"my photos/ant/0.png is an image; name a model before it: vitreous predict last {PHOTO}{LAST}",
    "folder alone": f"my photos holds no weights; name a model before it: vitreous predict last 'my photos'{LAST}",
    "model alone": "name images too: vitreous predict m.safetensors PHOTO.jpg, a folder, or a pattern",
    "look": FIRST + f"look m.safetensors {PHOTO}",
    "eval": FIRST + "eval m.safetensors 'my photos'",
    "serve": f"my photos/ant/0.png is an image; name a model: vitreous serve last{LAST}",
}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    root = tmp_path_factory.mktemp("order")
    vitreous.save(awake(classes=3), root / "m")
    class_folders(root / "my photos", {"ant": 2, "bee": 2})
    np.savez(root / "set.npz", images=np.zeros((4, 8, 8, 3), np.uint8), labels=np.arange(4) % 2)
    (root / "run").mkdir()
    (root / "run" / "events.jsonl").touch()
    (root / "run" / "config.json").write_text("{}")
    model, folder, photo = "m.safetensors", "my photos", "my photos/ant/0.png"
    calls = {
        "image, model": ["predict", photo, model],
        "images, model": ["predict", *[photo] * 5, model],
        "folder, model": ["predict", folder, model],
        "image, name": ["predict", photo, "B/16"],
        "no image": ["predict", "no.png", model],
        "image alone": ["predict", photo],
        "folder alone": ["predict", folder],
        "model alone": ["predict", model],
        "run alone": ["look", "run"],
        "look": ["look", photo, model],
        "eval": ["eval", folder, model],
        "serve": ["serve", photo],
        "typo": ["eval", "deit-tinny", "set.npz"],
        "right": ["predict", model, photo],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        return dict(zip(calls, run_all(calls.values()), strict=True))


@pytest.mark.parametrize(("call", "line"), LINES.items())
def test_the_right_command_is_told(done, call, line):
    assert done[call].line == f"vitreous: {line}"


def test_a_run_that_has_not_ended_is_told_by_loading_and_the_right_order_answers(done):
    assert "is a run that has not ended; go on with it" in done["run alone"].line
    assert done["right"].code == 0


def test_a_model_misspelt_beside_a_file_of_images_is_told_the_name_that_was_meant(done):
    """An .npz holds weights or images, so that it proves no wrong order."""
    assert "comes first" not in done["typo"].line
    assert "deit-tiny" in done["typo"].line
