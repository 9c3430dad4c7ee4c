"""`headrace top`: who owns what, commits, and why a group is not ready."""

from __future__ import annotations

import json

import pytest
from tests.cli.command_lines import GROUP, Command, Join, Worker, flight_topology
from tests.harness.brokers import CLASSIC_GROUPS_WITHOUT_DELAYS

from headrace.broker.embedded import EmbeddedBroker
from headrace.cli.exporter.cluster_snapshot import Selection, take_snapshot
from headrace.cli.exporter.name_filter import NameFilter
from headrace.cli.upgrade.group_state import read_group_state
from headrace.client.admin import Admin
from headrace.client.membership.topology import InternalTopic, Subtopology, Topology
from headrace.errors import BrokerError


def test_top_shows_who_owns_what(headrace: Command, broker: EmbeddedBroker, worker: Worker) -> None:
    at = ("--once", "--interval", "0.1", "--bootstrap-server", broker.bootstrap_servers)
    outcome = headrace("top", *at)
    assert outcome.code == 0
    assert "6 of 6 tasks owned   lag 40" in outcome.out
    assert "flight-delays-A" in outcome.out
    assert "by-origin 0-1   flights 0-3" in outcome.out
    document = json.loads(headrace("top", GROUP, "--json", *at).out)
    assert (document["tasks"], document["lag"], document["known"]) == (6, 40, 40)
    wrong = headrace("top", "flight-dealys", *at)
    assert wrong.code == 1
    assert 'did you mean "flight-delays"?' in wrong.err


def test_top_sees_what_is_committed(headrace: Command, broker: EmbeddedBroker, worker: Worker) -> None:
    worker.close()
    with Admin(broker.bootstrap_servers) as admin:
        ends = admin.list_offsets({("flights", number): "latest" for number in range(4)})
        admin.alter_offsets(GROUP, {key: end.offset for key, end in ends.items()})
    document = json.loads(headrace("top", "--once", "--json", "--bootstrap-server", broker.bootstrap_servers).out)
    assert (document["lag"], document["done"], document["state"]) == (0, 40, "Empty")


def test_top_explains_a_group_that_is_not_ready(headrace: Command, broker: EmbeddedBroker, join: Join) -> None:
    join(source="flihgts")
    at = ("--once", "--interval", "0.1", "--bootstrap-server", broker.bootstrap_servers)
    with Admin(broker.bootstrap_servers) as admin:
        while not admin.list_groups(states=("NotReady",)):
            pass
    outcome = headrace("top", GROUP, *at)
    assert "NotReady" in outcome.out
    assert 'why    topic "flihgts" does not exist (MISSING_SOURCE_TOPICS)' in outcome.out
    assert 'do     did you mean "flights"?  else:  headrace topics --create --topic flihgts' in outcome.out


def test_top_tells_which_partitions_wait_for_their_state(headrace: Command, broker: EmbeddedBroker) -> None:
    changelog = InternalTopic(name=f"{GROUP}-counts-changelog")
    stateful = Subtopology(subtopology_id="0", source_topics=("flights",), state_changelog_topics=(changelog,))
    worker = Worker(broker, "flight-delays-A", Topology(subtopologies=(stateful,)))
    at = ("--once", "--interval", "0.1", "--bootstrap-server", broker.bootstrap_servers)
    try:
        assert worker.has_tasks.wait(20)
        assert "why" not in headrace("top", GROUP, *at).out
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_partitions({"flights": 6})
        told = headrace("top", GROUP, *at).out
        assert 'topic "flights" has 6 partitions and 4 are read' in told
        assert f"headrace topics --alter --topic {GROUP}-counts-changelog --partitions 6" in told
    finally:
        worker.close()


def test_top_and_streams_groups_describe_a_classic_group(headrace: Command) -> None:
    config = {**CLASSIC_GROUPS_WITHOUT_DELAYS, "group.coordinator.rebalance.protocols": "classic,consumer"}
    with EmbeddedBroker({"flights": 4}, config=config) as classic:
        at = ("--bootstrap-server", classic.bootstrap_servers)
        worker = Worker(classic, "flight-delays-A", flight_topology(), "auto")
        try:
            assert worker.has_tasks.wait(20)
            for named in ((), (GROUP,)):
                shown = headrace("top", *named, "--once", "--interval", "0.1", *at).out
                assert "Stable   classic group   1 member   6 of 6 tasks owned" in shown
                assert "by-origin 0-1   flights 0-3" in shown
            described = ("streams-groups", "--describe", "--group", GROUP)
            members = headrace(*described, "--members", *at).out
            assert "ACTIVE: by-origin:[0,1]; flights:[0,1,2,3];" in members
            cells = headrace(*described, "--members", "--verbose", *at).out.splitlines()[1].split()
            assert cells[:2] == [GROUP, "-"]
            assert "classic" in cells
            rows = headrace(*described, *at).out.splitlines()[1:]
            assert [row.split()[1] for row in rows] == ["by-origin-repartition"] * 2 + ["flights"] * 4
            with Admin(classic.bootstrap_servers) as admin:
                snapshot = take_snapshot(admin, Selection(groups=NameFilter(), topics=NameFilter()))
                with pytest.raises(BrokerError, match=r"the classic group .* has 1 member: flight-delays-A"):
                    read_group_state(admin, GROUP).check_empty()
            group = snapshot.groups[GROUP]
            assert (group.group_type, group.epoch) == ("classic", None)
            assert {role for role, _, _ in group.members[0].assignment} == {"active"}
            wrong = headrace("top", "flight-dealys", "--once", *at)
            assert wrong.code == 1
        finally:
            worker.close()
