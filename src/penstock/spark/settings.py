"""Settings of an application beyond the arguments of `StreamsApp`, by Kafka's names where Kafka has one.

`StreamsApp(config={"max.poll.interval.ms": 60_000})`. An unknown name is an error with the nearest known one.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.client.ignored_settings import warn_if_ignored
from penstock.errors import ConfigError
from penstock.near_names import nearest

# name → (default, meaning)
SETTINGS: Mapping[str, tuple[int | str, str]] = {
    "client.id": ("", "what the broker's logs call this application; empty: the application's name"),
    "max.poll.interval.ms": (300_000, "no micro-batch finished for so long: the member leaves and says so"),
    "rebalance.timeout.ms": (45_000, "how long a revoked task may take to finish"),
    "fetch.max.bytes": (52_428_800, "one Fetch of all partitions of a broker"),
    "max.partition.fetch.bytes": (4_194_304, "one Fetch of one partition"),
    "request.timeout.ms": (30_000, "one request to a broker"),
    "default.api.timeout.ms": (60_000, "one call with its retries"),
    "compression.type": ("lz4", "of what the application writes: none, gzip, snappy, lz4, zstd"),
    "replication.factor": (-1, "of internal topics and topics created by partitions=; -1: the broker's default"),
    "group.instance.id": ("", "one id per instance: its tasks wait for its restart (brokers from 4.4; empty: none)"),
    "penstock.batch.max.records": (200_000, "records per task and micro-batch at most"),
    "penstock.batch.max.bytes": (67_108_864, "bytes per task and micro-batch at most"),
    "penstock.heartbeat.max.interval.ms": (500, "heartbeats come at least so often, so that a leave is noticed fast"),
    "penstock.max.slots": (0, "Spark partitions of a micro-batch; 0: the session's cores"),
}
_CHOICES: Mapping[str, tuple[str, ...]] = {"compression.type": ("none", "gzip", "snappy", "lz4", "zstd")}


def checked_config(given: Mapping[str, object] | None) -> dict[str, int | str]:
    """Every setting with its value, defaults included. Raises ConfigError: unknown-setting, bad-value."""
    values: dict[str, int | str] = {name: default for name, (default, _) in SETTINGS.items()}
    for name, value in (given or {}).items():
        if name not in SETTINGS:
            if warn_if_ignored(str(name)):
                continue
            near = nearest(str(name), SETTINGS)
            hint = f'; did you mean "{near}"?' if near else ""
            raise ConfigError("unknown-setting", f'no setting "{name}"{hint}', f"known: {', '.join(SETTINGS)}")
        values[name] = _typed(name, value)
    return values


def _typed(name: str, value: object) -> int | str:
    default = SETTINGS[name][0]
    if isinstance(default, int):
        try:
            return int(str(value))
        except ValueError:
            raise ConfigError("bad-value", f"{name}={value!r} is no whole number", SETTINGS[name][1]) from None
    text = str(value)
    if name in _CHOICES and text not in _CHOICES[name]:
        raise ConfigError("bad-value", f"{name}={text!r} is none of {', '.join(_CHOICES[name])}", SETTINGS[name][1])
    return text
