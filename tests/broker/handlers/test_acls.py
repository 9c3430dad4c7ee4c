"""Access rules at a running broker: when they count, defaults, and the APIs that are checked."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

from tests.broker.security.access_rules import acl

from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.requests.api_table import SERVED
from headrace.broker.requests.request_context import Principal, RequestContext
from headrace.broker.security.acls import (
    AclFilter,
    Operation,
)
from headrace.broker.security.authorizer import Authorizer
from headrace.protocol.api_keys import ApiKey
from headrace.storage.log_directory import LogDirectory


def call_of(name: str) -> RequestContext:
    return RequestContext(
        token=1,
        client_id="",
        client_host="/10.0.0.1",
        api_version=0,
        local_address=("", 0),
        principal=Principal(name=name),
    )


def authorizer(directory: LogDirectory, changes: list[int], **settings: object) -> Authorizer:
    given = {"authorizer.class.name": "on", "super.users": "User:root; User:CN=x", **settings}
    configuration = BrokerConfiguration.from_settings("/nowhere", settings=given)
    return Authorizer(configuration, directory, lambda: changes.append(1))


def test_a_rule_counts_at_once_and_after_a_restart(tmp_path: Path) -> None:
    changes: list[int] = []
    directory = LogDirectory(tmp_path)
    found = authorizer(directory, changes)
    alice, read = call_of("alice"), Operation.READ
    assert not found.on_topic(alice, read, "abc")
    assert found.on_topic(call_of("root"), read, "abc")
    assert found.on_topic(call_of("CN=x"), read, "abc")
    found.add([acl("abc")])
    assert found.on_topic(alice, read, "abc")
    assert found.on_topic(alice, Operation.DESCRIBE, "abc")
    assert not found.on_topic(alice, Operation.WRITE, "abc")
    assert len(changes) == 1
    found.add([acl("abc")])  # nothing new
    assert len(changes) == 1
    directory.close()
    again = LogDirectory(tmp_path)
    kept = authorizer(again, changes)
    assert kept.on_topic(alice, read, "abc")
    kept.remove(kept.matching(AclFilter()))
    assert not kept.on_topic(alice, read, "abc")
    again.close()


def test_without_rules_everyone_may_where_that_was_set(tmp_path: Path) -> None:
    directory = LogDirectory(tmp_path)
    found = authorizer(directory, [], **{"allow.everyone.if.no.acl.found": True})
    bob = call_of("bob")
    assert found.on_topic(bob, Operation.READ, "abc")
    found.add([acl("abc")])
    assert not found.on_topic(bob, Operation.READ, "abc")
    assert found.on_topic(bob, Operation.READ, "abd")
    off = authorizer(directory, [], **{"authorizer.class.name": "off"})
    assert off.on_topic(bob, Operation.ALTER, "abc")
    directory.close()


# Fetch looks at each partition itself; the others need no right.
WITHOUT_CHECK = {
    ApiKey.FETCH,
    ApiKey.API_VERSIONS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    ApiKey.PUSH_TELEMETRY,
}


def test_every_api_that_is_served_is_checked_and_in_the_table() -> None:
    modules = {key: import_module(f"headrace.broker.handlers.{name}") for key, name in SERVED.items()}
    assert {key for key, module in modules.items() if module.APIS[key].authorize is None} == WITHOUT_CHECK
    page = Path(__file__).parents[3].joinpath("docs/how-to/security.md").read_text()
    table = page.partition("| API | needs |")[2]
    names: set[str] = set()
    for row in table.splitlines()[2:]:
        if not row.startswith("|"):
            break
        names.update(re.findall(r"[A-Z][A-Za-z]+", row.split("|")[1]))
    assert {key.kafka_name for key in SERVED} <= names
