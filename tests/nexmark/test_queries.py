"""The queries: on DataFrames beside plain Python, on streams either running or refused at their line."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from tests.nexmark import reference_results

import headrace.nexmark.queries as queries_module
from headrace.errors import TopologyError
from headrace.nexmark import QUERY_NAMES
from headrace.nexmark.events import Workload, generate
from headrace.nexmark.frames import event_frames
from headrace.nexmark.queries import QUERIES, Events
from headrace.nexmark.runner import event_streams
from headrace.spark.streams_app import StreamsApp

pytestmark = pytest.mark.spark

EVENTS = 3_000
WORKLOAD = Workload(event_rate=60, disorder=100)  # 50 s: five windows
REFERENCES = [name for name in QUERY_NAMES if hasattr(reference_results, name)]
MISSING = [name for name, query in QUERIES.items() if not query.runs]


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


# The call that is refused, of each query that does not run on streams.
REFUSED_CALLS = {
    "q6": 'winning.select("seller"',
}


@pytest.fixture(scope="module")
def user_queries(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """The queries as a file of the user's: a refusal names lines of the user's files only."""
    path = tmp_path_factory.mktemp("program") / "my_queries.py"
    path.write_text(Path(queries_module.__file__).read_text())
    spec = importlib.util.spec_from_file_location("my_queries", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["my_queries"] = module
    spec.loader.exec_module(module)
    found: Mapping[str, Any] = module.QUERIES
    return found


@pytest.mark.parametrize("name", MISSING)
def test_query_without_its_operator_is_refused_at_its_line(
    name: str, spark: SparkSession, user_queries: Mapping[str, Any]
) -> None:
    """Fails when the operator lands: then remove `missing` of the query, and test_runner.py verifies it."""
    streams = event_streams(StreamsApp(f"nexmark-{name}", spark=spark))
    with pytest.raises(TopologyError) as caught:
        user_queries[name].build(streams).to_topic("results", partitions=2)
    assert "my_queries.py:" in caught.value.facts["where"]
    assert REFUSED_CALLS[name] in caught.value.facts["where"]
    assert caught.value.fix


def test_the_page_has_the_table_of_the_queries() -> None:
    page = (Path(__file__).parents[2] / "docs/explanation/nexmark.md").read_text()
    for query in QUERIES.values():
        result = {"append": "every row", "table": "last row of a key", "files": "files"}[query.kind]
        state = f"needs {query.missing}" if query.missing else "runs"
        assert f"| {query.name} | {query.title} | {'closed windows' if query.closed else result} | {state} |" in page


def test_each_query_runs_or_is_refused() -> None:
    assert sorted(REFUSED_CALLS) == sorted(MISSING)
