"""A graceful stop in the midst of work: what was acknowledged is there, and nobody is cut off before the answer."""

from __future__ import annotations

import threading
from pathlib import Path

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.network_client import NetworkClient
from headrace.client.sender import Sender
from headrace.errors import HeadraceError
from headrace.protocol.record_batches import PlainRecord, encode_batch

WRITERS = 4
BEFORE_THE_STOP = 25


class Writer(threading.Thread):
    """Writes numbers to its own partition, one acknowledged request after the other, until nobody answers."""

    def __init__(self, servers: str, partition: int) -> None:
        super().__init__(daemon=True)
        self.partition, self.acknowledged = partition, 0
        self.enough = threading.Event()
        self._servers = servers

    def run(self) -> None:
        with NetworkClient(self._servers, api_timeout_ms=1_000, bootstrap_timeout_ms=30_000) as client:
            queue = Sender(client)
            while True:
                value = str(self.acknowledged).encode()
                record = PlainRecord(key=None, value=value, headers=(), timestamp_ms=1)
                queue.add("t", self.partition, encode_batch([record]))
                try:
                    queue.flush()
                except HeadraceError:
                    return
                self.acknowledged += 1
                if self.acknowledged == BEFORE_THE_STOP:
                    self.enough.set()


def test_graceful_stop_under_load_keeps_acknowledged_records(tmp_path: Path) -> None:
    config = {"headrace.shutdown.drain.ms": 60_000}
    with EmbeddedBroker({"t": WRITERS}, config=config, data_dir=tmp_path) as broker:
        writers = [Writer(broker.bootstrap_servers, partition) for partition in range(WRITERS)]
        for writer in writers:
            writer.start()
        for writer in writers:
            assert writer.enough.wait(120)
        broker.stop()
        for writer in writers:
            writer.join(120)
            assert not writer.is_alive()
    assert (tmp_path / "headrace-clean-shutdown").exists()
    with EmbeddedBroker(data_dir=tmp_path) as again:
        records = again.records("t")
    for writer in writers:
        values = [record.value for record in records if record.partition == writer.partition]
        # Answered means written; the last one may be written and its answer not have come.
        wanted = [str(number).encode() for number in range(writer.acknowledged)]
        assert values[: len(wanted)] == wanted
        assert set(values) <= {*wanted, str(writer.acknowledged).encode()}
