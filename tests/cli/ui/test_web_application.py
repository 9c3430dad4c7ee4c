"""Documents of a real broker over HTTP: groups of all types, hostile names, bad input, outages, the stream."""

from __future__ import annotations

import gzip
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from tests.cli.command_lines import GROUP, Join
from tests.cli.ui.running_applications import document_of, joined_application
from tests.cli.ui.served_page import PageUnderTest, served_page
from tests.client.running_consumers import RunningConsumer
from tests.harness.polling import wait_until

from headrace.broker.embedded import EmbeddedBroker
from headrace.cli.ui import web_application
from headrace.cli.ui.instance_client import ApplicationAccess
from headrace.client.admin import Admin

HOSTILE = ['<img src=x onerror="alert(1)">', "a&b=c#d?e/f%2F", "\u202egroup", "line\nbreak", "'\"`${1}", "x" * 2000]


@pytest.fixture
def page(broker: EmbeddedBroker) -> Iterator[PageUnderTest]:
    with served_page(broker.bootstrap_servers) as served:
        yield served


def rows(document: dict[str, Any], key: str = "group_id") -> dict[str, Any]:
    return {row[key]: row for row in document["rows"]}


def test_groups_of_all_types_have_their_state_members_and_lag(
    page: PageUnderTest, broker: EmbeddedBroker, join: Join
) -> None:
    for number in range(4):
        broker.produce("flights", [b"x"] * 10, partition=number)
    settings: dict[str, object] = {"bootstrap.servers": broker.bootstrap_servers, "enable.auto.commit": False}
    classic = RunningConsumer("flights", group_id="old", config=settings | {"group.protocol": "classic"})
    modern = RunningConsumer("flights", group_id="new", config=settings | {"group.protocol": "consumer"})
    with Admin(broker.bootstrap_servers) as admin:
        admin.alter_offsets("idle", {("flights", number): 4 for number in range(4)})
    with classic, modern:
        member = join()
        assert member.has_tasks.wait(20)
        wait_until(lambda: len(classic.assigned) == len(modern.assigned) == 4, "both have everything")
        found = rows(page.collected("/api/groups"))
        assert {name: (row["type"], row["state"], row["members"]) for name, row in found.items()} == {
            "old": ("classic", "Stable", 1),
            "new": ("consumer", "Stable", 1),
            GROUP: ("streams", "Stable", 1),
            "idle": ("classic", "Empty", 0),
        }
        assert found["idle"]["lag"] == 24
        assert found["idle"]["reason"] == "The group has no members; its committed offsets are kept."
        streams = page.get("/api/group", {"id": GROUP}).body
        assert (streams["epoch"] > 0, streams["pending"], streams["roles"]) == (True, 0, {"active": 6})
        (row,) = streams["members"]["rows"]
        assert (row["client_id"], row["is_behind"]) == ("flight-delays-A", False)
        assert {each["of"]: each["kept"] for each in row["tasks"]} == {"flights": [[0, 3]], "by-origin": [[0, 1]]}
        assert [each["id"] for each in streams["topology"]] == ["by-origin", "flights"]
        consumer = page.get("/api/group", {"id": "new"}).body
        assert consumer["members"]["rows"][0]["tasks"][0]["kept"] == [[0, 3]]
        assert (consumer["epoch"] > 0, consumer["pending"], consumer["assignor"] != "") == (True, 0, True)
        old = page.get("/api/group", {"id": "old"}).body
        assert (old["epoch"], old["pending"], old["members"]["rows"][0]["epoch"]) == (None, None, None)
        assert {row["group_id"] for row in page.get("/api/topic", {"name": "flights"}).body["groups"]} == {*found}
    overview = page.get("/api/overview").body
    assert (overview["groups"], overview["types"], overview["offline"]) == (
        4,
        {"classic": 2, "consumer": 1, "streams": 1},
        0,
    )
    assert overview["brokers"][0]["is_controller"]


def test_a_group_that_is_not_ready_names_why_and_what_to_do(page: PageUnderTest, join: Join) -> None:
    join("lost", source="flihgts")

    def not_ready() -> dict[str, Any] | None:
        found = rows(page.collected("/api/groups")).get(GROUP)
        return found if found is not None and found["state"] == "NotReady" else None

    wait_until(lambda: not_ready() is not None, "the group is there")
    assert 'topic "flihgts" does not exist' in page.get("/api/groups").body["rows"][0]["reason"]
    (obstacle,) = page.get("/api/group", {"id": GROUP}).body["obstacles"]
    assert 'did you mean "flights"?' in obstacle["do"]
    (item,) = page.get("/api/overview").body["attention"]
    assert (item["level"], item["kind"], item["name"]) == ("error", "group", GROUP)


def test_hostile_names_are_data(page: PageUnderTest, broker: EmbeddedBroker) -> None:
    with Admin(broker.bootstrap_servers) as admin:
        for name in HOSTILE:
            admin.alter_offsets(name, {("flights", 0): 0})
    assert {*rows(page.collected("/api/groups"))} == {*HOSTILE}
    for name in HOSTILE:
        answer = page.get("/api/group", {"id": name})
        assert (answer.status, answer.body["group_id"]) == (200, name)
        assert answer.headers["content-type"] == "application/json"
    # The shell is the same for all names: nothing of a query is in it.
    assert page.get("/group", {"id": HOSTILE[0]}).body == page.get("/").body


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/api/group", {}, 404),
        ("/api/group", {"id": "none"}, 404),
        ("/api/topic", {"name": "<b>"}, 404),
        ("/api/groups", {"page": "-1"}, 400),
        ("/api/groups", {"sort": "secret"}, 400),
        ("/api/topics", {"q": "x" * 300}, 400),
        ("/api/nothing", {}, 404),
        ("/../pyproject.toml", {}, 404),
        ("/%2e%2e/server.py", {}, 404),
        ("/index.html", {}, 404),
    ],
)
def test_bad_requests(page: PageUnderTest, path: str, query: dict[str, str], status: int) -> None:
    page.watch.collect()
    answer = page.get(path, query)
    assert answer.status == status
    assert "Traceback" not in str(answer.body)


def test_topics_and_their_partitions(page: PageUnderTest, broker: EmbeddedBroker) -> None:
    broker.produce("flights", [b"x"] * 3, partition=2)
    assert {*rows(page.collected("/api/topics"), "name")} == {"flights"}
    assert "__consumer_offsets" in rows(page.get("/api/topics", {"internal": "1"}).body, "name")
    topic = page.get("/api/topic", {"name": "flights", "partitions.sort": "-records"}).body
    first = topic["partitions"]["rows"][0]
    assert (first["partition"], first["start"], first["end"], first["replicas"]) == (2, 0, 3, [1])
    # Offsets of excluded topics are not read, which is not the same as 0.
    assert page.get("/api/topic", {"name": "__consumer_offsets"}).body["is_selected"] is False


def test_browsers_are_served_from_memory(page: PageUnderTest, broker: EmbeddedBroker) -> None:
    page.watch.collect()
    before = broker.metrics()
    for number in range(20):
        for path in ("/api/overview", "/api/groups", "/api/topics"):
            assert page.get(path, {"q": str(number)}).status == 200
    after = broker.metrics()
    requests = [name for name in before if name.startswith("kafka_network_RequestMetrics_Count")]
    assert requests
    assert [name for name in requests if after[name] != before[name]] == []


def test_documents_are_compressed_and_files_are_revalidated(page: PageUnderTest) -> None:
    page.watch.collect()
    path, query = "/api/topic", {"name": "__consumer_offsets"}
    packed = page.get(path, query, Accept_Encoding="gzip")
    assert packed.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(packed.body)) == page.get(path, query).body
    first = page.get("/app.js")
    assert first.headers["content-type"] == "text/javascript; charset=utf-8"
    assert page.get("/app.js", If_None_Match=first.headers["etag"]).status == 304


def test_the_first_frame_and_an_outage(tmp_path: Path) -> None:
    with (
        EmbeddedBroker({"t": 1}, data_dir=tmp_path) as broker,
        served_page(broker.bootstrap_servers, timeout_ms=500) as page,
    ):
        assert page.get("/api/groups").body["collected_at_ms"] is None
        known = page.collected("/api/topics")
        assert known["is_up"] is True
        broker.__exit__(None, None, None)
        assert page.watch.collect() is not None
        assert page.watch.collect() is not None
        now = page.get("/api/topics").body
    # The last known values, and the message that they are.
    assert (now["is_up"], now["rows"], now["collected_at_ms"]) == (False, known["rows"], known["collected_at_ms"])
    assert "No Kafka broker reachable" in now["error"]


class Stream:
    """The stream of one browser. A context manager."""

    def __init__(self, page: PageUnderTest) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=20)
        self._connection.request("GET", "/api/frames")
        self.response = self._connection.getresponse()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.response.close()
        self._connection.close()

    def version(self) -> int:
        while True:
            line = self.response.readline()
            assert line, "the stream ended"
            if line.startswith(b"data: "):
                return int(json.loads(line[6:])["version"])


def test_streams_announce_every_frame_and_are_limited(page: PageUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_application, "MOST_STREAMS", 2)
    with Stream(page) as first:
        assert first.response.getheader("Content-Type") == "text/event-stream; charset=utf-8"
        version = first.version()
        with Stream(page) as second:
            page.watch.collect()
            while second.version() != version + 1:
                pass
            assert first.version() == version + 1
            assert page.get("/api/frames").status == 503

        # A browser that is gone makes room: its connection is found closed with the next write.
        def has_room() -> bool:
            page.watch.collect()
            with Stream(page) as another:
                return another.response.status == 200

        wait_until(has_room, "there is room for a stream")


def test_internals_come_from_the_instances_of_the_group(broker: EmbeddedBroker) -> None:
    token = "a-token-of-sixteen-characters"
    documents = [document_of(application="delays"), document_of(application="delays", pid=4712)]
    access = ApplicationAccess(token=token)
    with (
        joined_application(broker.bootstrap_servers, "delays", "flights", documents, token=token) as ports,
        served_page(broker.bootstrap_servers, applications=access) as page,
        served_page(broker.bootstrap_servers) as unknowing,
    ):
        found: dict[str, Any] = page.collected("/api/application", {"id": "delays"})
        assert sorted((each["client_id"], each["endpoint"], each["pid"]) for each in found["instances"]) == [
            (f"delays-{number}", f"127.0.0.1:{port}", 4711 + number) for number, port in enumerate(ports)
        ]
        assert (found["silent_members"], found["topics"]["flights"]["partitions"]) == (0, 4)
        assert page.get("/api/group", {"id": "delays"}).body["endpoints"] == 2
        # Without the token there are the instances and no figures, and the token is nowhere.
        refused: dict[str, Any] = unknowing.collected("/api/application", {"id": "delays"})
        assert all("token" in each["problem"] for each in refused["instances"])
        assert refused["subtopologies"] == []
        assert token not in json.dumps(found) + json.dumps(refused)
        assert page.get("/api/application", {"id": "other"}).status == 404
        assert page.get("/api/application", {"id": "delays", "tasks.sort": "x"}).status == 400
        assert page.get("/api/application", {"id": "delays"}, Sec_Fetch_Site="cross-site").status == 403
