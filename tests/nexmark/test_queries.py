"""The queries on DataFrames beside plain Python. `test_runner` runs them on streams."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from tests.nexmark import reference_results
from tests.spark.runtime.processors import Task, transform_of

from headrace.nexmark import QUERY_NAMES
from headrace.nexmark.events import Workload, generate
from headrace.nexmark.frames import event_frames
from headrace.nexmark.last_ten import LastTen
from headrace.nexmark.queries import QUERIES, Events

pytestmark = pytest.mark.spark

EVENTS = 3_000
WORKLOAD = Workload(event_rate=60, disorder=100)  # 50 s: five windows
REFERENCES = [name for name in QUERY_NAMES if hasattr(reference_results, name)]


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> Iterator[Events]:
    made = event_frames(spark, WORKLOAD, EVENTS)
    cached = [made.person.persist(), made.auction.persist(), made.bid.persist()]
    yield Events(person=cached[0], auction=cached[1], bid=cached[2], spark=spark)
    for frame in cached:
        frame.unpersist()


@pytest.fixture(scope="module")
def rows() -> list[list[dict[str, Any]]]:
    return [batch.to_pylist() for batch in generate(WORKLOAD, 0, EVENTS).values()]


def plain(value: Any) -> Any:
    """Return a value of Spark or of the reference in one form: instants as seconds, structs as tuples."""
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, (Row, tuple, list)):
        return tuple(plain(part) for part in value)
    return value


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark returns instants as local times without a zone."""
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.mark.parametrize("name", REFERENCES)
def test_dataframe_query_agrees_with_plain_python(name: str, events: Events, rows: list[Any]) -> None:
    expected = Counter(plain(row) for row in getattr(reference_results, name)(*rows))
    found = Counter(plain(row) for row in QUERIES[name].build(events).collect())
    assert found == expected
    assert len(expected) > 0


def test_all_queries_with_state_have_a_reference() -> None:
    # q9, q18, q19 have ties and q12 the machine's clock: below. The others are computed row by row.
    assert REFERENCES == ["q3", "q4", "q5", "q6", "q7", "q8", "q11", "q15", "q16", "q17", "q20"]


def test_winning_bids_agree_with_plain_python_in_what_is_decided(events: Events, rows: list[Any]) -> None:
    best = reference_results.won(rows[1], rows[2])
    expected = {(key, bids[0]["price"], bids[0]["dateTime"].timestamp()) for key, bids in best.items()}
    found = QUERIES["q9"].build(events).select("id", "price", "bid_dateTime").collect()
    assert {plain(row) for row in found} == expected


def test_last_bids_agree_with_plain_python_in_what_is_decided(events: Events, rows: list[Any]) -> None:
    last: dict[Any, float] = {}
    for bid in rows[2]:
        key = bid["bidder"], bid["auction"]
        last[key] = max(last.get(key, 0.0), bid["dateTime"].timestamp())
    found = QUERIES["q18"].build(events).select("bidder", "auction", "dateTime").collect()
    assert {plain(row) for row in found} == {(*key, time) for key, time in last.items()}
    assert len(found) == len(last)


def test_top_ten_agree_with_plain_python_in_what_is_decided(events: Events, rows: list[Any]) -> None:
    prices: dict[int, list[int]] = {}
    for bid in rows[2]:
        prices.setdefault(bid["auction"], []).append(bid["price"])
    expected = {
        (auction, place, price)
        for auction, found in prices.items()
        for place, price in enumerate(sorted(found, reverse=True)[:10], 1)
    }
    top = QUERIES["q19"].build(events).select("auction", "place", "price").collect()
    assert {plain(row) for row in top} == expected


def test_row_by_row_queries(events: Events, rows: list[Any]) -> None:
    bids = rows[2]
    assert QUERIES["q2"].build(events).count() == sum(bid["auction"] % 123 == 0 for bid in bids) > 0
    q13 = QUERIES["q13"].build(events).select("auction", "value").collect()
    assert Counter(map(tuple, q13)) == Counter((b["auction"], f"value-{b['auction'] % 10_000}") for b in bids)
    q14 = QUERIES["q14"].build(events).select("auction", "extra", "c_counts").collect()
    assert Counter(map(tuple, q14)) == Counter(
        (b["auction"], b["extra"], b["extra"].count("c"))
        for b in bids
        if 1_000_000 < b["price"] * 908 / 1000 < 50_000_000
    )
    q21 = QUERIES["q21"].build(events).select("channel", "channel_id").collect()
    known = {"Apple": "0", "Google": "1", "Facebook": "2", "Baidu": "3"}
    wanted = [(b["channel"], known.get(b["channel"], b["url"].partition("&channel_id=")[2])) for b in bids]
    assert Counter(map(tuple, q21)) == Counter(row for row in wanted if row[1])
    q22 = QUERIES["q22"].build(events).select("dir1", "dir2", "dir3").collect()
    assert Counter(map(tuple, q22)) == Counter(tuple(b["url"].split("/")[3:6]) for b in bids)


def test_the_names_are_those_of_the_command_line() -> None:
    assert tuple(QUERIES) == QUERY_NAMES


def last_ten(bids: list[tuple[int, int, int, int]]) -> dict[tuple[int, int], float]:
    """Return the average of each (seller, id) of bids (seller, id, price, expires)."""
    averages = {}
    for seller in {bid[0] for bid in bids}:
        best: dict[tuple[int, int], int] = {}
        for _, name, price, expires in (bid for bid in bids if bid[0] == seller):
            best[expires, name] = max(price, best.get((expires, name), 0))
        order = sorted(best)
        for place, end in enumerate(order):
            last = [best[one] for one in order[max(0, place - 9) : place + 1]]
            averages[seller, end[1]] = sum(last) / len(last)
    return averages


@pytest.mark.usefixtures("spark")
def test_averages_of_the_last_ten_do_not_depend_on_arrival(tmp_path: Path) -> None:
    declared = transform_of(
        LastTen(),
        group_columns=(("seller", '"long"'),),
        inputs=(("i0", '"long"'), ("i1", '"long"'), ("i2", '"long"')),
        row_columns=(("seller", "g0"), ("id", "i0"), ("price", "i1"), ("expires", "i2")),
        columns=(("seller", '"long"'), ("id", '"long"'), ("average", '"double"')),
    )
    for seed in range(4):
        chance = random.Random(seed)
        ends = {name: chance.randrange(20) for name in range(60)}  # several end at once
        auctions = [chance.randrange(60) for _ in range(200)]
        bids = [(name % 3, name, chance.randrange(1, 50), ends[name]) for name in auctions]
        task = Task(tmp_path / str(seed), declared)
        at = 0
        while at < len(bids):
            size, outcome = chance.randrange(1, 60), chance.choice(["commit", "commit", "undo", "restore"])
            if outcome == "restore":
                task.restore()
            task.run(bids[at : at + size], commits=outcome != "undo")
            at += 0 if outcome == "undo" else size
        task.store.close()
        assert {(seller, name): average for seller, name, average in task.found} == last_ten(bids)


def test_the_page_has_the_table_of_the_queries() -> None:
    page = (Path(__file__).parents[2] / "docs/explanation/nexmark.md").read_text()
    for query in QUERIES.values():
        result = {"append": "every row", "table": "last row of a key", "files": "files"}[query.kind]
        assert f"| {query.name} | {query.title} | {'closed windows' if query.closed else result} |" in page
