"""The schema is true: whatever is made up from it is answered as the schema says, and never by a mistake of ours."""

from __future__ import annotations

from collections import Counter

import pytest
import serving
from hypothesis import HealthCheck, Phase, given, settings

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis: pip install schemathesis")

from schemathesis.specs.openapi.checks import positive_data_acceptance  # noqa: E402

SLOW = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None, phases=[Phase.generate])


@pytest.fixture(scope="module")
def server():
    with serving.thread(workers=2) as (caller, _, _):
        yield caller


def fuzz(server, examples: int) -> Counter:
    """Calls made up from the schema; each reply is held against it."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    found: Counter = Counter()
    for each in schema.get_all_operations():
        _hold(each.ok(), server, found, examples)
    return found


def _hold(operation, server, found: Counter, examples: int) -> None:
    @settings(SLOW, max_examples=examples)
    @given(case=operation.as_strategy())
    def holds(case):
        reply = case.call(base_url=server.url)
        found[operation.label, reply.status_code] += 1
        # an image that no schema can tell from noise, or a patch that the model lacks, is refused all the same
        case.validate_response(reply, excluded_checks=[positive_data_acceptance])

    holds()


def test_replies_are_those_of_the_schema(server):
    found = fuzz(server, 6)
    assert {label for label, _ in found} >= {"POST /api/predict", "POST /api/break", "GET /healthz"}
    assert all(status < 500 or status in (501, 503) for _, status in found)
    assert server.get("/healthz").status == 200


@pytest.mark.slow
def test_replies_are_those_of_the_schema_at_length(server):
    fuzz(server, 150)
    assert server.get("/healthz").status == 200
