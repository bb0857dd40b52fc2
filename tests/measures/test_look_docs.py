"""docs/look.md says what the table of measures and the gallery's results say."""

import json
import os

from doc_blocks import DOCS, assert_block
from shared_files import ROOT

from vitreous.measures import OURS

PAGE = DOCS / "look.md"
RESULTS = ROOT / "benchmarks" / "results" / "gallery.json"


def table(head, rows) -> str:
    lines = ["| " + " | ".join(row) + " |\n" for row in rows]
    return "| " + " | ".join(head) + " |\n" + "|" + "---|" * len(head) + "\n" + "".join(lines)


def test_the_table_of_measures():
    rows = [(f"`{m.name}`", m.sentence, m.figure, m.cost) for m in OURS]
    assert_block(PAGE, "measures", table(("measure", "what it shows", "in the papers", "cost"), rows))


def test_the_table_of_the_gallery():
    pair = json.loads(RESULTS.read_text("utf-8"))["pages"]["deit-tiny-against-vit-tiny"]
    own, other = pair["says"], pair["says_against"]
    rows = [(f"`{name}`", own[name], other.get(name, "(of both)")) for name in own]
    head = table((f"on {pair['images']} images", "DeiT-Ti", "ViT-Ti"), rows)
    assert_block(PAGE, "gallery", head)


def test_the_table_of_findings():
    """Every number, and whether it is what P2 reports, by a rule that stands here."""
    both = json.loads(RESULTS.read_text("utf-8"))["pages"]["deit-tiny-against-vit-tiny"]["findings"]
    rows = []

    def add(finding, rule, say):
        cells = [f"{'seen' if rule(one) else 'not seen'}: {say(one)}" for one in both]
        rows.append((finding, *cells))

    add(
        "all layers are alike (blocks' CKA, first third against last, above 0.5)",
        lambda f: f["likeness_of_blocks"]["low_high"] > 0.5,
        lambda f: f"{f['likeness_of_blocks']['low_high']:.2f}; mean {f['likeness_of_blocks']['uniformity']:.2f}",
    )
    add(
        "the first block has a head that looks locally (below half of everywhere alike)",
        lambda f: f["first_block_px"][0] < f["uniform_px"] / 2,
        lambda f: f"{f['first_block_px'][0]:.0f} of {f['uniform_px']:.0f} px",
    )
    add(
        "and one that looks globally (above 0.8 of it)",
        lambda f: f["first_block_px"][-1] > 0.8 * f["uniform_px"],
        lambda f: f"{f['first_block_px'][-1]:.0f} px",
    )
    add(
        "all heads of the last block look globally",
        lambda f: f["last_block_px"][0] > 0.8 * f["uniform_px"],
        lambda f: f"{f['last_block_px'][0]:.0f} to {f['last_block_px'][-1]:.0f} px",
    )
    for half, (word, sign) in enumerate((("first", 1), ("second", -1))):
        add(
            f"{word} half: the class token rides the skip {'more' if sign > 0 else 'less'} than patches do",
            lambda f, i=half, sign=sign: sign * (f["class_skip_by_half"][i] - f["patches_skip_by_half"][i]) > 0,
            lambda f, i=half: f"{f['class_skip_by_half'][i]:.1f} against {f['patches_skip_by_half'][i]:.1f}",
        )
    add(
        "last tokens are most like their own patch, ten times as often as by chance",
        lambda f: f["own_patch_most_alike"] > 10 * f["chance_of_that"],
        lambda f: f"{100 * f['own_patch_most_alike']:.0f} %, by chance {100 * f['chance_of_that']:.1f} %",
    )
    add(
        "at the end the class is read worse from one patch than from the class token",
        lambda f: f["linear_probe_of_last_block"]["middle"] < f["linear_probe_of_last_block"]["cls"],
        lambda f: (
            f"{100 * f['linear_probe_of_last_block']['middle']:.0f} against "
            f"{100 * f['linear_probe_of_last_block']['cls']:.0f} % of {f['probe_images']} images"
        ),
    )
    assert_block(PAGE, "findings", table(("P2", "DeiT-Ti", "ViT-Ti"), rows))


def test_the_sentence_below_it():
    pair = json.loads(RESULTS.read_text("utf-8"))["pages"]["deit-tiny-against-vit-tiny"]
    same = [each["cka"] for each in pair["blocks_of_the_same_number"]]
    own, other = pair["class_token_to_corners"].values()
    text = " ".join(PAGE.read_text("utf-8").split())
    assert f"is {same[6]:.2f} in block 6 and {same[7]:.2f} in block 7" in text
    assert f"gives {100 * other:.0f} % of its look to the four corners" in text
    assert f"DeiT-Ti's {100 * own:.0f} %" in text


def test_the_gallery_is_small_and_alone():
    pages = sorted((DOCS / "gallery").glob("*.html"))
    assert sorted(page.stem for page in pages) == sorted(json.loads(RESULTS.read_text("utf-8"))["pages"])
    assert sum(page.stat().st_size for page in pages) < 4_000_000
    for page in pages:
        text = page.read_text("utf-8")
        assert "default-src 'none'" in text
        assert "https://" not in text
        assert os.fspath(ROOT) not in text
