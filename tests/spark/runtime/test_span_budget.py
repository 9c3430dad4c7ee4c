"""Limit of the spans of a second."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.runtime.batches.trace_contexts import MOST_TRACES
from headrace.spark.runtime.span_budget import BURST_S, MOST_SPANS_A_SECOND, SpanBudget


def test_an_application_that_made_no_spans_follows_all_that_a_task_may():
    budget = SpanBudget(5.0)
    assert budget.traces_per_task(4, 5.0) == MOST_TRACES
    assert budget.traces_per_task(0, 5.0) == MOST_TRACES
    # Many tasks share what there is.
    assert budget.traces_per_task(100, 5.0) == (MOST_SPANS_A_SECOND * BURST_S - 9) // 100


def test_spans_that_were_made_at_the_same_time_are_made_up_for():
    budget = SpanBudget(0.0)
    budget.spend(MOST_SPANS_A_SECOND * BURST_S + 50, 0.0)
    assert budget.traces_per_task(1, 0.5) == 0
    assert budget.traces_per_task(1, 0.625) == 3
    budget.spend(10, 0.125)  # read by a slower thread
    assert budget.traces_per_task(1, 0.625) == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.lists(st.floats(0, 3), min_size=1, max_size=60))
def test_no_time_has_more_spans_than_the_limit(tasks, pauses):
    budget, now_s, spent = SpanBudget(0.0), 0.0, 0
    for pause in pauses:
        now_s += pause
        most = budget.traces_per_task(tasks, now_s)
        assert 0 <= most <= MOST_TRACES
        if most:
            spans = 9 + most * tasks
            budget.spend(spans, now_s)
            spent += spans
        assert spent <= MOST_SPANS_A_SECOND * (BURST_S + now_s) * (1 + 1e-9)


@pytest.mark.parametrize("tasks", [1, 8])
def test_a_steady_application_makes_about_as_many_spans_as_the_limit(tasks):
    budget, spent = SpanBudget(0.0), 0
    for batch in range(1, 1001):
        if most := budget.traces_per_task(tasks, batch / 10):
            budget.spend(9 + most * tasks, batch / 10)
            spent += 9 + most * tasks
    assert spent == pytest.approx(MOST_SPANS_A_SECOND * (100 + BURST_S), rel=0.05)
