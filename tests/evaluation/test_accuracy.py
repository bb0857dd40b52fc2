"""Counts are exact, whoever hands them over and in whatever order."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from tiny_models import line_of

from vitreous.errors import DataError
from vitreous.evaluation import calibration
from vitreous.evaluation.accuracy import average_precision, measure, wilson


def drawn(n: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are right more often than not, and labels."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, k, n)
    logits = random.normal(size=(n, k)).astype(np.float32)
    logits[np.arange(n), labels] += 1.5
    return logits, labels


def names(k: int) -> list[str]:
    return [f"class {i}" for i in range(k)]


# No better than one answer


def told(labels, answers, k: int):
    """A result with these answers."""
    return measure(4.0 * np.eye(k)[np.asarray(answers)], np.asarray(labels), names(k))


LABELS = np.repeat([0, 1, 2], [20, 50, 30])


def test_a_model_that_gives_one_answer_is_called_so():
    """Whichever it is: the most frequent class or another."""
    for k in range(3):
        result = told(LABELS, np.full(100, k), 3)
        assert result.no_better_than.name == f"class {k}"
        assert result.alarm == f"No better than always answering class {k}. It answers nothing else."
        assert str(result).startswith(result.alarm)
        assert result.alarm in result._repr_html_()


@pytest.mark.parametrize(("right", "is_better"), [(30, False), (59, False), (60, True), (99, True)])
def test_a_model_is_better_if_its_interval_lies_above_the_most_frequent_class(right, is_better):
    """Of 100 images 50 are of one class; the interval of 60 right begins at 50.2, that of 59 at 49.2."""
    answers = np.where(np.arange(100) < right, LABELS, (LABELS + 1) % 3)
    result = told(LABELS, answers, 3)
    assert result.right == right
    assert (result.no_better_than is None) == (result.alarm is None) == is_better
    assert ("No better than" in str(result)) == (not is_better)
    if not is_better:
        low, high = (100 * x for x in wilson(right, 100))
        numbers = f"50.0 % of these images; this model for {right}.0 % ({low:.1f} to {high:.1f}, 95 % interval)"
        assert result.alarm == f"No better than always answering class 1. That answer is right for {numbers}."


def test_what_cannot_tell_raises_no_alarm():
    """Images of one class, a model that is always right, several labels, no images."""
    assert told(np.zeros(30, int), np.arange(30) % 2, 2).alarm is None
    assert told([0, 0, 1], [0, 0, 1], 2).alarm is None
    assert measure(np.ones((9, 2)), np.eye(2, dtype=int)[np.arange(9) % 2], names(2)).alarm is None
    assert measure(np.ones((0, 2)), np.zeros(0, int), names(2)).alarm is None


# Laws


def test_counts_are_those_of_a_plain_loop():
    logits, labels = drawn(777, 12)
    result = measure(logits, labels, names(12))
    order = [sorted(range(12), key=lambda k, row=row: -row[k]) for row in logits.tolist()]
    assert result.right == sum(o[0] == y for o, y in zip(order, labels, strict=True))
    assert result.right_in_five == sum(y in o[:5] for o, y in zip(order, labels, strict=True))
    assert (result.images, result.left_out) == (777, 0)
    assert result.top1 == result.right / 777


def test_tables_of_classes_are_those_of_a_plain_loop():
    """Truths are rows and answers are columns; one class is said far too often, so that nothing is symmetric."""
    logits, labels = drawn(200, 4)
    logits[:, 2] += 1
    result = measure(logits, labels, names(4))
    answers = [row.index(max(row)) for row in logits.tolist()]
    pairs = list(zip(labels.tolist(), answers, strict=True))
    for k, row in enumerate(result.per_class):
        right, images, said = pairs.count((k, k)), labels.tolist().count(k), answers.count(k)
        assert images != said
        assert (row.name, row.right, row.images, row.said) == (f"class {k}", right, images, said)
        assert (row.recall, row.precision) == (right / images, right / said)
        assert row.f1 == pytest.approx(2 / (images / right + said / right))
        assert result.confusion[k].tolist() == [pairs.count((k, other)) for other in range(4)]
    truth, said, count = result.confused(1)[0]
    worst = max(((t, a) for t in range(4) for a in range(4) if t != a), key=pairs.count)
    assert (truth, said, count) == (f"class {worst[0]}", f"class {worst[1]}", pairs.count(worst))


def test_parts_add_up_to_the_whole():
    """A last, smaller batch weighs by its images, not as one batch among others."""
    logits, labels = drawn(1000, 7)
    whole = measure(logits, labels, names(7))
    parts = [measure(logits[i : i + 300], labels[i : i + 300], names(7)) for i in range(0, 1000, 300)]
    assert whole.right == sum(part.right for part in parts)
    assert (whole.confusion == sum(part.confusion for part in parts)).all()
    assert whole.loss == pytest.approx(sum(part.loss * part.images for part in parts) / 1000, rel=1e-12)


def test_chunks_of_rows_change_nothing(monkeypatch):
    logits, labels = drawn(500, 15)
    whole = measure(logits, labels, names(15)).to_json()
    monkeypatch.setattr("vitreous.evaluation.calibration.LOGITS_AT_ONCE", 15 * 64)
    parts = measure(logits, labels, names(15)).to_json()
    assert parts.pop("loss") == pytest.approx(whole.pop("loss"), rel=1e-12)
    assert parts == whole


def test_renaming_the_classes_permutes_the_tables():
    logits, labels = drawn(400, 6)
    order = np.random.default_rng(1).permutation(6)
    place = np.argsort(order)
    first = measure(logits, labels, names(6))
    second = measure(logits[:, order], place[labels], [names(6)[k] for k in order])
    assert (second.confusion == first.confusion[order][:, order]).all()
    assert {row.name: row.to_json() for row in second.per_class} == {row.name: row.to_json() for row in first.per_class}
    assert second.loss == pytest.approx(first.loss, rel=1e-12)


def test_tables_hold_every_image_once():
    logits, labels = drawn(300, 5)
    result = measure(logits, labels, names(5))
    assert result.confusion.sum() == sum(row.images for row in result.per_class) == 300
    assert result.confusion.trace() == sum(row.right for row in result.per_class) == result.right
    assert sum(row.said for row in result.per_class) == 300
    assert sum(b.count for b in result.calibration.bins) == 300
    assert result.above[0].answered == 300
    assert [row.answered for row in result.above] == sorted((row.answered for row in result.above), reverse=True)


def test_equal_logits_answer_with_the_first_class():
    """So a new head of zeros is right for one class, and the first five are the first five."""
    result = measure(np.zeros((24, 12)), np.arange(24) % 12, names(12))
    assert (result.right, result.right_in_five) == (2, 10)
    assert (result.judged.answer == 0).all()
    assert result.loss == pytest.approx(math.log(12))


def test_top_five_says_something_only_above_ten_classes():
    assert measure(*drawn(30, 10), names(10)).top5 is None
    assert measure(*drawn(30, 11), names(11)).top5 is not None
    assert "top5" not in measure(*drawn(30, 10), names(10)).to_json()


def test_the_temperature_moves_confidence_and_never_the_answer():
    logits, labels = drawn(500, 8)
    cold, hot = (measure(logits, labels, names(8), temperature=t) for t in (0.5, 3.0))
    assert cold.right == hot.right
    assert (cold.confusion == hot.confusion).all()
    assert (cold.judged.confidence > hot.judged.confidence).all()
    assert cold.loss == pytest.approx(calibration.mean_loss(logits, labels, 0.5))


def test_images_without_a_label_are_left_out_and_counted():
    logits, labels = drawn(100, 4)
    without = labels.copy()
    without[::3] = -1
    result = measure(logits, without, names(4))
    assert (result.images, result.left_out) == (66, 34)
    assert (
        result.to_json()["confusion"]
        == measure(logits[without >= 0], labels[without >= 0], names(4)).to_json()["confusion"]
    )
    assert (result.judged.rows == np.flatnonzero(without >= 0)).all()


def test_unlike_counts_those_below_the_threshold():
    logits, labels = drawn(200, 4)
    threshold = calibration.fit_threshold(calibration.score(logits), keep=0.9)
    assert measure(logits, labels, names(4), threshold=threshold).unlike == 20
    assert measure(logits, labels, names(4)).unlike is None


# The interval


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_is_wilsons(counts):
    right, seen = counts
    reference = binomtest(right, seen).proportion_ci(0.95, method="wilson")
    assert wilson(right, seen) == pytest.approx((reference.low, reference.high), abs=1e-9)


def test_all_right_of_few_is_no_certainty():
    low, high = wilson(10, 10)
    assert 0.7 < low < 0.75
    assert high == pytest.approx(1)
    assert wilson(0, 0) == (0, 1)


# Other labels, several labels


def test_one_real_label_is_a_label():
    logits, labels = drawn(200, 12)
    plain, real = measure(logits, labels, names(12)), measure(logits, labels, names(12), real=[[y] for y in labels])
    assert plain.to_json() == real.to_json()


def test_more_labels_never_make_an_answer_wrong():
    logits, labels = drawn(300, 12)
    more = [[y, (y + 3) % 12, (y + 5) % 12] for y in labels]
    plain, real = measure(logits, labels, names(12)), measure(logits, labels, names(12), real=more)
    assert (real.judged.is_right | ~plain.judged.is_right).all()
    assert real.right == sum(a in row for a, row in zip(plain.judged.answer, more, strict=True))
    assert real.right_in_five >= plain.right_in_five
    assert real.loss < plain.loss
    assert real.confusion.trace() == real.right


def test_an_image_with_no_real_label_is_left_out():
    logits, labels = drawn(50, 3)
    real = [[] if i % 5 == 0 else [y] for i, y in enumerate(labels)]
    result = measure(logits, labels, names(3), real=real)
    assert (result.images, result.left_out) == (40, 10)


def test_average_precision_by_its_definition():
    """Over the ranks of the positives, the mean share of positives up to there."""
    random = np.random.default_rng(0)
    for _ in range(20):
        scores, positive = random.normal(size=40), random.random(40) < 0.3
        ranked = positive[np.argsort(-scores)]
        by_hand = np.mean([ranked[: i + 1].mean() for i in np.flatnonzero(ranked)])
        assert average_precision(scores, positive) == pytest.approx(by_hand)


def test_average_precision_of_equal_scores_is_the_share_whatever_the_order():
    positive = np.array([True, False, False, True])
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 2, 0, 3]):
        assert average_precision(np.zeros(4), positive[order]) == 0.5
    assert math.isnan(average_precision(np.zeros(3), np.zeros(3, bool)))
    assert average_precision(np.array([3.0, 2, 1]), np.array([True, True, False])) == 1


def test_several_labels_are_judged_class_by_class():
    random = np.random.default_rng(2)
    labels = (random.random((200, 5)) < 0.3).astype(np.int64)
    logits = 4.0 * labels - 2 + random.normal(size=(200, 5))
    result = measure(logits, labels, names(5))
    said = logits >= 0
    assert result.right == (said == labels).all(1).sum()
    assert result.per_class[2].right == (said[:, 2] & (labels[:, 2] > 0)).sum()
    assert result.mean_average_precision == pytest.approx(
        np.mean([average_precision(logits[:, k], labels[:, k] > 0) for k in range(5)])
    )
    assert result.confusion is None
    assert "exact_match" in result.to_json()
    assert "mean average precision" in str(result)


def test_a_class_without_images_has_no_average_precision():
    labels = np.array([[1, 0], [1, 0], [0, 0]])
    result = measure(np.array([[2.0, -1], [1, -2], [-1, -3]]), labels, ["a", "b"])
    assert result.mean_average_precision == 1
    assert result.to_json()["classes"][1]["average_precision"] is None


# What people see


def test_a_result_reads_well_and_is_json():
    logits, labels = drawn(300, 40)
    result = measure(logits, labels, names(40), temperature=1.3)
    text = str(result)
    assert f"({result.right} of 300; 95 % interval" in text
    assert "the 12 weakest of 40 classes" in text
    assert max(map(len, text.splitlines())) <= 120
    json.dumps(result.to_json(), allow_nan=False)
    hostile = measure(np.eye(2), np.array([0, 1]), ["<script>", "b"])
    assert "<script>" not in hostile._repr_html_()


def test_nothing_to_judge_is_no_number():
    result = measure(np.zeros((2, 3)), np.array([-1, -1]), names(3))
    assert (result.images, result.interval) == (0, (0.0, 1.0))
    assert math.isnan(result.top1)
    json.dumps(result.to_json(), allow_nan=False)
    assert "–" in str(result)


@pytest.mark.parametrize(
    ("logits", "labels", "real", "words"),
    [
        (np.zeros((2, 3)), [0, 1], None, ["do not answer 4 classes"]),
        (np.zeros((2, 4)), [0, 1, 2], None, ["2 rows", "3 images"]),
        (np.zeros((2, 4)), [0, 4], None, ["class number 4", "4 classes"]),
        (np.zeros((2, 4)), np.zeros((2, 3)), None, ["3 columns"]),
        (np.zeros((2, 4)), [0, 1], [[0]], ["2 rows", "1 images"]),
        (np.zeros((2, 4)), [0, 1], [[0], [9]], ["class number 9"]),
        (np.zeros((2, 4)), [0, 1], [[0], [-1]], ["below 0"]),
        (np.full((2, 4), np.nan), [0, 1], None, ["not all finite"]),
    ],
)
def test_what_does_not_belong_together_is_refused(logits, labels, real, words):
    with pytest.raises(DataError) as caught:
        measure(logits, np.array(labels), names(4), real=real)
    line_of(caught.value, *words)
