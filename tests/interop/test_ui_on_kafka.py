"""`headrace ui` beside Apache Kafka and our broker: groups of the three types, a group that is not ready, records."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cli.ui.served_page import served_page
from tests.client.running_consumers import RunningConsumer
from tests.client.transaction_ends import write
from tests.harness.polling import wait_until
from tests.interop.both_tools import Cluster, fill
from tests.interop.group_members import Worker, members, topology

from headrace.client.sender import TransactionalIdentity
from headrace.client.transactions import Transactions

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def test_groups_of_the_three_types_topics_records_and_transactions(cluster: Cluster) -> None:
    topic = "page-input"
    fill(cluster, topic)
    common: dict[str, object] = {"bootstrap.servers": cluster.servers}
    classic = {"group.protocol": "classic", "session.timeout.ms": 10_000, "heartbeat.interval.ms": 300}
    wanted = {"page-streams": "streams", "page-new": "consumer", "page-old": "classic"}
    with (
        served_page(cluster.servers) as page,
        RunningConsumer(topic, group_id="page-old", config=common | classic),
        RunningConsumer(topic, group_id="page-new", config=common | {"group.protocol": "consumer"}),
        members(cluster.admin, "page-streams", topic, 2),
    ):

        def group(name: str) -> dict[str, Any]:
            found: dict[str, Any] = page.get("/api/group", {"id": name}).body
            return found

        def is_settled() -> bool:
            page.watch.collect()
            found = {name: group(name) for name in wanted}
            return all(
                (each.get("type"), each.get("state")) == (wanted[name], "Stable") for name, each in found.items()
            ) and all(found[name]["lag"] == 0 for name in ("page-old", "page-new"))

        wait_until(is_settled, "all groups are stable and everything is committed")
        # 1. Members of every type, with what they have. DescribeGroups would show none for two of the three.
        for name, kind, role, count in (
            ("page-old", "classic", "partition", 3),
            ("page-new", "consumer", "partition", 3),
            ("page-streams", "streams", "active", 6),
        ):
            found = group(name)
            assert (found["type"], found["roles"]) == (kind, {role: count})
            assert len(found["members"]["rows"]) == (2 if kind == "streams" else 1)
            assert (found["epoch"] is None) == (kind == "classic")
            assert found["pending"] == (None if kind == "classic" else 0)
        streams = group("page-streams")
        assert [each["id"] for each in streams["topology"]] == ["0", "1"]
        assert {each["name"] for each in streams["topology"][1]["changelogs"]} == {
            "page-streams-counts-changelog",
            "foreign-page-streams",
        }
        # 2. The topic with its leaders, and the groups that read it.
        described = page.get("/api/topic", {"name": topic}).body
        assert [(each["end"], each["leader"] >= 0) for each in described["partitions"]["rows"]] == [
            (10, True),
            (5, True),
            (0, True),
        ]
        assert {each["group_id"] for each in described["groups"]} == {*wanted}
        records = page.get("/api/records", {"topic": topic, "count": "3"}).body["records"]
        assert [(each["offset"], each["value"]["text"]) for each in records] == [(9, "v"), (8, "v"), (7, "v")]
        # 3. A group that waits for a topic says for which one.
        lost = Worker(cluster.servers, topology("page-lost", "page-inptu"), "page-lost")
        try:

            def reason() -> str:
                page.watch.collect()
                found = page.get("/api/group", {"id": "page-lost"}).body
                return str(found.get("reason", "")) if found.get("state", "").lower().startswith("not") else ""

            wait_until(lambda: "page-inptu" in reason(), "the reason is known")
            assert "page-lost" in {item["name"] for item in page.get("/api/overview").body["attention"]}
        finally:
            lost.close()
        # 4. An open transaction holds back readers.
        transactions = Transactions(cluster.admin.client, transaction_timeout_ms=60_000)
        (identity,) = transactions.initialise(["page-txn"]).values()
        assert isinstance(identity, TransactionalIdentity)
        write(cluster.admin.client, transactions, identity, {(topic, 2): ["open"]})
        page.watch.collect()
        open_now = page.get("/api/transactions").body
        assert [each["transactional_id"] for each in open_now["transactions"]] == ["page-txn"]
        (held,) = [each for each in open_now["held"] if each["topic"] == topic]
        assert (held["partition"], held["state"], held["hangs"]) == (2, "Ongoing", False)
        transactions.end([identity], commit=False)
