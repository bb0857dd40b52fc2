"""An option is declared once: changed by name, read from words, kept in its range, and written to JSON."""

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import line_of

from vitreous.errors import ConfigError
from vitreous.options import changed, check_known, check_ranges, option, options_of, read_json


@dataclass(frozen=True, kw_only=True)
class Brush:
    width: float = option(1.0, "pixels", above=0)
    colours: tuple[float, ...] = option((0.5,), "from black to white", at_least=0, at_most=1)
    size: tuple[int, int] = (2, 2)  # no option: it is not changed by name


@dataclass(frozen=True, kw_only=True)
class Canvas:
    rows: int = option(4, "of pixels", at_least=1)
    sides: int | tuple[int, int] | None = option(None, "of the frame")
    kind: Literal["paper", "linen"] = option("paper", "what is painted on")
    wet: bool = option(False, "whether it dries first")
    title: str = option("", "on the back")
    light: float | None = option(None, "share that comes through", at_least=0, below=1)
    day: str = option("monday", "when", read=lambda value, name: f"{name} {value}".lower())
    brush: Brush = Brush()


CANVAS = Canvas()
ALL = st.builds(
    Canvas,
    rows=st.integers(1, 2**62),
    sides=st.none() | st.integers(1, 99) | st.tuples(st.integers(1, 99), st.integers(1, 99)),
    kind=st.sampled_from(["paper", "linen"]),
    wet=st.booleans(),
    title=st.text(max_size=5),
    light=st.none() | st.floats(0, 0.99),
    brush=st.builds(Brush, width=st.floats(0.1, 9), colours=st.lists(st.floats(0, 1)).map(tuple)),
)


@given(ALL)
def test_a_config_goes_to_json_and_back(canvas):
    assert read_json(Canvas, json.loads(json.dumps(msgspec.to_builtins(canvas))), "canvas") == canvas


@given(ALL)
def test_a_change_to_what_is_already_so_changes_nothing(canvas):
    """Groups are opened, and each option is found by its own name."""
    own = {each.name: each.value for each in options_of(canvas) if each.read is None}
    assert changed(canvas, own) == canvas


@given(ALL, ALL)
def test_changes_add_up(one, other):
    """All at once is one after the other."""
    values = {each.name: each.value for each in options_of(other) if each.read is None}
    step = one
    for name, value in values.items():
        step = changed(step, {name: value})
    assert step == changed(one, values)


@pytest.mark.parametrize(
    ("name", "word", "value"),
    [
        ("rows", " 8 ", 8),
        ("rows", str(2**70), 2**70),
        ("sides", "8x16", (8, 16)),
        ("sides", "(8, 16)", (8, 16)),
        ("sides", "3-4", (3, 4)),
        ("sides", "8", 8),
        ("sides", "none", None),
        ("kind", "linen", "linen"),
        ("wet", "true", True),
        ("title", "none", "none"),
        ("light", "1e-3", 1e-3),
        ("light", None, None),
        ("colours", "1e-5,0.5", (1e-5, 0.5)),
        ("colours", "0.5", (0.5,)),
        ("colours", [0, 1], (0.0, 1.0)),
        ("day", "TUESDAY", "day tuesday"),
    ],
)
def test_a_word_is_read_as_the_options_type(name, word, value):
    new = changed(CANVAS, {name: word})
    found = getattr(new.brush if name == "colours" else new, name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "value", "give"),
    [
        ("rows", "many", "a whole number"),
        ("rows", 2.5, "a whole number"),
        ("rows", True, "a whole number"),
        ("rows", "none", "a whole number"),
        ("sides", "1x2x3", "a whole number or 2 numbers with a comma between or none"),
        ("kind", "wood", "paper | linen"),
        ("wet", "perhaps", "true or false"),
        ("title", 5, "a word"),
        ("light", "dim", "a number or none"),
        ("colours", "red", "numbers with commas between"),
        ("colours", 3, "numbers with commas between"),
    ],
)
def test_a_value_of_another_type_is_refused_in_one_line(name, value, give):
    with pytest.raises(ConfigError) as error:
        changed(CANVAS, {name: value})
    line_of(error.value)
    assert str(error.value) == f"{name}={value!r} does not fit; give {give}"


def test_an_unknown_name_is_answered_with_the_nearest():
    for name, near in (("row", "rows"), ("colour", "colours")):
        with pytest.raises(ConfigError) as error:
            changed(CANVAS, {name: 1})
        assert str(error.value) == f"there is no option {name!r}; near: {near}"
    with pytest.raises(ConfigError) as error:
        check_known({"hue": 2}, ["colours"], "a brush has no", theirs={"hue": "colours={}"}, see=" (all: the manual)")
    assert str(error.value) == "a brush has no 'hue'; say colours=2 (all: the manual)"
    with pytest.raises(ConfigError, match="there is no option 'size'"):
        changed(CANVAS, {"size": (3, 3)})


def test_a_group_is_replaced_whole_and_changed_in_one_go():
    thick = Brush(width=9.0, size=(5, 5))
    assert changed(CANVAS, {"brush": thick}).brush == thick
    both = {"colours": "0,1", "brush": thick}
    for changes in (both, dict(reversed(both.items()))):
        assert changed(CANVAS, changes).brush == dataclasses.replace(thick, colours=(0.0, 1.0))
    with pytest.raises(ConfigError, match="there is no option 'brush'"):
        changed(CANVAS, {"brush": 3})


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"rows": 0}, "rows=0 must be 1 or more"),
        ({"light": 1.0}, "light=1.0 must be at least 0 and below 1, or none"),
        ({"light": -0.1}, "light=-0.1 must be at least 0 and below 1, or none"),
        ({"light": math.nan}, "light=nan must be at least 0 and below 1 and finite, or none"),
        ({"width": 0}, "width=0.0 must be above 0"),
        ({"width": math.inf}, "width=inf must be above 0 and finite"),
        ({"colours": (0.5, 1.5)}, "colours=0.5,1.5 must each be at least 0 and at most 1"),
    ],
)
def test_a_number_out_of_its_range_is_refused_in_one_line(changes, line):
    with pytest.raises(ConfigError) as error:
        check_ranges(changed(CANVAS, changes), "canvas: ")
    assert str(error.value) == f"canvas: {line}"


@given(ALL)
def test_a_number_in_its_range_is_not_refused(canvas):
    check_ranges(canvas)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"row": 3}, "canvas has no field 'row'; written by a newer vitreous?"),
        ({"brush": {"hair": 3}}, "canvas.brush has no field 'hair'"),
        ({"rows": "3"}, "canvas does not fit: Expected `int`, got `str` - at `$.rows`"),
        ({"brush": 3}, "canvas does not fit: Expected `object`, got `int` - at `$.brush`"),
        ([], "canvas does not fit: Expected `object`, got `array`"),
    ],
)
def test_damaged_json_is_one_line_that_names_the_field(data: Any, words):
    with pytest.raises(ConfigError) as error:
        read_json(Canvas, data, "canvas")
    line_of(error.value, words)
