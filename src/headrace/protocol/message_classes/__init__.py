"""Message classes of our own, on the machinery of kio, where those of kio do not suffice.

- `produce`, `fetch`, `committed_offsets`: the APIs that moved from topic names to topic ids. Each class is kio's newest
  one with the name added (see `messages`). Classes that needed no change are re-exported.
- `streams_group_heartbeat_request`, `streams_group_heartbeat_response`, `streams_group_describe`: versions of Apache
  Kafka 4.4 that kio does not have. Root classes are ours; nested classes that did not change are kio's. Fields, their
  order and defaults: Kafka's message definitions, KIP-1331 and KIP-1357. Request and response of the heartbeat are two
  modules because both have an `Endpoint` and a `TaskIds`.
- `describe_transactions`: its response has a start time that kio's class cannot hold.

kio reads the annotations of these classes, so in the modules that declare fields they must be objects, not strings.
"""

from __future__ import annotations

from typing import Final

from kio.schema.types import TopicName

UNNAMED: Final = TopicName("")
