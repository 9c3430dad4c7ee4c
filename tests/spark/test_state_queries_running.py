"""Queries into the state of a running application: what its topics show, and nothing that is not committed."""

from __future__ import annotations

import json
import threading

import pytest
from pyspark.sql import functions as F
from tests.harness.polling import wait_until
from tests.harness.values import not_none

import headrace.spark
from headrace import StateQuery
from headrace.errors import StateError

pytestmark = pytest.mark.spark

TOKEN = "the-token-of-this-test"


def test_queries_show_what_the_topics_show(spark, broker, make_app, running, tmp_path):
    """Three stores of one application: counts, results of SQL, and windows. During writes counts only grow, and no
    query is ahead of the committed records of the topic.
    """
    (tmp_path / "token").write_text(TOKEN + "\n")
    config = {"application.server": "127.0.0.1:0", "headrace.state.query.token.file": str(tmp_path / "token")}
    app = make_app(config=config)
    rows = app.stream("flights", schema="word string, n bigint, at timestamp")
    counts = rows.groupBy("word").agg(F.count("*").alias("rows"), F.avg("n").alias("mean"), name="by-word")
    counts.to_topic("counts", partitions=2)
    rounded = F.round(F.avg("n"), 1).alias("mean")
    rows.groupBy("word", "n").agg(F.count("*").alias("rows"), rounded, name="rounded").to_topic("rounded", partitions=1)
    windows = rows.withWatermark("at", "1 hour").groupBy(F.window("at", "1 minute"), "word")
    windows.agg(F.count("*").alias("rows"), name="by-minute").to_topic("minutes", partitions=1)

    def send(numbers):
        lines = [
            json.dumps({"word": f"w{n % 20}", "n": n % 7, "at": f"2026-01-01T00:{n % 3:02d}:00Z"}) for n in numbers
        ]
        broker.produce("flights", lines)

    def table(topic):
        return {record.key: json.loads(record.value) for record in broker.records(topic)}

    send(range(200))
    started = running(app)
    url = started.state_query_url
    assert url.startswith("http://127.0.0.1:")
    servers = broker.bootstrap_servers
    started.wait_until("caught-up", timeout=120)
    with StateQuery(servers, "flight-counts", store="by-word", token=TOKEN) as query:
        # The store is at the last commit a moment after the group is.
        wait_until(lambda: sum(row["rows"] for row in query.range().rows) == 200, "200 rows")
        published = table("counts")
        assert {row["word"].encode(): dict(row) for row in query.range().rows} == published
        by_word = {row["word"]: row for row in query.scan().to_pylist()}
        assert by_word == {row["word"]: row for row in published.values()}
        found = query.get("w3")
        assert dict(not_none(found.row)) == published[b"w3"]
        [state] = found.states
        assert state.role == "active"
        assert all(name.startswith("flight-counts-by-word-repartition-") for name in state.input_offsets)

        # While micro-batches run: never above the topic as it is after the answer, never below an earlier answer.
        sender = threading.Thread(target=lambda: [send(range(200, 240)) for _ in range(20)])
        sender.start()
        seen = {word: row["rows"] for word, row in by_word.items()}
        answers = 0
        while sender.is_alive() or answers < 5:
            now = {row["word"]: row["rows"] for row in query.range().rows}
            topic = {row["word"]: row["rows"] for row in table("counts").values()}
            for word, count in now.items():
                assert seen[word] <= count <= topic[word]
            seen = now
            answers += 1
        sender.join()
        started.processAllAvailable()
        wait_until(lambda: sum(row["rows"] for row in query.range().rows) == 1_000, "1000 rows")
        assert {row["word"].encode(): dict(row) for row in query.range().rows} == table("counts")

    with StateQuery(servers, "flight-counts", store="rounded", token=TOKEN) as query:
        wanted = {(row["word"], row["n"]): row for row in table("rounded").values()}
        wait_until(lambda: sum(row["rows"] for row in query.scan().to_pylist()) == 1_000, "1000 rows")
        assert {(row["word"], row["n"]): row for row in query.scan().to_pylist()} == wanted
        assert dict(not_none(query.get({"word": "w3", "n": 3}).row)) == wanted["w3", 3]
        with pytest.raises(StateError, match="state-query-refused"):
            query.range()
    check_windows(servers, table)
    check_frames(spark, servers, table)


def check_frames(spark, servers, table):
    """A store as a DataFrame, whose types are those of the aggregate."""
    headrace.spark.register(spark)
    options = {"kafka.bootstrap.servers": servers, "group.id": "flight-counts", "store": "by-minute", "token": TOKEN}
    frame = spark.read.format("headrace-state").options(**options).load()
    types = "struct<window:struct<start:timestamp,end:timestamp>,word:string,rows:bigint>"
    assert frame.schema.simpleString() == types
    rows = frame.selectExpr("unix_seconds(window.start) % 3600 / 60 AS minute", "word", "rows").collect()
    wanted = {(row["window"]["start"][14:16], row["word"]): row["rows"] for row in table("minutes").values()}
    assert {(f"{int(row.minute):02d}", row.word): row["rows"] for row in rows} == wanted


def check_windows(servers, table):
    import datetime as dt

    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    with StateQuery(servers, "flight-counts", store="by-minute", token=TOKEN) as query:
        wait_until(lambda: sum(row["rows"] for row in query.scan().to_pylist()) == 1_000, "1000 rows")
        found = query.windows("w3", start, start + dt.timedelta(minutes=2))
        mine = [row for row in table("minutes").values() if row["word"] == "w3"]
        assert [dict(row) for row in found.rows] == sorted(mine, key=lambda row: row["window"]["start"])[:2]
