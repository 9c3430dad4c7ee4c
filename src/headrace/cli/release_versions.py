"""Apache Kafka's releases as levels of features: what `--release-version` means, and how metadata.version is shown.

Source: `kafka-features version-mapping` of 4.3.1, for every release it knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["METADATA_VERSIONS", "levels_of_release", "metadata_version_name"]

# metadata.version 7, 8, …
METADATA_VERSIONS: Final = (
    "3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2", "3.7-IV0", "3.7-IV1",
    "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0", "4.0-IV0", "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0",
    "4.1-IV1", "4.2-IV0", "4.2-IV1", "4.3-IV0",
)  # fmt: skip
_FIRST: Final = 7

# Feature → (from this metadata.version on, its level), newest first.
_SINCE: Final[Mapping[str, tuple[tuple[int, int], ...]]] = MappingProxyType(
    {
        "kraft.version": ((21, 1),),
        "transaction.version": ((24, 2),),
        "group.version": ((22, 1),),
        "eligible.leader.replicas.version": ((26, 1),),
        "share.version": ((28, 1),),
        "streams.version": ((29, 1),),
    }
)


def metadata_version_name(level: int) -> str:
    """`4.3-IV0` for 30; the number where this release of the tool does not know it."""
    known = 0 <= level - _FIRST < len(METADATA_VERSIONS)
    return METADATA_VERSIONS[level - _FIRST] if known else str(level)


def levels_of_release(release: str) -> dict[str, int] | None:
    """Level of each feature, in Kafka's order: `4.2` is its last metadata.version. None for an unknown release."""
    matching = [
        number
        for number, name in enumerate(METADATA_VERSIONS, _FIRST)
        if name == release or name.partition("-")[0] == release
    ]
    if not matching:
        return None
    metadata_version = max(matching)
    levels = {
        name: next((level for since, level in steps if metadata_version >= since), 0) for name, steps in _SINCE.items()
    }
    return {"metadata.version": metadata_version, **levels}
