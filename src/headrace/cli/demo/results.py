"""Follows the result topic `by-origin` while the demo plays: the newest row of each airport."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from headrace.client.admin import Admin
from headrace.client.plain_records import consume
from headrace.errors import HeadraceError

__all__ = ["Results"]


class Results:
    """Mutable: positions read so far, and `rows`: airport → its newest row."""

    def __init__(self, bootstrap_servers: str, topic: str, key: str) -> None:
        self.rows: dict[str, Mapping[str, Any]] = {}
        self._admin = Admin(bootstrap_servers, client_id="headrace-demo-results")
        self._topic = topic
        self._key = key
        self._positions: dict[tuple[str, int], int] = {}

    def follow(self) -> None:
        """Reads what is new. A topic that is not there yet has nothing new."""
        with contextlib.suppress(HeadraceError):
            if not self._positions:
                topic = self._admin.describe_topics([self._topic]).get(self._topic)
                if topic is None:
                    return
                self._positions = {(self._topic, partition): 0 for partition in topic.partitions}
            ends = self._admin.list_offsets(dict.fromkeys(self._positions, "latest"), isolation_level="read_committed")
            until = {key: end.offset for key, end in ends.items()}
            for _, _, record in consume(self._admin.client, dict(self._positions), until):
                if record.value is not None:
                    row = json.loads(record.value)
                    self.rows[str(row[self._key])] = row
            self._positions = until

    def close(self) -> None:
        self._admin.close()
