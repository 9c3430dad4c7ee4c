"""`headrace configs` for quotas of clients: entities of one and two parts, defaults, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner

from headrace.broker.embedded import EmbeddedBroker
from headrace.cli.commands.configs import command


@pytest.fixture
def configs() -> Iterator[Callable[..., tuple[int, str, str]]]:
    with EmbeddedBroker() as broker:

        def run(*arguments: str) -> tuple[int, str, str]:
            done = CliRunner().invoke(command, ["--bootstrap-server", broker.bootstrap_servers, *arguments])
            return done.exit_code, done.stdout, done.stderr

        yield run


def test_altered_quotas_are_described(configs: Callable[..., tuple[int, str, str]]) -> None:
    user = ("--entity-type", "users", "--entity-name", "u")
    assert configs("--alter", *user, "--add-config", "producer_byte_rate=1024,request_percentage=50")[0] == 0
    assert configs("--alter", "--client-defaults", "--add-config", "consumer_byte_rate=7")[0] == 0
    # The name and the default belong to the types in the order of the command line, whichever comes first.
    both = ("--entity-type", "users", "--entity-default", "--entity-type", "clients", "--entity-name", "c")
    assert configs("--alter", *both, "--add-config", "controller_mutation_rate=3")[0] == 0
    assert configs("--describe", "--user", "u")[1] == (
        "Quota configs for user-principal 'u' are producer_byte_rate=1024.0, request_percentage=50.0\n"
    )
    assert configs("--describe", "--user-defaults", "--client", "c")[1] == (
        "Quota configs for the default user-principal, client-id 'c' are controller_mutation_rate=3.0\n"
    )
    _, out, _ = configs("--describe", "--entity-type", "clients", "--json")
    assert json.loads(out) == [{"entity": {"client-id": None}, "quotas": {"consumer_byte_rate": 7.0}}]
    assert configs("--alter", *user, "--delete-config", "producer_byte_rate,request_percentage")[0] == 0
    assert configs("--describe", "--user", "u") == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--user", "u", "--add-config", "producer_rate=1"), "Users have SCRAM"),
        (("--client", "c", "--add-config", "producer_rate=1"), "There is no quota producer_rate"),
        (("--client", "c", "--add-config", "producer_byte_rate=much"), "takes a number"),
        (("--client", "c", "--delete-config", "producer_byte_rate"), "Invalid config(s): producer_byte_rate"),
        (("--ip", "10.0.0.1", "--user", "u", "--add-config", "producer_byte_rate=1"), "or of ips"),
        (("--user", "u", "--add-config", "producer_byte_rate=1,SCRAM-SHA-256=[password=x]"), "one after the other"),
        (("--entity-type", "users", "--add-config", "producer_byte_rate=1"), "--alter needs --entity-name"),
    ],
)
def test_invalid_quotas_are_refused(
    arguments: tuple[str, ...], said: str, configs: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = configs("--alter", *arguments)
    assert (code, out) == (2, "")
    assert said in err
