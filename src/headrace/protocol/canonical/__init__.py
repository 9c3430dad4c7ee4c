"""The newest messages of the APIs that moved from topic names to topic ids, with both fields (see `messages`).

Each class is kio's newest one with the name added, so kio writes it as it is. Classes that needed nothing are passed
on.
"""

from __future__ import annotations

from typing import Final

from kio.schema.types import TopicName

UNNAMED: Final = TopicName("")
