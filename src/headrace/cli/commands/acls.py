"""`headrace acls`: access rules, with kafka-acls' flags and output (4.3.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.options import (
    bootstrap_option,
    command_config_option,
    exactly_one,
    json_option,
    open_admin,
    timeout_option,
)
from headrace.cli.terminal import data, echo_err, print_json
from headrace.suggestions import nearest

if TYPE_CHECKING:
    from headrace.client.admin import Admin
    from headrace.client.admin_access import AclBinding, AclWanted

__all__ = ["command"]

# The only name that a resource of type CLUSTER may have (Kafka's Resource.CLUSTER_NAME).
_CLUSTER = "kafka-cluster"
# The operations behind --producer and --consumer (AclCommand). CREATE belongs to the topic, so that
# auto.create.topics.enable works without a right on the cluster (KIP-277).
_PRODUCER = ("WRITE", "DESCRIBE", "CREATE")
_CONSUMER = ("READ", "DESCRIBE")


@click.command("acls")
@click.option("--add", is_flag=True, help="Add rules.")
@click.option("--remove", is_flag=True, help="Remove rules.")
@click.option("--list", "list_", is_flag=True, help="Show rules, all of them or those of what is named.")
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="A topic, or * for all; may be repeated.")
@click.option("--group", "groups", multiple=True, metavar="ID", help="A group, or *; may be repeated.")
@click.option("--transactional-id", "ids", multiple=True, metavar="ID", help="A transactional id, or *.")
@click.option("--cluster", is_flag=True, help="The cluster itself.")
@click.option(
    "--resource-pattern-type",
    "pattern",
    type=click.Choice(("literal", "prefixed", "any", "match"), case_sensitive=False),
    default="literal",
    show_default=True,
    help="How names are meant; any and match with --list and --remove.",
)
@click.option("--operation", "operations", multiple=True, metavar="NAME", help="Read, Write, … or All.  [default: All]")
@click.option("--allow-principal", "allowed", multiple=True, metavar="User:NAME", help="Who may.")
@click.option("--deny-principal", "denied", multiple=True, metavar="User:NAME", help="Who may not.")
@click.option("--allow-host", "allowed_hosts", multiple=True, metavar="IP", help="From where.  [default: *]")
@click.option("--deny-host", "denied_hosts", multiple=True, metavar="IP", help="From where not.  [default: *]")
@click.option("--principal", "principals", multiple=True, metavar="User:NAME", help="With --list: whose rules.")
@click.option("--producer", is_flag=True, help="What a producer needs of --topic (and --transactional-id).")
@click.option("--consumer", is_flag=True, help="What a consumer needs of --topic and --group.")
@click.option("--idempotent", is_flag=True, help="With --producer: IDEMPOTENT_WRITE of the cluster as well.")
@click.option("--force", is_flag=True, help="Ask nothing before rules are removed.")
@timeout_option
@command_config_option
@bootstrap_option
@json_option
def command(**given: Any) -> None:
    """Show, add and remove access rules, with kafka-acls' flags and output.

    \b
      headrace acls --add --allow-principal User:alice --consumer --topic flights --group delays
      headrace acls --list --topic flights
    """
    action = exactly_one({"--add": given["add"], "--remove": given["remove"], "--list": given["list_"]})
    resources = _resources(given)
    if action != "--list" and not resources:
        raise click.UsageError("Name what it is about: --topic, --group, --transactional-id or --cluster.")
    with open_admin(
        given["bootstrap_servers"],
        client_id="headrace-acls",
        timeout_ms=given["timeout_ms"],
        command_config=given["command_config"],
    ) as admin:
        if action == "--list":
            _list(admin, resources, given, as_json=given["as_json"])
        elif action == "--add":
            _add(admin, resources, given)
        else:
            _remove(admin, resources, given)


def _resources(given: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(Type, name) of what is named."""
    found = [("TOPIC", name) for name in given["topics"]]
    found += [("GROUP", name) for name in given["groups"]]
    found += [("TRANSACTIONAL_ID", name) for name in given["ids"]]
    # IDEMPOTENT_WRITE is an operation of the cluster. Brokers since Kafka 2.8 imply it from WRITE on any topic
    # (KIP-679); the flag is for older ones.
    if given["cluster"] or given["idempotent"]:
        found.append(("CLUSTER", _CLUSTER))
    return found


def _operations(kind: str, given: Mapping[str, Any]) -> list[str]:
    """Return the operations that the flags name, for a resource of this kind."""
    from headrace.client.admin_access import OPERATIONS

    if not (given["producer"] or given["consumer"]):
        wanted = [_plain(each) for each in given["operations"] or ("ALL",)]
        names = {_plain(each): each for each in OPERATIONS[2:]}
        unknown = [each for each in wanted if each not in names]
        if unknown:
            near = nearest(unknown[0], names)
            hint = f"Did you mean {names[near]}?" if near else f"Operations: {', '.join(OPERATIONS[2:])}."
            raise click.UsageError(f"There is no operation {unknown[0]}. {hint}")
        return [names[each] for each in wanted]
    wanted = []
    if given["producer"]:
        wanted += {"TOPIC": _PRODUCER, "TRANSACTIONAL_ID": ("WRITE", "DESCRIBE")}.get(kind, ())
        wanted += ("IDEMPOTENT_WRITE",) if kind == "CLUSTER" and given["idempotent"] else ()
    if given["consumer"]:
        wanted += {"TOPIC": _CONSUMER, "GROUP": ("READ",)}.get(kind, ())
    return list(dict.fromkeys(wanted))


# `DescribeConfigs`, `describe_configs` and `DESCRIBE_CONFIGS` are all written in Kafka's documentation.
def _plain(name: str) -> str:
    return name.replace("_", "").upper()


def _bindings(resources: Iterable[tuple[str, str]], given: Mapping[str, Any]) -> list[AclBinding]:
    from headrace.client.admin_access import AclBinding

    if not given["allowed"] and not given["denied"]:
        raise click.UsageError("Say whom it is about: --allow-principal or --deny-principal.")
    pattern = given["pattern"].upper()
    if pattern not in ("LITERAL", "PREFIXED"):
        raise click.UsageError("--add takes the pattern types literal and prefixed.")
    return [
        AclBinding(
            resource_type=kind,
            name=name,
            # There is one cluster, so a prefix of its name means nothing; AclCommand ignores the pattern type there as
            # well.
            pattern="LITERAL" if kind == "CLUSTER" else pattern,
            principal=principal,
            host=host,
            operation=operation,
            permission=permission,
        )
        for kind, name in resources
        for operation in _operations(kind, given)
        # The cross product that AclCommand builds: every principal with every host with every operation of every
        # resource, allow and deny rules side by side in one request.
        for permission, principals, hosts in (
            ("ALLOW", given["allowed"], given["allowed_hosts"]),
            ("DENY", given["denied"], given["denied_hosts"]),
        )
        for principal in principals
        for host in hosts or ("*",)
    ]


def _add(admin: Admin, resources: list[tuple[str, str]], given: Mapping[str, Any]) -> None:
    from headrace.client.admin_access import create_acls

    bindings = _bindings(resources, given)
    create_acls(admin.client, bindings)
    # AclBinding sorts by resource first, so one sort serves the groups and the order inside them.
    for resource, acls in groupby(sorted(bindings), _resource):
        data(f"Adding ACLs for resource `{resource}`: \n " + "\n".join(f"\t{_rule(acl)}" for acl in acls) + "\n")


def _remove(admin: Admin, resources: list[tuple[str, str]], given: Mapping[str, Any]) -> None:
    from headrace.client.admin_access import AclWanted, delete_acls

    filters: list[AclWanted] = []
    if given["allowed"] or given["denied"]:
        # With principals: exactly the rules that --add with the same options would make. Without: all rules of the
        # resource.
        filters = [AclWanted(**dataclasses.asdict(each)) for each in _bindings(resources, given)]
    else:
        pattern = given["pattern"].upper()
        filters = [
            AclWanted(resource_type=kind, name=name, pattern="LITERAL" if kind == "CLUSTER" else pattern)
            for kind, name in resources
        ]
    if not given["force"]:
        click.confirm("Are you sure you want to remove these ACLs?", abort=True, err=True)
    echo_err(f"{delete_acls(admin.client, filters)} rules removed.")


def _list(admin: Admin, resources: list[tuple[str, str]], given: Mapping[str, Any], *, as_json: bool) -> None:
    from headrace.client.admin_access import AclWanted, describe_acls

    pattern = given["pattern"].upper()
    filters = [
        AclWanted(resource_type=kind, name=name, pattern="LITERAL" if kind == "CLUSTER" else pattern)
        for kind, name in resources
    ] or [AclWanted()]
    found = sorted({acl for wanted in filters for acl in describe_acls(admin.client, wanted)})
    principals = given["principals"]
    if as_json:
        print_json([dataclasses.asdict(acl) for acl in found if not principals or acl.principal in principals])
        return
    for principal in principals or (None,):
        if principal is not None:
            data(f"ACLs for principal `{principal}`")
        mine = (acl for acl in found if principal in (None, acl.principal))
        for resource, acls in groupby(mine, _resource):
            data(f"Current ACLs for resource `{resource}`:\n" + "\n".join(f"\t{_rule(acl)}" for acl in acls) + "\n")


def _resource(acl: AclBinding) -> str:
    return f"ResourcePattern(resourceType={acl.resource_type}, name={acl.name}, patternType={acl.pattern})"


def _rule(acl: AclBinding) -> str:
    """Return the text of a rule, as Java prints it."""
    return f"(principal={acl.principal}, host={acl.host}, operation={acl.operation}, permissionType={acl.permission})"
