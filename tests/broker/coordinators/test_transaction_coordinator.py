"""The transaction coordinator in a broker: its topic, restarts in every state, the disk, the timeout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.harness.polling import wait_until
from tests.harness.wire import WireClient
from tests.interop.transaction_script import Producer, TransactionScript

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.services import Services
from headrace.coordinator.transactions.transitions import ProducerIdentity, TransactionState
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey as Api
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.record_batches import control_type, iter_batch_headers

POLICIES = ("never", "always")


def script_of(broker: EmbeddedBroker) -> TransactionScript:
    return TransactionScript(int(broker.bootstrap_servers.rpartition(":")[2]))


def on(broker: EmbeddedBroker, function: Callable[[Services], object]) -> object:
    return broker._call(function)  # what stands in the broker, looked at on its own thread


def markers(broker: EmbeddedBroker, topic: str, partition: int) -> list[tuple[str, int, int]]:
    """(what, producer id, epoch) of each control batch."""

    def read(services: Services) -> list[tuple[str, int, int]]:
        description = services.metadata.topic(topic)
        assert description is not None
        view = services.logs.view(description, partition)
        data = view.read(0, 1 << 20) if view.high_watermark else b""
        return [
            (str(control_type(data, header)), header.producer_id, header.producer_epoch)
            for header in iter_batch_headers(data)
            if header.is_control
        ]

    found = on(broker, read)
    assert isinstance(found, list)
    return found


def test_the_topic_comes_with_the_first_question_and_has_kafkas_settings() -> None:
    with EmbeddedBroker(config={"transaction.state.log.num.partitions": 7}) as broker:
        client = WireClient(int(broker.bootstrap_servers.rpartition(":")[2]))
        names = lambda: on(broker, lambda services: [topic.name for topic in services.metadata.topics()])  # noqa: E731
        assert "__transaction_state" not in names()  # type: ignore[operator]
        f = m.find_coordinator_request
        answer = client.call(Api.FIND_COORDINATOR, f.FindCoordinatorRequest(key_type=1, coordinator_keys=("x", "y")))  # type: ignore[arg-type]
        assert [each.error_code for each in answer.coordinators] == [ErrorCode.none] * 2
        topic = on(broker, lambda services: services.metadata.topic("__transaction_state"))
        assert topic is not None
        assert topic.partitions == 7  # type: ignore[attr-defined]
        assert topic.configs["cleanup.policy"] == "compact"  # type: ignore[attr-defined]
        client.close()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_broker_that_was_killed_knows_every_state_again(tmp_path: Path, policy: str) -> None:
    config = {"headrace.flush.policy": policy}
    with EmbeddedBroker(data_dir=tmp_path, config=config) as broker:
        s = script_of(broker)
        s.init("empty")
        p = s.init("open")
        s.add("open", p, 0, 1)
        q = s.init("committed")
        s.add("committed", q, 1)
        s.end("committed", q, commit=True)
        r = s.init("aborted")
        s.add("aborted", r, 2)
        s.end("aborted", r, commit=False, version=4)
        tids = ["empty", "open", "committed", "aborted", "never"]
        before = s.described(*tids)
        assert [state[1] for state in before] == ["Empty", "Ongoing", "CompleteCommit", "CompleteAbort", ""]
        written = markers(broker, s.topic, 1)
        assert written == [("commit", q.id, q.epoch + 1)]
        s.close()
        broker.kill()
    with EmbeddedBroker(data_dir=tmp_path, config=config) as broker:
        s.client = WireClient(int(broker.bootstrap_servers.rpartition(":")[2]))
        assert s.described(*tids) == before
        assert markers(broker, s.topic, 1) == written
        again = s.end("open", p, commit=True)
        assert (again.id, again.epoch) == (p.id, p.epoch + 1)
        wait_until(lambda: s.described("open")[0][1] == "CompleteCommit")
        assert markers(broker, s.topic, 0) == [("commit", p.id, p.epoch + 1)]
        fresh = s.init("new")
        assert fresh.id not in {p.id, q.id, r.id}  # ids are never given twice
        s.close()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_decided_transaction_gets_its_markers_at_the_next_start(tmp_path: Path, policy: str) -> None:
    """The decision is in the log, and the process dies before the first marker."""
    config = {"headrace.flush.policy": policy}
    with EmbeddedBroker(data_dir=tmp_path, config=config) as broker:
        s = script_of(broker)
        p = s.init("decided")
        s.add("decided", p, 0, 2)

        def decide_and_die(services: Services) -> None:
            runtime = services.transactions
            runtime.stop()  # from here on no marker is written
            name = s.name("decided")
            producer = ProducerIdentity(producer_id=p.id, producer_epoch=p.epoch)
            answer = runtime.end_transaction(name, producer, committed=True, client_version=2)
            assert answer.code is ErrorCode.none
            value = runtime.transaction(name)
            assert value is not None
            assert value.transaction_status == TransactionState.PREPARE_COMMIT

        on(broker, decide_and_die)
        assert markers(broker, s.topic, 0) == []
        s.close()
        broker.kill()
    with EmbeddedBroker(data_dir=tmp_path, config=config) as broker:
        s.client = WireClient(int(broker.bootstrap_servers.rpartition(":")[2]))
        wait_until(lambda: s.described("decided")[0][1] == "CompleteCommit")
        for partition in (0, 2):
            assert markers(broker, s.topic, partition) == [("commit", p.id, p.epoch + 1)]
        assert markers(broker, s.topic, 1) == []
        s.close()


def test_a_topic_that_is_gone_does_not_hold_up_the_end() -> None:
    with EmbeddedBroker() as broker:
        s = script_of(broker)
        p = s.init("t")
        s.add("t", p, 0)
        broker.delete_topics([s.topic])
        assert s.end("t", p, commit=True) == Producer(p.id, p.epoch + 1)
        assert s.described("t")[0][1] == "CompleteCommit"
        s.close()


def test_the_timeout_ends_a_transaction_that_a_dead_broker_left_open(tmp_path: Path) -> None:
    with EmbeddedBroker(data_dir=tmp_path) as broker:
        s = script_of(broker)
        p = s.init("left", timeout_ms=300)
        s.add("left", p, 0)
        s.close()
        broker.kill()
    with EmbeddedBroker(data_dir=tmp_path) as broker:
        s.client = WireClient(int(broker.bootstrap_servers.rpartition(":")[2]))
        wait_until(lambda: s.described("left")[0][1] == "CompleteAbort")
        assert markers(broker, s.topic, 0)[-1] == ("abort", p.id, p.epoch + 1)
        s.close()


def test_produce_errors_of_transactional_batches() -> None:
    with EmbeddedBroker() as broker:
        s = script_of(broker)
        p = s.init("t")
        s.add("t", p, 0, version=3)

        def ask(services: Services) -> list[ErrorCode]:
            verify, name, topic = services.transactions.verify, s.name("t"), s.topic
            return [
                verify(name, p.id, p.epoch, [(topic, 0)], add=False),
                verify(name, p.id, p.epoch, [(topic, 0), (topic, 1)], add=False),
                verify(name, p.id, p.epoch, [(topic, 1)], add=True),
                verify(name, p.id, p.epoch, [(topic, 1)], add=False),
                verify(name, p.id, p.epoch + 1, [(topic, 1)], add=True),
                verify(name, p.id + 1, p.epoch, [(topic, 1)], add=True),
                verify("nobody", p.id, p.epoch, [(topic, 1)], add=True),
                verify("nobody", p.id, p.epoch, [(topic, 1)], add=False),
            ]

        e = ErrorCode
        assert on(broker, ask) == [
            e.none,
            e.transaction_abortable,
            e.none,
            e.none,
            e.invalid_producer_epoch,
            e.invalid_producer_id_mapping,
            e.invalid_producer_id_mapping,
            e.invalid_producer_id_mapping,
        ]
        s.close()
