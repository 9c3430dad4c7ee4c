"""Operations behind windows that close: what follows on their rows, against plain references, and what is refused."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F
from tests.longer import longer

from headrace.errors import TopologyError
from headrace.spark.streams_app import StreamsApp
from headrace.spark.topology.nodes import RelayedWatermark, RepartitionSink, WindowedAggregate, WindowedTopN
from headrace.spark.topology_test import TopologyTest

pytestmark = pytest.mark.spark

SECOND = 1_000_000
SCHEMA = "id string, ts timestamp, n bigint"
SIZE, SLIDE, DELAY, PARTITIONS = 20, 10, 6, 2
BASE = 1_700_000_000


def counted(app: StreamsApp, name: str) -> Any:
    clicks = app.stream("clicks", schema=SCHEMA).withWatermark("ts", f"{DELAY} seconds")
    grouped = clicks.groupBy(F.window("ts", f"{SIZE} seconds", f"{SLIDE} seconds"), "id")
    return grouped.agg(F.count("*").alias("num"), F.sum("n").alias("total"), name=name)


def random_clicks(seed: int, count: int) -> list[tuple[int, str, int, int]]:
    """(partition, id, second, n): mostly in order, some late, all partitions ending far later."""
    chance = random.Random(seed)
    clicks = []
    for n in range(count):
        second = n // 3 - chance.choice([0, 0, 0, 1, 4, 9, 40])
        clicks.append((chance.randrange(PARTITIONS), chance.choice("abcde"), second, n))
    return clicks + [(partition, "z", count, 0) for partition in range(PARTITIONS)]


def closed_groups(clicks: list[tuple[int, str, int, int]]) -> dict[tuple[int, str], list[int]]:
    """(start, id) → [rows, sum of n] of the rows on time in windows that every partition has closed."""
    newest: dict[int, int] = {}
    groups: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
    for partition, key, second, n in clicks:
        last = second + BASE - (second + BASE) % SLIDE
        for start in (last, last - SLIDE):
            if partition not in newest or start + SIZE > newest[partition] + BASE - DELAY:
                groups[start, key][0] += 1
                groups[start, key][1] += n
        newest[partition] = max(newest.get(partition, second), second)
    until = min(newest.values()) + BASE - DELAY
    return {group: values for group, values in groups.items() if group[0] + SIZE <= until}


def as_row(click: tuple[int, str, int, int]) -> dict[str, Any]:
    return {"id": click[1], "ts": datetime.fromtimestamp(BASE + click[2], UTC), "n": click[3]}


def seconds(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp())


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=longer) for seed in range(2, 6))])
def test_rows_of_closed_windows_go_on_as_a_stream(make_offline_app: Any, seed: int) -> None:
    chance = random.Random(seed)
    app = make_offline_app("closed", config={"headrace.batch.max.records": 40})
    busy = counted(app, "first").withColumn("more", F.col("num") + 1).where("num > 1")
    busy.to_topic("busy", output_mode="append")
    begins = counted(app, "second").select(F.col("window.start").alias("begin"), "id", "num")
    begins.select("id", F.explode(F.sequence(F.lit(1), "num")).alias("part")).to_topic("parts", key="id")
    totals = counted(app, "third").groupBy("id").agg(F.max("num").alias("most"), F.count("*").alias("windows"))
    totals.to_topic("totals")
    both = counted(app, "fourth").unionByName(counted(app, "fifth"))
    both.where("id <> 'a'").to_topic("both")
    clicks = random_clicks(seed, 240)
    with TopologyTest(app, partitions={"clicks": PARTITIONS}, now_ms=(BASE + 10_000) * 1000) as test:
        waiting = list(clicks)
        while waiting:
            size = chance.randrange(1, 90)
            for click in waiting[:size]:
                test.push("clicks", [as_row(click)], partition=click[0])
            del waiting[:size]
            test.run()
            if chance.random() < 0.3:
                test.restart()
        groups = closed_groups(clicks)
        assert len(groups) > 30
        found = Counter((seconds(r["window"]["start"]), r["id"], r["num"], r["total"]) for r in test.read("busy"))
        assert found == Counter((*group, *values) for group, values in groups.items() if values[0] > 1)
        keys = [json.loads(record.key or b"") for record in test.records("busy")]
        values = [json.loads(record.value or b"") for record in test.records("busy")]
        assert keys == [{"window": value["window"], "id": value["id"]} for value in values]
        parts = Counter((row["id"], row["part"]) for row in test.read("parts"))
        assert parts == Counter((key, part) for (_, key), (num, _) in groups.items() for part in range(1, num + 1))
        most: dict[str, list[int]] = defaultdict(list)
        for (_, key), (num, _) in groups.items():
            most[key].append(num)
        assert {key: (row["most"], row["windows"]) for key, row in test.table("totals").items()} == {
            key: (max(nums), len(nums)) for key, nums in most.items()
        }
        assert len(test.read("both")) == 2 * sum(key != "a" for _, key in groups)


def test_closed_windows_are_compiled_behind_a_repartition_topic(make_offline_app: Any) -> None:
    app = make_offline_app("closed")
    keyed = app.stream("clicks", schema=SCHEMA, key="id").withWatermark("ts", "6 seconds")
    counts = keyed.groupBy(F.window("ts", "20 seconds"), "id").count()
    counts.where("count > 1").groupBy("count").agg(F.max("id").alias("last")).to_topic("out")
    compiled = app.compile()
    assert [part.subtopology_id for part in compiled.subtopologies] == ["by-count", "by-window-id", "clicks"]
    [branch] = compiled.subtopology("by-window-id").branches
    assert branch.closed is not None
    assert branch.closed.output_mode == "append"
    assert isinstance(branch.sink, RepartitionSink)
    assert branch.changelog_topics == ("closed-by-window-id-changelog",)
    assert "then     where" in app.describe()


def ranked_counts(app: StreamsApp, name: str) -> Any:
    """The ids with the most clicks of each window, ties kept."""
    most = Window.partitionBy("window").orderBy(F.desc("num"))
    return counted(app, name).withColumn("rank", F.rank().over(most)).where("rank = 1", name=f"{name}-top")


def ranked_clicks(app: StreamsApp, name: str) -> Any:
    """The two greatest numbers of each window."""
    clicks = app.stream("clicks", schema=SCHEMA).withWatermark("ts", f"{DELAY} seconds")
    windowed = clicks.withColumn("w", F.window("ts", f"{SLIDE} seconds")).withColumnRenamed("w", "span")
    order = Window.partitionBy("span").orderBy(F.desc(F.col("n") % 7))
    return windowed.withColumn("place", F.dense_rank().over(order)).where("place <= 2", name=name)


def test_ranks_over_windows_leave_once_when_the_window_closes(make_offline_app: Any) -> None:
    chance = random.Random(3)
    app = make_offline_app("ranked", config={"headrace.batch.max.records": 40})
    ranked_counts(app, "counts").select("window", "id", "num").to_topic("hot", output_mode="append")
    ranked_clicks(app, "high").drop("ts").to_topic("high", output_mode="append")
    hottest = counted(app, "again").groupBy("window").agg(F.max("num").alias("most"), F.count("*").alias("ids"))
    hottest.where("most > 1").to_topic("hottest")
    ranked_clicks(app, "changing").select("span", "n", "place").to_topic("changing")
    clicks = random_clicks(3, 240)
    with TopologyTest(app, partitions={"clicks": PARTITIONS}, now_ms=(BASE + 10_000) * 1000) as test:
        waiting = list(clicks)
        while waiting:
            size = chance.randrange(1, 90)
            for click in waiting[:size]:
                test.push("clicks", [as_row(click)], partition=click[0])
            del waiting[:size]
            test.run()
            if chance.random() < 0.3:
                test.restart()
        groups = closed_groups(clicks)
        most = {start: max(num for (other, _), (num, _) in groups.items() if other == start) for start, _ in groups}
        hot = Counter((seconds(row["window"]["start"]), row["id"], row["num"]) for row in test.read("hot"))
        assert hot == Counter((start, key, num) for (start, key), (num, _) in groups.items() if num == most[start])
        keys = [json.loads(record.key or b"") for record in test.records("hot")]
        assert {tuple(key) for key in keys} == {("window", "row_number")}
        assert len({json.dumps(key) for key in keys}) == len(keys)
        hottest_rows = test.read("hottest")
        assert {seconds(row["window"]["start"]): row["most"] for row in hottest_rows} == {
            start: num for start, num in most.items() if num > 1
        }
        assert all(
            row["ids"] == sum(other == seconds(row["window"]["start"]) for other, _ in groups) for row in hottest_rows
        )
        assert len(hottest_rows) == len({seconds(row["window"]["start"]) for row in hottest_rows})
        high = Counter((seconds(row["span"]["start"]), row["id"], row["n"]) for row in test.read("high"))
        assert high == Counter(first_two(clicks))
        last = {row["n"] for row in test.table("changing").values()}
        assert last >= {n for _, _, n in first_two(clicks)}
        rows = sum(row["numRowsTotal"] for row in test.progress[-1]["stateOperators"]) if test.progress else 0
        assert rows < 60, "closed windows are deleted"


def first_two(clicks: list[tuple[int, str, int, int]]) -> list[tuple[int, str, int]]:
    """(start, id, n) of the rows on time in closed windows whose number modulo 7 is one of the two greatest."""
    newest: dict[int, int] = {}
    windows: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for partition, key, second, n in clicks:
        start = second + BASE - (second + BASE) % SLIDE
        if partition not in newest or start + SLIDE > newest[partition] + BASE - DELAY:
            windows[start].append((key, n))
        newest[partition] = max(newest.get(partition, second), second)
    until = min(newest.values()) + BASE - DELAY
    found = []
    for start, rows in windows.items():
        if start + SLIDE <= until:
            best = sorted({n % 7 for _, n in rows})[-2:]
            found += [(start, key, n) for key, n in rows if n % 7 in best]
    return found


def test_ranks_over_windows_are_compiled_with_the_clock_they_close_by(make_offline_app: Any) -> None:
    app = make_offline_app("ranked")
    ranked_counts(app, "counts").to_topic("hot", output_mode="append")
    ranked_clicks(app, "high").to_topic("high")
    compiled = app.compile()
    [top] = compiled.subtopology("counts-top").operators
    assert isinstance(top, WindowedTopN)
    assert (top.output_mode, top.watermark_sources, top.window.slide_us) == ("append", ("counts",), SLIDE * SECOND)
    assert top.deletes is False
    counted(app, "third").select(F.col("window").alias("w"), "num").groupBy("w").count().to_topic(
        "sums", output_mode="append"
    )
    [sums] = app.compile().subtopology("by-w").operators
    assert isinstance(sums, WindowedAggregate)
    assert (sums.output_mode, sums.watermark_sources) == ("append", ("third",))
    [branch] = compiled.subtopology("counts").branches
    assert isinstance(branch.sink, RepartitionSink)
    assert branch.sink.watermark == RelayedWatermark(name="counts")
    assert branch.sink.source_topics == ("ranked-counts-repartition",)
    [high] = compiled.subtopology("high").operators
    assert isinstance(high, WindowedTopN)
    assert high.deletes
    [branch] = [
        branch for branch in compiled.subtopology("clicks").branches if branch.watermark.name == "high-watermark"
    ]
    assert branch.watermark.window == replace(high.window, group="g0")
    text = app.describe()
    assert (
        "rank() <= 1 by window in the order num DESC NULLS LAST; windows of 0:00:20 each 0:00:10, which close" in text
    )
    keyed = app.stream("keyed", schema=SCHEMA, key="id").withWatermark("ts", "1 minute")
    per_key = Window.partitionBy("w", "id").orderBy("n")
    rows = keyed.withColumn("w", F.window("ts", "1 hour")).withColumn("rn", F.row_number().over(per_key))
    rows.where("rn = 1", name="own").to_topic("own", output_mode="append")
    [branch] = app.compile().subtopology("keyed").branches
    assert branch.operator is not None
    assert branch.operator.watermark_store == "own-watermark"


REFUSED = {
    "to_parquet without a watermark": (
        lambda s: s.groupBy(F.window("ts", "1 hour")).count().to_parquet("/tmp/none"),
        "files only grow",
    ),
    "a second watermark": (lambda s: closed(s).withWatermark("ts", "1 hour"), "behind closed windows"),
    "duplicates": (lambda s: closed(s).dropDuplicates(["id"]), "behind closed windows"),
    "a rank without a window behind a watermark": (
        lambda s: ranked(s.withWatermark("ts", "1 minute"), "id"),
        "needs a window in partitionBy",
    ),
    "a rank over a window of another time": (
        lambda s: ranked(
            s.withColumn("u", F.expr("ts + interval 1 hour")).withWatermark("ts", "1 minute"), "window", time="u"
        ),
        "the watermark over ts",
    ),
    "a rank over a window without a watermark": (lambda s: ranked(s, "window"), "no key"),
    "append without a watermark": (
        lambda s: ranked(s, "id").to_topic("x", output_mode="append"),
        "needs rows that are final",
    ),
    "a column in the place of the window": (
        lambda s: ranked(s.withWatermark("ts", "1 minute"), "window", shifted=True),
        "no key",
    ),
    "a second way out": (lambda s: (t := table(s)).where("count > 1").unionByName(t.where("count > 2")), "twice"),
}


def table(clicks: Any) -> Any:
    return clicks.withWatermark("ts", "1 minute").groupBy(F.window("ts", "1 hour"), "id").count()


def ranked(clicks: Any, by: str, *, time: str = "ts", shifted: bool = False) -> Any:
    rows = clicks.withColumn("window", F.window(time, "1 hour")) if by == "window" else clicks
    if shifted:
        late = F.expr("window.end + interval 1 hour")
        rows = rows.withColumn("window", F.struct(F.col("window.start").alias("start"), late.alias("end")))
    rank = F.rank().over(Window.partitionBy(by).orderBy("n"))
    return rows.withColumn("rank", rank).where("rank = 1")


def closed(clicks: Any) -> Any:
    return table(clicks).where("count > 1")


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_use_of_closed_windows_is_refused_at_its_line(make_offline_app: Any, name: str) -> None:
    call, words = REFUSED[name]
    clicks = make_offline_app("closed").stream("clicks", schema=SCHEMA)
    with pytest.raises(TopologyError, match=words) as caught:
        call(clicks).to_topic("out")
    assert "test_closed_windows.py" in caught.value.facts["where"]
