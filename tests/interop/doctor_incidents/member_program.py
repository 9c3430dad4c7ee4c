"""A Python client as a member of a group whose troubles are recorded; the Java one is `java_incidents`.

`python -m tests.interop.doctor_incidents.member_program CLIENT SERVERS GROUP TOPICS [NAME=VALUE…]`, settings in Java's
names. Commands come on standard input: `slow MS` delays the next batch, `subscribe TOPICS` changes the topics, `end`
closes; librdkafka also takes `pace MS`, the time that each record takes. Standard output has the assignment after each
change, standard error the client's own log.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sys
import threading
import time
import warnings
from collections.abc import Iterable
from typing import Any

LOG = logging.getLogger("application")
COMMANDS: queue.SimpleQueue[str] = queue.SimpleQueue()


class Assignment:
    """Prints the partitions when they have changed. Mutable."""

    def __init__(self) -> None:
        self._had: list[str] | None = None

    def show(self, partitions: Iterable[tuple[str, int]]) -> None:
        has = sorted(f"{topic}-{number}" for topic, number in partitions)
        if has != self._had:
            self._had = has
            print("assigned", *has, flush=True)


def _read_commands() -> None:
    for line in sys.stdin:
        COMMANDS.put(line.strip())
    COMMANDS.put("end")


def _next_command() -> str:
    try:
        return COMMANDS.get_nowait()
    except queue.Empty:
        return ""


def run_librdkafka(servers: str, group: str, topics: list[str], settings: dict[str, str]) -> None:
    from confluent_kafka import Consumer, KafkaException

    defaults = {"auto.offset.reset": "earliest", "auto.commit.interval.ms": "500", "log.connection.close": "false"}
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, **defaults, **settings})
    consumer.subscribe(topics)
    shown, pace_s = Assignment(), 0.0
    while (command := _next_command()) != "end":
        if command.startswith("slow "):
            time.sleep(int(command[5:]) / 1000)
        elif command.startswith("subscribe "):
            consumer.subscribe(command[10:].split(","))
        elif command.startswith("pace "):
            pace_s = int(command[5:]) / 1000
        message = consumer.poll(0.1)
        if message is not None and message.error():
            LOG.error("%s", message.error())
        elif message is not None and pace_s:
            time.sleep(pace_s)
        try:
            shown.show((each.topic, each.partition) for each in consumer.assignment())
        except KafkaException as error:
            LOG.error("%s", error)
    consumer.close()


def run_aiokafka(servers: str, group: str, topics: list[str], settings: dict[str, str]) -> None:
    asyncio.run(_run_aiokafka(servers, group, topics, settings))


async def _run_aiokafka(servers: str, group: str, topics: list[str], settings: dict[str, str]) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.errors import KafkaError

    texts = ("client.id", "group.instance.id")
    own = {
        name.replace(".", "_"): value if name in texts else int(value)
        for name, value in settings.items()
        if name != "group.protocol"
    }
    consumer = AIOKafkaConsumer(
        *topics,
        bootstrap_servers=servers,
        group_id=group,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=500,
        metadata_max_age_ms=2_000,
        **own,
    )
    await consumer.start()
    shown = Assignment()
    try:
        while (command := _next_command()) != "end":
            if command.startswith("slow "):
                await asyncio.sleep(int(command[5:]) / 1000)
            elif command.startswith("subscribe "):
                consumer.subscribe(command[10:].split(","))
            try:
                await consumer.getmany(timeout_ms=100)
            except KafkaError as error:
                LOG.error("%r", error)
            shown.show((each.topic, each.partition) for each in consumer.assignment())
    finally:
        await consumer.stop()


def run_headrace(servers: str, group: str, topics: list[str], settings: dict[str, str]) -> None:
    from headrace.client.consumer.consumer import Consumer
    from headrace.errors import HeadraceError

    config: dict[str, Any] = {"bootstrap.servers": servers, "metadata.max.age.ms": 2_000, **settings}
    with Consumer(topics, group_id=group, auto_offset_reset="earliest", config=config) as consumer:
        shown = Assignment()
        committed_s = 0.0
        while (command := _next_command()) != "end":
            if command.startswith("slow "):
                time.sleep(int(command[5:]) / 1000)
            elif command.startswith("subscribe "):
                consumer.subscribe(command[10:].split(","))
            try:
                consumer.poll(0.1)
                if time.monotonic() - committed_s > 0.5:
                    consumer.commit()
                    committed_s = time.monotonic()
            except HeadraceError as error:
                LOG.error("%s", error)
                time.sleep(0.1)
            shown.show(consumer.assignment())


CLIENTS = {"librdkafka": run_librdkafka, "aiokafka": run_aiokafka, "headrace": run_headrace}


def main() -> None:
    warnings.simplefilter("ignore")
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    client, servers, group, topics, *settings = sys.argv[1:]
    threading.Thread(target=_read_commands, daemon=True).start()
    try:
        CLIENTS[client](servers, group, topics.split(","), dict(each.split("=", 1) for each in settings))
    except Exception:
        LOG.exception("The consumer ends.")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
