"""The page of all claims: made from results alone, every number with a source, every row with a home."""

import json
import re

import pytest
from shared_files import ROOT

from vitreous.errors import ConfigError
from vitreous.papers.claims import answers, ledger, states
from vitreous.papers.page import P2_FINDINGS, all_outcomes, answered, filled, markdown, page, questions, report
from vitreous.papers.results import COMMITTED, Results
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
    assert re.search(r"C17 [A-Z ]+ \(positions, laptop\)", filled("[[C17]]", found, outcomes))
    assert re.fullmatch(r"\d+\.\d % ± \d+\.\d %", filled("[[positions laptop | none | accuracy]]", found, outcomes))
    with pytest.raises(ConfigError, match="'Z99', which the ledger lacks"):
        filled("[[Z99]]", found, outcomes)
    with pytest.raises(ConfigError, match="not an experiment and a scale"):
        filled("[[nothing laptop | none | accuracy]]", found, outcomes)


def test_the_nine_findings_are_rows_of_the_ledger():
    assert len(P2_FINDINGS) == 9
    assert all(row in ledger() for rows in P2_FINDINGS.values() for row in rows)


def test_the_report_goes_where_it_is_told(tmp_path):
    where = report(tmp_path / "page")
    assert where.name == "papers.html"
    assert {file.name for file in where.parent.iterdir()} == {"papers.html", "papers.md", "questions.md"}
