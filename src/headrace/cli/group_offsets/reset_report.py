"""Results of a reset by group, and their output: Kafka's lines on stdout, ours on stderr, or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.cli.error_fixes import report_error
from headrace.cli.group_offsets.offset_csv import plan_lines
from headrace.cli.group_offsets.partitions import TopicPartition
from headrace.cli.terminal import data, print_json, talk
from headrace.cli.text_table import Column, kafka_table
from headrace.errors import BrokerError, ConfigError

__all__ = ["GroupReset", "no_plan", "not_empty", "tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReset:
    """The planned (with `--execute`: committed) positions of one group; empty if the reset was refused.

    `sentences` are Kafka's tools' own, `warnings` and `error` are ours.
    """

    group_id: str
    before: Mapping[TopicPartition, int]
    after: Mapping[TopicPartition, int]
    sentences: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    error: BrokerError | ConfigError | None = None


def not_empty(group_id: str, state: str) -> GroupReset:
    """Refused: the group has members."""
    sentence = f"Assignments can only be reset if the group '{group_id}' is inactive, but the current state is {state}."
    error = BrokerError(
        "group-not-empty",
        f"the group {group_id} is {state}: it has members",
        "stop all members of the group first",
        group_id=group_id,
    )
    return GroupReset(group_id=group_id, before={}, after={}, sentences=(sentence,), error=error)


def no_plan(group_id: str, file: Path | None) -> GroupReset:
    """Refused: the file says nothing of the group."""
    error = BrokerError(
        "no-offset",
        f"{file} holds no positions for the group {group_id}",
        "see which groups it names in its first column",
        group_id=group_id,
    )
    sentence = f"No reset plan for group {group_id} found"
    return GroupReset(group_id=group_id, before={}, after={}, sentences=(sentence,), error=error)


def tell(
    results: Sequence[GroupReset],
    *,
    executed: bool,
    as_csv: bool,
    as_json: bool,
    with_group: bool,
    columns: Sequence[Column],
    grow: tuple[str, ...] = (),
) -> int:
    """Prints all of them; the exit code. `columns`: of Kafka's table, GROUP TOPIC PARTITION NEW-OFFSET."""
    if as_json:
        print_json([_document(result, executed) for result in results])
    else:
        for sentence in (sentence for result in results for sentence in result.sentences):
            data(f"\n{sentence}" if sentence.startswith("Warn:") else f"\nError: {sentence}")
        if as_csv:
            for line in plan_lines({result.group_id: result.after for result in results}, with_group=with_group):
                data(line)
            data()
        else:
            rows = [(result.group_id, *key, offset) for result in results for key, offset in result.after.items()]
            data()
            for line in kafka_table(columns, rows, grow=grow) if results else ():
                data(line)
    for result in results:
        for warning in result.warnings:
            talk(f"note   {warning}")
        if result.error is not None:
            report_error(result.error, as_json=as_json)
    return 1 if any(result.error is not None for result in results) else 0


def _document(result: GroupReset, executed: bool) -> dict[str, object]:
    return {
        "group": result.group_id,
        "executed": executed and result.error is None,
        "error": None if result.error is None else result.error.code,
        "offsets": [
            {
                "topic": topic,
                "partition": partition,
                "before": result.before.get((topic, partition)),
                "after": offset,
            }
            for (topic, partition), offset in result.after.items()
        ],
    }
