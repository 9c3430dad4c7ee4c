"""The document of a real application, with late rows and dead letters, and what the page of the cluster makes of it."""

from __future__ import annotations

import contextlib
import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F
from tests.cli.ui.served_page import served_page
from tests.harness.http import http_request
from tests.harness.polling import wait_until
from tests.harness.ports import find_free_port

from headrace import DeadLetter
from headrace.cli.ui.instance_client import ApplicationAccess, checked_document
from headrace.spark.queries.application_document import percentile

TOKEN = "the-token-of-this-test"


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=300), st.sampled_from([0.5, 0.99, 1.0]))
def test_a_percentile_is_the_least_value_that_the_share_does_not_exceed(values, share):
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


def read(url, token=TOKEN):
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    connection.request("GET", "/v1/application", headers={"Authorization": f"Bearer {token}"} if token else {})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, json.loads(body)


@pytest.mark.spark
def test_a_running_application_describes_itself(broker, make_app, running, tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    config = {"application.server": "127.0.0.1:0", "headrace.state.query.token.file": str(tmp_path / "token")}
    port = find_free_port()
    app = make_app(config=config | {"headrace.ui.port": port})
    rows = app.stream("flights", schema="word string, at timestamp", on_late=DeadLetter("late"))
    windows = rows.withWatermark("at", "1 minute").groupBy(F.window("at", "1 minute"), "word")
    windows.agg(F.count("*").alias("rows"), name="by-minute").to_topic("minutes", partitions=1)

    def send(*texts):
        broker.produce("flights", list(texts), partition=0)

    def row(minute):
        return json.dumps({"word": "a", "at": f"2026-01-01T00:{minute:02d}:00Z"})

    started = running(app)
    send(row(0), row(30))
    started.wait_until("caught-up", timeout=120)
    send(row(30), row(1), row(40))  # one of them is late, and a dead letter
    started.wait_until("caught-up", timeout=120)
    url = started.state_query_url

    def counted():
        found = [task for part in read(url)[1]["subtopologies"] for task in part["tasks"]]
        return sum(each["late_rows"] for each in found), sum(each["dead_letters"] for each in found)

    wait_until(lambda: counted() == (1, 1), "the document has the last micro-batch")
    status, document = read(url)
    assert status == 200
    assert read(url, token="")[0] == 401
    # 1. The page accepts it as it is.
    assert checked_document(document) == {key: value for key, value in document.items() if key != "format"}
    assert (document["state"], document["application"]) == ("running", "flight-counts")
    assert document["member_id"] == started.member.member_id
    parts = {part["id"]: part for part in document["subtopologies"]}
    reading = next(part for part in parts.values() if part["sources"] == [{"kind": "topic", "topics": ["flights"]}])
    keeping = next(part for part in parts.values() if part["sinks"] == [{"kind": "topic", "name": "minutes"}])
    assert reading["records"] == 5
    assert reading["batch_ms"]["count"] > 0
    assert reading["batch_ms"]["p50"] <= reading["batch_ms"]["p99"] <= reading["batch_ms"]["max"]
    assert "addBatch" in reading["stages_ms"]
    assert {each["kind"] for each in reading["operators"]} == {"watermark"}
    assert {(each["store"], each["kind"]) for each in keeping["operators"]} == {("by-minute", "aggregate")}
    # 2. Tasks are those that run here, with the watermark of the newest row less its delay.
    shown = {(part["id"], task["partition"]): task["state_keys"] for part in parts.values() for task in part["tasks"]}
    assert shown == {(task.subtopology, task.partition): task.state_keys for task in started.tasks}
    marks = [mark for task in reading["tasks"] for mark in task["watermarks_ms"].values()]
    assert max(marks) == 1_767_225_600_000 + 39 * 60_000
    # 3. The page of the cluster finds the instance by its group and shows the same.
    with served_page(broker.bootstrap_servers, applications=ApplicationAccess(token=TOKEN)) as page:
        found: Any = page.collected("/api/application", {"id": "flight-counts"})
        assert [each["problem"] for each in found["instances"]] == [""]
        assert (found["late_rows"], found["dead_letters"]) == (1, 1)
        assert len(found["tasks"]["rows"]) == len(started.tasks)
    # 4. So does the page that the application has brought along, until the application ends.
    assert started.page_url == f"http://127.0.0.1:{port}/application?id=flight-counts"

    def own_page():
        with contextlib.suppress(OSError):
            return http_request(port, "/api/application?id=flight-counts").body.get("dead_letters")

    wait_until(lambda: own_page() == 1, "the page has collected", interval_s=0.2)
    started.stop()
    with pytest.raises(ConnectionRefusedError):
        http_request(port, "/")
