"""A name that is not there, and the one that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from penstock.errors import BrokerError

__all__ = ["group_missing", "nearest", "topic_missing"]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like `name`, None when none does."""
    found = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return found[0] if found else None


def topic_missing(topic: str, known: Iterable[str], bootstrap_servers: str) -> BrokerError:
    """topic-missing, with the near name first and the command that creates the topic behind it."""
    near = nearest(topic, known)
    create = f"penstock topics --create --topic {topic} --partitions 8"
    fix = f'did you mean "{near}"?  else:  {create}' if near else create
    return BrokerError(
        "topic-missing", f'topic "{topic}" does not exist on {bootstrap_servers}', fix, topic=topic, nearest=near or ""
    )


def group_missing(group_id: str, known: Iterable[str], bootstrap_servers: str) -> BrokerError:
    """group-missing: no streams group of that name."""
    near = nearest(group_id, known)
    fix = f'did you mean "{near}"?' if near else "see which there are:  penstock groups --list"
    return BrokerError(
        "group-missing", f'there is no streams group "{group_id}" on {bootstrap_servers}', fix, group_id=group_id
    )
