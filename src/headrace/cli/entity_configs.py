"""Quotas and SCRAM credentials of users, clients and addresses, with the words of kafka-configs (4.3.1).

`--entity-type users --entity-name u --entity-type clients --entity-default` names one entity of two parts: types and
names belong together in the order in which they were given (ConfigCommand.parseQuotaEntity).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.terminal import data
from headrace.client.admin_access import ANY, QuotaEntity
from headrace.suggestions import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.client.admin import Admin

__all__ = [
    "CLIENTS",
    "IPS",
    "NAME_ORDER",
    "QUOTAS",
    "USERS",
    "Part",
    "alter_quotas",
    "alter_user",
    "describe_quotas",
    "described_users",
    "print_quotas",
    "print_users",
    "quota_parts",
]

USERS, CLIENTS, IPS = "users", "clients", "ips"
QUOTAS = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
NAME_ORDER = "headrace.configs.name-order"  # in a click context: which of --entity-name, --entity-default came first
_KINDS = {USERS: "user", CLIENTS: "client-id", IPS: "ip"}
_WORDS = {"user": "user-principal", "client-id": "client-id", "ip": "ip"}
Part = tuple[str, str | None]  # users | clients | ips, and a name, None for the default, ANY where none was given


def quota_parts(given: Mapping[str, Any], name_order: Sequence[str]) -> tuple[Part, ...]:
    """The entity that the options name; nothing when they are about something else. Raises wrong usage."""
    short = [(kind, given[name]) for kind, name in ((USERS, "user"), (CLIENTS, "client"), (IPS, "ip")) if given[name]]
    short += [(kind, None) for kind in (USERS, CLIENTS, IPS) if given[f"{kind.removesuffix('s')}_defaults"]]
    types = list(given["entity_types"])
    if not short and not set(types) & set(_KINDS):
        return ()
    # click collects repeated options by name and loses their order among each other. `--entity-default` can be given
    # once, so it is enough to know whether it came before all names or after them.
    names: list[str | None] = list(given["entity_names"])
    if given["entity_default"]:
        names.insert(0 if next(iter(name_order), "") == "entity_default" else len(names), None)
    # Fewer names than types is allowed: in a description the remaining types match any name (ANY).
    if len(names) > len(types):
        raise click.UsageError("Each --entity-name and --entity-default goes with an --entity-type before it.")
    parts = [*short, *zip(types, [*names, *[ANY] * (len(types) - len(names))], strict=True)]
    # Kafka's entities of quotas: user, client id, both together, or an address on its own (KIP-546, KIP-612). A broker
    # refuses other combinations as well, but with a sentence about the request.
    kinds = sorted(kind for kind, _ in parts)
    if kinds not in ([USERS], [CLIENTS], [IPS], [CLIENTS, USERS]):
        raise click.UsageError("Quotas are of users, of clients, of users and clients together, or of ips.")
    return tuple(parts)


def alter_quotas(admin: Admin, parts: Sequence[Part], changes: Mapping[str, str | None]) -> None:
    """Set or remove quotas of one entity. Raises click.UsageError for an unknown quota."""
    from headrace.client.admin_access import alter_client_quotas, describe_client_quotas

    entity = _entity(parts)
    unknown = [name for name in changes if name not in QUOTAS]
    if unknown:
        near = nearest(unknown[0], QUOTAS)
        hint = f"Did you mean {near}?" if near else f"Quotas: {', '.join(QUOTAS)}."
        raise click.UsageError(f"There is no quota {unknown[0]}. {hint}")
    values = {name: None if text is None else _number(name, text) for name, text in changes.items()}
    # AlterClientQuotas accepts the removal of a quota that is not set without a word. Kafka's tool looks before it
    # writes, so that a typing error in the entity's name is noticed (ConfigCommand.alterQuotaConfigs).
    removed = [name for name, value in values.items() if value is None]
    if removed:
        there = describe_client_quotas(admin.client, entity).get(entity, {})
        absent = [name for name in removed if name not in there]
        if absent:
            raise click.UsageError(f"Invalid config(s): {','.join(absent)}: it is not set there.")
    alter_client_quotas(admin.client, entity, values)
    kind, name = parts[0]
    if name:
        data(f"Completed updating config for {kind.removesuffix('s')} {name}.")
    else:
        data(f"Completed updating default config for {kind} in the cluster.")


def describe_quotas(admin: Admin, parts: Sequence[Part]) -> list[tuple[QuotaEntity, dict[str, float]]]:
    """Return the quotas that are set, in order."""
    from headrace.client.admin_access import describe_client_quotas

    described = describe_client_quotas(admin.client, _entity(parts))
    return sorted(described.items(), key=lambda each: [(kind, name or "") for kind, name in each[0]])


def print_quotas(described: Sequence[tuple[QuotaEntity, dict[str, float]]]) -> None:
    """Print the quotas of each entity as kafka-configs does."""
    for entity, values in described:
        # The user comes before the client id in Kafka's output; the protocol does not order them.
        parts = sorted(entity, key=lambda part: list(_WORDS).index(part[0]))
        whose = ", ".join(f"{_WORDS[kind]} '{name}'" if name else f"the default {_WORDS[kind]}" for kind, name in parts)
        data(f"Quota configs for {whose} are {', '.join(f'{name}={value}' for name, value in sorted(values.items()))}")


def _entity(parts: Sequence[Part]) -> QuotaEntity:
    return tuple(sorted(((_KINDS[kind], name) for kind, name in parts), key=lambda part: part[0]))


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise click.UsageError(f"{name} takes a number, not {text!r}.") from None


# The least that RFC 7677 recommends and Kafka accepts (ScramMechanism.minIterations), and kafka-configs' default.
_ITERATIONS = 4096


def alter_user(admin: Admin, username: str, changes: Mapping[str, str | None]) -> None:
    """`changes`: mechanism → `iterations=8192,password=…`, None to take it away."""
    from headrace.client.admin_access import alter_scram_credentials
    from headrace.protocol.sasl.mechanisms import MECHANISMS

    wrong = [name for name in changes if name not in MECHANISMS]
    if wrong:
        raise click.UsageError(f"Users have {' and '.join(MECHANISMS)}, not {wrong[0]}.")
    passwords: dict[str, tuple[str, int] | None] = {}
    for mechanism, text in changes.items():
        if text is None:
            passwords[mechanism] = None
            continue
        # `[::2]` drops the separator. The password may contain `=` but no comma.
        options = dict(part.strip().partition("=")[::2] for part in text.split(","))
        iterations = options.pop("iterations", str(_ITERATIONS))
        password = options.pop("password", "")
        if options or not password or not iterations.isdigit():
            raise click.UsageError(f"{mechanism} takes [iterations=NUMBER,password=TEXT].")
        passwords[mechanism] = password, int(iterations)
    alter_scram_credentials(admin.client, username, passwords)
    data(f"Completed updating config for user {username}.")


def described_users(admin: Admin, username: str | None) -> dict[str, dict[str, int]]:
    """User → mechanism → iterations; None: of all."""
    from headrace.client.admin_access import describe_scram_credentials

    return describe_scram_credentials(admin.client, None if username is None else [username])


def print_users(described: Mapping[str, Mapping[str, int]]) -> None:
    """Print the SCRAM mechanisms of each user as kafka-configs does."""
    for user, mechanisms in described.items():
        shown = ", ".join(f"{name}=iterations={iterations}" for name, iterations in mechanisms.items())
        data(f"SCRAM credential configs for user-principal '{user}' are {shown}")
