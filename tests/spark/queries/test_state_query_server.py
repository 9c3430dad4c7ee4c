"""Queries over HTTP without Spark: members of a group on a broker, their servers, real stores, and the client."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from tests.harness.brokers import CLASSIC_GROUPS_WITHOUT_DELAYS
from tests.spark.queries.test_aggregate_queries import BY_WINDOW, BY_WORD, counted, rows_of, windowed_rows
from tests.spark.runtime.aggregating_task import AggregatingTask
from tests.spark.runtime.stateful_task import Task

from headrace import EmbeddedBroker, StateQuery
from headrace.client.deadline import Deadline
from headrace.client.membership.endpoints import Endpoint
from headrace.client.membership.topology import InternalTopic, Subtopology, Topology
from headrace.client.network_client import NetworkClient
from headrace.client.streams_member import StreamsMember
from headrace.errors import CannotConnect, ConfigError, StateError
from headrace.protocol.partitioner import partition_for_key
from headrace.spark.queries.aggregate_queries import AggregateQueries
from headrace.spark.queries.application_state import ApplicationState
from headrace.spark.queries.http_requests import Answer
from headrace.spark.queries.http_server import HttpServer, ServerLimits
from headrace.spark.queries.state_requests import QueriedStore, StateRequests
from headrace.spark.runtime.member_pulse import STILL_MS, MemberPulse
from headrace.spark.runtime.operators.window_operator import WindowOperator
from headrace.spark.runtime.stores.replicas import ReplicaProgress
from headrace.spark.runtime.stores.store_files import path_of_store
from headrace.spark.runtime.stores.store_records import StoreIdentity

PARTITIONS = 4
TOKEN = "a-token-of-the-test"
TOPOLOGY = Topology(
    subtopologies=(
        Subtopology(
            subtopology_id="counts",
            source_topics=("words",),
            state_changelog_topics=(
                InternalTopic(name="app-by-key-changelog", partitions=0, replication_factor=0, configs=()),
            ),
        ),
    )
)
WORDS = [f"word-{number}" for number in range(40)]


def make_store(state_dir: Path, partition: int, aggregate, rows) -> AggregatingTask | Task:
    """Write a store of a task where an application has it. Its last micro-batch is undecided and not committed."""
    directory = state_dir / "written" / str(partition)
    directory.mkdir(parents=True)
    task: AggregatingTask | Task
    if aggregate is BY_WINDOW:
        task = Task(WindowOperator(aggregate), directory)
    else:
        task = AggregatingTask(directory, aggregate)
    task.run(rows)
    task.run(rows, commits=False)
    task.store.close()
    path = path_of_store(state_dir, "counts", partition, aggregate.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    (directory / "store-0").rename(path)
    return task


class MemberInstance:
    """An instance: a real member of a group, with stores that were written before."""

    def __init__(self, state_dir: Path, tasks) -> None:
        self.state_dir = state_dir
        self.tasks = tasks
        self.member: StreamsMember | None = None
        self.pulse = MemberPulse(lambda: 0)
        self.opened: Callable[[int], bool] = lambda partition: True
        self.lag: int | None = None  # of the copies it has; None: it has none
        self.is_counted_in = True

    @property
    def member_epoch(self) -> int | None:
        epoch = self.member.assignment.member_epoch if self.member is not None else 0
        return epoch if epoch > 0 and self.is_counted_in else None

    @property
    def is_steady(self) -> bool:
        self.pulse.beat()
        return self.pulse.is_steady

    @property
    def endpoints(self):
        return self.member.endpoints if self.member is not None else {}

    def committed(self, subtopology):
        assert self.member is not None
        mine = self.member.assignment.active.get(subtopology, ())
        return {partition: self.tasks[partition].committed for partition in mine if self.opened(partition)}

    def copies(self):
        if self.lag is None:
            return {}
        copy = ReplicaProgress(position=10, end=10 + self.lag, records=0, bytes=0, remaining=self.lag, seconds=1.0)
        return {("counts", partition): copy for partition in range(PARTITIONS)}

    def identity_of(self, subtopology, changelog_topic, schema_hash):
        return StoreIdentity(changelog_topic_id="t", schema_hash=schema_hash, boot_id="b")


class Instance:
    """A server in front of an instance."""

    def __init__(self, broker, directory, aggregate, rows_of_task, *, limits=None, token=TOKEN, repartitioned=True):
        tasks = {p: make_store(directory, p, aggregate, rows_of_task(p)) for p in range(PARTITIONS)}
        self.state = MemberInstance(directory, tasks)
        queries = AggregateQueries(aggregate)
        store = QueriedStore(subtopology="counts", topic="words", is_repartitioned=repartitioned, queries=queries)
        self.server = HttpServer(
            lambda request, deadline: self.requests.answer(request, deadline),
            token=token,
            limits=limits or ServerLimits(),
        )
        self.port = self.server.start("127.0.0.1", 0, own_host="127.0.0.1")
        self.access = ApplicationState(
            self.state,
            {aggregate.name: store},
            client=NetworkClient(broker.bootstrap_servers),
            own=Endpoint("127.0.0.1", self.port),
            acceptable_lag=100,
        )
        self.requests = StateRequests(self.access, most_rows=50)

    def join(self, broker):
        self.state.member = StreamsMember(
            "app",
            TOPOLOGY,
            bootstrap_servers=broker.bootstrap_servers,
            endpoint=f"127.0.0.1:{self.port}",
            heartbeat_max_interval_ms=50,
            heartbeat_interval_ms=50,
            group_protocol="auto",
        )

    def turn(self):
        """Take what the group says, and work on it."""
        assert self.state.member is not None
        for _ in self.state.member.changes(timeout=0.05):
            pass
        self.state.member.acknowledge(self.state.member.assignment.active)

    def close(self):
        self.server.close()
        self.access.close()
        if self.state.member is not None:
            self.state.member.close()

    def ask(self, target, token=TOKEN, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        given = {**({"Authorization": f"Bearer {token}"} if token else {}), **headers}
        connection.request("GET", target, headers=given)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, body, response


def words_of(partition):
    mine = [word for word in WORDS if partition_for_key(word.encode(), PARTITIONS) == partition]
    return rows_of(*((word, number) for word in mine for number in range(3)))


@pytest.fixture
def group(tmp_path):
    """Two instances that share the tasks of a group; the first one has joined."""
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker({"words": PARTITIONS}))
        instances = [Instance(broker, tmp_path / name, BY_WORD, words_of) for name in ("a", "b")]
        for instance in instances:
            stack.callback(instance.close)
        instances[0].join(broker)
        settle(instances[:1])
        yield broker, instances


def test_instances_of_a_classic_group_are_found_and_share(tmp_path):
    """DescribeGroups names their endpoints, in the user data of the subscriptions."""
    config = {**CLASSIC_GROUPS_WITHOUT_DELAYS, "group.coordinator.rebalance.protocols": "classic,consumer"}
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker({"words": PARTITIONS}, config=config))
        instances = [Instance(broker, tmp_path / name, BY_WORD, words_of) for name in ("a", "b")]
        query = stack.enter_context(query_of(broker))
        for number, instance in enumerate(instances, 1):
            stack.callback(instance.close)
            instance.join(broker)
            settle(instances[:number])
            assert query._admin.describe_streams_groups(["app"])["app"].group_type == "classic"
            query._described_s = None  # the description is read again
            check_all(query)
            assert len(query._members) == number


def settle(instances):
    """Wait until the instances have the tasks, each once, and know of each other."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for instance in instances:
            instance.turn()
        held = sorted(p for each in instances for p in each.state.member.assignment.active.get("counts", ()))
        known = [sorted(p for e in i.state.endpoints.values() for p in e.active.get("words", ())) for i in instances]
        shared = all(instance.state.member.assignment.active.get("counts") for instance in instances)
        if shared and held == list(range(PARTITIONS)) and all(found == held for found in known):
            return
    raise AssertionError(f"the group did not settle: {held}, {known}")


def query_of(broker, **more):
    settings = {"store": "by-key", "token": TOKEN, "timeout_ms": 5_000, **more}
    return StateQuery(broker.bootstrap_servers, "app", **settings)


WANTED = {word: {"word": word, "rows": 3, "mean": 1.0} for word in WORDS}


def check_all(query, **more):
    assert query.scan(**more).sort_by("word").to_pylist() == [WANTED[word] for word in sorted(WORDS)]
    for word in WORDS[:8]:
        assert query.get(word, **more).row == WANTED[word]
    assert query.get("absent", **more).row is None
    found = query.range("word-1", "word-3", limit=50, **more)
    assert list(found.rows) == [WANTED[word] for word in sorted(WORDS) if "word-1" <= word <= "word-3"]
    assert not found.truncated
    some = query.range(limit=5, **more)
    assert list(some.rows) == [WANTED[word] for word in sorted(WORDS)[:5]]
    assert some.truncated


def test_one_instance_answers_from_committed_state(group):
    broker, instances = group
    with query_of(broker) as query:
        check_all(query)
        [state] = query.get("word-1").states
        assert state.role == "active"
        assert state.lag == 0
    status, body, _ = instances[0].ask("/v1/stores")
    assert status == 200
    [described] = json.loads(body)["stores"]
    assert described["partitions"] == PARTITIONS
    assert described["key"] == [{"name": "word", "type": "string", "column": "word", "is_window": False}]
    assert described["columns"] == ["word", "rows", "mean"]


def test_an_instance_without_the_task_redirects_to_the_owner(group):
    broker, instances = group
    instances[1].join(broker)
    settle(instances)
    owners = {p: instance for instance in instances for p in instance.state.member.assignment.active.get("counts", ())}
    assert set(owners.values()) == set(instances)
    for word in WORDS:
        partition = partition_for_key(word.encode(), PARTITIONS)
        target = f"/v1/stores/by-key/key?key=%22{word}%22"
        for instance in instances:
            status, body, response = instance.ask(target)
            if instance is owners[partition]:
                assert status == 200
                assert json.loads(body)["rows"] == [WANTED[word]]
            else:
                assert status == 307
                assert response.headers["Location"] == f"http://127.0.0.1:{owners[partition].port}{target}"
    with query_of(broker) as query:
        check_all(query)
        # Asked in any order: the client follows.
        query._members = query._members[::-1]
        check_all(query)


def test_a_task_that_moves_is_waited_for(group):
    broker, instances = group
    instances[0].state.opened = lambda partition: partition != 2
    [word] = [word for word in WORDS if partition_for_key(word.encode(), PARTITIONS) == 2][:1]
    status, body, response = instances[0].ask(f"/v1/stores/by-key/key?key=%22{word}%22")
    assert status == 503
    assert response.headers["Retry-After"] == "1"
    assert json.loads(body)["error"]["code"] == "state-moving"
    with query_of(broker, timeout_ms=300) as query, pytest.raises(StateError, match="state-moving"):
        query.get(word)
    opening = threading.Timer(0.4, lambda: setattr(instances[0].state, "opened", lambda partition: True))
    opening.start()
    with query_of(broker) as query:
        assert query.get(word).row == WANTED[word]
    opening.join()


def test_no_row_comes_from_an_instance_that_may_have_lost_its_tasks(group):
    _, instances = group
    state = instances[0].state
    state.is_counted_in = False
    assert instances[0].ask("/v1/stores/by-key/range?partition=0")[0] == 503
    state.is_counted_in = True
    assert instances[0].ask("/v1/stores/by-key/range?partition=0")[0] == 200
    now = [0]
    state.pulse = MemberPulse(lambda: now[0])
    assert instances[0].ask("/v1/stores/by-key/range?partition=0")[0] == 200
    now[0] += STILL_MS + 1  # the process was suspended
    assert instances[0].ask("/v1/stores/by-key/range?partition=0")[0] == 503
    now[0] += STILL_MS - 1
    assert instances[0].ask("/v1/stores/by-key/range?partition=0")[0] == 503
    now[0] += 1
    assert instances[0].ask("/v1/stores/by-key/range?partition=0")[0] == 200


def test_a_store_at_another_micro_batch_is_not_shown(group):
    """As after its files were damaged and set aside: the store is empty, and its task's offsets are not."""
    _, instances = group
    state = instances[0].state
    tasks, state.tasks = state.tasks, dict(state.tasks)

    class Other:
        committed = type(tasks[0].committed)(incarnation="run", batch_id=99)

    state.tasks[0] = Other()
    status, body, _ = instances[0].ask("/v1/stores/by-key/range?partition=0")
    assert status == 503
    assert "rebuilt" in json.loads(body)["error"]["message"]


def test_a_copy_answers_where_it_is_allowed(group):
    _, instances = group
    instances[1].state.member = instances[0].state.member  # in the group, without a task of its own that is opened
    instances[1].state.opened = lambda partition: False
    target = "/v1/stores/by-key/range?partition=0&limit=50"
    instances[1].state.lag = 7
    assert instances[1].ask(target)[0] in (307, 503)
    status, body, _ = instances[1].ask(f"{target}&stale=allowed")
    document = json.loads(body)
    assert status == 200
    assert document["state"]["role"] == "standby"
    assert document["state"]["lag"] == 7
    assert document["rows"] == json.loads(instances[0].ask(target)[1])["rows"]
    instances[1].state.lag = 101  # more than acceptable.recovery.lag
    assert instances[1].ask(f"{target}&stale=allowed")[0] == 503
    instances[1].state.lag = 0
    instances[1].state.identity_of = lambda *_: StoreIdentity(changelog_topic_id="u", schema_hash="", boot_id="b")
    assert instances[1].ask(f"{target}&stale=allowed")[0] == 503
    instances[1].state.member = None


def test_keys_of_a_topic_of_others_are_looked_for_in_all_tasks(tmp_path):
    """The producers of the topic have a partitioner of their own: here all rows are in partition 3."""
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker({"words": PARTITIONS}))

        def rows(partition):
            return rows_of(("a", 5)) if partition == 3 else rows_of()

        instance = Instance(broker, tmp_path, BY_WORD, rows, repartitioned=False)
        stack.callback(instance.close)
        instance.join(broker)
        settle([instance])
        assert instance.ask("/v1/stores/by-key/key?key=%22a%22")[0] == 400
        with query_of(broker) as query:
            found = query.get("a")
            assert list(found.rows) == [{"word": "a", "rows": 1, "mean": 5.0}]
            assert len(found.states) == PARTITIONS
            assert query.get("b").row is None
            assert query.scan().num_rows == 1


def test_windows_are_collected_from_all_tasks(tmp_path):
    import datetime as dt

    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker({"words": PARTITIONS}))
        instance = Instance(
            broker,
            tmp_path,
            BY_WINDOW,
            lambda p: windowed_rows((10 * p, "a", p), (10 * p, "b", 9), (10 * p + 90, "a", 1)),
        )
        stack.callback(instance.close)
        instance.join(broker)
        settle([instance])
        start = dt.datetime(1970, 1, 1, 0, 0, 10, tzinfo=dt.UTC)
        with query_of(broker) as query:
            found = query.windows("a", start, start + dt.timedelta(seconds=85), limit=50)
            assert [row["mean"] for row in found.rows] == [1.0, 2.0, 3.0, 1.0]
            assert found.rows[0]["window"]["start"] == "1970-01-01T00:00:10.000000Z"
            assert not found.truncated
            assert query.windows("a", start, start + dt.timedelta(days=1), limit=2).truncated
            with pytest.raises(ConfigError, match="time zone"):
                query.windows("a", start.replace(tzinfo=None), start)
            with pytest.raises(StateError, match="state-query-refused"):
                query.range("a", limit=50)


def test_a_request_needs_the_token(group):
    broker, instances = group
    target = "/v1/stores/by-key/range?partition=0"
    for token in (None, "", "wrong", TOKEN[:-1], TOKEN + "x"):
        for each in (target, "/v1/stores", "/", "/v1/stores/by-key/scan?partition=0"):
            status, body, response = instances[0].ask(each, token)
            assert status == 401
            assert b"word" not in body
            assert response.headers["WWW-Authenticate"] == "Bearer"
    assert instances[0].ask(target, TOKEN)[0] == 200
    assert instances[0].ask(target, TOKEN, Host="evil.example.com")[0] == 403
    with query_of(broker, token="wrong") as query, pytest.raises(CannotConnect, match="authentication-failed"):
        query.get("word-1")
    assert TOKEN not in repr(query)


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/", 404),
        ("/v1", 404),
        ("/v1/stores/", 404),
        ("/v1/stores/by-key/", 404),
        ("/v1/stores/by-key/drop", 404),
        ("/v1/stores/by-key/key/x", 404),
        ("/v1/stores/absent", 404),
        ("/v1/stores/absent/key?key=1", 404),
        ("/v1/stores/..%2F..%2Fetc%2Fpasswd/scan?partition=0", 404),
        ("/v1/stores/%00/scan?partition=0", 404),
        ("/v1/stores/by-key%0D%0AX:y/scan?partition=0", 404),
        ("/v1/stores/" + "x" * 5_000, 404),
        ("/v1/stores/by-key/key", 400),
        ("/v1/stores/by-key/key?key=", 400),
        ("/v1/stores/by-key/key?key=7", 400),
        ("/v1/stores/by-key/key?key=%22a%22&other=1", 400),
        ("/v1/stores/by-key/key?key=" + "%5B" * 3_000, 400),
        ("/v1/stores/by-key/key?key=%22a%22&partition=9", 400),
        ("/v1/stores/by-key/key?key=%22a%22&stale=maybe", 400),
        ("/v1/stores/by-key/range", 400),
        ("/v1/stores/by-key/range?partition=-1", 400),
        ("/v1/stores/by-key/range?partition=4", 400),
        ("/v1/stores/by-key/range?partition=99999999999", 400),
        ("/v1/stores/by-key/range?partition=%D9%A1", 400),
        ("/v1/stores/by-key/range?partition=0&limit=0", 400),
        ("/v1/stores/by-key/range?partition=0&limit=51", 400),
        ("/v1/stores/by-key/range?partition=0&limit=50", 200),
        ("/v1/stores/by-key/range?partition=0&first=%00&last=%F4%8F%BF%BF", 200),
        ("/v1/stores/by-key/windows?partition=0&key=%5B%5D&from=x&to=y", 400),
        (
            "/v1/stores/by-key/windows?partition=0&key=%5B%5D&from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z",
            422,
        ),
        ("/v1/stores/by-key/scan", 400),
        ("/v1/stores/by-key/scan?partition=x", 400),
    ],
)
def test_wrong_requests_are_refused(server, target, status):
    found, body, response = server.ask(target)
    assert found == status, body
    assert "X" not in response.headers
    if status != 200:
        error = json.loads(body)["error"]
        assert error["message"]
        assert len(body) < 2_000
    assert server.ask("/v1/stores")[0] == 200


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker({"words": PARTITIONS}))
        instance = Instance(broker, tmp_path_factory.mktemp("state"), BY_WORD, words_of)
        stack.callback(instance.close)
        instance.join(broker)
        settle([instance])
        yield instance


@contextmanager
def raw(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        yield connection


def test_clients_that_speak_no_http_are_cut_off(server):
    for data in (b"\x16\x03\x01" * 10 + b"\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 20_000 + b"\r\n\r\n"):
        with raw(server) as connection:
            connection.sendall(data)
            answer = b""
            while piece := connection.recv(65_536):
                answer += piece
            assert answer.split(b" ")[1] in (b"400", b"431")
    assert server.ask("/v1/stores")[0] == 200


def test_a_connection_takes_one_request_after_another(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    for _ in range(5):
        connection.request("GET", "/v1/stores/by-key/scan?partition=0", headers={"Authorization": f"Bearer {TOKEN}"})
        table = pa.ipc.open_stream(connection.getresponse().read()).read_all()
        assert table.num_rows == len([word for word in WORDS if partition_for_key(word.encode(), PARTITIONS) == 0])
        about = json.loads(table.schema.metadata[b"headrace.state"])
        assert about["partition"] == 0
        assert about["state"]["role"] == "active"
    connection.close()


def test_more_connections_than_allowed_are_cut_off():
    server = HttpServer(lambda request, deadline: Answer(status=200), token=None, limits=ServerLimits(connections=2))
    port = server.start("127.0.0.1", 0, own_host="localhost")
    try:
        held = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(2)]
        time.sleep(0.2)
        with socket.create_connection(("127.0.0.1", port), timeout=10) as third, suppress(ConnectionResetError):
            assert third.recv(1) == b""
        for each in held:
            each.close()
    finally:
        server.close()


def test_more_queries_than_allowed_and_long_ones_are_refused():
    entered, released = threading.Semaphore(0), threading.Event()

    def handler(request, deadline: Deadline):
        if request.path == ("slow",):
            entered.release()
            released.wait(20)
        return Answer(status=200, body=b"{}")

    server = HttpServer(handler, token=None, limits=ServerLimits(requests=1, timeout_s=0.5))
    port = server.start("127.0.0.1", 0, own_host="localhost")
    found = []

    def ask(path):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", path)
        found.append((path, connection.getresponse().status))
        connection.close()

    try:
        slow = threading.Thread(target=ask, args=("/slow",))
        slow.start()
        assert entered.acquire(timeout=10)
        ask("/fast")
        slow.join()
        ask("/again")  # the slow one has its answer, and its thread is still there
        released.set()
        time.sleep(0.2)
        ask("/later")
        assert found == [("/fast", 503), ("/slow", 503), ("/again", 503), ("/later", 200)]
    finally:
        released.set()
        server.close()


def test_a_server_closes_with_clients_connected(caplog):
    server = HttpServer(lambda request, deadline: Answer(status=200), token=None, limits=ServerLimits())
    port = server.start("127.0.0.1", 0, own_host="localhost")
    with socket.create_connection(("127.0.0.1", port), timeout=10) as idle:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/")
        assert connection.getresponse().read() == b""
        server.close()
        with suppress(ConnectionResetError):
            assert idle.recv(1) == b""
        connection.close()
    assert caplog.records == []


def test_a_scan_that_fails_on_its_way_has_no_end():
    def pieces():
        yield b"a" * 10
        raise StateError("state-corrupt", "a block is damaged")

    server = HttpServer(
        lambda request, deadline: Answer(status=200, pieces=pieces()), token=None, limits=ServerLimits()
    )
    port = server.start("127.0.0.1", 0, own_host="localhost")
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/")
        response = connection.getresponse()
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            response.read()
        response.close()
        connection.close()
    finally:
        server.close()


def test_typed_keys_travel(tmp_path):
    import datetime as dt
    import decimal

    kinds = (pa.int64(), pa.date32(), pa.decimal128(10, 2), pa.timestamp("us", "UTC"), pa.binary())
    types = ('"long"', '"date"', '"decimal(10,2)"', '"timestamp"', '"binary"')
    aggregate = counted(*((f"c{at}", kind) for at, kind in enumerate(types)))
    moment = dt.datetime(2026, 2, 28, 1, 2, 3, 4, tzinfo=dt.UTC)
    key = (7, dt.date(2026, 2, 28), decimal.Decimal("1.50"), moment, b"\xff\x00")
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker({"words": PARTITIONS}))
        instance = Instance(broker, tmp_path, aggregate, lambda p: rows_of((*key, p), kinds=kinds))
        stack.callback(instance.close)
        instance.join(broker)
        settle([instance])
        with query_of(broker) as query:
            for given in (list(key), {f"c{at}": value for at, value in enumerate(key)}):
                row = query.get(given).row
                assert row is not None
                assert row["c3"] == "2026-02-28T01:02:03.000004Z"
                assert row["rows"] == 1
            assert query.get([8, *key[1:]]).row is None
            with pytest.raises(ConfigError, match="bad-value"):
                query.get(object())
