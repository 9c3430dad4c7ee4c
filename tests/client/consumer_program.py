"""A consumer as a process of its own, to be killed: says in JSON lines what it has and what it read."""

from __future__ import annotations

import json
import sys

from headrace.client.consumer.consumer import Consumer
from headrace.errors import HeadraceError


def main() -> None:
    settings = json.loads(sys.argv[1])
    consumer = Consumer(settings.pop("topic"), auto_offset_reset="earliest", config=settings)
    had: object = None
    while True:
        try:
            records = consumer.poll_records(0.2)
        except HeadraceError as error:
            print(json.dumps({"error": error.code}), flush=True)
            continue
        now = [consumer.assignment(), consumer.generation]
        if records or now != had:
            had = now
            read = [[r.partition, r.offset] for r in records]
            print(json.dumps({"assigned": now[0], "generation": now[1], "read": read}), flush=True)


main()
