"""benchmarks/scale.py: what it predicts, a case that dies, and the table of what it measured."""

import json

import pytest
import torch
from doc_blocks import DOCS, assert_block
from shared_files import ROOT

from vitreous.training.plan.memory import in_bytes

MEASURED = json.loads((ROOT / "benchmarks" / "results" / "scale.json").read_text())


@pytest.fixture
def scale(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import scale

    return scale


@pytest.mark.parametrize("kind", ["whole", "blocks", "none"])
def test_a_case_is_held_against_a_step_that_is_compiled_alike(scale, kind):
    """A residual network has no blocks to compile."""
    residual, transformer = (
        scale.Case(model, 32, kind).predicted(torch.device("cuda")) for model in ("BiT-R50x1", "B/16")
    )
    plain = [scale.Case(model, 32).predicted(torch.device("cuda")) for model in ("BiT-R50x1", "B/16")]
    assert (residual < plain[0]) is (kind == "whole")
    assert (transformer < plain[1]) is (kind != "none")


def test_a_case_that_died_before_its_turn_takes_no_other_with_it(scale, monkeypatch, tmp_path):
    """Its turn fails, and it can still be ended."""
    script = tmp_path / "dies.py"
    script.write_text("")
    monkeypatch.setattr(scale, "__file__", str(script))
    process = scale.Process(scale.Case("B/16", 8), torch.device("cpu"), tmp_path)
    process.popen.wait()
    with pytest.raises(BrokenPipeError):
        process.seconds(3)
    process.end()
    assert process.most == 0


def test_the_table_of_one_gpu_is_what_was_measured():
    """A case that timm ran has no forecast; one that was not ready in time has no row."""
    lines = ["| network, images of a step | step | planned | measured | planned / measured |", "|---|---|--:|--:|--:|"]
    for case in MEASURED["cases"]:
        if case.get("ratio") is not None:
            network, kind = case["case"].split(": ")
            kind = kind.removeprefix("alone ").removesuffix(" captured").replace("none", "not compiled")
            sizes = " | ".join(in_bytes(case[name]) for name in ("predicted", "memory"))
            kind = kind.replace(" checkpointing", ", recomputed")
            lines.append(f"| {network} | {kind} | {sizes} | {case['ratio']} |")
    lines += ["", "| seconds of a step | over | ratio |", "|---|---|---|"]
    for group in MEASURED["groups"].values():
        for names, ratios in group["ratios_10_50_90"].items():
            one, other = names.split(" / ", 1)
            lines.append(f"| {one} | {other} | {' '.join(f'{ratio:.3f}' for ratio in ratios)} |")
    assert_block(DOCS / "guide" / "scale.md", "gpu", "\n".join(lines) + "\n")
