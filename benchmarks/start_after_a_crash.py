"""How long a broker takes to answer on a data directory with many and large logs, after a clean and an unclean end.

`python benchmarks/start_after_a_crash.py [partitions] [gigabytes]`: so many partitions share the gigabytes, in batches
of 16 KiB. Segments that are closed are flushed, as a broker does it in the background. Start: from the process's
`start()` to the first answer; then every log is read once, since logs are opened, and after a crash checked, when they
are first asked for.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
import uuid
from pathlib import Path

from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.server import Server
from headrace.protocol.record_batches import PlainRecord, encode_batch
from headrace.storage.log_directory import LogDirectory


def written(path: Path, partitions: int, gigabytes: float) -> LogDirectory:
    directory = LogDirectory(path)
    directory.create_topic("t", uuid.uuid4(), partitions, lazy=True)
    values = [os.urandom(1000) for _ in range(16)]
    each = int(gigabytes * 1e9 / partitions / 16_400) + 1
    for n in range(each):
        batch = encode_batch([PlainRecord(value=value, timestamp_ms=n) for value in values])
        for partition in range(partitions):
            log = directory.log("t", partition)
            log.append(batch, leader_epoch=0)
            if log.recovery_point < log.segment_base_offsets[-1]:  # closed segments are flushed, as a broker does it
                log.flush()
                directory.checkpoint()
    return directory


async def measured(path: Path, partitions: int) -> tuple[float, float, float, Server]:
    began = time.perf_counter()
    server = Server(BrokerConfiguration.from_settings(path, port=0, settings={}))
    await server.start()
    started = time.perf_counter() - began
    assert server.services is not None
    topic = server.services.metadata.topic("t")
    assert topic is not None
    longest, began = 0.0, time.perf_counter()
    for partition in range(partitions):
        one = time.perf_counter()
        view = server.services.logs.view(topic, partition)
        view.read(view.high_watermark - 1, 1)
        longest = max(longest, time.perf_counter() - one)
    return started, time.perf_counter() - began, longest, server


async def both(path: Path, partitions: int, gigabytes: float) -> None:
    directory = written(path, partitions, gigabytes)
    directory.abandon()
    for ended in ("kill -9", "a clean stop"):
        started, opened, longest, server = await measured(path, partitions)
        print(
            f"{partitions} partitions, {gigabytes} GB, after {ended}: started in {started * 1000:.0f} ms, all logs "
            f"opened in {opened:.2f} s, the longest in {longest * 1000:.0f} ms",
            flush=True,
        )
        await server.stop()


def main() -> None:
    partitions = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    gigabytes = float(sys.argv[2]) if len(sys.argv) > 2 else 10
    path = Path(tempfile.mkdtemp(prefix="headrace-start-"))
    try:
        asyncio.run(both(path, partitions, gigabytes))
    finally:
        shutil.rmtree(path)


if __name__ == "__main__":
    main()
