"""A `ParallelConsumer` as a process of its own, to be killed or stopped: says in lines what began and what ended."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from headrace import Consumer, ParallelConsumer
from headrace.client.consumer.consumer_types import ConsumerRecord


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    pause_s = settings.pop("pause_s")
    pipeline_settings = settings.pop("pipeline")

    def handler(record: ConsumerRecord) -> None:
        sys.stdout.write(f"began {record.partition} {record.offset}\n")
        time.sleep(pause_s)
        sys.stdout.write(f"ended {record.partition} {record.offset}\n")
        sys.stdout.flush()

    consumer = Consumer(settings.pop("topic"), auto_offset_reset="earliest", config=settings)
    ParallelConsumer(consumer, handler, **pipeline_settings).run()


main()
