"""Windows of event time in an application on our broker: results, lateness, closing, restarts and `verify`."""

from __future__ import annotations

import json
import random
import time
from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as F
from tests.longer import longer

from headrace import DeadLetter

pytestmark = pytest.mark.spark

SCHEMA = "id string, kind string, n bigint, ts timestamp"
SECOND = 1_000_000
BASE = 1_700_000_000 * SECOND
WINDOW, DELAY, GAP = 20, 10, 3


def events(count, seed=1):
    """Rows of one event each 0.2 s, some up to 9 s behind, one in twenty 45 s behind, one in fifty without a time."""
    chance = random.Random(seed)
    found = []
    for n in range(count):
        behind = chance.choice([0, 0, 1, 5, 9]) if chance.random() > 0.05 else 45
        time = None if chance.random() < 0.02 else BASE + (n * SECOND) // 5 - behind * SECOND
        found.append({"id": f"id-{chance.randrange(40)}", "kind": chance.choice("abc"), "n": n, "ts": time})
    return found


def sent(broker, rows, topic="clicks"):
    texts = [json.dumps({**row, "ts": None if row["ts"] is None else iso(row["ts"])}) for row in rows]
    broker.produce(topic, texts, key=lambda value: json.loads(value)["id"])


def iso(microseconds):
    return datetime.fromtimestamp(microseconds / SECOND, UTC).isoformat()


def micros(text):
    return round(datetime.fromisoformat(text).timestamp() * SECOND)


def expected(broker, topic="clicks", group="kind"):
    """(kind, start) → [count, sum of n] of the rows on time, how many were late, and the watermark of each group."""
    partitions: dict[int, list] = {}
    for record in broker.records(topic):
        partitions.setdefault(record.partition, []).append(record)
    groups: dict[tuple[str, int], list[int]] = {}
    partition_of: dict[tuple[str, int], int] = {}
    late, watermarks = 0, {}
    for partition, records in partitions.items():
        newest: int | None = None
        for record in sorted(records, key=lambda record: record.offset):
            row = json.loads(record.value)
            if row["ts"] is None:
                continue
            time = micros(row["ts"])
            start = time - time % (WINDOW * SECOND)
            if newest is not None and start + WINDOW * SECOND <= newest - DELAY * SECOND:
                late += 1
            else:
                values = groups.setdefault((row[group], start), [0, 0])
                values[0] += 1
                values[1] += row["n"]
                partition_of[row[group], start] = partition
            newest = time if newest is None else max(newest, time)
        if newest is not None:
            watermarks[partition] = newest - DELAY * SECOND
    # A group of a record's key is in one partition, and closes by its clock; any other one by the least of them.
    if group == "id":
        return groups, late, {one: watermarks[partition] for one, partition in partition_of.items()}
    return groups, late, dict.fromkeys(groups, min(watermarks.values()))


def counted(app, *, output_mode="update", group="kind", sessions=False):
    table_of(app, group).to_topic("counts", partitions=2, output_mode=output_mode)
    if sessions:
        rows = clicks_of(app)
        stays = rows.groupBy(F.session_window("ts", f"{GAP} seconds"), group)
        stays.agg(F.count("*").alias("rows"), F.sum("n").alias("total")).to_topic(
            "sessions", partitions=2, output_mode=output_mode
        )
    return app


def clicks_of(app):
    """The stream with its watermark. Late records are kept aside where the settings allow it."""
    letters = {} if app.config["headrace.watermark.idle.timeout.ms"] else {"on_late": DeadLetter("late")}
    return app.stream("clicks", schema=SCHEMA, key="id", **letters).withWatermark("ts", f"{DELAY} seconds")


def table_of(app, group, name=None):
    grouped = clicks_of(app).groupBy(F.window("ts", f"{WINDOW} seconds"), group)
    return grouped.agg(F.count("*").alias("rows"), F.sum("n").alias("total"), name=name)


def with_operations_behind(app, directory):
    """Add outputs behind closed windows: a filter, files, a second aggregate."""
    table_of(app, "kind", "filtered").where("rows > 20").to_topic("busy", partitions=1)
    table_of(app, "id", "filed").to_parquet(directory)
    sums = table_of(app, "id", "summed").groupBy("window").agg(F.sum("rows").alias("rows"))
    sums.to_topic("sums", partitions=2)
    views = app.stream("views", schema=SCHEMA).withWatermark("ts", f"{DELAY} seconds")
    both = clicks_of(app).unionByName(views).groupBy(F.window("ts", f"{WINDOW} seconds"), "kind")
    both = both.agg(F.count("*").alias("rows"), F.sum("n").alias("total"), name="both")
    both.to_topic("both", partitions=2, output_mode="append")


def closed_of_union(broker):
    """Rows of both topics by window, of those that have closed: by the least watermark of all partitions of both."""
    found: dict[tuple[str, int], list[int]] = {}
    ends = []
    for topic in ("clicks", "views"):
        groups, _, closed_until = expected(broker, topic)
        ends.append(min(closed_until.values()))
        for one, values in groups.items():
            found[one] = [sum(pair) for pair in zip(found.get(one, [0, 0]), values, strict=True)]
    return {one: values for one, values in found.items() if one[1] + WINDOW * SECOND <= min(ends)}


def expected_sessions(broker, group="kind", topic="clicks"):
    """(key, start, end) → [count, sum of n] of the sessions of rows that are not before their partition's watermark."""
    times: dict[str, list[tuple[int, int]]] = {}
    newest: dict[int, int] = {}
    for record in sorted(broker.records(topic), key=lambda record: (record.partition, record.offset)):
        row = json.loads(record.value)
        if row["ts"] is None:
            continue
        time = micros(row["ts"])
        seen = newest.setdefault(record.partition, time)
        if time >= seen - DELAY * SECOND:
            times.setdefault(row[group], []).append((time, row["n"]))
        newest[record.partition] = max(seen, time)
    found = {}
    for key, rows in times.items():
        pieces: list[list[tuple[int, int]]] = []
        for row in sorted(rows):
            if not pieces or row[0] > pieces[-1][-1][0] + GAP * SECOND:
                pieces.append([])
            pieces[-1].append(row)
        for piece in pieces:
            found[key, piece[0][0], piece[-1][0] + GAP * SECOND] = [len(piece), sum(n for _, n in piece)]
    return found


def session_records(broker, group="kind"):
    """Records in order: (key, start, end) and its values, None for a deletion."""
    found = []
    for record in sorted(broker.records("sessions"), key=lambda record: (record.partition, record.offset)):
        key, value = json.loads(record.key), record.value and json.loads(record.value)
        span = key["session_window"]
        values = None if value is None else [value["rows"], value["total"]]
        found.append(((key[group], micros(span["start"]), micros(span["end"])), values))
    return found


def results(broker, topic="counts", group="kind"):
    """Records in order: (kind, start) and its values."""
    found = []
    for record in sorted(broker.records(topic), key=lambda record: (record.partition, record.offset)):
        value, key = json.loads(record.value), json.loads(record.key)
        assert key["window"] == value["window"]
        assert micros(value["window"]["end"]) - micros(value["window"]["start"]) == WINDOW * SECOND
        found.append(((key[group], micros(key["window"]["start"])), [value["rows"], value["total"]]))
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"config": {"headrace.execution": "resident", "headrace.batch.max.records": 70}},
        pytest.param({"group": "id", "sessions": True}, marks=longer),
    ],
    ids=["exactly-once", "resident", "by-the-record-key"],
)
def test_windows_leave_once_when_they_close_and_late_rows_are_counted(broker, make_app, running, settings, tmp_path):
    broker.create_topics({"clicks": 3})
    rows = events(900)
    settings = {"config": {"headrace.batch.max.records": 70}, **settings}
    group = settings.pop("group", "kind")
    sessions = settings.pop("sessions", False)
    app = counted(make_app("windows", **settings), output_mode="append", group=group, sessions=sessions)
    has_more = group == "kind" and "headrace.execution" not in settings["config"] and not sessions
    if has_more:
        with_operations_behind(app, tmp_path / "files")
        broker.create_topics({"views": 2})
        sent(broker, events(700, seed=3), topic="views")
    sent(broker, rows[:500])
    started = running(app)
    started.wait_until("caught-up", timeout=120)
    sent(broker, rows[500:])
    started.wait_until("caught-up", timeout=120)
    groups, late, closed_until = expected(broker, group=group)
    closed = {one: values for one, values in groups.items() if one[1] + WINDOW * SECOND <= closed_until[one]}
    assert 0 < late < 100
    assert 0 < len(closed) < len(groups)
    found = results(broker, group=group)
    assert dict(found) == closed
    assert len(found) == len(closed)
    if sessions:
        wanted = expected_sessions(broker, group=group)
        left = session_records(broker, group=group)
        assert dict(left).items() <= wanted.items()
        assert len(wanted) > len(left) == len(dict(left)) > 100
    else:
        states = [state for row in started.recentProgress for state in row["stateOperators"]]
        dropped = late * 5 + expected(broker, "views")[1] if has_more else late
        assert sum(state["numRowsDroppedByWatermark"] for state in states) == dropped
        letters = [(record.key, record.value) for record in broker.records("late")]
        assert len(letters) == late * (5 if has_more else 1), "one for each operator"
        assert set(letters) < {(record.key, record.value) for record in broker.records("clicks")}
    started.stop()
    verdict = app.verify()
    assert verdict.status == "equal", verdict
    assert len(verdict.sinks) == (5 if has_more else 2 if sessions else 1)
    assert all(sink.equal == sink.expected > 0 for sink in verdict.sinks)
    assert len(app.compile().subtopologies) == (1 if group == "id" else 8 if has_more else 2)
    if has_more:
        united, wanted = results(broker, "both"), closed_of_union(broker)
        assert dict(united) == wanted
        assert len(united) == len(wanted) > 0
        busy = [json.loads(record.value) for record in broker.records("busy")]
        assert {(row["kind"], micros(row["window"]["start"])): row["rows"] for row in busy} == {
            one: rows for one, [rows, _] in closed.items() if rows > 20
        }


def test_updates_end_at_the_complete_rows_and_lost_stores_are_restored(broker, make_app, running):
    broker.create_topics({"clicks": 3})
    rows = events(900, seed=2)
    settings = {"config": {"headrace.batch.max.records": 70}}
    sent(broker, rows[:500])
    with counted(make_app("windows", **settings), sessions=True).start() as started:
        started.wait_until("caught-up", timeout=120)
    sent(broker, rows[500:])
    app = counted(make_app("windows", instance="another-host", **settings), sessions=True)
    started = running(app)
    started.wait_until("caught-up", timeout=120)
    groups, _, closed_until = expected(broker)
    found = results(broker)
    assert dict(found) == groups
    assert len(found) > len(groups)
    left = session_records(broker)
    assert {span: values for span, values in dict(left).items() if values is not None} == expected_sessions(broker)
    assert any(values is None for _, values in left)
    still_open = [group for group in groups if group[1] + WINDOW * SECOND > closed_until[group]]
    states = [state for row in started.recentProgress for state in row["stateOperators"]]
    kept = states[-1]["numRowsTotal"]  # of windows or of sessions
    in_sessions = [span for span in expected_sessions(broker) if span[2] >= min(closed_until.values())]
    bound = max(len(still_open), len(in_sessions) + 3 * len("abc"))
    assert kept <= bound + 2 * 3 + 3, "closed windows are deleted; three upstream watermarks, three clocks"
    started.stop()
    assert app.verify().status == "equal"
    broker.produce("counts", [found[0] and json.dumps({"window": None, "kind": "a"})], key="{}")
    assert app.verify().status == "differs"


def test_windows_without_a_watermark_are_a_table_that_grows(broker, make_app, running):
    broker.create_topics({"clicks": 3})
    rows = events(300, seed=3)
    sent(broker, rows)
    app = make_app("hops")
    clicks = app.stream("clicks", schema=SCHEMA)
    hops = clicks.groupBy("kind", F.window("ts", "20 seconds", "15 seconds", "5 seconds").alias("hop")).count()
    hops.select("kind", F.col("hop.start").alias("begin"), "count", "hop").to_topic("counts", partitions=2)
    started = running(app)
    started.wait_until("caught-up", timeout=120)
    started.stop()
    assert app.verify().status == "equal"
    wanted: dict[tuple[str, int], int] = {}
    for row in rows:
        if row["ts"] is not None:
            start = row["ts"] - (row["ts"] - 5 * SECOND) % (15 * SECOND)
            for begin in (start, start - 15 * SECOND):
                if begin + 20 * SECOND > row["ts"]:
                    wanted[row["kind"], begin] = wanted.get((row["kind"], begin), 0) + 1
    newest = {record.key: json.loads(record.value) for record in broker.records("counts")}
    assert {(row["kind"], micros(row["begin"])): row["count"] for row in newest.values()} == wanted
    assert all(row["begin"] == row["hop"]["start"] for row in newest.values())


def test_a_silent_partition_is_passed_over_after_the_timeout(broker, make_app, running):
    """Partition 2 has no record: no window closes before the timeout, and verify does not claim equality."""
    broker.create_topics({"clicks": 2})
    settings = {"config": {"headrace.watermark.idle.timeout.ms": 1_000}}
    app = counted(make_app("windows", **settings), output_mode="append")
    started = running(app)

    def send(second):
        row = {"id": "id", "kind": "a", "n": second, "ts": BASE + second * SECOND}
        sent(broker, [row])
        started.wait_until("caught-up", timeout=60)

    for second in (0, 60):
        send(second)
    assert results(broker) == []
    time.sleep(1.1)
    send(120)
    start = BASE - BASE % (WINDOW * SECOND)
    assert sorted(group for group, _ in results(broker)) == [("a", start), ("a", start + 60 * SECOND)]
    started.stop()
    [sink] = app.verify().sinks
    assert "headrace.watermark.idle.timeout.ms" in sink.undecided
