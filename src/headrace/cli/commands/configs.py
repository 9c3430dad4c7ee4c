"""`headrace configs`: settings of topics, brokers, groups, client metrics; passwords; quotas. As kafka-configs 4.3.1.

Where Kafka's tool ends with a Java stack trace, stderr has one sentence here, and the exit code is 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from headrace.cli.entity_configs import CLIENTS, IPS, NAME_ORDER, QUOTAS, USERS, Part, quota_parts
from headrace.cli.options import (
    bootstrap_option,
    command_config_option,
    exactly_one,
    json_option,
    open_admin,
    read_properties,
    timeout_option,
)
from headrace.cli.terminal import data, print_json
from headrace.client.admin_access import ANY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace.client.admin import Admin
    from headrace.client.admin_access import QuotaEntity
    from headrace.client.admin_cluster import ResourceType
    from headrace.client.admin_results import ConfigEntry

__all__ = ["command"]

KINDS = {"topics": "topic", "groups": "group", "brokers": "broker", "client-metrics": "client-metrics"}
_ALL_BROKERS = ""
# As Kafka's tool: commas within square brackets belong to the value.
_COMMA = re.compile(r",(?![^\[]*\])")


def _ordered(context: click.Context, option: click.Parameter, value: Any) -> Any:
    """Remember which of the options that name things came first."""
    if value:
        context.meta.setdefault(NAME_ORDER, []).append(option.name)
    return value


@click.command("configs")
@click.option("--describe", is_flag=True, help="Show what was set, or with --all every setting in force.")
@click.option("--alter", is_flag=True, help="Change settings: --add-config, --add-config-file, --delete-config.")
@click.option("--all", "all_", is_flag=True, help="With --describe: defaults as well.")
@click.option(
    "--entity-type",
    "entity_types",
    multiple=True,
    type=click.Choice((*KINDS, USERS, CLIENTS, IPS)),
    help="What the settings are of.",
)
@click.option(
    "--entity-name",
    "entity_names",
    multiple=True,
    metavar="NAME",
    callback=_ordered,
    help="The topic, group id, broker id, user, client id or address.",
)
@click.option(
    "--entity-default", is_flag=True, callback=_ordered, help="All brokers, users, … instead of --entity-name."
)
@click.option("--topic", metavar="NAME", help="Short for --entity-type topics --entity-name NAME.")
@click.option("--group", metavar="ID", help="Short for --entity-type groups --entity-name ID.")
@click.option("--broker", metavar="ID", help="Short for --entity-type brokers --entity-name ID.")
@click.option("--broker-defaults", is_flag=True, help="Short for --entity-type brokers --entity-default.")
@click.option("--client-metrics", metavar="NAME", help="Short for --entity-type client-metrics --entity-name NAME.")
@click.option("--user", metavar="NAME", help="Short for --entity-type users --entity-name NAME.")
@click.option("--user-defaults", is_flag=True, help="Short for --entity-type users --entity-default.")
@click.option("--client", metavar="ID", help="Short for --entity-type clients --entity-name ID.")
@click.option("--client-defaults", is_flag=True, help="Short for --entity-type clients --entity-default.")
@click.option("--ip", metavar="ADDRESS", help="Short for --entity-type ips --entity-name ADDRESS.")
@click.option("--ip-defaults", is_flag=True, help="Short for --entity-type ips --entity-default.")
@click.option(
    "--add-config", metavar="K=V,…", help="Settings to set; [a,b] keeps commas within a value: k1=v1,k2=[v2,v3]."
)
@click.option(
    "--add-config-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A properties file with settings to set.",
)
@click.option("--delete-config", "delete_configs", multiple=True, metavar="K,…", help="Settings to take back.")
@timeout_option
@command_config_option
@bootstrap_option
@json_option
def command(**given: Any) -> None:
    """Show and change settings of topics, brokers, groups and client metrics, and the passwords and quotas of
    clients, with kafka-configs' flags and output.

    \b
      headrace configs --describe --group flight-delays --all
      headrace configs --alter --group flight-delays --add-config streams.num.standby.replicas=1
      headrace configs --alter --user alice --client etl --add-config producer_byte_rate=1048576
    """
    action = exactly_one({"--describe": given["describe"], "--alter": given["alter"]})
    parts = quota_parts(given, click.get_current_context().meta.get(NAME_ORDER, ()))
    changes = _changes(given)
    if parts:
        _of_clients(action, parts, changes, given)
        return
    entity = _entity(given)
    _check(action, entity, changes, all_=given["all_"])
    with open_admin(
        given["bootstrap_servers"],
        client_id="headrace-configs",
        timeout_ms=given["timeout_ms"],
        command_config=given["command_config"],
    ) as admin:
        if action == "--alter":
            _alter(admin, entity, changes)
        else:
            _describe(admin, entity, all_=given["all_"], as_json=given["as_json"])


def _of_clients(
    action: str, parts: Sequence[Part], changes: Mapping[str, str | None], given: Mapping[str, Any]
) -> None:
    """Clients have quotas; users have SCRAM credentials as well, `--add-config 'SCRAM-SHA-512=[password=…]'`."""
    from headrace.cli.entity_configs import (
        alter_quotas,
        alter_user,
        describe_quotas,
        described_users,
        print_quotas,
        print_users,
    )

    if action == "--alter" and (any(name == ANY for _, name in parts) or not changes):
        raise click.UsageError("--alter needs --entity-name or --entity-default, and --add-config or --delete-config.")
    if action == "--describe" and changes:
        raise click.UsageError("--add-config, --add-config-file and --delete-config go with --alter.")
    (kind, name), *more = parts
    quotas = [each for each in changes if each in QUOTAS]
    if quotas and len(quotas) < len(changes):
        raise click.UsageError("Change quotas and SCRAM credentials one after the other, not in one command.")
    with open_admin(
        given["bootstrap_servers"],
        client_id="headrace-configs",
        timeout_ms=given["timeout_ms"],
        command_config=given["command_config"],
    ) as admin:
        # SCRAM belongs to one named user. The same options with a client id beside the user, or without a name, can
        # only mean quotas.
        if action == "--alter" and not quotas and kind == USERS and name and not more:
            alter_user(admin, name, changes)
        elif action == "--alter":
            alter_quotas(admin, parts, changes)
        else:
            found = describe_quotas(admin, parts)
            users = described_users(admin, name or None) if kind == USERS and name is not None and not more else {}
            if given["as_json"]:
                print_json(_document_of_clients(found, users))
            else:
                print_quotas(found)
                print_users(users)


def _document_of_clients(
    found: Sequence[tuple[QuotaEntity, dict[str, float]]], users: Mapping[str, Mapping[str, int]]
) -> list[dict[str, object]]:
    """One entry for each entity; a user with a password and without quotas has one, too."""
    documents: list[dict[str, object]] = []
    entities = dict(found) | {(("user", user),): {} for user in users if (("user", user),) not in dict(found)}
    for entity, quotas in entities.items():
        document: dict[str, object] = {"entity": dict(entity), "quotas": quotas}
        if len(entity) == 1 and entity[0][0] == "user":
            document = {"user": entity[0][1], "scram": dict(users.get(entity[0][1] or "", {})), **document}
        documents.append(document)
    return documents


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entity:
    """`name` None: all of that kind; "": the brokers' defaults."""

    entity_type: str
    name: str | None

    @property
    def kind(self) -> ResourceType:
        return cast("ResourceType", KINDS[self.entity_type])

    @property
    def word(self) -> str:
        """The name of the kind as Kafka's tool prints it: its entity type without the last letter."""
        return self.entity_type[:-1]


def _entity(given: Mapping[str, Any]) -> _Entity:
    short = {"topics": given["topic"], "groups": given["group"], "brokers": given["broker"]}
    short["client-metrics"] = given["client_metrics"]
    named = [(kind, name) for kind, name in short.items() if name is not None]
    if given["broker_defaults"]:
        named.append(("brokers", _ALL_BROKERS))
    types = [*given["entity_types"], *(kind for kind, _ in named)]
    if not types:
        raise click.UsageError(
            "Give --entity-type, or one of --topic, --group, --broker, --broker-defaults, --client-metrics."
        )
    if len(types) > 1:
        raise click.UsageError("Give one entity type only.")
    if named:
        if given["entity_names"] or given["entity_default"]:
            raise click.UsageError("--entity-name and --entity-default go with --entity-type.")
        return _Entity(entity_type=types[0], name=named[0][1])
    # One resource per command, as in Kafka's tool: IncrementalAlterConfigs could carry several, but the output names
    # one.
    if len(given["entity_names"]) + given["entity_default"] > 1:
        raise click.UsageError("Give one --entity-name, or --entity-default.")
    name = given["entity_names"][0] if given["entity_names"] else None
    return _Entity(entity_type=types[0], name=_ALL_BROKERS if given["entity_default"] else name)


def _changes(given: Mapping[str, Any]) -> dict[str, str | None]:
    if given["add_config"] is not None and given["add_config_file"] is not None:
        raise click.UsageError("Give only one of --add-config, --add-config-file.")
    # 1. From a file, or from the option; a file with a password keeps it out of ps.
    added = read_properties(given["add_config_file"]) if given["add_config_file"] is not None else {}
    # 2. `k1=v1,k2=[a,b]`: brackets protect commas and are removed from the value (ConfigCommand.parseConfigsToBeAdded).
    #    A second `=` outside of brackets is nearly always a missing comma.
    for pair in _COMMA.split(given["add_config"] or ""):
        name, separator, value = (part.strip() for part in pair.partition("="))
        if not separator and not name:
            continue
        if not separator or not name or ("=" in value and not value.startswith("[")):
            raise click.UsageError(f"--add-config takes NAME=VALUE,… and NAME=[VALUE,VALUE], not {pair!r}.")
        added[name] = value.removeprefix("[").removesuffix("]")
    # 3. None stands for a deletion from here on: IncrementalAlterConfigs (KIP-339) has the operation DELETE for it.
    taken = [name.strip() for text in given["delete_configs"] for name in text.split(",") if name.strip()]
    if both := [name for name in taken if name in added]:
        raise click.UsageError(f"{both[0]} cannot be both set and deleted.")
    return {**added, **dict.fromkeys(taken)}


def _check(action: str, entity: _Entity, changes: Mapping[str, str | None], *, all_: bool) -> None:
    if entity.name == _ALL_BROKERS and entity.entity_type != "brokers":
        raise click.UsageError(f"--entity-default goes with brokers, not with {entity.entity_type}.")
    # The name of a broker resource is its node id in decimal; a host name would be refused by the broker as a wrong
    # number.
    if entity.entity_type == "brokers" and entity.name and not entity.name.isdigit():
        raise click.UsageError(f"A broker is named by its id, a whole number, not {entity.name!r}.")
    if action == "--describe" and changes:
        raise click.UsageError("--add-config, --add-config-file and --delete-config go with --alter.")
    if action == "--alter" and entity.name is None:
        raise click.UsageError("--alter needs --entity-name, or for brokers --entity-default.")
    if action == "--alter" and not changes:
        raise click.UsageError("--alter needs --add-config, --add-config-file or --delete-config.")
    if action == "--alter" and all_:
        raise click.UsageError("--all goes with --describe.")


def _alter(admin: Admin, entity: _Entity, changes: Mapping[str, str | None]) -> None:
    name = entity.name or _ALL_BROKERS
    admin.alter_configs(entity.kind, name, changes)
    if name == _ALL_BROKERS:
        data("Completed updating default config for brokers in the cluster.")
    else:
        data(f"Completed updating config for {entity.word} {name}.")


def _describe(admin: Admin, entity: _Entity, *, all_: bool, as_json: bool) -> None:
    names = _names(admin, entity)
    # DescribeConfigs of a group that does not exist succeeds, because its settings may be made before it exists.
    # Kafka's tool looks at the lists first and prints this sentence; with --all it describes the resource anyway.
    if entity.name and entity.name not in names:
        if as_json and not all_:
            print_json([])
            return
        if not all_:
            data(f"The {entity.word} '{entity.name}' doesn't exist and doesn't have dynamic config.")
            return
    chosen = names if entity.name is None else [entity.name]
    described = admin.describe_configs([(entity.kind, name) for name in chosen]) if chosen else {}
    shown = {
        name: [entry for _, entry in sorted(entries.items()) if all_ or entry.source == _own_source(entity.kind, name)]
        for (_, name), entries in described.items()
    }
    if as_json:
        print_json([_document(entity, name, shown[name]) for name in chosen])
        return
    for name in chosen:
        what = f"{entity.word} {name}" if name != _ALL_BROKERS else "brokers in the cluster"
        data(f"{'All' if all_ else 'Default' if name == _ALL_BROKERS else 'Dynamic'} configs for {what} are:")
        for entry in shown[name]:
            data(f"  {_line(entry)}")


def _names(admin: Admin, entity: _Entity) -> list[str]:
    """Return the names of the existing resources of a kind, in order; brokers end with their defaults."""
    if entity.entity_type == "topics":
        return sorted(admin.list_topics(include_internal=True))
    if entity.entity_type == "brokers":
        brokers = sorted(admin.client.metadata((), refresh=True).brokers)
        # Kafka's tool describes the defaults of all brokers as one more resource, with the empty name, after the
        # brokers.
        return [*(str(node) for node in brokers), _ALL_BROKERS]
    if entity.entity_type == "client-metrics":
        return sorted(name for _, name in admin.list_config_resources(["client-metrics"]))
    # Groups that exist, and groups that only have settings (ListConfigResources, KIP-1142): both are "all groups".
    listed = {group.group_id for group in admin.list_groups()}
    return sorted(listed | {name for kind, name in admin.list_config_resources(["group"]) if kind == "group"})


def _own_source(kind: str, name: str) -> int:
    """Return the configuration source that means "set on the resource itself"."""
    # DescribeConfigsResponse.ConfigSource: 1 DYNAMIC_TOPIC, 2 DYNAMIC_BROKER, 3 DYNAMIC_DEFAULT_BROKER, 7
    # DYNAMIC_CLIENT_METRICS, 8 DYNAMIC_GROUP. Without --all only these are shown: values from server.properties and
    # defaults are not "dynamic configs".
    return {"topic": 1, "client-metrics": 7, "group": 8}.get(kind, 3 if name == _ALL_BROKERS else 2)


def _line(entry: ConfigEntry) -> str:
    from headrace.client.admin_cluster import SOURCES

    synonyms = ", ".join(f"{SOURCES.get(each.source)}:{each.name}={_text(each.value)}" for each in entry.synonyms)
    return f"{entry.name}={_text(entry.value)} sensitive={_text(entry.sensitive)} synonyms={{{synonyms}}}"


def _text(value: str | bool | None) -> str:
    """Return the text of a value, as Java prints it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else value


def _document(entity: _Entity, name: str, entries: Iterable[ConfigEntry]) -> dict[str, object]:
    from headrace.client.admin_cluster import SOURCES

    return {
        "entity_type": entity.entity_type,
        "entity_name": None if name == _ALL_BROKERS else name,
        "configs": [
            {
                "name": entry.name,
                "value": entry.value,
                "source": SOURCES.get(entry.source),
                "read_only": entry.read_only,
                "sensitive": entry.sensitive,
                "synonyms": [
                    {"source": SOURCES.get(each.source), "name": each.name, "value": each.value}
                    for each in entry.synonyms
                ],
            }
            for entry in entries
        ],
    }
