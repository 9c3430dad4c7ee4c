"""What happens to the member while micro-batches run: thrown out, its guardian killed; and what commits allow."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading

import pytest
from kio.schema.types import GroupId
from kio.static.primitive import i32

from headrace.client.admin import Admin
from headrace.client.member_runner import MemberRunner
from headrace.client.membership.events import Assigned
from headrace.client.membership.membership_configuration import MembershipConfiguration
from headrace.client.network_client import NetworkClient
from headrace.protocol import messages as m
from headrace.spark.runtime import repartition_purge

pytestmark = pytest.mark.spark
LEAVE = -1


def throw_out(broker, group_id, member_id):
    """The coordinator is told that the member leaves; the member itself knows nothing of it."""
    request = m.streams_group_heartbeat_request.StreamsGroupHeartbeatRequest(
        group_id=GroupId(group_id),
        member_id=member_id,
        member_epoch=i32(LEAVE),
        endpoint_information_epoch=i32(-1),
        active_tasks=None,
        standby_tasks=None,
        warmup_tasks=None,
        client_tags=None,
        task_offsets=None,
        task_end_offsets=None,
    )
    with NetworkClient(broker.bootstrap_servers) as client:
        client.call_coordinator(group_id, request, lambda reply: (reply.error_code,))


def join_again(broker, group_id, app, member_id):
    """Somebody with the member's own id, process and topology joins: it has the same tasks, at a newer epoch."""
    assigned = threading.Event()
    with NetworkClient(broker.bootstrap_servers) as client:
        runner = MemberRunner(
            client,
            MembershipConfiguration(
                group_id=group_id,
                member_id=member_id,
                process_id=app._runtime.directory.process_id,
                topology=app._runtime.compiled.description(),
            ),
            lambda event, _: assigned.set() if isinstance(event, Assigned) else None,
        )
        runner.start()
        assert assigned.wait(30)
        runner.stop()


@pytest.mark.parametrize("how", ["hears at once", "hears late", "joined again"])
def test_a_batch_of_a_lost_member_is_not_committed(broker, make_app, running, flights, caplog, how):
    """The same tasks come back with a new epoch; what the old epoch's batch left in the stores is undone."""
    hears = how == "hears at once"
    caplog.set_level(logging.WARNING, "headrace.spark")
    app = running(flights.count_slowly(make_app("slow")))
    app.wait_until("running", timeout=60)
    [runner] = app._runtime.runners.values()
    member, guardian = app.member.member_id, app._runtime._link.pid
    flights.send_keyed(broker, range(300))
    app._wait(lambda: runner.batch_since is not None, None, "in a batch")
    try:
        if not hears:
            os.kill(guardian, signal.SIGSTOP)
        throw_out(broker, "slow", member)
        if how == "joined again":
            join_again(broker, "slow", app, member)
        app._wait(lambda: "is not committed" in caplog.text, None, "refused")
        if not hears:  # the commit itself was refused, not left out
            assert "lost its tasks" not in caplog.text
            assert not any(broker.group("slow").offsets.values())
    finally:
        os.kill(guardian, signal.SIGCONT)
    app.wait_until("caught-up", timeout=60)
    assert flights.newest(broker, "by-origin") == flights.counted(range(300))
    flights.send_keyed(broker, range(300, 400))
    app.wait_until("caught-up", timeout=60)
    assert flights.newest(broker, "by-origin") == flights.counted(range(400))


def test_a_killed_guardian_is_replaced(broker, make_app, running, flights):
    app = running(flights.count_slowly(make_app("slow")))
    app.wait_until("running", timeout=60)
    [runner] = app._runtime.runners.values()
    member, guardian = app.member.member_id, app._runtime._link.pid
    flights.send_keyed(broker, range(300))
    app._wait(lambda: runner.batch_since is not None, None, "in a batch")
    os.kill(guardian, signal.SIGKILL)
    app._wait(lambda: app._runtime._link.pid != guardian, None, "joined again")
    app.wait_until("caught-up", timeout=60)
    assert app.member.member_id == member
    assert set(broker.group("slow").members) == {member}
    assert flights.newest(broker, "by-origin") == flights.counted(range(300))


def test_committed_rows_of_repartition_topics_are_deleted(broker, make_app, running, flights, monkeypatch):
    monkeypatch.setattr(repartition_purge, "INTERVAL_S", 0.1)
    flights.send(broker, range(200))
    app = running(flights.count_by_origin(make_app()))
    app.wait_until("caught-up", timeout=60)
    committed = broker.group("flight-counts").offsets
    internal = {where: at for where, at in committed.items() if where[0].endswith("-repartition") and at > 0}
    with Admin(broker.bootstrap_servers) as admin:

        def begins():
            return {where: row.offset for where, row in admin.list_offsets(dict.fromkeys(internal, "earliest")).items()}

        assert sum(internal.values()) > 0  # partial results, of many rows each, and a marker for each transaction
        app._wait(lambda: begins() == internal, None, "purged")
        ends = admin.list_offsets(dict.fromkeys(internal, "latest"))
    assert {where: row.offset for where, row in ends.items()} == internal
    assert len(broker.records("flights")) == 200  # the user's own topics are left alone


def test_a_stop_with_an_instance_id_is_the_first_half_of_a_restart(broker, make_app, running, flights):
    flights.send(broker, range(100))

    def members():
        with Admin(broker.bootstrap_servers) as admin:
            group = admin.describe_streams_groups(["static"])["static"]
        return group.group_epoch, {member.instance_id: member for member in group.members}

    def started():
        app = running(flights.count_by_origin(make_app("static", config={"group.instance.id": "pod-1"})))
        app.wait_until("caught-up", timeout=60)
        return app

    app = started()
    assert app.member.group_instance_id == "pod-1"
    epoch, before = members()
    app.stop()
    app.awaitTermination()
    _, away = members()
    assert away["pod-1"].member_epoch == -2
    assert away["pod-1"].assignment == before["pod-1"].assignment, "the tasks wait"
    flights.send(broker, range(100, 200))
    again = started()
    assert again.member.member_id != app.member.member_id
    assert members()[0] == epoch, "nobody else would have noticed"
    assert flights.newest(broker, "by-origin") == flights.counted(range(200))


STOPPED = """
import json
import sys

from headrace.broker.embedded import EmbeddedBroker
from headrace.errors import HeadraceError
from headrace import StreamsApp
from headrace.spark import session

spark = session("stopped", master="local[2]")
with EmbeddedBroker({"flights": 2, "each": 1}) as broker:
    app = StreamsApp("stopped", spark=spark, bootstrap_servers=broker.bootstrap_servers, state_dir=sys.argv[1])
    app.stream("flights", schema="n bigint").select("n").to_topic("each")
    running = app.start()
    running.wait_until("running", timeout=120)
    spark.sparkContext._jsc.sc().stop()  # as a cluster does it: Python is not told
    try:
        running.awaitTermination(60)
        print(json.dumps("goes on"))
    except HeadraceError as error:
        print(json.dumps([error.code, error.message]))
"""


def test_an_application_ends_when_its_spark_context_is_stopped(tmp_path):
    """An idle one as well: a cluster that ends a Spark application stops the context in the JVM."""
    ran = subprocess.run(
        [sys.executable, "-c", STOPPED, str(tmp_path)], capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stderr
    code, message = json.loads(ran.stdout)
    assert code == "spark-stopped"
    assert "the context of the Spark application local-" in message
