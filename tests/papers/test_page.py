"""The page of all claims: made from results alone, every number with a source, every row with a home."""

import json
import re
from dataclasses import replace

import pytest
from papers.small_experiment import EXPERIMENT as SMALL
from papers.small_experiment import gain
from shared_files import ROOT

from vitreous.errors import ConfigError
from vitreous.papers.claims import answers, ledger, states
from vitreous.papers.experiments import EXPERIMENTS
from vitreous.papers.outcome import PaperOutcome
from vitreous.papers.page import P2_FINDINGS, all_outcomes, answered, filled, markdown, page, questions, report
from vitreous.papers.results import COMMITTED, DONE, Results, new_record
from vitreous.papers.verdict import Effect, unlike
from vitreous.report.page import render


@pytest.fixture(scope="module")
def outcomes():
    return all_outcomes(Results())


def test_the_committed_docs_are_what_the_results_give(outcomes):
    """vitreous paper report --out docs/evidence writes them."""
    folder = ROOT / "docs" / "evidence"
    assert (folder / "papers.md").read_text() == markdown(outcomes, states())
    assert (folder / "questions.md").read_text() == questions(outcomes)
    assert (folder / "papers.html").read_text() == render(page(outcomes, states()))


def test_the_page_is_made_from_the_results_alone(tmp_path):
    """With no results the page has no verdict and no number of ours."""
    empty = all_outcomes(Results(committed=tmp_path))
    text = markdown(empty, states(Results(committed=tmp_path)))
    assert not re.search(r"SUPPORTED|CONTRADICTED|EQUIVALENT|DIFFERENT|WORSE|INCONCLUSIVE", text)
    html = render(page(empty, states(Results(committed=tmp_path))))
    assert "0 claims asked, 0 decided" in html
    assert html.count("not run") >= len(P2_FINDINGS)


def test_a_changed_cell_changes_the_page(tmp_path, outcomes):
    """Every accuracy of a results file reaches the page through its mean."""
    ran = next(outcome for outcome in outcomes if outcome.records and outcome.experiment.name == "positions")
    body = json.loads((COMMITTED / "positions.json").read_text())
    for cell in body["cells"]:
        if "accuracy" in cell["readings"]:
            cell["readings"]["accuracy"] = 0.125
    (tmp_path / "positions.json").write_text(json.dumps(body))
    changed = markdown(all_outcomes(Results(committed=tmp_path)), states(Results(committed=tmp_path)))
    assert ran.experiment.title in changed
    assert "12.5 % ± 0.0 %" in changed


def test_every_d_row_has_an_answer_and_every_answer_a_row(outcomes):
    wanted = {row.name for row in ledger().values() if "D" in row.tags}
    assert set(answers()) == wanted
    for answer in answers().values():
        for test in answer.get("tests", []):
            assert (ROOT / test).is_file(), test


def test_references_in_answers_become_verdicts_and_numbers(outcomes):
    found = answered(outcomes)
    assert re.search(r"C17 [A-Z ]+: [^()]+effects [^()]+ \(positions, laptop\)", filled("[[C17]]", found, outcomes))
    assert re.fullmatch(r"\d+\.\d % ± \d+\.\d %", filled("[[positions laptop | none | accuracy]]", found, outcomes))
    with pytest.raises(ConfigError, match="'Z99', which the ledger lacks"):
        filled("[[Z99]]", found, outcomes)
    with pytest.raises(ConfigError, match="not an experiment and a scale"):
        filled("[[nothing laptop | none | accuracy]]", found, outcomes)


def found_with(folder, claims, by_arm):
    """The claims of the small experiment, answered by these accuracies of three seeds."""
    results = Results(folder, committed=None)
    for one in SMALL.placed("laptop", 3):
        results.add("small", new_record(one.cell, {"accuracy": by_arm[one.arm][one.seed]}, DONE, 1.0))
    return answered([PaperOutcome(replace(SMALL, claims=claims), "laptop", SMALL.placed("laptop", 3), results)])


HIGH, LOW = (0.9, 0.91, 0.89), (0.5, 0.51, 0.495)


def test_a_question_says_in_sentences_what_was_found(tmp_path):
    """The decided sentences whole, the others by name; nothing that has not run is called found."""
    first, second = SMALL.claims
    apart = replace(second, row="C19", rule=unlike(0.398))
    cannot = replace(second, row="C20", untestable={"laptop": "all data are few"})
    found = found_with(tmp_path, (first, apart, cannot), {"with": HIGH, "without": LOW})
    assert filled("[[found C17 C19 C20 C21]]", found, ()) == (
        "What we find: 1 of 3 tests is decided. Supported: positions help (C17, small at laptop scale). "
        "Inconclusive: C19 (small, laptop). Not testable: C20 (small, laptop). Not run: C21."
    )
    assert (
        filled("[[found C19]]", found, ())
        == "We could not tell: no test is decided. Inconclusive: C19 (small, laptop)."
    )
    assert filled("[[found C21]]", found, ()) == "Not run: C21."
    with pytest.raises(ConfigError, match="'Z99', which the ledger lacks"):
        filled("[[found C17 Z99]]", found, ())


def test_a_claim_with_several_effects_shows_the_one_that_decides(tmp_path):
    def both(table):
        yield from gain(table)
        yield Effect("unsure", {0: 1.0, 1: -1.0, 2: 0.1})

    two = replace(SMALL.claims[0], effects=both)
    (one,) = found_with(tmp_path, (two,), {"with": HIGH, "without": LOW})["C17"]
    assert one.verdict == "INCONCLUSIVE: 1 of 2 effects open, 1 for (small, laptop)"
    assert one.decider.startswith("1 of 2: unsure: +0.0333 (−")
    assert one.decider in markdown([one.outcome], states(names=["C17"]))
    assert one.decider in render(page([one.outcome], states(names=["C17"])))


def test_no_interval_is_impossible(outcomes):
    """Every value lies within its effect's bounds, and no printed share passes 100 points, no correlation 1."""
    weighed = [one for outcome in outcomes for _, judged in outcome.claims for one in judged.weighed]
    assert weighed
    for one in weighed:
        low, high = one.effect.bounds
        assert all(low - 1e-9 <= value <= high + 1e-9 for value in one.effect.numbers), one.effect.name
        if "rank correlation" in one.effect.name or one.effect.name.endswith("share − chance"):
            assert max(map(abs, one.interval)) <= 1


def test_the_page_does_not_say_that_every_rule_stood_before_every_look(outcomes):
    html = render(page(outcomes, states()))
    assert "a rule that stood before the runs" not in html
    assert "Not every rule stood before every look" in html


def test_runs_that_are_older_than_the_claims_say_so(outcomes):
    gpu = next(one for one in outcomes if (one.experiment.name, one.scale) == ("transfer-gain", "gpu"))
    assert any("older measurement, known when the claims were written here" in note for note in gpu.notes)


def test_the_ledger_and_the_page_on_look_refer_to_each_other_on_receptive_fields():
    (claim,) = EXPERIMENTS["receptive-field"].claims
    assert "docs/guide/look.md, row 5" in claim.note
    assert "\n| 5. receptive fields" in (ROOT / "docs" / "guide" / "look.md").read_text()


def test_the_nine_findings_are_rows_of_the_ledger():
    assert len(P2_FINDINGS) == 9
    assert all(row in ledger() for rows in P2_FINDINGS.values() for row in rows)


def test_the_report_goes_where_it_is_told(tmp_path):
    where = report(tmp_path / "page")
    assert where.name == "papers.html"
    assert {file.name for file in where.parent.iterdir()} == {"papers.html", "papers.md", "questions.md"}
