"""Start positions of a task: which offsets it begins at, by `auto_offset_reset`, and that the next owner keeps them.

A task reads source topics (`flights`) and internal topics of the application (the repartition topic). Only source
topics follow `auto_offset_reset`: internal topics are always read from the beginning.
"""

import queue
import threading
from dataclasses import replace
from typing import Any

import pytest
from tests.client.streams_members import take_changes
from tests.harness.values import instance_of

from headrace.client.admin import Admin
from headrace.client.fetcher import Fetcher
from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.client.membership.topology import Subtopology, Topology
from headrace.client.network_client import NetworkClient
from headrace.client.sender import Sender, TransactionalIdentity
from headrace.client.streams_member import StreamsMember
from headrace.client.transactions import Transactions
from headrace.errors import BrokerError
from headrace.protocol.record_batches import PlainRecord, encode_batch
from headrace.spark.machine.batch_outcome import is_retriable
from headrace.spark.machine.commands import Open
from headrace.spark.runtime.stores.stored_schemas import StoredSchemas
from headrace.spark.runtime.task_opener import TaskOpener
from headrace.spark.topology.nodes import CompiledSubtopology, CompiledTopology, RepartitionSource, TopicSource

INTERNAL = "counts-by-origin-repartition"
SOURCES: dict[str, TopicSource | RepartitionSource] = {
    "flights": TopicSource(name="flights", topics=("flights",), value_format="raw", schema_json="{}"),
    INTERNAL: RepartitionSource(topic=INTERNAL, columns=()),
}
WITHOUT_GROUP = AssignmentSnapshot(member_id="", member_epoch=-1)


@pytest.fixture
def topics(broker):
    """Three records in partition 0 of a source topic and of an internal topic. Returns the broker."""
    with Admin(broker.bootstrap_servers) as admin:
        admin.create_topics({INTERNAL: 1}, replication_factor=1)
    for topic in ("flights", INTERNAL):
        broker.produce(topic, [b"{}"] * 3, partition=0)
    return broker


class Host:
    """The runner's side: puts tasks or errors into a queue; a retriable failure is repeated, once `failed` has run."""

    def __init__(self, failed, assignments=()):
        self._assignments = iter(assignments)
        self.outcomes: queue.Queue[Any] = queue.Queue()
        self._failed = failed
        self.opener: TaskOpener
        self.request = Open(number=0, assignment=WITHOUT_GROUP, slots={0: 0})

    def is_opening(self, _request):
        return True

    def newest_assignment(self, request):
        return next(self._assignments, request.assignment)

    def take_opened(self, _request, tasks):
        self.outcomes.put(tasks[0].positions)

    def take_open_failure(self, failure):
        if not is_retriable(failure.error):
            self.outcomes.put(failure.error)
            return
        self._failed(failure.error)
        self.opener.open(self.request)


@pytest.fixture
def opened(topics):
    """`opened(reset)` opens task 0 of the group "counts" and returns its positions by topic, or raises the error."""

    def open_once(reset, wanted_topics=("flights", INTERNAL), restorer=None, failed=None, assignments=()):
        subtopology = CompiledSubtopology(
            subtopology_id="by-origin", sources=tuple(SOURCES[topic] for topic in wanted_topics), branches=()
        )
        with Admin(topics.bootstrap_servers) as admin:
            host = Host(failed, assignments)
            host.opener = TaskOpener(
                subtopology,
                group_id="counts",
                auto_offset_reset=reset,
                client=admin.client,
                host=host,
                schemas=StoredSchemas("counts", CompiledTopology(app_name="counts", subtopologies=(subtopology,))),
                restorer=restorer,
                tables=None,
                make_thread=threading.Thread,
            )
            host.opener.open(host.request)
            found = host.outcomes.get(timeout=30)
            host.opener.close()
            if isinstance(found, Exception):
                raise found
            return {topic: offset for (topic, _), offset in found.items()}

    return open_once


@pytest.mark.parametrize(
    ("reset", "begins"),
    [("earliest", {"flights": 0, INTERNAL: 0}), ("latest", {"flights": 3, INTERNAL: 0})],
)
def test_reset_policy_applies_to_source_topics_only(opened, reset, begins):
    """Another subtopology may write to an internal topic before this task opens: no other reader gets these rows."""
    assert opened(reset) == begins


def test_missing_offset_without_reset_policy_fails_for_source_topics_only(opened):
    with pytest.raises(BrokerError, match="no committed offset for flights-0"):
        opened("none")
    assert opened("none", wanted_topics=(INTERNAL,)) == {INTERNAL: 0}


def test_latest_is_fixed_by_the_first_owner_and_kept_by_the_next(topics, opened):
    """The first owner may leave before its first micro-batch. The next owner reads what arrives meanwhile."""
    assert opened("latest")["flights"] == 3
    topics.produce("flights", [b"{}"] * 4, partition=0)
    assert opened("latest")["flights"] == 3


def test_start_offsets_are_committed_with_the_generation_that_follows(topics, opened):
    """A classic group began a generation between the assignment and the commit of its start offsets."""
    topology = Topology(subtopologies=(Subtopology(subtopology_id="by-origin", source_topics=("flights",)),))
    with StreamsMember(
        "counts", topology, bootstrap_servers=topics.bootstrap_servers, group_protocol="classic"
    ) as member:
        take_changes(member, 4)
        newest = member.assignment
        outdated = replace(newest, member_epoch=newest.member_epoch - 1)
        assert opened("latest", assignments=[outdated, outdated, newest])["flights"] == 3
    assert topics.group("counts").offsets["flights", 0] == 3


@pytest.mark.spark
@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_latest_counts_records_between_two_runs(broker, make_app, flights, guarantee):
    """The first run starts at the end, processes nothing and is caught up; the second run starts where it ended."""
    flights.send(broker, range(20))
    settings = {"auto_offset_reset": "latest", "processing_guarantee": guarantee}
    flights.count_by_origin(make_app(**settings)).run(until="caught-up")
    flights.send(broker, range(100, 130))
    flights.count_by_origin(make_app(instance="b", **settings)).run(until="caught-up")
    counted = flights.newest(broker, "by-origin")
    assert {origin: row["flights"] for origin, row in counted.items()} == {"EWR": 10, "JFK": 10, "LGA": 10}


def test_restore_waits_for_an_open_changelog_transaction(topics, opened):
    """The end of the changelog is looked up with READ_UNCOMMITTED; its records are readable after the transaction."""
    with NetworkClient(topics.bootstrap_servers) as client:
        transactions = Transactions(client)
        identity = instance_of(TransactionalIdentity, transactions.initialise(["counts-a-0"])["counts-a-0"])
        queue_ = Sender(client, identity=identity)
        queue_.add(INTERNAL, 0, encode_batch([PlainRecord(value=b"open")]))
        queue_.flush()
        retried, read = [], []

        class Restorer:
            def restore(self, _request, _tasks):
                with NetworkClient(topics.bootstrap_servers) as own:
                    for found in Fetcher(own).fetch_ranges({(INTERNAL, 0): (0, 4)}, timeout_ms=100):
                        read.extend(found.table.column("value").to_pylist())

        def failed(error):
            retried.append(error)
            if len(retried) == 2:
                transactions.end([identity], commit=True)

        assert opened("earliest", restorer=Restorer(), failed=failed)[INTERNAL] == 0
    assert [error.code for error in retried] == ["range-unreachable"] * 2
    assert "a transaction of counts-a-0 is open" in str(retried[0])
    assert read[-1] == b"open"
