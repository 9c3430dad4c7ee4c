"""`headrace features`: finalised features of the cluster, with kafka-features' actions, flags and output (4.3.1)."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import click

from headrace.cli.options import bootstrap_option, command_config_option, json_option, open_admin
from headrace.cli.terminal import data, echo_err, print_error, print_json
from headrace.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headrace.client.admin import Admin
    from headrace.client.admin_cluster import UpgradeType
    from headrace.client.admin_results import FeatureDescription

__all__ = ["METADATA_VERSIONS", "command", "levels_of_release", "metadata_version_name"]

ACTIONS = ("describe", "upgrade", "downgrade", "disable", "version-mapping")
_METADATA_VERSION = "metadata.version"
_WORDS = {"upgrade": "upgraded", "downgrade": "downgraded", "disable": "disabled"}


@click.command("features")
@click.argument("action", type=click.Choice(ACTIONS), metavar="|".join(ACTIONS))
@click.option(
    "--feature", "features", multiple=True, metavar="NAME=LEVEL", help="The feature and its new level; may be repeated."
)
@click.option("--release-version", metavar="X.Y", help="The levels of this release of Kafka, instead of --feature.")
@click.option("--metadata", metavar="X.Y", help="The metadata.version of this release (deprecated).")
@click.option("--unsafe", is_flag=True, help="With downgrade, disable: also where metadata may be lost.")
@click.option("--dry-run", is_flag=True, help="Check, and change nothing.")
@click.option("--node-id", type=int, metavar="ID", help="With describe: ask this broker.")
@command_config_option
@bootstrap_option
@json_option
def command(
    action: str,
    features: tuple[str, ...],
    release_version: str | None,
    metadata: str | None,
    unsafe: bool,
    dry_run: bool,
    node_id: int | None,
    command_config: Path | None,
    bootstrap_servers: str,
    as_json: bool,
) -> int:
    """Show and change finalised features of the cluster, with kafka-features' flags and output.

    \b
      headrace features describe
      headrace features upgrade --feature streams.version=1
      headrace features downgrade --feature streams.version=0 --dry-run
    """
    if unsafe and action not in ("downgrade", "disable"):
        raise click.UsageError("--unsafe goes with downgrade and disable.")
    # Answered from the tables below, without a broker, as kafka-features does it.
    if action == "version-mapping":
        return _version_mapping(release_version or METADATA_VERSIONS[-1], as_json)
    levels = {} if action == "describe" else _levels(action, features, release_version, metadata)
    with open_admin(bootstrap_servers, client_id="headrace-features", command_config=command_config) as admin:
        if action == "describe":
            _describe(list(admin.describe_features(node=node_id).values()), as_json)
            return 0
        return _update(admin, action, levels, unsafe=unsafe, dry_run=dry_run, as_json=as_json)


def _levels(
    action: str, features: tuple[str, ...], release_version: str | None, metadata: str | None
) -> dict[str, int]:
    if release_version is not None:
        if features or metadata is not None or action == "disable":
            raise click.UsageError("--release-version goes with upgrade and downgrade, and without --feature.")
        return dict(sorted(_of_release(release_version).items()))
    # Collected for one request: since version 2, UpdateFeatures changes all named features or none (KIP-1022).
    levels: dict[str, int] = {}
    if metadata is not None:
        echo_err(
            "note: --metadata is deprecated in Kafka's tool; use --release-version or --feature metadata.version=N."
        )
        levels[_METADATA_VERSION] = _of_release(metadata)[_METADATA_VERSION]
    for text in features:
        name, level = (text, 0) if action == "disable" else _parsed(text)
        if name in levels:
            raise click.UsageError(f"Feature {name} was specified more than once.")
        levels[name] = level
    if not levels:
        wanted = "NAME" if action == "disable" else "NAME=LEVEL"
        raise click.UsageError(f"Name at least one feature to {action}: --feature {wanted}.")
    return dict(sorted(levels.items()))


def _of_release(release: str) -> dict[str, int]:
    levels = levels_of_release(release)
    if levels is None:
        raise click.UsageError(f"There is no release {release!r} here. Known: {', '.join(METADATA_VERSIONS)}.")
    return levels


def _parsed(text: str) -> tuple[str, int]:
    name, separator, level = (part.strip() for part in text.partition("="))
    # Levels are int16 in the protocol; a larger number would be cut off by the encoder's type.
    if not separator or not level.removeprefix("-").isdigit() or not -(2**15) <= int(level) < 2**15:
        raise click.UsageError(f"--feature takes NAME=LEVEL with a small whole number, not {text!r}.")
    return name, int(level)


def _describe(features: list[FeatureDescription], as_json: bool) -> None:
    if as_json:
        print_json(features)
        return
    for each in features:
        lowest, highest, level = (_shown(each.name, number) for number in (each.lowest, each.highest, each.level))
        epoch = str(each.epoch) if each.epoch >= 0 else "-"
        data(
            f"Feature: {each.name:<40}  SupportedMinVersion: {lowest:<15}  SupportedMaxVersion: {highest:<15}  "
            f"FinalizedVersionLevel: {level:<15}  Epoch: {epoch}"
        )


def _shown(name: str, level: int) -> str:
    return metadata_version_name(level) if name == _METADATA_VERSION else str(level)


def _update(admin: Admin, action: str, levels: dict[str, int], *, unsafe: bool, dry_run: bool, as_json: bool) -> int:
    upgrade_type: UpgradeType = "upgrade" if action == "upgrade" else "unsafe_downgrade" if unsafe else "safe_downgrade"
    reason = None
    try:
        admin.update_features(levels, upgrade_type=upgrade_type, validate_only=dry_run)
    except BrokerError as refused:
        # The broker's refusal is output of this tool (`Could not upgrade …`). Errors without a broker's message, such
        # as a missing connection, take the way of every other error.
        if "kafka_message" not in refused.facts:
            raise
        reason = str(refused.facts["kafka_message"] or refused.message)
    if as_json:
        print_json({"action": action, "dry_run": dry_run, "levels": levels, "error": reason})
    else:
        for name, level in levels.items():
            data(_result_text(action, name, level, reason, dry_run=dry_run))
    if reason is not None and as_json:
        print_error(BrokerError("broker-refused", reason, "headrace features describe"), as_json=True)
    elif reason is not None:
        # All or none, see `_levels`: the broker's one error stands beside each feature, and each counts as failed.
        echo_err(f"{len(levels)} out of {len(levels)} operation(s) failed.")
    return 0 if reason is None else 1


def _result_text(action: str, name: str, level: int, reason: str | None, *, dry_run: bool) -> str:
    to = "" if action == "disable" else f" to {level}"
    if reason is not None:
        return f"{'Can not' if dry_run else 'Could not'} {action} {name}{to}. {reason}"
    return f"{name} {'can be' if dry_run else 'was'} {_WORDS[action]}{to}."


def _version_mapping(release: str, as_json: bool) -> int:
    levels = _of_release(release)
    if as_json:
        print_json({"release": release, "levels": levels})
        return 0
    data(f"{_METADATA_VERSION}={levels.pop(_METADATA_VERSION)} ({release})")
    for name, level in levels.items():
        data(f"{name}={level}")
    return 0


# metadata.version 7, 8, …
METADATA_VERSIONS: Final = (
    "3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2", "3.7-IV0", "3.7-IV1",
    "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0", "4.0-IV0", "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0",
    "4.1-IV1", "4.2-IV0", "4.2-IV1", "4.3-IV0",
)  # fmt: skip
# 3.3-IV3 is the oldest metadata.version that Kafka 4 knows; earlier numbers have no name
# (MetadataVersion.MINIMUM_VERSION).
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
