"""Constant arguments of aggregate functions as they are kept in buffers, and which of them change stored rows."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import functions as F
from tests.spark.compiled_programs import SCHEMA, split_of
from tests.spark.refused_programs import refused

pytestmark = pytest.mark.spark


@pytest.fixture
def app(make_offline_app):
    return make_offline_app("parameters")


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        ("median(n)", {"at": [0.5], "many": False, "discrete": False, "descending": False}),
        ("percentile(n, array(0, 0.25))", {"at": [0.0, 0.25], "many": True, "discrete": False, "descending": False}),
        (
            "percentile_disc(0.1) WITHIN GROUP (ORDER BY n DESC)",
            {"at": [0.1], "many": False, "discrete": True, "descending": True},
        ),
        ("mode(n)", {"takes_greatest": False, "takes_any": True}),
        ("mode(n, true)", {"takes_greatest": False, "takes_any": False}),
        ("mode() WITHIN GROUP (ORDER BY n DESC)", {"takes_greatest": True, "takes_any": False}),
    ],
)
def test_percentages_and_directions_are_kept_as_text(app, call, wanted):
    [buffer] = split_of(app, F.expr(call)).buffers
    assert json.loads(buffer.parameter) == wanted
    assert buffer.argument == "n"


def test_registers_of_a_sketch_are_part_of_what_is_stored(app):
    [buffer] = split_of(app, F.approx_count_distinct("n", 0.01)).buffers
    assert buffer.argument == f"n, {buffer.parameter}"
    [plain] = split_of(app, F.sum("n")).buffers
    assert plain.parameter == ""


@pytest.mark.parametrize(
    ("call", "part"), [("percentile(n, 0.5, n)", "frequencies"), ("approx_count_distinct(n, 0.001)", "registers")]
)
def test_arguments_that_no_state_serves_are_refused(app, call, part):
    flights = app.stream("flights", schema=SCHEMA)
    error = refused(lambda: flights.groupBy("origin").agg(F.expr(call)))
    assert error.code == "not-supported-here"
    assert part in str(error)
