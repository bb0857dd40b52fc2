"""docs/evidence/transfer-study.md says what benchmarks/results/transfer_study.jsonl says; the rules stand here.

To write it anew: VITREOUS_WRITE_DOCS=1 pytest -n0 tests/test_transfer_docs.py
"""

import json
import math
import os
import statistics

import numpy as np
import pytest
from doc_blocks import DOCS, assert_block
from shared_files import ROOT

from vitreous.evaluation.few_shot import mean_interval
from vitreous.evaluation.student import quantile
from vitreous.models.catalog import parse
from vitreous.models.cost import macs
from vitreous.report.charts import Line, lines
from vitreous.report.files import Panel, sheet

PAGE = DOCS / "evidence" / "transfer-study.md"
RESULTS = ROOT / "benchmarks" / "results" / "transfer_study.jsonl"
RUNS = [json.loads(line) for line in RESULTS.read_text("utf-8").splitlines()]

POLICIES = ("head", "last-3", "all", "layer-decay", "full")
SETS = {"imagenette": ("imagenette, like", 4738), "fashion": ("fashion, unlike", 8700)}
AMOUNTS = (100, 300, 1000, 3000, 10_000)
POSITIONS = {"two": "resized in 2-D", "one": "resized in 1-D", "new": "drawn anew"}
COSTED = {
    ("pets", None): "pets, 3,680",
    ("imagenette", None): "imagenette, 4,738",
    ("cifar10", 1000): "CIFAR-10, 1,000",
    ("cifar10", None): "CIFAR-10, 50,000",
}
OURS = "S/8 width=256 depth=8 heads=4 mlp=1024 pool=gap image_size={} classes=10"
MODELS = {  # as the study names them: what the page calls them, their network, its parameters in millions
    "ViT.safetensors": ("our ViT", OURS.format(64), 6.4),
    "hybrid.safetensors": (
        "our hybrid",
        "S/8 stem=convolutions width=256 depth=7 heads=4 mlp=1024 pool=gap image_size=64 classes=10",
        6.0,
    ),
    "BiT.safetensors": ("our BiT-R50x1", "BiT-R50x1 image_size=64 classes=10", 23.5),
    "deit": ("DeiT-Ti/16", "Ti/16 classes=10", 5.5),
    "vit-ti": ("ViT-Ti/16 AugReg", "Ti/16 classes=10", 5.5),
}
SHOWN = 400 * 64  # images of a run, repeats counted
MARGIN = 0.01  # of "not worse"


# Numbers -----------------------------------------------------------------------------------------------------------


def by_seed(experiment: str, **cell) -> dict[int, float]:
    """Accuracy of every seed of one kind of run."""
    found = {
        run["cell"]["seed"]: run["accuracy"]
        for run in RUNS
        if run["experiment"] == experiment and {k: v for k, v in run["cell"].items() if k != "seed"} == cell
    }
    assert found, cell
    return found


def policy(data: str, train: int | None, name: str, augmented: bool = True) -> dict[int, float]:
    return by_seed("policies", data=data, train=train, policy=name, augmented=augmented)


def positioned(pixels: int, how: str = "two") -> dict[int, float]:
    return by_seed("resolution", data="imagenette", pixels=pixels, positions=how)


def begun(images: int, how: str) -> dict[int, float]:
    return by_seed("amounts", data="cifar10", train=images, begun=how)


def minus(one: dict[int, float], other: dict[int, float]) -> dict[int, float]:
    """Seed by seed, where both have it."""
    return {seed: one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())}


def mean_of(several: list[dict[int, float]]) -> dict[int, float]:
    return {seed: statistics.mean(one[seed] for one in several) for seed in several[0]}


def spread(values: dict[int, float]) -> tuple[float, float]:
    """Mean and half of the 95 % interval (Student) of numbers of either sign."""
    n = len(values)
    return statistics.mean(values.values()), quantile(0.95, n - 1) * statistics.stdev(values.values()) / math.sqrt(n)


def chance(values: dict[int, float], against: float = 0.0) -> float:
    """Two-sided p of Student's test of the mean; exact forms for two and three numbers."""
    n = len(values)
    deviation = statistics.stdev(values.values()) / math.sqrt(n)
    t = abs(statistics.mean(values.values()) - against) / deviation
    return 1 - 2 / math.pi * math.atan(t) if n == 2 else 1 - t / math.sqrt(t * t + 2)


def standing(chances: list[float], level: float = 0.05) -> list[bool]:
    """Which of several tests stand under Holm's correction."""
    order = sorted(range(len(chances)), key=chances.__getitem__)
    stands = [False] * len(chances)
    for k, i in enumerate(order):
        if chances[i] > level / (len(chances) - k):
            break
        stands[i] = True
    return stands


def verdict(values: dict[int, float], margin: float) -> str:
    """No margin: on which side of 0 the interval is.  With one: whether it is worse by more."""
    mean, half = spread(values)
    good, bad = ("not worse", "worse") if margin else ("supported", "contradicted")
    if mean - half > -margin:
        return good
    return bad if mean + half < -margin else "inconclusive"


def tera(network: str) -> float:
    """10¹² multiply-adds of a run: forward, and twice as much backward."""
    return macs(parse(network)) * SHOWN * 3 / 1e12


# Words -------------------------------------------------------------------------------------------------------------


def table(head, rows) -> str:
    body = ["| " + " | ".join(map(str, row)) + " |\n" for row in rows]
    return "| " + " | ".join(head) + " |\n" + "|" + "---|" * len(head) + "\n" + "".join(body)


def percent(values: dict[int, float]) -> str:
    mean, half = spread(values)
    few = "" if len(values) == 3 else f" (n {len(values)})"
    return f"{100 * mean:.1f} ± {100 * half:.1f}{few}"


def points(values: dict[int, float]) -> str:
    mean, half = spread(values)
    return f"{100 * mean:+.1f} ({100 * (mean - half):+.1f} to {100 * (mean + half):+.1f})".replace("-", "−")


def marked(cells: dict, runs: dict) -> dict:
    """The best in bold; ≈ where an interval overlaps the best one's."""
    best = max(runs, key=lambda key: spread(runs[key])[0])
    floor = spread(runs[best])[0] - spread(runs[best])[1]
    ties = {key for key in runs if key != best and sum(spread(runs[key])) >= floor}
    return {key: f"**{cell}**" if key == best else f"{cell} ≈" if key in ties else cell for key, cell in cells.items()}


# The page ----------------------------------------------------------------------------------------------------------


def test_the_table_of_policies():
    rows = []
    for data, (name, every) in SETS.items():
        for train in (None, 300):
            kinds = (True, False) if train else (True,)
            runs = {(kind, one): policy(data, train, one, kind) for kind in kinds for one in POLICIES}
            cells = marked({key: percent(values) for key, values in runs.items()}, runs)
            solved = " / ".join(
                f"{100 * by_seed('solved', data=data, train=train, by=by)[0]:.1f}" for by in ("ridge", "logistic")
            )
            for kind in kinds:
                whole = kind is kinds[-1]  # it draws no augmentation
                rows.append(
                    (
                        name,
                        f"{train or every:,}",
                        "yes" if kind else "no",
                        *(cells[kind, one] for one in POLICIES),
                        solved if whole else "",
                    )
                )
    head = ("set", "images", "augmented", *(f"`{one}`" for one in POLICIES), "head solved")
    assert_block(PAGE, "policies", table(head, rows))


def compared() -> list[tuple[str, str, str, dict[int, float], float]]:
    """Claim, set, what is compared, the difference by seed, and the margin of "not worse" or 0."""

    def rather(data, train, one, other):
        return minus(policy(data, train, one), policy(data, train, other))

    def augmented(names):
        kinds = [(data, name) for data in SETS for name in names]
        return mean_of([minus(policy(d, 300, name), policy(d, 300, name, augmented=False)) for d, name in kinds])

    gains = {n: minus(begun(n, "weights"), begun(n, "scratch")) for n in AMOUNTS}
    seeds = set.intersection(*(set(gain) for gain in gains.values()))
    decades = np.log10(AMOUNTS)
    falls = {seed: -float(np.polyfit(decades, [gains[n][seed] for n in AMOUNTS], 1)[0]) for seed in sorted(seeds)}
    large, small, unlike, few = "imagenette, 4,738", "imagenette, 300", "fashion, 8,700", "fashion, 300"
    return [
        ("T05", unlike, "`all` − `head`", rather("fashion", None, "all", "head"), 0),
        ("T05 ∗", unlike, "`all` − `last-3`", rather("fashion", None, "all", "last-3"), 0),
        ("T06", large, "`last-3` − `full`", rather("imagenette", None, "last-3", "full"), MARGIN),
        ("T06 ∗", large, "`last-3` − `all`", rather("imagenette", None, "last-3", "all"), MARGIN),
        ("T07", few, "`last-3` − `all`", rather("fashion", 300, "last-3", "all"), 0),
        ("T07", few, "`last-3` − `head`", rather("fashion", 300, "last-3", "head"), 0),
        ("T08", small, "`head` − `all`", rather("imagenette", 300, "head", "all"), MARGIN),
        ("T08 ∗", small, "`head` − `full`", rather("imagenette", 300, "head", "full"), MARGIN),
        ("T09", "both, 300", "augmented − not, mean of the five", augmented(POLICIES), 0),
        ("T09 ∗", "both, 300", "augmented − not, `full`", augmented(["full"]), 0),
        ("T09 ∗", "both, 300", "augmented − not, `head`", augmented(["head"]), 0),
        ("T12", large, "2-D − 1-D, 96 pixels", minus(positioned(96), positioned(96, "one")), 0),
        ("T12", large, "2-D − 1-D, 128 pixels", minus(positioned(128), positioned(128, "one")), 0),
        ("T12", large, "2-D − anew, 96 pixels", minus(positioned(96), positioned(96, "new")), 0),
        ("T12", large, "2-D − anew, 128 pixels", minus(positioned(128), positioned(128, "new")), 0),
        ("P1 ∗", large, "96 − 64 pixels", minus(positioned(96), positioned(64)), 0),
        ("P1 ∗", large, "128 − 96 pixels", minus(positioned(128), positioned(96)), 0),
        ("T02", "CIFAR-10, 100", "transferred − from scratch", gains[100], 0),
        ("T02", "CIFAR-10", "how the gain falls, for ten times the images", falls, 0),
        ("T02 ∗", "CIFAR-10", "gain with 100 − gain with 10,000", minus(gains[100], gains[10_000]), 0),
    ]


def test_the_table_of_few_shots():
    found = json.loads((ROOT / "benchmarks" / "results" / "suite_few_shot.json").read_text())
    assert not found["failures"]
    shots = (1, 5, 10, 25)
    cells = {(row["data"], row["model"], row["shots"]): row["mean"] for row in found["rows"]}
    rows = []
    for data in found["sets"]:
        for model in found["models"]:
            means = [cells[data, model, n] for n in (*shots, None)]
            rows.append([data, model, *(f"{100 * mean:.1f}" for mean in means)])
    head = ["set", "model", *(f"{n} shot{'s' * (n > 1)}" for n in shots), "logistic, all of train"]
    assert_block(PAGE, "few-shot", table(head, rows))


def test_the_table_of_claims():
    every = compared()
    stands = standing([chance(values, -margin) for _, _, _, values, margin in every])
    rows = []
    for (claim, where, what, values, margin), firm in zip(every, stands, strict=True):
        found = verdict(values, margin)
        rows.append((claim, where, what, len(values), points(values), f"**{found}**" if firm else found))
    head = ("claim", "set", "what is compared", "pairs", "points (95 %)", "verdict")
    assert_block(PAGE, "claims", table(head, rows))


def test_the_table_of_resolution():
    rows = []
    for pixels in (64, 96, 128):
        runs = {how: positioned(pixels, how) for how in (POSITIONS if pixels > 64 else ("two",))}
        cells = marked({how: percent(values) for how, values in runs.items()}, runs) if len(runs) > 1 else {}
        own = f"{percent(runs['two'])} (as they are)"
        shown = [cells[how] for how in POSITIONS] if cells else [own, "", ""]
        rows.append((pixels, (pixels // 8) ** 2, f"{tera(OURS.format(pixels)):.0f}", *shown))
    head = ("pixels", "tokens", "10¹² multiply-adds", *POSITIONS.values())
    assert_block(PAGE, "resolution", table(head, rows))


def test_the_table_of_amounts():
    rows = []
    for n in AMOUNTS:
        one, other = begun(n, "weights"), begun(n, "scratch")
        gain = minus(one, other)
        rows.append((f"{n:,}", f"{SHOWN / n:,.3g}", percent(other), percent(one), f"{points(gain)}, n {len(gain)}"))
    head = ("images", "times seen", "from scratch", "transferred", "gain, points (95 %)")
    assert_block(PAGE, "amounts", table(head, rows))


def test_the_table_of_cost():
    rows = []
    for model, (name, network, parameters) in MODELS.items():
        cells = [percent(by_seed("cost", data=d, train=n, model=model)) for d, n in COSTED]
        seconds = statistics.median(run["seconds"] for run in RUNS if run["cell"].get("model") == model)
        each = f"{macs(parse(network)) / 1e9:.2f}"
        rows.append((name, f"{parameters} M", each, f"{tera(network):.0f}", *cells, f"{seconds:.0f}"))
    head = ("model", "parameters", "10⁹ an image", "10¹² a run", *COSTED.values(), "seconds, shared")
    assert_block(PAGE, "cost", table(head, rows))


def assert_picture(name: str, fresh: str) -> None:
    path = DOCS / "pictures" / name
    if os.environ.get("VITREOUS_WRITE_DOCS"):
        path.write_text(fresh, "utf-8")
    assert path.read_text("utf-8") == fresh


def drawn(name: str, x: list[float], runs: list[dict[int, float]]) -> Line:
    spans = [mean_interval(np.array(list(values.values()))) for values in runs]
    low, high = zip(*spans, strict=True)
    return Line(name, x, [spread(values)[0] for values in runs], low, high, has_points=True)


def test_the_picture_of_amounts_and_resolution():
    decades = [math.log10(n) for n in AMOUNTS]
    amounts = lines(
        [
            drawn(name, decades, [begun(n, how) for n in AMOUNTS])
            for how, name in (("weights", "transferred"), ("scratch", "from scratch"))
        ],
        title="CIFAR-10: right answers by number of training images, transferred and from scratch",
        x_title="log₁₀ of training images (2: 100, 3: 1,000, 4: 10,000)",
        is_share=True,
        x_is_whole=True,
    )
    resolution = lines(
        [
            drawn(name, [64, 96, 128], [positioned(64), positioned(96, how), positioned(128, how)])
            for how, name in zip(POSITIONS, ("in 2-D", "in 1-D", "anew"), strict=True)
        ],
        title="imagenette: right answers by pixels, positions resized in two dimensions, in one, or drawn anew",
        x_title="pixels of a side; positions are those of 64",
        is_share=True,
    )
    panels = [
        Panel(amounts, "CIFAR-10: transferred against from scratch"),
        Panel(resolution, "imagenette: positions resized, or drawn anew"),
    ]
    pairs = sum(len(begun(n, how)) == 2 for n in AMOUNTS for how in ("weights", "scratch"))
    caption = "Share right on test images after 400 steps of 64 images. Bands: 95 % (Student) over 3 seeds"
    caption += f", over 2 in {pairs} of the cells on the left." if pairs else "."
    assert_picture(
        "transfer.svg", sheet(panels, heading="What moves when weights are transferred", caption=caption).to_svg()
    )


def test_the_picture_of_cost():
    panels = []
    for (data, train), name in COSTED.items():
        groups = {
            "our ViT": ["ViT.safetensors"],
            "our hybrid": ["hybrid.safetensors"],
            "our BiT": ["BiT.safetensors"],
            "DeiT, AugReg": ["deit", "vit-ti"],
        }
        series = []
        for word, models in groups.items():
            dots = [
                (tera(MODELS[model][1]), right)
                for model in models
                for right in by_seed("cost", data=data, train=train, model=model).values()
            ]
            if data == "imagenette" and models == ["ViT.safetensors"]:
                dots += [(tera(OURS.format(p)), right) for p in (96, 128) for right in positioned(p).values()]
            series.append(Line(word, *zip(*dots, strict=True), is_dots=True))
        chart = lines(
            series,
            title=f"{name} images: right answers over the cost of fine-tuning",
            x_title="10¹² multiply-adds of the run",
            is_share=True,
            y_range=(0.3, 1.0),
        )
        panels.append(Panel(chart, f"{name} images"))
    caption = (
        "A dot is a run of 400 steps of 64 images. Cost: multiply-adds of a forward pass x 25,600 images x 3. "
        "imagenette: our ViT at 64, 96 and 128 pixels, from left to right. DeiT and AugReg cost the same."
    )
    assert_picture(
        "transfer-cost.svg", sheet(panels, heading="What fine-tuning costs, and gives", caption=caption).to_svg()
    )


# The lines ---------------------------------------------------------------------------------------------------------


def test_no_kind_of_run_is_there_twice_and_none_names_a_machines_folder():
    kinds = [json.dumps([run["experiment"], run["cell"]]) for run in RUNS]
    assert len(set(kinds)) == len(kinds)
    words = [word for run in RUNS for word in run.get("command", [])]
    assert words
    assert not [word for word in words if word.startswith(("/", "~"))]


def test_accuracy_is_right_answers_over_images():
    for run in RUNS:
        assert run["accuracy"] == pytest.approx(run["right"] / run["images"], abs=1e-12)


def test_the_same_run_in_three_experiments_has_the_same_answers():
    """A seed decides a run: what two experiments share, they count alike."""
    first, again = policy("imagenette", None, "layer-decay"), positioned(64)
    third = by_seed("cost", data="imagenette", train=None, model="ViT.safetensors")
    assert first == again
    assert third.items() <= first.items()
    shared = by_seed("cost", data="cifar10", train=1000, model="ViT.safetensors")
    assert shared == begun(1000, "weights")


def test_parameters_are_those_of_the_networks():
    from vitreous.models.catalog import blueprint

    for _, network, millions in MODELS.values():
        count = sum(p.numel() for p in blueprint(parse(network)).parameters())
        assert round(count / 1e6, 1) == millions


def test_chances_are_scipys():
    from scipy import stats

    for values in ([0.01, 0.03, 0.02], [0.01, -0.03, 0.02], [0.02, 0.03]):
        named = dict(enumerate(values))
        assert chance(named) == pytest.approx(stats.ttest_1samp(values, 0.0).pvalue)
        low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
        assert spread(named) == pytest.approx(((low + high) / 2, (high - low) / 2), rel=2e-4)


def test_holm_stops_at_the_first_that_fails():
    assert standing([0.04, 0.001, 0.03]) == [False, True, False]
    assert standing([0.01, 0.02, 0.04]) == [True, True, True]
