"""Provoke incidents and write their recordings.

`python -m tests.interop.doctor_incidents.produce tests/cli/doctor/recordings [NAME…]`, all of them without names.
"""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.cli.doctor.recording import Recording
from tests.interop.doctor_incidents.healthy_runs import HEALTHY_RUNS
from tests.interop.doctor_incidents.incidents import INCIDENTS, SIX_PARTITIONS
from tests.interop.doctor_incidents.stage import Broker, Incident, Stage
from tests.interop.kafka_broker import KafkaBroker

from headrace.broker.embedded import EmbeddedBroker

__all__ = ["ALL", "brokers", "produce"]

ALL = {incident.name: incident for incident in (*INCIDENTS, *HEALTHY_RUNS)}
OURS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.assignment.interval.ms": 0,
    "group.min.session.timeout.ms": 1_000,
}
KAFKA = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": True,
    "group.consumer.session.timeout.ms": 20_000,
    "group.consumer.heartbeat.interval.ms": 500,
}


@contextmanager
def brokers() -> Iterator[dict[str, Broker]]:
    """One broker of each kind for all incidents."""
    with ExitStack() as stack:
        yield {
            "headrace": stack.enter_context(EmbeddedBroker(config=OURS)),
            "kafka": stack.enter_context(KafkaBroker(properties=KAFKA)),
        }


def produce(incident: Incident, broker: Broker, directory: Path) -> Recording:
    """Provoke one incident and return its recording."""
    partitions = 6 if incident.name in SIX_PARTITIONS else 4
    with Stage(broker, incident.name, directory, partitions=partitions) as stage:
        incident.provoke(stage)
        time.sleep(0.5)
        return stage.record(incident)


def main() -> None:
    target, names = Path(sys.argv[1]), sys.argv[2:] or list(ALL)
    target.mkdir(parents=True, exist_ok=True)
    with brokers() as running, tempfile.TemporaryDirectory(prefix="headrace-incidents-") as scratch:
        for name in names:
            incident, began = ALL[name], time.monotonic()
            try:
                recording = produce(incident, running[incident.broker], Path(scratch) / name)
            except Exception:
                print(f"{name}: FAILED\n{traceback.format_exc()}", flush=True)
                continue
            recording.write(target / f"{name}.json.gz")
            print(f"{name}: {time.monotonic() - began:.0f} s, {len(recording.records)} records", flush=True)


if __name__ == "__main__":
    main()
