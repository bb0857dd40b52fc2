"""What people read on a terminal of 80 columns, or 60: no line is too wide, and no word is broken."""

import re

import pytest
from commands import run_all
from picture_files import class_folders, encoded
from rich.cells import cell_len
from tiny_models import awake

import vitreous
from vitreous.cli.show import fitted
from vitreous.models.track_record import TrackRecord

WIDTHS = (80, 60)
BREEDS = tuple(f"{name}, a cat with a very long name and many titles" for name in ("birman", "manx", "sphynx"))
MARK = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")  # what a terminal obeys


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model of three long names, images with long names, one that is broken and one that no class is like."""
    root = tmp_path_factory.mktemp("terminal")
    model = awake(classes=3)
    model.labels, model.track_record = BREEDS, TrackRecord(right=0.8, low=0.7, high=0.9, images=50, sure_from=1.0)
    vitreous.save(model, root / "model")
    model.labels, model.track_record = ("ant", "bee", "cat"), None
    vitreous.save(model, root / "short")
    model.labels = ("三毛猫の写真", "白い犬の写真", "新しい家の写真")
    vitreous.save(model, root / "wide")
    class_folders(root / "wide-set", dict.fromkeys(model.labels, 2))
    model.labels, model.threshold = ("ant", "bee", "cat"), 1e6
    vitreous.save(model, root / "strict")
    class_folders(root / "set", dict.fromkeys(BREEDS, 4))
    for i in range(3):
        (root / "set" / BREEDS[0] / f"{i}.png").rename(
            root / "set" / BREEDS[0] / f"IMG_2024 holiday in a house {i}.png"
        )
    (root / "set" / BREEDS[0] / "broken.png").write_bytes(encoded(9)[:50])
    return root


@pytest.fixture(scope="module", params=WIDTHS)
def done(request, place, tmp_path_factory):
    """(columns, what each call printed on a terminal)."""
    columns, model, data = request.param, place / "model.safetensors", place / "set"
    calls = {
        "predict": ["predict", model, data],
        "predict short": ["predict", place / "short.safetensors", data],
        "predict wide": ["predict", place / "wide.safetensors", place / "wide-set"],
        "eval wide": ["eval", place / "wide.safetensors", place / "wide-set"],
        "predict strict": ["predict", place / "strict.safetensors", data],
        "csv": ["predict", model, data, "--format", "csv"],
        "eval": ["eval", model, data],
        "check": ["check", data],
        "look": ["look", "--list"],
        "models": ["models"],
        "models weights": ["models", "--weights"],
        "models options": ["models", "--options"],
        "models draw": ["models", "B/16", "--draw", "b.svg"],
        "models changed": ["models", "S/16 positions=none registers=4"],
        "paper": ["paper", "list"],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("drawing"))
        found = run_all(calls.values(), terminal=columns)
    return columns, dict(zip(calls, found, strict=True))


def lines_of(out):
    assert out.code == 0, out.stderr
    return MARK.sub("", out.stdout).splitlines()


@pytest.mark.parametrize("columns", [20, 60, 80])
def test_a_line_is_broken_between_its_words_and_no_word_is_lost(columns):
    text = (
        "most confused      birman for manx (10); persian for maine coon (6); 100.0 % of file:///a/very/long/path/to/it"
    )
    lines = fitted(text, columns).split("\n")
    assert " ".join(lines).split() == text.split()
    assert all(len(line) <= columns or " " not in line.strip() for line in lines)
    assert not any(line.endswith("100.0") for line in lines)  # a number keeps its sign
    assert fitted(text, 200) == text


def test_what_follows_stands_under_the_text():
    assert fitted("right  one two three", 14) == "right  one two\n       three"
    assert fitted("        -> one two three", 22) == "        -> one two\n           three"
    assert fitted(" a long title of many words  one two", 30) == " a long title of many words\n   one two"
    assert fitted("one two three four", 10) == "one two\nthree four"


def test_no_line_of_any_command_is_wider_than_the_terminal(done):
    columns, outs = done
    for call, out in outs.items():
        for line in lines_of(out):
            assert call == "csv" or cell_len(line) <= columns or " " not in line.strip(), (call, line)


def test_letters_that_take_two_columns_keep_rows_and_tables_in_line(done):
    _, outs = done
    rows = [row for row in lines_of(outs["predict wide"]) if "%" in row]
    assert len(rows) == 6
    assert all(row.endswith(("%", "…")) for row in rows)
    classes = [line for line in lines_of(outs["eval wide"]) if re.match("三毛猫|白い犬|新しい家", line)]
    assert len(classes) == 3
    assert len({cell_len(line) for line in classes}) == 1  # of one number of digits
    assert fitted("三毛猫 白い犬 新しい家", 14) == "三毛猫 白い犬\n新しい家"


def test_each_row_of_predict_is_one_line_with_the_first_answer(done):
    columns, outs = done
    rows = [row for row in lines_of(outs["predict"]) if " %" in row]
    assert len(rows) == 12
    for row in rows:
        assert re.fullmatch(r".{20,}  (unsure: )?\w+.*… \d+\.\d %, …", row), row
    assert re.search(r"broken\.png  is cut short", outs["predict"].stdout)
    full = [row for row in lines_of(outs["predict short"]) if "%" in row]
    assert len(full) == 12
    assert all(re.search(r"  (ant|bee|cat) \d+\.\d %(, (\w+ \d+\.\d %|…))*$", row) for row in full)
    assert columns == 60 or not any(row.endswith("…") for row in full)  # three classes have room in 80


def test_none_of_these_has_no_confidence(done):
    _, outs = done
    rows = [row for row in lines_of(outs["predict strict"]) if "none of these" in row]
    assert len(rows) == 12
    assert all(re.search(r"  none of these \(nearest: (ant|bee|cat)\)$", row) for row in rows)
    assert not any("%" in row for row in rows)


def test_rows_for_machines_are_not_cut(done):
    _, outs = done
    *_, last = rows = lines_of(outs["csv"])
    assert len(rows) == 14
    assert all(name in last for name in BREEDS)


def test_a_table_without_room_says_what_it_leaves_out(done):
    columns, outs = done
    for call, missing in {"models": "mlp", "models weights": "licence", "models options": "meaning"}.items():
        text = MARK.sub("", outs[call].stdout)
        told = re.search(r"A wider terminal shows ([^;]+) too; --json", text.replace("\n", " "))
        assert (told is None) == (columns == 80), text
        assert told is None or missing in told[1].split(", ")
