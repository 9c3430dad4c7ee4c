"""Every console tool of Kafka 4.3.1 whose APIs are those of logs, topics and the cluster: the same commands against
Apache Kafka and against us, and what they print compared line by line.

What must differ (ids, addresses, directories, times) is blanked. Groups, transactions, ACLs, SCRAM and quotas have
tables of their own.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.kafka_tools import TOPICS, ToolServer

from headrace.broker.embedded import EmbeddedBroker

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TOOLS = {
    "topics": TOPICS,
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "configs": "kafka.admin.ConfigCommand",
    "client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
}
FILES = {
    "DELETE": {"partitions": [{"topic": "TOPIC-b", "partition": 0, "offset": 3}], "version": 1},
    "DELETE_ALL": {"partitions": [{"topic": "TOPIC-b", "partition": 0, "offset": -1}], "version": 1},
    "TOO_FAR": {"partitions": [{"topic": "TOPIC", "partition": 0, "offset": 999}], "version": 1},
    "STAY": {"version": 1, "partitions": [{"topic": "TOPIC", "partition": 0, "replicas": [1]}]},
    "AWAY": {"version": 1, "partitions": [{"topic": "TOPIC", "partition": 0, "replicas": [7]}]},
    "TWICE": {"version": 1, "partitions": [{"topic": "TOPIC", "partition": 0, "replicas": [1, 1]}]},
    "NOWHERE": {"version": 1, "partitions": [{"topic": "TOPIC", "partition": 77, "replicas": [1]}]},
    "MOVE": {"topics": [{"topic": "TOPIC"}], "version": 1},
    "ELECT": {"partitions": [{"topic": "TOPIC", "partition": 0}]},
    "ELECT_NOBODY": {"partitions": [{"topic": "nobody-made-this", "partition": 0}, {"topic": "TOPIC", "partition": 9}]},
}  # fmt: skip

# In this order, since later rows see what earlier ones did.
TABLE = """
topics --create --topic TOPIC --partitions 3 --config retention.ms=3600000
topics --create --topic TOPIC --partitions 3
topics --create --topic TOPIC-b --replica-assignment 1
topics --create --topic TOPIC-e --replica-assignment 1,1
topics --create --topic TOPIC-c --config cleanup.policy=compact --if-not-exists
topics --create --topic TOPIC-d --replication-factor 3
topics --create --topic TOPIC-d --config nope=1
topics --describe --topic TOPIC
topics --describe --topic TOPIC --partition-size-limit-per-response 2
topics --describe --topic TOPIC-e --partition-size-limit-per-response 1
topics --describe --topic nobody-made-this
topics --describe --topic nobody-made-this --if-exists
topics --describe --topic TOPIC --under-replicated-partitions
topics --describe --topic TOPIC --unavailable-partitions
topics --describe --topic TOPIC --under-min-isr-partitions
topics --describe --topic TOPIC --at-min-isr-partitions
topics --describe --topic TOPIC --topics-with-overrides
topics --describe --topic-id AAAAAAAAAAAAAAAAAAAAAQ
topics --list --topic TOPIC.*
topics --alter --topic TOPIC --partitions 4
topics --alter --topic TOPIC --partitions 2
topics --alter --topic nobody-made-this --partitions 2
producer-perf-test --topic TOPIC-b --num-records 20 --record-size 100 --throughput -1
get-offsets --topic TOPIC-b --time -2
get-offsets --topic TOPIC-b --time -4
get-offsets --topic TOPIC-b --time -5
get-offsets --topic TOPIC-b --time -6
get-offsets --topic TOPIC-b --time 1
get-offsets --topic TOPIC-b --time 99999999999999
get-offsets --topic TOPIC-c --time -1
get-offsets --topic TOPIC-c --time -3
get-offsets --topic-partitions TOPIC-e:0-1,TOPIC-c
get-offsets --topic-partitions TOPIC-b:0,TOPIC-e:1-
get-offsets --topic TOPIC-b --time latest --exclude-internal-topics
get-offsets --topic nobody-made-this
delete-records --offset-json-file TOO_FAR
delete-records --offset-json-file DELETE
get-offsets --topic TOPIC-b --time -2
delete-records --offset-json-file DELETE_ALL
get-offsets --topic TOPIC-b --time -2
get-offsets --topic TOPIC-b --time -1
leader-election --election-type preferred --topic TOPIC --partition 0
leader-election --election-type unclean --topic TOPIC --partition 0
leader-election --election-type preferred --path-to-json-file ELECT
leader-election --election-type unclean --path-to-json-file ELECT
leader-election --election-type preferred --path-to-json-file ELECT_NOBODY
leader-election --election-type preferred --all-topic-partitions
leader-election --election-type unclean --all-topic-partitions
log-dirs --describe --topic-list TOPIC-c
log-dirs --describe --topic-list nobody-made-this
log-dirs --describe --broker-list 1,9
metadata-quorum describe --replication
cluster list-endpoints
cluster list-endpoints --include-fenced-brokers
cluster cluster-id
reassign-partitions --list
reassign-partitions --execute --reassignment-json-file STAY
reassign-partitions --verify --reassignment-json-file STAY
reassign-partitions --cancel --reassignment-json-file STAY
reassign-partitions --execute --reassignment-json-file AWAY
reassign-partitions --execute --reassignment-json-file TWICE
reassign-partitions --execute --reassignment-json-file NOWHERE
reassign-partitions --execute --throttle 1000 --reassignment-json-file STAY
reassign-partitions --verify --preserve-throttles --reassignment-json-file STAY
reassign-partitions --generate --broker-list 1 --topics-to-move-json-file MOVE
reassign-partitions --generate --broker-list 1,2 --topics-to-move-json-file MOVE
reassign-partitions --verify --reassignment-json-file STAY
configs --alter --entity-type topics --entity-name TOPIC --add-config segment.bytes=1048576,compression.type=zstd
configs --describe --entity-type topics --entity-name TOPIC
configs --alter --entity-type topics --entity-name TOPIC --delete-config segment.bytes,compression.type
configs --describe --entity-type topics --entity-name TOPIC
configs --alter --entity-type topics --entity-name TOPIC --add-config nope=1
configs --alter --entity-type topics --entity-name TOPIC --add-config retention.ms=x
configs --alter --entity-type topics --entity-name TOPIC --add-config segment.bytes=1
configs --alter --entity-type topics --entity-name TOPIC --add-config compression.type=rar
configs --alter --entity-type topics --entity-name TOPIC --add-config cleanup.policy=burn
configs --alter --entity-type topics --entity-name TOPIC --add-config min.cleanable.dirty.ratio=2
configs --alter --entity-type topics --entity-name TOPIC --add-config message.timestamp.type=Never
configs --describe --entity-type topics --entity-name nobody-made-this
configs --describe --entity-type client-metrics
client-metrics --list
client-metrics --alter --name TOPIC --metrics org.apache.kafka.consumer.,x. --interval 1000 --match client_id=a.*
client-metrics --list
client-metrics --describe --name TOPIC
configs --describe --entity-type client-metrics --entity-name TOPIC
configs --alter --entity-type client-metrics --entity-name TOPIC --add-config interval.ms=1
configs --alter --entity-type client-metrics --entity-name TOPIC --add-config nope=1
client-metrics --alter --name TOPIC --match rack=a
client-metrics --delete --name TOPIC
client-metrics --describe --name TOPIC
topics --delete --topic TOPIC
topics --delete --topic nobody-made-this
topics --delete --topic nobody-made-this --if-exists
"""  # fmt: skip
ROWS = [line for line in TABLE.splitlines() if line]


class Seen(NamedTuple):
    """Exit code, lines of standard output, and what was thrown."""

    code: int
    lines: list[str]
    thrown: list[str]


class Cluster:
    """One of the two, with what is particular to it blanked out of what tools say about it."""

    def __init__(self, servers: str, directory: str, tools: ToolServer, files: Path) -> None:
        self._servers, self._tools, self._files = servers, tools, files
        self._topic = f"tools-{uuid.uuid4().hex[:8]}"
        self._words = [(servers, "SERVERS"), (directory, "DIRECTORY"), (self._topic, "TOPIC")]
        self._words.append((servers.rpartition(":")[2], "PORT"))
        for name, content in FILES.items():
            (files / name).write_text(json.dumps(content).replace("TOPIC", self._topic))

    def run(self, row: str) -> Seen:
        tool, *arguments = row.split()
        given = [self._argument(argument) for argument in arguments]
        at = ["--bootstrap-server", self._servers]
        told = self._tools.run(TOOLS[tool], *([*given, *at] if tool == "cluster" else [*at, *given]))
        thrown = re.findall(r"org\.apache\.kafka\.common\.errors\.\w+: .*", told.err)
        return Seen(told.code, sorted(self._blanked(told.out)), sorted(set(self._blanked("\n".join(thrown)))))

    def _argument(self, argument: str) -> str:
        return str(self._files / argument) if argument in FILES else argument.replace("TOPIC", self._topic)

    def _blanked(self, text: str) -> Iterator[str]:
        for word, blank in self._words:
            text = text.replace(word, blank)
        text = re.sub(r"\n\s+at .*|\n\t\.\.\. \d+ more", "", text)  # where in Java
        text = re.sub(r"(TopicId: |Cluster ID: )\S+", r"\1ID", text)
        text = re.sub(r"\d{13}", "TIME", text)
        text = re.sub(r"[0-9.]+ (records/sec|MB/sec|ms)", r"N \1", text)
        text = re.sub(r"\([0-9.]+ MB/sec\)|[0-9.]+(?=,? *$)", "N", text) if "records sent" in text else text
        text = re.sub(r"(LogEndOffset.*\n1 +\t\S+\t)\d+ +", r"\1N ", text)
        text = text.replace(" or some brokers have all their log directories cordoned", "")
        # Kafka 4.3.1 tells a topic about the cluster's min.insync.replicas, which eligible leader replicas put there.
        text = text.replace("min.insync.replicas=1,", "").replace("min.insync.replicas=1", "")
        yield from (line.rstrip() for line in text.splitlines() if line.strip())


def both(row: str, ours: Cluster, theirs: Cluster) -> tuple[Seen, Seen]:
    """What is only asked is asked again for a while: Kafka's broker follows its controller."""
    asks = row.startswith(("get-offsets", "log-dirs", "metadata-quorum", "cluster", "leader-election"))
    asks |= any(word in row for word in ("--describe", "--list", "--verify", "--generate"))
    deadline = time.monotonic() + 20
    while True:
        seen = (ours.run(row), theirs.run(row))
        if seen[0] == seen[1] or not asks or time.monotonic() > deadline:
            return seen
        time.sleep(0.1)


@pytest.fixture(scope="module")
def seen(
    kafka: KafkaBroker, tools: ToolServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[Seen, Seen]]]:
    """Row → what it printed about us, and about Kafka. Rows that stand twice are numbered."""
    with EmbeddedBroker() as broker:
        ours = Cluster(broker.bootstrap_servers, str(broker.data_dir), tools, tmp_path_factory.mktemp("ours"))
        directory = str(kafka.log_directory)
        theirs = Cluster(kafka.bootstrap_servers, directory, tools, tmp_path_factory.mktemp("kafka"))
        told: dict[str, tuple[Seen, Seen]] = {}
        for number, row in enumerate(ROWS):
            told[f"{number} {row}"] = both(row, ours, theirs)
        yield told


@pytest.mark.parametrize("row", [f"{number} {row}" for number, row in enumerate(ROWS)])
def test_a_tool_prints_the_same_about_both(row: str, seen: dict[str, tuple[Seen, Seen]]) -> None:
    ours, theirs = seen[row]
    if row.endswith("segment.bytes=1"):  # ours are allowed smaller segments: tests of a log need many of them
        theirs = theirs._replace(thrown=[each.replace("1048576", "14") for each in theirs.thrown])
    assert ours == theirs
