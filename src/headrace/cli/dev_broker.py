"""`--dev`: a broker of our own at the address, unless somebody answers there already."""

from __future__ import annotations

from pathlib import Path

from headrace.cli.instances import BrokerProcess, answers
from headrace.cli.terminal import talk
from headrace.errors import ConfigError

__all__ = ["broker_if_nobody_answers"]

DIRECTORY = Path(".headrace")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def broker_if_nobody_answers(bootstrap_servers: str) -> BrokerProcess | None:
    """A started broker with its data in `.headrace/broker`, or None when one is there. Raises ConfigError."""
    from headrace.client.bootstrap import parse_bootstrap_servers

    addresses = parse_bootstrap_servers(bootstrap_servers)
    if any(answers(address.host, address.port) for address in addresses):
        return None
    first = addresses[0]
    if first.host not in _LOOPBACK:
        raise ConfigError(
            "bad-value",
            f"--dev starts a broker on this machine only, not at {first.host}:{first.port}",
            "take --bootstrap-server localhost:9092",
        )
    DIRECTORY.mkdir(exist_ok=True)
    broker = BrokerProcess(DIRECTORY / "broker", "127.0.0.1", first.port, log=DIRECTORY / "broker.log")
    broker.start()
    talk(f"started a broker on {broker.address}, data in {broker.data_dir}")
    return broker
