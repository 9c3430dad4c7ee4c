"""kafka-acls and kafka-configs (quotas) of 4.3.1 against our broker; `headrace acls` prints the same about the same."""

from __future__ import annotations

import pytest
from tests.cli.command_lines import headrace_process
from tests.harness.brokers import broker_fixture
from tests.interop.kafka_tools import ToolServer

from headrace.broker.embedded import EmbeddedBroker

pytestmark = [pytest.mark.interop, pytest.mark.slow]

ACLS, CONFIGS = "org.apache.kafka.tools.AclCommand", "kafka.admin.ConfigCommand"
ALICE = ("--allow-principal", "User:alice")
PREFIXED = ("--resource-pattern-type", "prefixed")
# Each adds rules; `--list` afterwards shows them.
ADDED = (
    (*ALICE, "--producer", "--topic", "t", "--transactional-id", "x", "--idempotent"),
    (*ALICE, "--allow-host", "10.0.0.1", "--consumer", "--topic", "t", "--group", "g"),
    ("--deny-principal", "User:bob", "--operation", "All", "--topic", "pre", *PREFIXED),
    (*ALICE, "--operation", "DescribeConfigs", "--cluster"),
)
LISTED: tuple[tuple[str, ...], ...] = (
    (),
    ("--topic", "pre-1", "--resource-pattern-type", "match"),
    ("--principal", "User:bob"),
    ("--group", "g"),
)
REMOVED = (
    (*ALICE, "--producer", "--topic", "t"),
    ("--topic", "pre", *PREFIXED),
)


broker = broker_fixture(config={"authorizer.class.name": "on", "super.users": "User:ANONYMOUS"})


def lines(text: str) -> list[str]:
    """Java's sets have no order."""
    return sorted(line.strip() for line in text.splitlines() if line.strip())


def test_both_tools_say_and_do_the_same(tools: ToolServer, broker: EmbeddedBroker) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    for added in ADDED:
        theirs = tools.run(ACLS, *at, "--add", *added)
        assert theirs.code == 0, theirs.err
        ours = headrace_process("acls", *at, "--add", *added)
        assert lines(ours.out) == lines(theirs.out), added
    for listed in LISTED:
        theirs = tools.run(ACLS, *at, "--list", *listed)
        ours = headrace_process("acls", *at, "--list", *listed)
        assert lines(theirs.out)
        assert lines(ours.out) == lines(theirs.out), listed
    before = lines(tools.run(ACLS, *at, "--list").out)
    theirs = tools.run(ACLS, *at, "--remove", "--force", *REMOVED[0])
    assert theirs.code == 0, theirs.err
    ours = headrace_process("acls", *at, "--remove", "--force", *REMOVED[1])
    assert ours.code == 0, ours.err
    after = lines(tools.run(ACLS, *at, "--list").out)
    assert len(after) < len(before)
    assert not [line for line in after if "name=pre" in line]
    produces = "(principal=User:alice, host=*, operation=CREATE, permissionType=ALLOW)"
    assert produces in before
    assert produces not in after


def test_quotas_of_kafkas_tool(tools: ToolServer, broker: EmbeddedBroker) -> None:
    def configs(*arguments: str) -> str:
        told = tools.run(CONFIGS, "--bootstrap-server", broker.bootstrap_servers, *arguments)
        assert told.code == 0, told.err
        return told.out.strip()

    user = ("--entity-type", "users", "--entity-name", "u")
    with_client = (*user, "--entity-type", "clients", "--entity-default")
    address = ("--entity-type", "ips", "--entity-name", "127.0.0.1")
    configs("--alter", *user, "--add-config", "producer_byte_rate=1024,consumer_byte_rate=2048")
    configs("--alter", *with_client, "--add-config", "request_percentage=12.5")
    configs("--alter", *address, "--add-config", "connection_creation_rate=10")
    broker.restart()
    told = configs("--describe", "--entity-type", "users")
    assert told == "Quota configs for user-principal 'u' are consumer_byte_rate=2048.0, producer_byte_rate=1024.0"
    told = configs("--describe", *with_client)
    assert told == "Quota configs for user-principal 'u', the default client-id are request_percentage=12.5"
    told = configs("--describe", "--entity-type", "ips")
    assert told == "Quota configs for ip '127.0.0.1' are connection_creation_rate=10.0"
    configs("--alter", *user, "--delete-config", "producer_byte_rate")
    assert configs("--describe", *user) == "Quota configs for user-principal 'u' are consumer_byte_rate=2048.0"


# What `--describe` is asked behind them; one entity of two parts in either order, defaults, short options.
QUOTAS = (
    ("--entity-type", "users", "--entity-name", "u", "--add-config", "producer_byte_rate=1024,consumer_byte_rate=2048"),
    ("--entity-type", "clients", "--entity-default", "--add-config", "request_percentage=12.5"),
    ("--user", "u", "--client-defaults", "--add-config", "controller_mutation_rate=5"),
    ("--user-defaults", "--add-config", "producer_byte_rate=77"),
    ("--ip", "127.0.0.1", "--add-config", "connection_creation_rate=10"),
    ("--user", "u", "--add-config", "SCRAM-SHA-512=[iterations=4096,password=correct-horse]"),
    ("--user", "u", "--delete-config", "consumer_byte_rate"),
)
ASKED = (
    ("--entity-type", "users"),
    ("--entity-type", "users", "--entity-name", "u"),
    ("--entity-type", "users", "--entity-default"),
    ("--entity-type", "clients"),
    ("--entity-type", "users", "--entity-type", "clients"),
    ("--entity-type", "users", "--entity-name", "u", "--entity-type", "clients", "--entity-default"),
    ("--entity-type", "users", "--entity-default", "--entity-type", "clients", "--entity-name", "c"),
    ("--entity-type", "ips"),
)


def test_quotas_by_both_tools(tools: ToolServer) -> None:
    with EmbeddedBroker() as theirs, EmbeddedBroker() as ours:
        for changed in QUOTAS:
            done = tools.run(CONFIGS, "--bootstrap-server", theirs.bootstrap_servers, "--alter", *changed)
            assert done.code == 0, done.err
            did = headrace_process("configs", "--bootstrap-server", ours.bootstrap_servers, "--alter", *changed)
            assert (did.code, lines(did.out)) == (0, lines(done.out)), did.err
        for asked in ASKED:
            told = [
                lines(tools.run(CONFIGS, "--bootstrap-server", broker.bootstrap_servers, "--describe", *asked).out)
                for broker in (theirs, ours)
            ]
            ours_tells = headrace_process("configs", "--bootstrap-server", ours.bootstrap_servers, "--describe", *asked)
            assert told[0] == told[1] == lines(ours_tells.out), (asked, ours_tells.err)
