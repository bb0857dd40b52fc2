"""docs/guide/look.md says what the table of measures and the gallery's results say."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass

from doc_blocks import DOCS, assert_block
from shared_files import ROOT

from vitreous.measures import OUR_MEASURES

PAGE = DOCS / "guide" / "look.md"
RESULTS = ROOT / "benchmarks" / "results" / "gallery.json"
OWN_RESULTS = ROOT / "benchmarks" / "results" / "gallery_own.json"
NAMES = {
    "deit-tiny": "DeiT-Ti",
    "vit-tiny-augreg": "ViT-Ti",
    "our ViT": "our ViT",
    "starter": "our hybrid",
    "our BiT": "our BiT",
}


def table(head, rows) -> str:
    lines = ["| " + " | ".join(row) + " |\n" for row in rows]
    return "| " + " | ".join(head) + " |\n" + "|" + "---|" * len(head) + "\n" + "".join(lines)


def test_the_table_of_measures():
    rows = [(f"`{m.name}`", m.sentence, m.figure, m.cost) for m in OUR_MEASURES]
    assert_block(PAGE, "measures", table(("measure", "what it shows", "in the papers", "cost"), rows))


def test_the_table_of_the_gallery():
    pair = json.loads(RESULTS.read_text("utf-8"))["pages"]["deit-tiny-against-vit-tiny"]
    own, other = pair["says"], pair["says_against"]
    rows = [(f"`{name}`", own[name], other.get(name, "(of both)")) for name in own]
    head = table((f"on {pair['images']} images", "DeiT-Ti", "ViT-Ti"), rows)
    assert_block(PAGE, "gallery", head)


# P2's nine findings -------------------------------------------------------------------------------------------------

REAL, VITS, RESNET = ("deit-tiny", "vit-tiny-augreg"), tuple(NAMES)[:4], "our BiT"
SEEN, NOT_SEEN = "seen", "not seen at this scale"
CLEARLY = 1.1  # one number is above another where it is more by a tenth: there is one training of each model
NO_ATTENTION, NO_CLASS_TOKEN = "no meaning here: no attention", "no meaning here: no class token"


@dataclass(frozen=True)
class Finding:
    """rule: whether a model shows it, given its numbers and those of all.  say: its numbers.  of: whom P2 says it of.

    resnet: what stands for the ResNet, which most are held against.  others: the same for who is not in `of`.
    """

    words: str
    rule: Callable[[dict, dict], bool]
    say: Callable[[dict], str]
    of: tuple[str, ...] = VITS
    resnet: str = NO_ATTENTION
    others: str = NO_CLASS_TOKEN

    def cell(self, name: str, found: dict) -> tuple[str, str]:
        """A word, and the numbers it rests on."""
        if name in self.of:
            return SEEN if self.rule(found[name], found) else NOT_SEEN, self.say(found[name])
        if name == RESNET:
            return self.resnet, self.say(found[name]) if self.resnet == "held against" else ""
        return self.others, self.say(found[name]) if self.others == "held against" else ""


def percent(share: float) -> str:
    return f"{100 * share:.1f} %" if 0 < share < 0.02 else f"{100 * share:.0f} %"


def above_resnet(*keys: str) -> Callable[[dict, dict], bool]:
    def value(numbers):
        for key in keys:
            numbers = numbers[key]
        return numbers

    return lambda m, found: value(m) > CLEARLY * value(found[RESNET])


def is_less_local(m: dict, found: dict) -> bool:
    """Fewer local heads than in the model with more data: ours against DeiT-Ti, that against ViT-Ti."""
    more = "vit-tiny-augreg" if m is found["deit-tiny"] else "deit-tiny"
    return m["heads"]["local_share_of_two_lowest"] < found[more]["heads"]["local_share_of_two_lowest"]


def is_in_turn(m: dict, found: dict) -> bool:
    (class_first, class_second), (first, second) = m["class_skip_by_half"], m["patches_skip_by_half"]
    return class_first > first and class_second < second


def say_in_turn(m: dict) -> str:
    pairs = zip(m["class_skip_by_half"], m["patches_skip_by_half"], strict=True)
    return "; ".join(f"{own:.1f} against {patches:.1f}" for own, patches in pairs)


def chance_of_place(m: dict) -> float:
    return 1 / (m["place"]["grid"][0] * m["place"]["grid"][1])


def has_class_token(m: dict) -> bool:
    return m["probes"]["class_token"] is not None


def is_placed_so(m: dict, found: dict) -> bool:
    if has_class_token(m):
        return m["place"]["hit"] > 10 * chance_of_place(m)
    return m["place"]["percentile"] < min(found[name]["place"]["percentile"] for name in REAL)


def say_placed(m: dict) -> str:
    hit, chance, above = m["place"]["hit"], chance_of_place(m), m["place"]["percentile"]
    return f"{percent(hit)} of {percent(chance)} by chance; above {percent(above)}"


def same_blocks(m: dict) -> tuple[float, float]:
    """CKA of what blocks of the same number read in the two real models: mean of the first and of the last third."""
    cka = m["same_block_other_data"]["norm1"]
    third = len(cka) // 3
    return sum(cka[:third]) / third, sum(cka[-third:]) / third


def readout(m: dict) -> float:
    """What 10 shots read at the end from that which the head reads."""
    return m["probes"]["class_token"] if has_class_token(m) else m["probes"]["last"]


FINDINGS = (
    Finding(
        "1. layers are more alike, from bottom to top, than a ResNet's (CKA of all sub-layers, first third against "
        "last)",
        above_resnet("likeness", "low_high"),
        lambda m: f"{m['likeness']['low_high']:.2f}; mean {m['likeness']['uniformity']:.2f}",
        resnet="held against",
    ),
    Finding(
        "2a. many low layers of a ResNet are like a ViT's few lowest (the best matches of BiT's lower half lie less "
        "deep: slope below 1; in P2 about a half)",
        lambda m, found: m["matches"]["slope"] < 1,
        lambda m: f"{m['matches']['slope']:.2f}",
        resnet="–",
    ),
    Finding(
        "2b. a ViT's last third is like no ResNet layer (best match with BiT, below that of the layers before)",
        lambda m, found: CLEARLY * m["matches"]["best_of_last_third"] < m["matches"]["best_below"],
        lambda m: f"{m['matches']['best_of_last_third']:.2f} against {m['matches']['best_below']:.2f}",
        resnet="–",
    ),
    Finding(
        "3a. the first block has heads that look locally and heads that look globally (below 0.5 and above 0.8 of "
        "everywhere alike)",
        lambda m, found: m["heads"]["first_block"][0] < 0.5 and m["heads"]["first_block"][-1] > 0.8,
        lambda m: f"{m['heads']['first_block'][0]:.2f} to {m['heads']['first_block'][-1]:.2f}",
    ),
    Finding(
        "3b. all heads of the last block look globally",
        lambda m, found: m["heads"]["last_block"][0] > 0.8,
        lambda m: f"{m['heads']['last_block'][0]:.2f} to {m['heads']['last_block'][-1]:.2f}",
    ),
    Finding(
        "3c. with less data fewer heads of the two lowest blocks look locally (14 M, 1.3 M and 50,000 pictures)",
        is_less_local,
        lambda m: percent(m["heads"]["local_share_of_two_lowest"]),
        of=("deit-tiny", "our ViT", "starter"),
        others="held against",
    ),
    Finding(
        "4. the head of the first block that looks least far is more like low ResNet layers than the one that looks "
        "furthest (CKA with BiT's first two stages)",
        lambda m, found: m["heads_beside"]["most_local"] > CLEARLY * m["heads_beside"]["most_global"],
        lambda m: (
            f"{m['heads_beside']['most_local']:.2f} and {m['heads_beside']['most_global']:.2f} of "
            f"{m['heads_beside']['heads']} heads"
        ),
        of=REAL,
        resnet="–",
        others="no meaning here: no local head",
    ),
    Finding(
        "5. receptive fields are wider than a ResNet's (radius after a quarter of the depth, a half, all; whole "
        "image 1)",
        above_resnet("field", "quarter"),
        lambda m: ", ".join(f"{m['field'][at]:.2f}" for at in ("quarter", "half", "end")),
        resnet="held against",
    ),
    Finding(
        "6a. skips carry more than a ResNet's (skip by branch, geometric mean over patches and blocks)",
        above_resnet("skip"),
        lambda m: f"{m['skip']:.1f}",
        resnet="held against",
    ),
    Finding(
        "6b. the class token rides them more than patches do in the first half, less in the second",
        is_in_turn,
        say_in_turn,
        of=REAL,
        resnet=NO_CLASS_TOKEN,
    ),
    Finding(
        "6c. without those of a block the layers below and above it part (CKA across less CKA within; mean of blocks)",
        lambda m, found: m["cut"]["contrast_without"] < m["cut"]["contrast_intact"],
        lambda m: f"{m['cut']['contrast_intact']:.2f} to {m['cut']['contrast_without']:.2f}".replace("-", "−"),
        of=tuple(NAMES),
    ),
    Finding(
        "7. last tokens keep their place with a class token (most like their own patch ten times as often as by "
        "chance), and less with GAP or in a ResNet (own patch above fewer of the others)",
        is_placed_so,
        say_placed,
        of=tuple(NAMES),
    ),
    Finding(
        "8. low layers are the same whatever the data, high ones are not (CKA of the two real models: what blocks of "
        "the same number read, first third against last)",
        lambda m, found: same_blocks(m)[0] > CLEARLY * same_blocks(m)[1],
        lambda m: "{:.2f} against {:.2f}".format(*same_blocks(m)),
        of=REAL,
        resnet="not measured",
        others="not measured",
    ),
    Finding(
        "9a. middle layers tell the class better than a ResNet's (10 shots on the mean of patches: first, middle, last "
        "block)",
        above_resnet("probes", "middle"),
        lambda m: ", ".join(percent(m["probes"][at]) for at in ("first", "middle", "last")),
        resnet="held against",
    ),
    Finding(
        "9b. one place of the last block tells it worse than the class token does; with GAP or in a ResNet as well as "
        "the mean (within 2 points)",
        lambda m, found: (readout(m) - m["probes"]["one_place"] > 0.02) == has_class_token(m),
        lambda m: f"{percent(m['probes']['one_place'])} against {percent(readout(m))}",
        of=tuple(NAMES),
    ),
)


def test_the_table_of_findings():
    """Every number, and whether it is what P2 reports."""
    own = json.loads(OWN_RESULTS.read_text("utf-8"))
    by = {on: [[f.cell(n, found) for n in NAMES] for f in FINDINGS] for on, found in own["findings"].items()}
    rows = [
        (f.words, *(": ".join(filter(None, cell)) for cell in cells))
        for f, cells in zip(FINDINGS, by["photographs"], strict=True)
    ]
    other: dict[str, list[str]] = {}
    for f, *both in zip(FINDINGS, by["photographs"], by["embedded"], strict=True):
        for name, (was, _), (now, _) in zip(NAMES.values(), *both, strict=True):
            if was != now:
                other.setdefault(f.words.partition(".")[0], []).append(name)
    judged = sum(cell[0] in (SEEN, NOT_SEEN) for cells in by["photographs"] for cell in cells)
    text = table((f"P2, on {own['judged']:,} photographs", *NAMES.values()), rows)
    count = sum(map(len, other.values()))
    text += f"\nOn as many embedded images {count} of the {judged} verdicts come out otherwise: "
    text += "; ".join(f"{number} in {', '.join(names)}" for number, names in other.items()) + ".\n"
    assert_block(PAGE, "findings", text)


def test_the_sentence_below_it():
    pair = json.loads(RESULTS.read_text("utf-8"))["pages"]["deit-tiny-against-vit-tiny"]
    same = [each["cka"] for each in pair["blocks_of_the_same_number"]]
    own, other = pair["class_token_to_corners"].values()
    text = " ".join(PAGE.read_text("utf-8").split())
    assert f"is {same[6]:.2f} after block 7 and {same[7]:.2f} after block 8" in text  # from 1
    assert f"gives {100 * other:.0f} % of its look to the four corners" in text
    assert f"DeiT-Ti's {100 * own:.0f} %" in text


def test_the_words_below_the_findings():
    found = json.loads(OWN_RESULTS.read_text("utf-8"))["findings"]
    deit, augreg, vit, hybrid, bit = (found["photographs"][name] for name in NAMES)
    text = " ".join(PAGE.read_text("utf-8").split())
    assert min(m["heads"]["first_block"][0] for m in (vit, hybrid)) >= 0.5  # no local head, as the table says
    assert f"first block looks at least {vit['heads']['first_block'][0]:.2f} of everywhere alike" in text
    loud = augreg["loudest_channel"]
    assert f"One channel holds {percent(loud[6])} of what varies after ViT-Ti's block 7 and {percent(loud[7])}" in text
    read = found["embedded"]["deit-tiny"]["same_block_other_data"]["norm1"]
    assert f"what blocks 8 and 9 read after their norm is alike by {read[7]:.2f} and {read[8]:.2f}" in text
    norms = [m["likeness_of_what_blocks_read"] for m in (deit, augreg)]
    assert f"({norms[0]:.2f} in DeiT-Ti, {norms[1]:.2f} in ViT-Ti)" in text
    reach = sorted(m["field"]["first_branch"] for m in (deit, augreg, vit, hybrid))
    own = bit["field"]["first_branch"]
    assert f"reaches {reach[0]:.1f} to {reach[-1]:.1f} of the image's radius, BiT's first unit {own:.1f}" in text
    kept = [m["place"]["hit"] / chance_of_place(m) for m in (vit, hybrid)]
    assert f"at {kept[0]:.0f} and {kept[1]:.0f} times chance" in text
    apart = sorted(100 * (readout(m) - m["probes"]["one_place"]) for m in (vit, hybrid, bit))
    assert f"one place is {apart[0]:.0f} to {apart[-1]:.0f} points below the mean" in text


def test_the_gallery_is_small_and_alone():
    pages = sorted((DOCS / "gallery").glob("*.html"))
    made = [name for file in (RESULTS, OWN_RESULTS) for name in json.loads(file.read_text("utf-8"))["pages"]]
    assert sorted(page.stem for page in pages) == sorted(made)
    assert max(page.stat().st_size for page in pages) < 4_000_000
    assert sum(page.stat().st_size for page in pages) < 7_000_000
    for page in pages:
        text = page.read_text("utf-8")
        assert "default-src 'none'" in text
        assert "https://" not in text
        assert os.fspath(ROOT) not in text
