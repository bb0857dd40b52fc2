"""What the terminal tells a newcomer: each fact appears when it should, and not otherwise."""

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from small_runs import MODEL, PLAIN, image_set, picture_folder, plan_of

import vitreous
from vitreous.cli.training_display import _Live, _print
from vitreous.images.health import Case, Finding, Health
from vitreous.training.plan import plan as plans
from vitreous.training.run.events import FACT_INDENT, Fact, RunEnded, Said, Working
from vitreous.training.run.trained import FROZEN
from vitreous.training.tell.strangers import LEFT_OUT
from vitreous.training.tell.write import Run

ROW = {"name": "cat", "images": 20, "right": 18, "said": 20, "recall": 0.9}
DOG = {"name": "dog", "images": 20, "right": 19, "said": 20, "recall": 0.95}
OWL = {"name": "owl", "images": 20, "right": 20, "said": 20, "recall": 1.0}
JUDGED = {"images": 60, "right": 57, "top1": 0.95, "interval": [0.863, 0.983], "classes": [ROW, DOG, OWL]}
ABOVE = {"confidence": 0.8, "images": 60, "answered": 30, "right": 29}
METRICS = {"judged_by": "leave-one-out", "how_judged": "Measured so.", "judged": JUDGED, "above": ABOVE}


def told(**changes):
    """The facts of a run with these numbers, by what they are about."""
    run = Run("runs/pets-1", {**METRICS, **changes})
    return {event.about: event.text for event in run.told if isinstance(event, Fact)}


# ------------------------------------------------------------------------------------------------------- after training


@pytest.mark.parametrize(
    ("judged_by", "words"),
    [
        ("leave-one-out", "95.0 % of 60 images that it had not seen (86.3 to 98.3, 95 % interval)"),
        ("cross-validation", "95.0 % of 60 images that it had not seen (86.3 to 98.3, 95 % interval)"),
        ("test", "95.0 % of 60 test images that it had not seen (86.3 to 98.3, 95 % interval)"),
        (
            "dev",
            "95.0 % of 60 images set aside (86.3 to 98.3, 95 % interval); a bit too high, since they also chose it",
        ),
    ],
)
def test_the_result_says_of_which_images(judged_by, words):
    assert told(judged_by=judged_by)["right"] == words


def test_several_labels_are_right_together():
    judged = {name: value for name, value in JUDGED.items() if name != "top1"} | {"exact_match": 0.95}
    assert told(judged=judged)["right"].startswith("95.0 % of all labels of 60 images that")


def test_a_run_that_is_not_judged_says_so():
    facts = {event.about: event for event in Run("runs/x", {"judged_by": "none"}).told}
    assert facts["done"].tone == "warn"
    assert "not judged" in facts["done"].text
    assert facts.keys() == {"done", "saved", "next"}, "there is no report to open"


def test_a_run_without_labels_is_something_to_begin_from():
    facts = {
        event.about: event.text for event in Run("runs/x y", {"task": "masked-patches", "steps": 9, "loss": 2}).told
    }
    assert facts["done"] == "learned to fill in hidden patches, 9 steps; loss 2.000"
    assert facts["next"] == "vitreous fit FOLDER --weights 'runs/x y'"


def test_which_answers_to_trust_is_told_if_there_are_any():
    assert told()["trust"] == "when 80 % sure or more, at least 90 % are right (50.0 % of images)"
    of_test = told(judged_by="test")["trust"]  # which did not choose the 80 %
    assert of_test == "when 80 % sure or more, 96.7 % are right (50.0 % of images)"
    assert "when 99.9 % sure or more" in told(above={**ABOVE, "confidence": 0.999})["trust"]  # nothing is 100 % sure
    assert "trust" not in told(above=None)
    assert "trust" not in told(above={**ABOVE, "answered": 0, "right": 0})
    assert told(above=None, sure_from=1.0)["trust"].startswith("check each answer: even the surest are not")
    assert "trust" not in told(above=None, sure_from=1.0, alarm="No better than always answering cat.")


def test_the_weakest_class_may_be_one_that_nobody_had_learned():
    classes = [{**row, "right": 0, "recall": 0.0} if row["name"] == "cat" else row for row in JUDGED["classes"]]
    weak = told(judged={**JUDGED, "classes": classes}, of_one_group=["cat"])["weakest"]
    assert weak.endswith("its images are copies or one series, so none was learned before they were judged; add others")


def test_how_many_strangers_it_notices_is_told_if_they_were_shown():
    """Classes that were left out come first; easy strangers are named, and blank images are no merit."""
    counts = {"blank images": {"caught": 6, "seen": 6}, "drawn scenes": {"caught": 24, "seen": 32}}
    left_out = {LEFT_OUT: {"caught": 6, "seen": 60}}
    assert told(strangers=counts)["unknown"] == "25 % of drawings get a wrong name; classes like its own were not tried"
    clothes = {"photos of clothes": {"caught": 32, "seen": 32}}
    both = "90 % of a class it never saw get a wrong name; drawings, clothes 12 %"
    assert told(strangers=counts | clothes | left_out)["unknown"] == both
    assert len(both) + FACT_INDENT <= 80
    sure = {LEFT_OUT: {"caught": 6, "seen": 60, "sure": 42}}
    mostly = "90 % of a class it never saw get a wrong name, 70 % surely"
    assert told(strangers=counts | clothes | sure)["unknown"] == mostly
    assert len(mostly) + FACT_INDENT <= 80
    assert told(strangers=counts | clothes | {LEFT_OUT: sure[LEFT_OUT] | {"sure": 0}})["unknown"] == both
    assert "unknown" not in told(strangers={})
    assert "unknown" not in told()


def test_a_simpler_method_that_did_as_well_is_told():
    frozen = {"name": f"{FROZEN} (leave-one-out)", "right": 60, "seen": 60}
    poor = {**JUDGED, "top1": 0.5}
    quick = "100.0 % in seconds without training these layers: --policy head"
    assert told(judged=poor, rivals=[frozen])["beside"] == f"worse than {quick}"
    assert told(rivals=[frozen])["beside"] == f"no better than {quick}"  # 95 and 100 % of 60 do not differ clearly
    assert "beside" not in told(judged=poor, rivals=[{**frozen, "right": 10}])
    other = {**frozen, "name": "logistic regression"}
    assert told(judged=poor, rivals=[other])["beside"] == "worse than 100.0 % of logistic regression"
    assert "beside" not in told(rivals=[other])


def test_other_weights_are_the_advice_where_the_starter_leaves_many_wrong():
    assert weakest([DOG, {**ROW, "right": 10, "recall": 0.5}, OWL], better="--weights x").endswith("; try --weights x")


def weakest(rows, confusion=(), **changes):
    return told(judged={**JUDGED, "classes": rows, "confusion": list(confusion)}, **changes).get("weakest")


def test_the_weakest_class_comes_with_what_to_do():
    weak = {**ROW, "right": 10, "recall": 0.5}
    plain = "cat: 10 of 20 right; add images of it, and see its mistakes in the report"
    assert weakest([DOG, weak, OWL]) == plain
    assert weakest([weak, DOG, OWL], [[0, 0, 10], [0, 1, 4], [0, 2, 4]]) == plain, "no class takes most of them"
    assert weakest([weak, DOG, OWL], [[0, 0, 10], [0, 1, 3], [0, 2, 7], [1, 0, 9]]) == (
        "cat: 10 of 20 right, 7 taken for owl; add images of both"
    )


@pytest.mark.parametrize(("images", "is_small"), [(4, True), (9, True), (10, False)])
def test_a_class_with_few_images_needs_more(images, is_small):
    few = {**ROW, "images": images, "right": 2, "recall": 2 / images}
    assert ("it has few images: add some" in weakest([few, DOG, OWL])) == is_small


def test_nothing_is_weakest_where_all_is_right_or_nothing_was_judged():
    assert weakest([OWL, {**OWL, "name": "empty", "images": 0, "right": 0, "recall": None}]) is None
    assert weakest([]) is None


def test_one_doubted_label_is_one():
    judged = {"images": 60, "agree": 57, "count": 1}
    assert weakest([ROW, DOG], suspects={"judged": judged}).endswith("; 1 label may be wrong: see the report")
    assert "label" not in weakest([ROW, DOG], suspects={"judged": {**judged, "count": 0}})


def test_the_report_is_a_link_and_the_next_command_can_be_typed(tmp_path):
    run = Run(str(tmp_path / "my run"), METRICS)
    facts = {event.about: event.text for event in run.told if isinstance(event, Fact)}
    link, *rest = facts["saved"].split(" ")
    assert link == (tmp_path / "my run" / "report.html").as_uri()
    assert link.startswith("file:///")
    assert rest == ["and", "model.safetensors"]
    assert told()["next"] == "vitreous predict runs/pets-1 PHOTO.jpg, or vitreous serve runs/pets-1"
    assert facts["next"].startswith(f"vitreous predict '{tmp_path}/my run' ")


def test_details_are_no_part_of_what_a_run_prints():
    rival = {"name": "a rival", "right": 3, "seen": 4}
    run = Run("runs/x", {**METRICS, "rivals": [rival], "notes": ["A note."]})
    assert [str(event) for event in run.told if event.is_detail] == ["Measured so.", "a rival: 75.0 %", "A note."]
    assert str(run).splitlines() == [str(event) for event in run.told if isinstance(event, Fact)]


# ------------------------------------------------------------------------------------------------------ before training


def health(*findings, **changes):
    """A check of 40 images that found this."""
    facts = {"path": "my photos", "kind": "folders", "content_id": "", "images": 40, "checked": 40, "sample_seed": None}
    empty = {"splits": {}, "classes": (), "counts": (), "formats": {}, "sizes": {}, "rules": {}}
    return Health(**{**facts, **empty, "findings": findings, **changes})


def finding(kind, *names):
    return Finding(kind, tuple(Case((0,), (name,)) for name in names))


def found(data, checked=None):
    return {fact.about: fact for fact in plans._found(data, checked)}


def test_what_was_found_is_counted_and_named(tmp_path):
    data = vitreous.images.open(picture_folder(tmp_path / "shapes", 60))
    each = f"{data.counts.min()} to {data.counts.max()} each"
    assert found(data)["found"].text == f"60 images in 4 classes (cross, disc, square, triangle), {each}"
    assert "check" not in found(data), "nobody looked"
    odd = replace(data, about={}, labels=np.where(np.arange(60) < 20, 0, data.labels))
    counts = odd.split_counts
    assert found(odd)["found"].text.startswith(
        f"60 images ({counts['train']} train, {counts['test']} test) in 4 classes"
    )
    assert found(odd)["found"].text.endswith(f"), {odd.counts.min()} to {odd.counts.max()} each")
    assert found(replace(data, classes=()))["found"].text == "60 images"


def test_of_many_classes_a_line_names_the_first():
    names = tuple(f"a rather long name {k}" for k in range(300))
    data = replace(image_set(60), classes=names, labels=np.arange(60) % 4, about={"split": {"made": True}})
    text = found(data)["found"].text
    assert text == "60 images in 300 classes (a rather long name 0, a rather long name 1 …), 0 to 15 each"
    longer = replace(data, classes=tuple(f"{name} with a very long pedigree and many a title" for name in names))
    assert found(longer)["found"].text == "60 images in 300 classes, 0 to 15 each", "no name has room"


def test_a_check_that_found_nothing_says_so():
    assert found(image_set(60), health())["check"] == Fact("check", "nothing wrong found")
    some = found(image_set(60), health(images=90, checked=40, sample_seed=0))["check"].text
    assert some == "nothing wrong found; 40 of 90 images read, a random sample (seed 0)"


def test_what_is_wrong_is_told_with_files_and_the_command_that_tells_all():
    bad = health(finding("unreadable", "a.jpg"), finding("truncated", "b.jpg"), finding("exact-duplicate", "c.jpg"))
    fact = found(image_set(60), bad)["check"]
    assert fact.text == (
        "2 files cannot be read (a.jpg …), 1 image is there more than once (c.jpg); see: vitreous check 'my photos'"
    )
    assert fact.tone == "warn"
    assert found(image_set(60), health(finding("exact-duplicate", "c.jpg")))["check"].tone == "plain"


def test_heic_is_named_since_a_reader_mends_it():
    text = found(image_set(60), health(finding("heic", "a.heic", "b.heic")))["check"].text
    assert text.startswith("2 files are HEIC, which is not read here (a.heic …); see: ")


def test_many_kinds_take_two_lines_of_a_terminal():
    kinds = ("unreadable", "label-conflict", "small-class", "exact-duplicate", "near-duplicate", "blank", "tiny")
    bad = health(*(finding(kind, f"a folder/a long name {kind}.jpg") for kind in kinds))
    fact = found(image_set(60), bad)["check"]
    assert fact.text.endswith(", 6 more: vitreous check 'my photos'") or fact.text.endswith(
        ", 5 more: vitreous check 'my photos'"
    )
    assert len(drawn(fact)) == 2


def plan_in_words(data, **asked):
    asked = {"check": False, "model": MODEL, "recipe": PLAIN.change(image_size=16, dev=0.2), **asked}
    return plans._in_words(plan_of(data, **asked))


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    place = tmp_path_factory.mktemp("weights") / "mine"
    vitreous.save(vitreous.build(MODEL, image_size=16, classes=4), place)
    return f"{place}.safetensors"


def test_the_plan_is_told_in_plain_words(weights):
    data = image_set(60)
    assert plan_in_words(data, folds=0) == "train a new network, 6 steps"
    assert plan_in_words(data, folds=3) == "train a new network, 6 steps; 3 times to judge it, once more to keep"
    assert plan_in_words(data, rates=(0.1, 0.2)) == (
        "train a new network, 6 steps, at each of 2 learning rates; the best is kept"
    )
    for policy, layers in (("head", "the last layer"), ("last-1", "the last block"), ("layer-decay", "every layer")):
        given = {"model": None, "weights": weights, "folds": 0, "changes": {"policy": policy}}
        assert plan_in_words(data, **given) == f"train {layers} of mine.safetensors, 6 steps"
    solved = plan_in_words(data, model=None, weights=weights, recipe="linear-probe")
    assert solved == "teach the last layer of mine.safetensors your classes; the other layers stay"
    masked = PLAIN.change(task="masked-patches", image_size=16, dev=0.0)
    words = plan_in_words(data, recipe=masked, model=f"{MODEL} mask_token=true")
    assert words == "teach a new network to fill in hidden patches, without labels, 6 steps"


def test_the_last_blocks_are_counted(weights):
    plan = plan_of(image_set(60), weights=weights, recipe=PLAIN.change(policy="last-2", dev=0.2), check=False, folds=0)
    assert plans._in_words(plan) == "train the last 2 blocks of mine.safetensors, 6 steps"
    assert "of the starter," in plans._in_words(replace(plan, weights="starter"))
    assert "of mine, " in plans._in_words(replace(plan, weights="runs/mine/model.safetensors"))


# --------------------------------------------------------------------------------------------------------- how it looks


def drawn(*events, width=80, **options):
    console = Console(width=width, file=io.StringIO(), highlight=False, **options)
    for event in events:
        _print(event, console)
    return console.file.getvalue().splitlines()


def test_further_lines_stand_under_the_first_and_no_link_is_broken():
    long = Fact("check", "2 files cannot be read " + "and " * 20)
    first, *others = drawn(long)
    assert first.startswith("check    2 files")
    assert others
    assert all(line.startswith(" " * 9 + "and") for line in others)
    assert max(map(len, (first, *others))) <= 80
    link = "file:///" + "a-folder/" * 20
    assert drawn(Fact("report", link), width=40)[-1].strip().endswith(link)


def test_a_bad_fact_is_red_on_a_terminal_alone():
    bad = Fact("right", "no better than chance", "bad")
    (line,) = drawn(bad, force_terminal=True, color_system="standard", no_color=False)
    assert line == "\x1b[1mright    \x1b[0m\x1b[1;31mno better than chance\x1b[0m"
    assert drawn(bad) == ["right    no better than chance"]
    (line,) = drawn(Fact("right", "all"), force_terminal=True, color_system="standard", no_color=False)
    assert line == "\x1b[1mright    \x1b[0mall", "the word alone stands out"


def test_a_name_that_commands_a_terminal_is_written_out():
    (line,) = drawn(Fact("check", "1 file (\x1b[2Ja\nb.jpg)"))
    assert "\x1b" not in line
    assert "\x1b" not in str(Fact("check", "\x1b[2J"))
    assert len(str(Fact("check", "a\nb")).splitlines()) == 1


def live(*events, verbose=False):
    """What stands above the live line, and the live line, after these events."""
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
    shown = _Live(console, verbose=verbose)
    for event in events:
        shown(event)
    line = io.StringIO()
    Console(width=80, file=line).print(shown.bars.get_renderable())
    shown.close()
    return console.file.getvalue(), line.getvalue().strip()


def test_details_stay_out_of_a_terminal_unless_asked_for():
    events = (Fact("found", "12 images"), Said("LogME 0.1"))
    assert "12 images" in live(*events)[0]
    assert "LogME" not in live(*events)[0]
    assert "LogME" in live(*events, verbose=True)[0]


def test_what_has_no_count_is_named_on_the_live_line_until_the_run_ends():
    assert live(Working("writing the report"))[1] == "writing the report"
    assert live(Working("writing the report"), RunEnded("runs/x"))[1] == ""
