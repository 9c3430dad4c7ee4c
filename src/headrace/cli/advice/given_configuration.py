"""A client's configuration as it was written (properties or JSON, Java's or librdkafka's names), and its rewriting.

Values remain texts, and a missing setting has the default of that client (Kafka 4.3, librdkafka 2.x). A value that is
not a number is reported by a rule, not here. The corrected file keeps unchanged lines, comments and order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from headrace.client.client_settings import parse_properties
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Client", "Form", "GivenConfiguration", "Version", "client_version", "corrected_text", "read_configuration"]

Client = Literal["java", "librdkafka"]
Form = Literal["properties", "json"]

# A wrong file name (a log, a database) is refused before it is parsed.
MOST_BYTES = 1_000_000

# Kafka's ConsumerConfig and librdkafka's CONFIGURATION.md agree on these (librdkafka calls `latest` `largest`).
_BOTH = {
    "session.timeout.ms": "45000",
    "heartbeat.interval.ms": "3000",
    "max.poll.interval.ms": "300000",
    "enable.auto.commit": "true",
    "auto.commit.interval.ms": "5000",
    "auto.offset.reset": "latest",
    "group.protocol": "classic",
    "num.standby.replicas": "0",
}
DEFAULTS: Mapping[Client, Mapping[str, str]] = {
    "java": {**_BOTH, "max.poll.records": "500", "partition.assignment.strategy": "range,cooperative-sticky"},
    "librdkafka": {
        **_BOTH,
        "partition.assignment.strategy": "range,roundrobin",
        "enable.auto.offset.store": "true",
    },
}

Version = tuple[int, int]
"""Major and minor release of a client."""

# Defaults that older releases had: (client, setting) → (release that changed it, the default before).
_EARLIER_DEFAULTS: Mapping[tuple[Client, str], tuple[Version, str]] = MappingProxyType(
    {
        ("java", "session.timeout.ms"): ((3, 0), "10000"),  # KIP-735
        ("librdkafka", "session.timeout.ms"): ((1, 7), "10000"),
        ("java", "partition.assignment.strategy"): ((3, 0), "range"),  # KIP-726
    }
)

_ONLY_LIBRDKAFKA = frozenset(
    {
        "metadata.broker.list",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "queued.min.messages",
        "queued.max.messages.kbytes",
        "fetch.wait.max.ms",
        "fetch.message.max.bytes",
        "socket.keepalive.enable",
        "socket.timeout.ms",
        "statistics.interval.ms",
        "broker.address.family",
        "topic.metadata.refresh.interval.ms",
        "log_level",
        "debug",
        "sasl.username",
        "sasl.password",
        "api.version.request",
        "ssl.ca.location",
    }
)
# The names decide which client a file is for. Settings that both clients have (bootstrap.servers, group.id) are in
# neither list; the names of assignors decide the rest, since Java takes class names and librdkafka short ones.
_ONLY_JAVA = frozenset(
    {
        "key.deserializer",
        "value.deserializer",
        "max.poll.records",
        "fetch.max.wait.ms",
        "sasl.jaas.config",
        "ssl.truststore.location",
        "ssl.keystore.location",
        "interceptor.classes",
        "default.api.timeout.ms",
        "application.id",
        "processing.guarantee",
        "num.standby.replicas",
        "num.stream.threads",
        "connections.max.idle.ms",
        "request.timeout.ms",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenConfiguration:
    """`values`: what the file says, by setting; `twice`: settings that come more than once (the last one counts).

    `version`: the client's release, which decides its defaults and what it supports; None: a current one.
    """

    client: Client
    values: Mapping[str, str]
    version: Version | None = None
    form: Form = "properties"
    twice: tuple[str, ...] = ()

    def given(self, setting: str) -> str | None:
        return self.values.get(setting)

    def text(self, setting: str) -> str:
        """The value, or the default of this release of the client; empty where there is none."""
        return self.values.get(setting, self.default(setting))

    def default(self, setting: str) -> str:
        """The default of this release of the client; empty where there is none."""
        # Without a release a current one is assumed; --client-version names an older one.
        changed_in, before = _EARLIER_DEFAULTS.get((self.client, setting), ((0, 0), ""))
        is_older = self.version is not None and self.version < changed_in
        return before if is_older else DEFAULTS[self.client].get(setting, "")

    def integer(self, setting: str) -> int | None:
        """Return None if the value is not a number."""
        try:
            return int(self.text(setting))
        except ValueError:
            return None

    def flag(self, setting: str) -> bool:
        return self.text(setting).strip().lower() == "true"

    def strategies(self) -> tuple[str, ...]:
        """Assignors by preference, in short names (`cooperative-sticky`) or as the class they are."""
        return tuple(short_name(each.strip()) for each in self.text("partition.assignment.strategy").split(",") if each)

    def with_values(self, changes: Mapping[str, str | None]) -> GivenConfiguration:
        """`changes`: None takes a setting out."""
        values = {**self.values, **changes}
        return replace(self, values={name: value for name, value in values.items() if value is not None})


_KNOWN_ASSIGNORS = MappingProxyType(
    {
        "RangeAssignor": "range",
        "RoundRobinAssignor": "roundrobin",
        "StickyAssignor": "sticky",
        "CooperativeStickyAssignor": "cooperative-sticky",
    }
)
_PACKAGE = "org.apache.kafka.clients.consumer."


def short_name(assignor: str) -> str:
    """`range` for Java's RangeAssignor, and so on; another class stays what it is."""
    return _KNOWN_ASSIGNORS.get(assignor.removeprefix("class ").removeprefix(_PACKAGE), assignor)


def assignor_for(client: Client, name: str) -> str:
    """Return the name of an assignor in the form that `client` requires."""
    if client == "librdkafka":
        return name
    classes = {short: long for long, short in _KNOWN_ASSIGNORS.items()}
    return _PACKAGE + classes[name] if name in classes else name


def client_version(text: str) -> Version:
    """Parse `3.5`, `3.5.1` or `2.12.1-RC1` into major and minor. Raises ValueError."""
    major, _, rest = text.strip().removeprefix("v").partition(".")
    minor = rest.partition(".")[0].partition("-")[0]
    if not (major.isdigit() and minor.isdigit()):
        raise ValueError(f"Invalid version '{text}': expected major and minor, as in 3.5.")
    return int(major), int(minor)


def read_configuration(
    path: Path, client: Client | None = None, version: Version | None = None
) -> tuple[GivenConfiguration, str]:
    """The configuration and the text of the file. `client` None: told by the names in it, Java where none tells.

    Raises ConfigError `bad-value`: it cannot be read, is larger than a megabyte, or is no flat JSON object.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise _unreadable(path, "it is larger than a megabyte, which no client configuration is")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, str(error)) from error
    form: Form = "json" if path.suffix == ".json" or text.lstrip().startswith("{") else "properties"
    values, twice = _json_values(path, text) if form == "json" else (parse_properties(text), _repeated_names(text))
    kind = client or _client(values)
    return GivenConfiguration(client=kind, values=values, version=version, form=form, twice=twice), text


def _client(values: Mapping[str, str]) -> Client:
    strategies = values.get("partition.assignment.strategy", "")
    if _ONLY_LIBRDKAFKA & values.keys():
        return "librdkafka"
    if _ONLY_JAVA & values.keys() or not strategies or "." in strategies or "Assignor" in strategies:
        return "java"
    return "librdkafka"


def _json_values(path: Path, text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    twice: list[str] = []

    def pairs(found: list[tuple[str, object]]) -> dict[str, object]:
        # json keeps the last of two equal names silently; the hook sees both. Only the top level counts, and nested
        # objects are refused below.
        names = [name for name, _ in found]
        twice.extend(name for name in dict.fromkeys(names) if names.count(name) > 1)
        return dict(found)

    try:
        document = json.loads(text, object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, f"it is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise _unreadable(path, "its JSON is no object of settings and values")
    values = {}
    for name, value in document.items():
        if isinstance(value, (dict, list)):
            raise _unreadable(path, f"the value of {name!r} is no plain value")
        if value is not None:
            values[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return values, tuple(twice)


def _repeated_names(text: str) -> tuple[str, ...]:
    """Return the names that occur twice, by line: what Java's format allows beyond `name=value` lines is rare, and only
    this hint would miss it.
    """
    seen: set[str] = set()
    twice = []
    for line in text.splitlines():
        for name in parse_properties(line) if not line.rstrip().endswith("\\") else ():
            if name in seen and name not in twice:
                twice.append(name)
            seen.add(name)
    return tuple(twice)


def _unreadable(path: Path, why: str) -> ConfigError:
    return ConfigError(
        "bad-value",
        f"The configuration {path} cannot be read: {why}.",
        "Give a properties file of lines name=value, or a JSON object of settings and plain values.",
        file=str(path),
    )


def corrected_text(text: str, given: GivenConfiguration, corrected: GivenConfiguration) -> str:
    """Return the corrected file. `text` is the file that `given` was read from."""
    if given.form == "json":
        return _corrected_json(text, corrected.values)
    lines: list[str] = []
    written: set[str] = set()
    # Unchanged lines are copied, not written again: comments, order and spacing are the user's. A changed line stays as
    # a comment above its successor, so that a review shows both.
    for names, block in _blocks(text):
        if not names or all(given.given(name) == corrected.given(name) for name in names):
            lines += block
        else:
            lines += [f"# was: {line}" for line in block]
            lines += [
                _line(name, corrected.values[name]) for name in names if name in corrected.values.keys() - written
            ]
        written.update(names)
    lines += [_line(name, value) for name, value in corrected.values.items() if name not in written]
    return "\n".join(lines) + "\n"


def _blocks(text: str) -> list[tuple[list[str], list[str]]]:
    """(settings, lines): a setting may go over several lines, each but the last ending in a backslash."""
    blocks: list[tuple[list[str], list[str]]] = []
    block: list[str] = []
    for line in text.splitlines():
        # Inside a continued value a line that begins with `#` belongs to the value (java.util.Properties.load).
        comment = not block and line.lstrip()[:1] in ("#", "!", "")
        block.append(line)
        # An odd number of backslashes at the end continues the line; an even number is backslashes.
        if not comment and (len(line) - len(line.rstrip("\\"))) % 2:
            continue
        blocks.append((list(parse_properties("\n".join(block))), block))
        block = []
    if block:
        blocks.append((list(parse_properties("\n".join(block))), block))
    return blocks


def _line(name: str, value: str) -> str:
    return f"{name}={value}".replace("\\", "\\\\").replace("\n", "\\n")


def _corrected_json(text: str, values: Mapping[str, str]) -> str:
    """Values that did not change keep their JSON type; others become numbers and booleans where they look like it."""
    before = json.loads(text)
    document = {}
    for name, value in values.items():
        old = before.get(name)
        kept = str(old).lower() if isinstance(old, bool) else str(old)
        document[name] = old if old is not None and kept == value else _typed(value)
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _typed(value: str) -> object:
    if value in ("true", "false"):
        return value == "true"
    return int(value) if value.isdigit() else value
