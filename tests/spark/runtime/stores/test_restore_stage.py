"""Opening a task's store by what the group said a while ago: others may be further on by now.

Found by chaos: a restore was under way for a task that was lost meanwhile, its store stood where the group had stood,
and was then said to hold all of a changelog to which the next owner had written. Who opened it next replayed nothing.
"""

import pytest
from tests.harness.values import not_none

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.client.producer import Producer
from headrace.errors import StateError
from headrace.spark.runtime import worker_process
from headrace.spark.runtime.batches.plan import InputRange, MicroBatchPlan, SlotPlan, TaskPlan
from headrace.spark.runtime.batches.stage_reports import StageReports
from headrace.spark.runtime.batches.stages import StageContext
from headrace.spark.runtime.operators.stateful_operator import open_store
from headrace.spark.runtime.rows.row_schema import StoredSchema, state_schema, store_of
from headrace.spark.runtime.stores.replicas import Replicas
from headrace.spark.runtime.stores.restore_stage import RestoreStep
from headrace.spark.runtime.stores.store import BatchKey
from headrace.spark.runtime.stores.stored_schemas import publish_schema
from headrace.spark.topology.nodes import Aggregate

pytestmark = [pytest.mark.spark, pytest.mark.slow]
pa = pytest.importorskip("pyarrow")

CHANGELOG = "app-counts-changelog"
COUNTS = Aggregate(
    name="counts",
    group_columns=(),
    buffers=(),
    results=(),
    output_schema_json="",
    changelog_topic=CHANGELOG,
)
START = b"\x02" + state_schema(COUNTS).fingerprint


@pytest.fixture
def servers():
    with EmbeddedBroker({}) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics({CHANGELOG: 1}, configs={CHANGELOG: {"cleanup.policy": "compact"}})
        yield broker.bootstrap_servers
        worker_process.forget_client(broker.bootstrap_servers)


class Opening:
    """Opens task 0 in this process, as the stage in a worker does, or first in the replica process."""

    def __init__(self, servers, directory, *, first_in_replicas):
        self._servers, self._directory = servers, directory
        with NetworkClient(servers) as client:
            self._topic_id = str(client.known_topics([CHANGELOG], refresh=True).topics[CHANGELOG].topic_id)
        self._replicas = None
        if first_in_replicas:
            store = {
                "name": "counts",
                "changelog_topic": CHANGELOG,
                "schema_hash": state_schema(COUNTS).hash,
                "source_topics": ["in"],
                "fingerprint": state_schema(COUNTS).fingerprint.hex(),
            }
            self._replicas = Replicas(
                {
                    "bootstrap_servers": servers,
                    "client_id": "replicas",
                    "state_dir": str(directory),
                    "boot_id": "b",
                    "exactly_once": True,
                    "stores": {"counts": [store]},
                }
            )

    def __call__(self, number, committed, *, topic_id="one"):
        """What the store holds after it was opened by this batch at these input offsets of the topic of this id."""
        inputs = {f"in-0@{topic_id}": committed}
        batch = BatchKey(incarnation="run", batch_id=number)
        restored = False
        if self._replicas is not None:
            restored = 0 in self._replicas.catch_up("counts", {0: inputs}, lambda: False, batch).restored
        ranges = (InputRange(topic="in", partition=0, start=committed, end=committed, topic_id=topic_id),)
        plan = MicroBatchPlan(
            subtopology_id="counts",
            batch=batch,
            member_id="m",
            member_epoch=1,
            bootstrap_servers=self._servers,
            state_dir=str(self._directory),
            slots=(SlotPlan(slot=0, tasks=(TaskPlan(partition=0, ranges=ranges),)),),
            topic_ids={CHANGELOG: self._topic_id},
            boot_id="b",
            exactly_once=True,
        )
        stage_reports = StageReports(plan.state_dir, plan.subtopology_id, plan.batch)
        context = StageContext(plan=plan, slot=plan.slot(0), stage_reports=stage_reports)
        if not restored:
            list(RestoreStep(stores=((store_of(COUNTS), ("in",)),)).tables(context))
        store = open_store(context, store_of(COUNTS), 0)
        stands = not_none(store.position())
        assert (stands.batch, dict(stands.input_offsets), stands.restoring) == (batch, inputs, False)
        return {key: value.removeprefix(START) for key, value in store.values()}

    def close(self):
        if self._replicas is not None:
            self._replicas.close()
        for _, store in worker_process._stores.values():
            store.close()
        worker_process._stores.clear()


@pytest.fixture(params=["in a worker", "in the replica process"])
def opened(request, servers, tmp_path):
    opening = Opening(servers, tmp_path, first_in_replicas=request.param != "in a worker")
    yield opening
    opening.close()


@pytest.fixture
def write(servers):
    def write_rows(start=START, **changes):
        with NetworkClient(servers) as client:
            producer = Producer(client)
            keys = pa.array([key.encode() for key in changes], pa.binary())
            values = pa.array([start + value.encode() for value in changes.values()], pa.binary())
            producer.send(CHANGELOG, 0, keys, values, timestamps_ms=1)
            producer.flush()

    return write_rows


def test_rows_of_another_program_are_refused_by_their_place(servers, opened, write):
    write(a="1", b="1")
    write(c="1", start=b"\x02else")
    with pytest.raises(StateError, match=f"{CHANGELOG}-0@2 was written by another version") as refused:
        opened(1, committed=7)
    assert refused.value.code == "state-schema-changed"
    assert (refused.value.facts["offset"], refused.value.facts["found"]) == (2, b"else".hex())


def test_the_schema_in_a_changelog_is_no_state(servers, opened, write):
    schema = StoredSchema(name="counts", state=state_schema(COUNTS), inputs=None)
    with NetworkClient(servers) as client:
        publish_schema(client, CHANGELOG, schema)
    write(a="1")
    with NetworkClient(servers) as client:
        publish_schema(client, CHANGELOG, schema)
    assert opened(1, committed=7) == {b"a": b"1"}


def test_records_of_the_next_owner_are_restored(servers, opened, write):
    write(a="1", b="1")
    assert opened(1, committed=7) == {b"a": b"1", b"b": b"1"}
    write(a="2")  # another owner's, who has read on to 9
    opened(2, committed=7)  # an opening that asked the group before that, and is late
    assert opened(3, committed=9) == {b"a": b"2", b"b": b"1"}
    assert opened(4, committed=9) == {b"a": b"2", b"b": b"1"}


def test_offsets_of_a_deleted_source_topic_are_no_reason_to_trust_a_store(servers, opened, write):
    """The same offsets in a topic that was created again: the store is behind its changelog, and is replayed."""
    write(a="1", b="1")
    assert opened(1, committed=7, topic_id="deleted") == {b"a": b"1", b"b": b"1"}
    write(a="2")  # another owner's, who began the new topic and got to 7 as well
    assert opened(2, committed=7, topic_id="created") == {b"a": b"2", b"b": b"1"}
    write(a="3")
    assert opened(3, committed=7, topic_id="created") == {b"a": b"2", b"b": b"1"}, "it stands there: trusted"
