"""Events are values with fields; lines of yesterday's journals are still read, and today's lines have the same keys."""

import json
import math

import pytest

from vitreous.errors import DataError
from vitreous.training.run.events import (
    Event,
    NotFinite,
    StepLogged,
    StepOfSeveral,
    TrialEnded,
    TrialFailed,
    from_json,
    known,
)
from vitreous.training.run.folder import RunFolder, read

RECORDED = {  # lines that runs wrote when events were dicts, without `time`, and what the terminal said
    '{"kind": "start"}': "",
    '{"kind": "start", "waited": 2.5}': "",
    '{"kind": "save", "stage": "rate-0.001", "step": 0}': "",
    '{"kind": "restore", "stage": "fit", "step": 4, "events": 7}': "",
    '{"kind": "restore", "events": 0, "since": 3}': "",
    '{"kind": "step", "stage": "fit", "step": 4, "steps": 8, "epoch": 2.0, "loss": 1.3316680192947388, "accuracy": '
    '0.375, "lr": 0.00017706123116490772, "norm": 0.46, "images_per_second": 381.37, "seconds_left": 20.0, "memory": '
    "null}": "fit: step 4 of 8, epoch 2.0, loss 1.332, train 38 % right, lr 1.8e-04, 381 images/s, about 20 s left",
    '{"kind": "step", "stage": "rate-0.001", "step": 1, "steps": 8, "epoch": 0.25, "loss": 1.386, "accuracy": 0.125, '
    '"lr": 0.0, "norm": 1.31, "images_per_second": 41.6, "seconds_left": 1.34, "memory": 3221225472, "stage_number": 1'
    ', "stages": 2, "run_share": 0.0625, "run_seconds_left": null}': "rate-0.001, training 1 of 2: step 1 of 8, "
    "epoch 0.2, loss 1.386, train 12 % right, lr 0.0e+00, 42 images/s, 3.0 GiB",
    '{"kind": "dev", "stage": "fit", "step": 8, "epoch": 2.0, "accuracy": 0.25, "loss": 1.415, "best": false, "kept": '
    "true}": "fit: epoch 2.0, dev 25.0 % right, loss 1.415 (kept so far)",
    '{"kind": "dev", "stage": "fit", "step": 8, "epoch": 2.0, "accuracy": 0.25, "loss": 1.415, "best": true}': "fit: "
    "epoch 2.0, dev 25.0 % right, loss 1.415 (kept so far)",
    '{"kind": "patience", "stage": "fit", "step": 1900, "looks": 3}': "no gain on dev in 3 looks: the run ends at "
    "step 1,900",
    '{"kind": "steps", "stage": "fit", "steps": 1200, "seconds_each": 0.05, "budget": 60.0}': "60 seconds are 1,200 "
    "steps of 50.0 ms",
    '{"kind": "memory", "stage": "fit", "parts": 4, "micro_batch": 128}': "the batch does not fit into memory: it is "
    "taken in 4 parts of 128 images; the numbers stay the same",
    '{"kind": "nan", "stage": "fit", "step": 3, "what": "loss or gradient", "batch": "bad-batch-00000003.safetensors"}'
    "": "the loss or gradient of step 3 is not finite",
    '{"kind": "nan", "stage": "fit", "step": 3, "what": "weights", "weight": "head.bias", "batch": null}': "the "
    "weights after step 3 are not finite, or too large to compute with (head.bias first)",
    '{"kind": "trial", "stage": "rate-0.003", "rate": 0.003, "accuracy": 0.25, "loss": 1.4149, "step": 1008, "is_kept"'
    ": false}": "rate 0.003: dev 25.0 % right, loss 1.415 at step 1,008",
    '{"kind": "trial", "stage": "rate-1000000000000.0", "rate": 1000000000000.0, "failed": true}': "",
    '{"kind": "solved", "stage": "fit", "l2": 0.01, "tried": 9, "right": 1200, "images": 1300, "rounds": 200, "copies"'
    ': 4, "seconds": 2.0}': "solved in 2 s: l2 0.01 of 9 tried, 1,200 of 1,300 right when left out",
}


@pytest.mark.parametrize("line", RECORDED)
def test_a_recorded_line_is_read_told_and_written_as_it_was(line, tmp_path):
    event = from_json({**json.loads(line), "time": 1794843832.884})
    assert str(event) == RECORDED[line]
    with RunFolder.create(tmp_path / "run", {}) as folder:
        folder.event(**event)
    written = (tmp_path / "run" / "events.jsonl").read_text()
    assert written.partition(', "time": ')[0] == line.removesuffix("}")


def test_every_kind_that_a_run_writes_has_a_recorded_line():
    def kinds(of):
        return {kind for part in of.__subclasses__() for kind in (part, *kinds(part))}

    told_only = {"fact", "say", "note", "checking", "features", "working", "plan", "end", "ProgressMade", "StageEvent"}
    recorded = {type(from_json(json.loads(line))) for line in RECORDED}
    assert {kind for kind in kinds(Event) if kind.__struct_config__.tag not in told_only} == recorded


def test_a_value_that_a_line_lacks_or_has_as_null_is_its_default():
    event = from_json({"kind": "step", "stage": "fit", "step": 1, "loss": None})
    assert math.isnan(event.loss)
    assert math.isnan(event.seconds_left), "the first version wrote none"
    assert from_json({"kind": "nan", "step": 1}) == NotFinite(step=1)


def test_the_fields_of_a_line_decide_between_two_kinds_of_one_name():
    assert type(from_json({"kind": "step", "stages": 2})) is StepOfSeveral
    assert type(from_json({"kind": "step"})) is StepLogged
    assert type(from_json({"kind": "trial", "failed": True})) is TrialFailed
    assert type(from_json({"kind": "trial", "accuracy": 0.5})) is TrialEnded


def test_a_kind_of_another_version_is_left_out():
    assert from_json({"kind": "weather", "is": "fair"}) is None
    assert known([{"kind": "weather"}, {"kind": "patience", "looks": 2}])[0].looks == 2


def test_who_is_told_may_read_an_event_like_a_mapping():
    event = StepLogged("fit", 3, loss=0.5)
    assert (event["kind"], event["loss"], event.get("text", "none")) == ("step", 0.5, "none")
    assert "stages" not in event
    assert list(event)[:3] == ["kind", "stage", "step"] == list({**event})[:3]
    assert dict(event.items())["step"] == 3
    assert len(event) == len(list(event.values()))
    with pytest.raises(KeyError):
        event["text"]


def test_numbers_that_are_not_finite_become_null(tmp_path):
    with RunFolder.create(tmp_path / "run", {}) as folder:
        folder.event(**StepLogged("fit", 1, norm=math.inf))
    (line,) = read(tmp_path / "run")
    assert line["norm"] is None
    assert line["loss"] is None


def test_a_number_of_another_type_is_read():
    assert from_json({"kind": "dev", "step": 3.0, "accuracy": "0.5"}).step == 3


def test_a_line_that_does_not_fit_is_named():
    with pytest.raises(DataError, match=r"^a line of events.jsonl does not fit: .*; delete that line$"):
        from_json({"kind": "dev", "step": "three"})
