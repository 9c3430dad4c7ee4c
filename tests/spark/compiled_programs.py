"""The schema of flights, and the split of an aggregate over them."""

from __future__ import annotations

SCHEMA = "origin string, carrier string, dep_delay double, n int, t timestamp"


def split_of(app, *aggregates, group="origin", before=lambda s: s):
    return before(app.stream("flights", schema=SCHEMA)).groupBy(group).agg(*aggregates)._aggregate.split
