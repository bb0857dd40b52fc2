"""benchmarks/scale.py: what it predicts, and a case that dies."""

import pytest
import torch
from shared_files import ROOT


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
