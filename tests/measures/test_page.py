"""The page of a look: whole, alone, in the table's order, and with the numbers that were measured."""

import base64
import dataclasses
import hashlib
import json
import re
import zlib

import numpy as np
import pytest
import small_look
from picture_sets import arrays
from tiny_models import BIT, VIT, awake

import vitreous
from vitreous.measures import MEASURES
from vitreous.measures.figures import draw
from vitreous.measures.measure import Measure
from vitreous.measures.page import LOOK_WORDS, TOP_LINES, page, section, write_page
from vitreous.measures.page.looker import fitting
from vitreous.report import page as pages

HOSTILE = "<script>alert(1)</script>\"'&</style>"


@pytest.fixture(scope="module")
def seen():
    return small_look.pair()


@pytest.fixture(scope="module")
def html(seen):
    return pages.render(page(seen))


def data_of(html: str, name: str):
    return json.loads(re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', html)[1])


def test_the_page_explains_its_words(html):
    """Somebody who has read neither paper finds its words in one place, and which papers P1 and P2 are."""
    fold = re.search(r"<details[^>]*>\s*<summary>What the words on this page mean</summary>(.*?)</details>", html, re.S)
    assert all(word in fold[1] for word in (*LOOK_WORDS, "2010.11929", "2108.08810"))


def test_the_page_needs_nothing_beside_itself(html):
    """Only its own script may run, by its digest, and nothing may be loaded."""
    script = re.search(r'<script type="module">(.*?)</script>', html, re.DOTALL)[1]
    own = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{own}'\"" in html
    assert not re.search(r"https?://", html.replace("http://www.w3.org/2000/svg", ""))
    assert not re.search(r"url\(|@import|<link|<iframe|fetch\(|XMLHttp|import\(", html)
    assert all(address.startswith("data:") for address in re.findall(r'(?:src|href)="([^"#][^"]*)"', html))


def test_what_people_came_for_is_first_and_what_has_no_numbers_last(seen, html):
    sections = re.findall(r'<section id="([\w-]+)">', html)
    measured = [name for name in MEASURES if name in seen.found or name in seen.found_against]
    assert sections == ["attention-maps", "rollout", "short", *measured[2:], "missing", "architecture", "about"]
    assert re.findall(r'<a href="#([\w-]+)">', html.split("<nav")[1].split("</nav>")[0]) == sections
    parts = dict(zip(sections, re.split(r'<section id="', html)[1:], strict=True))
    for name in measured:
        text = parts[name].replace("&#39;", "'")
        measure = MEASURES[name]
        for words in (measure.sentence, measure.saw, measure.figure):
            assert words in text, (name, words)
        assert "<svg" in text, name
    assert "cuts no patches" in parts["missing"]
    assert MEASURES["embeddings-change"].sentence in parts["missing"]
    assert "not measured: " in parts["rollout"]  # of the ResNet beside it


def test_ten_lines_with_numbers(html):
    lines = re.search(r'<ol class="points">(.*?)</ol>', html, re.DOTALL)[1]
    lines = re.findall(r'<li><a href="#([\w-]+)">(.*?)</a></li>', lines)
    assert len(lines) == TOP_LINES
    assert [name for name, _ in lines] == [name for name in MEASURES if name in dict(lines)]
    assert sum(bool(re.search(r"\d", text)) for _, text in lines) >= TOP_LINES - 1


def test_a_nearly_even_rollout_is_the_last_of_the_lines(seen):
    def lines(spread):
        rollout = seen["rollout"] | {"spread_patches": spread}
        names = ("rollout", "attention-distance", "similarity", "shift")
        few = dataclasses.replace(seen, found={name: seen[name] for name in names} | {"rollout": rollout})
        html = pages.render(page(few))
        return re.findall(r'<li><a href="#([\w-]+)">', html.split('<section id="short"')[1].split("</section>")[0])

    assert lines(14.3) == ["rollout", "attention-distance", "similarity", "shift"]  # of 16 places
    assert lines(14.5) == ["attention-distance", "similarity", "shift", "rollout"]


@pytest.mark.parametrize("untrained", [(1,), (0,), (0, 1)], ids=["against", "model", "both"])
def test_nothing_is_said_of_random_weights(seen, untrained):
    """No line, box or caption: not in the terminal, on the page, in JSON, in a notebook or in a figure's file."""
    models = [seen.model, seen.against]
    for side in untrained:
        models[side] = models[side] | {"is_untrained": True, "name": f"R{side} (random weights)"}
    found = dataclasses.replace(seen, model=models[0], against=models[1])
    said, silent = set(), set()
    for side, numbers in enumerate((seen.found, seen.found_against)):
        for name, each in numbers.items():
            is_silent = side in untrained or MEASURES[name].is_pair
            (silent if is_silent else said).add(MEASURES[name].says(each)[1:])
    html, captions = pages.render(page(found)), [figure.caption for each in draw(found).values() for figure in each]
    shown = [str(found), html, found._repr_html_(), *found.to_json()["summary"], *captions]
    text = "\n".join(shown).replace("\u00a0", " ")
    assert [words for words in silent - said if words in text] == []
    assert [words for words in said if words not in text] == []
    assert all("(random weights)" in caption or caption[1:].startswith(tuple(said)) for caption in captions)
    beside = f"R{untrained[0]} (random weights): untrained, drawn beside for comparison only."
    assert str(found).count(beside) == html.count(beside) == (len(untrained) == 1)
    assert ("figures of them say nothing about learning" in str(found)) == (len(untrained) == 2)


def test_the_command_can_be_pasted_and_names_no_home(seen, monkeypatch):
    """The record keeps the end of a path; the page has what was typed, the user's own folder as ~."""
    monkeypatch.setenv("HOME", "/home/anna")
    typed = dataclasses.replace(
        seen,
        model=seen.model | {"name": "/home/anna/my models/photos"},
        data=seen.data | {"path": "/data/photos"},
        against=seen.against | {"name": "relative/bit"},
        record={"command": ["vitreous", "look", "photos", "photos", "--against", "relative/bit", "--only", "a,b"]},
    )
    about = pages.render(page(typed)).split('<section id="about"')[1].replace("<wbr>", "")
    line = "vitreous look ~/&#39;my models/photos&#39; /data/photos --against relative/bit --only a,b"
    assert line in about
    assert "24 of /data/photos (" in about
    assert "/home/anna" not in about


def test_the_page_holds_the_maps_that_were_measured(seen, html):
    told = data_of(html, "attention")
    (model,) = told["models"]
    kept = seen.arrays["attention-maps"]
    raw = zlib.decompress(base64.b64decode(data_of(html, "maps0")))
    maps, count = kept["maps"], kept["maps"].size
    assert raw[:count] == maps.tobytes()
    peaks = np.frombuffer(raw[count : count + 2 * kept["peaks"].size], "<u2") / 65535
    assert np.abs(peaks - kept["peaks"].astype(np.float64).ravel()).max() < 1e-4
    grid = model["grid"][0] * model["grid"][1]
    assert len(raw) == count + 2 * kept["peaks"].size + len(model["rollouts"]) * len(maps) * grid
    assert model["front"] == ["class token", "register 1", "register 2"]
    assert len(model["boxes"]) == len(model["images"]) == len(maps)
    assert (model["layers"], model["heads"], model["queries"]) == maps.shape[1:4]
    assert told["steps"] == 256


def test_a_page_that_would_be_too_large_holds_coarser_maps_of_fewer_images(seen):
    def images(limit):
        told = json.loads((shown := fitting(seen, limit))["attention"])
        return told["steps"], len(told["models"][0]["images"]), len(shown["maps0"])

    whole = images(10**9)
    assert whole[:2] == (256, 4)
    coarse = images(whole[2] - 3)
    assert coarse[0] in (64, 32)
    assert coarse[1] == 4
    few = images(whole[2] // 4)
    assert few[1] < 4
    assert few[2] <= whole[2] // 4 + 2
    assert images(1)[:2] == (8, 1)  # as small as can be


def test_coarser_maps_keep_small_weights(seen):
    """By the square root: no weight is off by more than its steps allow, and a row still sums to what it did."""
    shown = fitting(seen, len(fitting(seen, 10**9)["maps0"]) - 3)
    steps = json.loads(shown["attention"])["steps"]
    maps = seen.arrays["attention-maps"]["maps"]
    raw = zlib.decompress(base64.b64decode(json.loads(shown["maps0"])))
    coarse = (np.frombuffer(raw[: maps.size], np.uint8).reshape(maps.shape) / (steps - 1)) ** 2
    assert np.abs(np.sqrt(coarse) - np.sqrt(maps / 255)).max() <= 0.51 / (steps - 1)
    assert np.abs(coarse.sum(-1) / (maps / 255).sum(-1) - 1).mean() < 0.01


def test_heatmaps_say_their_numbers(seen, html):
    cells = {(each["section"], each["place"]): each for each in data_of(html, "cells")}
    across = cells["similarity-across", 0]
    found = seen["similarity-across"]
    assert across["rows"][:2] == ["tokens", "block 1, norm1"]
    assert across["columns"][:2] == ["root", "unit 1.1, conv1"]
    assert [len(across[side]) for side in ("rows", "columns")] == [len(found["cka"]), len(found["cka"][0])]
    assert across["thousandths"][1] == round(1000 * found["cka"][0][1])
    for each in cells.values():
        assert f'aria-label="{each["title"]}"' in html


@pytest.mark.parametrize(
    "changes",
    [
        {"pool": "gap", "class_token": False, "depth": 1, "heads": 1},
        {"pool": "map", "class_token": False, "image_size": (16, 24), "patch": (4, 8)},
        {"pool": "cls-and-distillation", "distillation_token": True, "classes": 0, "positions": "none"},
        {"image_size": 4, "channels": 1, "skips": (1,)},
        {"stem": "resnet", "image_size": 32, "patch": 1, "units": (1, 1), "resnet_width": 0.25},
    ],
    ids=str,
)
def test_every_kind_of_network_has_a_page(changes):
    model = awake(VIT.change(**changes))
    found = vitreous.look(model, arrays(8, side=16, channels=changes.get("channels", 3)), batch=8, images=6)
    html = pages.render(page(found))
    is_told = not found.model["is_untrained"]
    assert html.count("<section") == len(found.found) + is_told + 3  # in short; not measured, drawn, how to repeat it
    for why in found.skipped.values():
        assert why.split(";")[0][:30].replace("'", "&#39;") in html


def test_a_resnet_has_a_page_without_attention():
    found = vitreous.look(awake(BIT, image_size=16), arrays(8, side=16), batch=8)
    html = pages.render(page(found))
    assert "has no attention" in html
    assert 'id="looker"' not in html
    assert 'id="attention"' not in html


def test_of_two_models_the_second_alone_may_have_attention():
    found = vitreous.look(awake(BIT, image_size=16), arrays(8, side=16), against=awake(), batch=8)
    html = pages.render(page(found))
    (model,) = data_of(html, "attention")["models"]
    assert model["name"] == "this ViT"
    assert "<h3>this ViT</h3>" in html
    assert "this BiT: not measured: this BiT is a network of convolutions" in html


def test_hostile_names_stay_text(seen):
    named = dataclasses.replace(
        seen,
        model=seen.model | {"name": HOSTILE},
        data=seen.data | {"path": HOSTILE},
        against=seen.against | {"name": HOSTILE},
        notes=(HOSTILE,),
    )
    html = pages.render(page(named))
    assert "<script>alert" not in html
    assert html.count("</style>") == 1
    assert html.count("<script") == 4  # three of data, one of ours


def test_the_short_version_is_a_section_of_any_page(seen):
    short = section(seen)
    html = pages.render(pages.Page(title="a run", sections=[short]))
    assert "What it does inside" in html
    assert 3 <= html.count("<svg") <= 4
    assert html.count("<li>") == TOP_LINES
    assert "<script" not in html


def test_a_measure_from_outside_is_shown_as_its_table(seen):
    rows = [{"layer": i, "brightness": 0.25 * i} for i in range(30)]
    outside = Measure(
        name="brightness", sentence="How bright it is.", figure="none", saw="Nothing.", start=lambda own, other: None,
        says=lambda found: f"it is {found['rows'][1]['brightness']} bright",
    )  # fmt: skip
    found = {"brightness": {"rows": rows}}
    more = dataclasses.replace(seen, measures={**seen.measures, "brightness": outside}, found=seen.found | found)
    html = pages.render(page(more))
    part = html.split('<section id="brightness">')[1].split("</section>")[0]
    assert "<td>0.25</td>" in part
    assert "the first 20 of 30 rows" in part
    assert "It is 0.25 bright." in html.split('<section id="short"')[1].split("</section>")[0]


def test_a_page_is_written_again_over_the_old_one(seen, tmp_path):
    for _ in range(2):
        write_page(seen, tmp_path / "look.html", limit=10_000)
    assert 10_000 < (tmp_path / "look.html").stat().st_size < 15e6
