"""Files of the broker that one request passes through, recorded by a profile function while the request is handled.

`python -m tests.walks [--files] [--picture]` prints the number of source files for a heartbeat and for a Produce
request: in the common case (fast path) and in the general case. `--picture` draws, from the imports, which files of a
walk use which; ARCHITECTURE.md has two of these pictures. Counted is every file below src/headrace in which at least
one function ran between the arrival of the request and the moment when the response and what follows it are done, the
protocol's files included. The first requests only warm up imports and caches.
"""

from __future__ import annotations

import argparse
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Self

from kio.schema.types import TopicName
from tests.structure import Module

from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.kio_units import from_ms
from headrace.protocol.record_batches import PlainRecord, encode_batch
from headrace.protocol.request_codec import decode_response, encode_request
from headrace.testing import EmbeddedBroker

__all__ = ["draw", "main", "record_walks"]

AFTER_ANSWER_S = 0.05
"""Time for what a request causes behind its answer, such as timers and metrics, which belongs to its walk."""
CHORES = frozenset({"every", "run_every", "_measure_lag"})
"""Coroutines whose calls belong to no request (`BrokerServer._start_chores`)."""
SOURCE = f"{Path(__file__).parent.parent / 'src' / 'headrace'}{os.sep}"


class Recorder:
    """Profile function of the broker's thread. Mutable: `files` in the order in which they were first entered."""

    def __init__(self) -> None:
        self.is_recording = False
        self.files: dict[str, None] = {}

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if self.is_recording and event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            file = frame.f_code.co_filename.removeprefix(SOURCE)
            if file not in self.files and not _is_in_chore(frame):
                self.files[file] = None


def _is_in_chore(frame: FrameType | None) -> bool:
    """Whether a call comes from a periodic task of the broker: on a loaded machine one runs in most recordings."""
    while frame is not None:
        if frame.f_code.co_name in CHORES and frame.f_code.co_filename.startswith(SOURCE):
            return True
        frame = frame.f_back
    return False


class Client:
    """A socket without a client library, so that nothing but the broker runs files of the package."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.stream = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()  # first: the socket stays open as long as a file of it is
        self.socket.close()

    def exchange(self, frame: bytes) -> bytes:
        self.socket.sendall(frame)
        return self.stream.read(int.from_bytes(self.stream.read(4), "big"))


def record_walks() -> Iterator[tuple[str, list[str]]]:
    """Yield (name of the walk, files) for each walk."""
    recorder = Recorder()
    threading.setprofile(recorder)
    try:
        with EmbeddedBroker(topics={"in": 2}) as broker, Client(broker.port) as client:
            server = broker._thread().server
            # `headrace broker` counts no requests for tests.
            server.faults = None
            # A machine so loaded that an answer takes long would look up here which answers are slow.
            server.request_log._slow_ms = lambda: 0

            def record(frame: bytes, warm_up: int = 1) -> list[str]:
                for _ in range(warm_up):
                    client.exchange(frame)
                recorder.files.clear()
                recorder.is_recording = True
                client.exchange(frame)
                time.sleep(AFTER_ANSWER_S)
                recorder.is_recording = False
                return list(recorder.files)

            epoch = _join(client)
            yield "heartbeat without changes (rules)", record(_heartbeat(epoch), warm_up=5)
            changed = _heartbeat(epoch, rebalance_timeout_ms=290_000)
            yield "heartbeat that changes the member (rules, log)", record(changed, warm_up=0)
            yield "Produce (fast path)", record(_produce())
            yield "Produce of a compressed batch (general path)", record(_produce(compression="gzip"))
    finally:
        threading.setprofile(None)


def _join(client: Client) -> int:
    """Join, and return the member epoch."""
    key = m.find_coordinator_request.FindCoordinatorRequest(coordinator_keys=("walks",))
    client.exchange(encode_request(ApiKey.FIND_COORDINATOR, 4, 7, "walks", key))
    epoch = 0
    for _ in range(200):
        answer = client.exchange(_heartbeat(epoch, rebalance_timeout_ms=300_000))
        _, response = decode_response(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, answer)
        assert isinstance(response, m.streams_group_heartbeat_response.StreamsGroupHeartbeatResponse)
        if response.error_code.value == 0:
            if epoch == response.member_epoch and epoch > 0 and response.active_tasks is None:
                return epoch
            epoch = response.member_epoch
    raise AssertionError(f"the member did not settle: {response}")


def _heartbeat(epoch: int, *, rebalance_timeout_ms: int = -1) -> bytes:
    request = m.streams_group_heartbeat_request
    joins = epoch == 0
    topology = request.Topology(
        epoch=0,
        subtopologies=(
            request.Subtopology(
                subtopology_id="0",
                source_topics=("in",),
                source_topic_regex=(),
                state_changelog_topics=(),
                repartition_sink_topics=(),
                repartition_source_topics=(),
                copartition_groups=(),
            ),
        ),
    )
    nothing: dict[str, Any] = dict.fromkeys(("instance_id", "rack_id", "user_endpoint", "client_tags"))
    message = request.StreamsGroupHeartbeatRequest(
        group_id="walks",
        member_id="member",
        member_epoch=epoch,
        endpoint_information_epoch=-1,
        rebalance_timeout=from_ms(rebalance_timeout_ms),
        topology=topology if joins else None,
        active_tasks=() if joins else None,
        standby_tasks=() if joins else None,
        warmup_tasks=() if joins else None,
        process_id="process" if joins else None,
        task_offsets=None,
        task_end_offsets=None,
        shutdown_application=False,
        **nothing,
    )
    return encode_request(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 7, "walks", message)


def _produce(*, compression: str = "none") -> bytes:
    request = m.produce_request
    batch = encode_batch([PlainRecord(value=b"value", timestamp_ms=1_700_000_000_000)], compression=compression)
    message = request.ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout=from_ms(30_000),
        topic_data=(
            request.TopicProduceData(
                name=TopicName("in"),
                partition_data=(request.PartitionProduceData(index=0, records=batch),),
            ),
        ),
    )
    return encode_request(ApiKey.PRODUCE, 9, 7, "walks", message)


def draw(files: list[str]) -> str:
    """Draw the imports between the files of a walk: a tree in the order of the walk, each file once.

    A file stands below the first file of the walk that imports it. Files that no other one imports (handlers, which
    are imported by name) begin a tree of their own.
    """
    modules = {file: Module(Path(SOURCE) / file) for file in files}
    names = {module.name: file for file, module in modules.items()}
    users = {file: [names[name] for name in modules[file].imported(frozenset(names))] for file in files}
    drawn: set[str] = set()
    lines: list[str] = []

    def descend(file: str, depth: int) -> None:
        drawn.add(file)
        lines.append("  " * depth + file.removesuffix(".py"))
        for other in sorted(users[file], key=files.index):
            if other not in drawn:
                descend(other, depth + 1)

    imported = {other for others in users.values() for other in others}
    for file in [*(file for file in files if file not in imported), *files]:
        if file not in drawn:
            descend(file, 0)
    return "\n".join(lines)


def main() -> None:
    """Print the walks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="print the files of each walk")
    parser.add_argument("--picture", action="store_true", help="draw the imports between the files of each walk")
    arguments = parser.parse_args()
    for name, files in record_walks():
        print(f"{len(files):3d}  {name}")
        if arguments.files:
            print("".join(f"       {file}\n" for file in files), end="")
        if arguments.picture:
            print(draw(files) + "\n")


if __name__ == "__main__":
    main()
