"""Joins as of event time as the program declares them: what is kept, what is refused and where, and what leaves."""

from __future__ import annotations

import logging
import re

import pytest
from pyspark.sql import functions as F
from tests.spark.refused_programs import refused

from headrace.spark.streams_app import StreamsApp
from headrace.testing import TopologyTest

pytestmark = pytest.mark.spark

ORDERS = "order_id bigint, item string, ordered timestamp"
PRICES = "product string, price bigint, valid_from timestamp"
VALID = "item = product AND valid_from <= ordered"


def sides(app):
    orders = app.stream("orders", schema=ORDERS).withWatermark("ordered", "10 minutes")
    return orders, app.stream("prices", schema=PRICES).withWatermark("valid_from", "10 minutes")


def check(error, code, text):
    assert error.code == code
    assert re.search(text, str(error.message))


def priced(app, how="left"):
    orders, prices = sides(app)
    orders.joinAsOf(prices, F.expr(VALID), how).select("order_id", "price").to_topic("priced", key="order_id")
    return app


def order(number, item, at):
    return {"order_id": number, "item": item, "ordered": f"2026-01-01T10:{at}Z"}


def price(product, cents, at):
    return {"product": product, "price": cents, "valid_from": f"2026-01-01T10:{at}Z"}


def test_rows_wait_for_the_version_that_is_valid_at_their_time(make_offline_app):
    with TopologyTest(priced(make_offline_app())) as test:
        test.push("orders", [order(1, "tea", "05:00"), order(2, "tea", "10:00"), order(3, "nut", "05:00")])
        test.push("prices", [price("tea", 700, "10:00"), price("tea", 500, "05:00")])  # out of order
        assert test.read("priced") == []
        test.push("orders", [order(4, None, "06:00")])  # it matches nothing, and waits for nothing
        assert test.read("priced") == [{"order_id": 4, "price": None}]
        test.push("prices", [price("oil", 1, "20:00")])  # a version from 10:00 may still come
        found = sorted(test.read("priced"), key=lambda row: row["order_id"])
        assert found == [{"order_id": 1, "price": 500}, {"order_id": 3, "price": None}]
        test.push("prices", [price("oil", 1, "20:01")])
        assert test.read("priced") == [{"order_id": 2, "price": 700}]


def test_the_description_names_versions_and_no_warning_is_logged(spark, caplog):
    app = StreamsApp("priced", spark=spark)
    with caplog.at_level(logging.WARNING):
        text = str(priced(app, "inner").describe())
    assert "versions of right rows until they are superseded" in text
    assert "newest version of right" in text
    assert caplog.records == []


@pytest.mark.parametrize(
    "condition",
    [
        "item = product",
        "item = product AND valid_from < ordered",
        "item = product AND ordered <= valid_from",
        "item = product AND valid_from <= ordered AND price > 3",
        "item = product AND valid_from + INTERVAL 1 MINUTE <= ordered",
        "item = product AND ordered BETWEEN valid_from AND valid_from + INTERVAL 1 HOUR",
        "item = product AND valid_from <= ordered AND valid_from = ordered",
    ],
)
def test_other_conditions_are_refused(spark, condition):
    orders, prices = sides(StreamsApp("priced", spark=spark))
    check(
        refused(lambda: orders.joinAsOf(prices, F.expr(condition))),
        "not-supported-here",
        "joinAsOf|limits the event times",
    )


def test_sides_and_kinds_that_are_not_supported_are_refused(spark):
    app = StreamsApp("priced", spark=spark)
    orders, prices = sides(app)
    bare = app.stream("prices", schema=PRICES)
    check(refused(lambda: orders.joinAsOf(prices, F.expr(VALID), "full")), "not-supported-here", "not supported")
    check(refused(lambda: orders.joinAsOf(bare, F.expr(VALID))), "not-supported-here", "no watermark")
    check(
        refused(lambda: app.stream("orders", schema=ORDERS).joinAsOf(bare, F.expr(VALID))),
        "not-supported-here",
        "watermark on both sides",
    )
    check(
        refused(lambda: orders.joinAsOf(spark.range(3), F.expr(VALID))),
        "not-supported-here",
        "takes a stream of the same app",
    )
    check(refused(lambda: orders.joinAsOf(prices, F.expr("valid_from <= ordered"))), "needs-shuffle", "equality")
