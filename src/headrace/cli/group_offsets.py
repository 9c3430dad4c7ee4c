"""Committed positions of groups on the command line: named partitions, reset plans, CSV files, deletion.

Partitions are named as in Kafka's tools: `flights` means all partitions of the topic, `flights:0,2` these two. Moments
are `2026-11-21T06:00:00.000` (UTC without an offset), durations ISO 8601 (`P1DT2H`). Used by `streams-groups` and
`consumer-groups`, whose output differs only where Kafka's tools differ (4.3.1: OffsetsUtils, ConsumerGroupCommand).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from headrace.cli.error_fixes import report_error
from headrace.cli.terminal import Column, data, echo_err, kafka_table, print_json
from headrace.client.broker_errors import unknown_topic_error
from headrace.errors import BrokerError, ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.cli.group_options import GroupOptions
    from headrace.client.admin import Admin
    from headrace.client.admin_results import StreamsGroupDescription

__all__ = [
    "GroupReset",
    "NewPositions",
    "ResetPlan",
    "TopicPartition",
    "delete_offsets",
    "duration_ms",
    "input_topics",
    "missing_partitions",
    "moment_ms",
    "named_partitions",
    "no_plan",
    "not_empty",
    "plan_lines",
    "print_reset",
    "read_plan",
]

TopicPartition = tuple[str, int]


def named_partitions(
    admin: Admin, arguments: Iterable[str], *, option: str = "--input-topic"
) -> tuple[list[TopicPartition], list[str]]:
    """(partitions, topics without partitions given that do not exist). Raises click.UsageError."""
    partitions: list[TopicPartition] = []
    whole = []
    for argument in arguments:
        topic, separator, numbers = argument.partition(":")
        if not separator:
            whole.append(argument)
            continue
        for number in numbers.split(","):
            if not number.strip().isdecimal():
                raise click.UsageError(f"{option} takes TOPIC or TOPIC:0,1,2, not {argument!r}.")
            partitions.append((topic, int(number)))
    described = admin.describe_topics(whole) if whole else {}
    partitions += [(topic, number) for topic in whole if topic in described for number in described[topic].partitions]
    return sorted(set(partitions)), [topic for topic in whole if topic not in described]


def missing_partitions(admin: Admin, partitions: Iterable[TopicPartition]) -> BrokerError | None:
    """Return `topic-missing`, which names the partitions that do not exist; None if all do."""
    wanted = list(partitions)
    topics = admin.describe_topics({topic for topic, _ in wanted})
    absent = [key for key in wanted if key[0] not in topics or key[1] not in topics[key[0]].partitions]
    if not absent:
        return None
    names = ",".join(f"{topic}-{number}" for topic, number in absent)
    return BrokerError(
        "topic-missing",
        f'the partitions "{names}" do not exist',
        "see what there is with:  headrace topics --describe",
        partitions=absent,
    )


def input_topics(group: StreamsGroupDescription) -> frozenset[str]:
    """The source topics of the topology; internal ones are not among them."""
    if group.topology is None:
        return frozenset()
    return frozenset(topic for each in group.topology.subtopologies for topic in each.source_topics)


# The grammar of java.time.Duration.parse, which Kafka's tool uses: days to seconds, signs allowed in front of the whole
# and of each part, comma or point before up to nine digits. Months and years are no durations there.
_DURATION = re.compile(
    r"(?P<sign>[-+])?P(?:(?P<days>[-+]?\d+)D)?"
    r"(?:T(?=[-+\d.])(?:(?P<hours>[-+]?\d+)H)?(?:(?P<minutes>[-+]?\d+)M)?(?:(?P<seconds>[-+]?\d+(?:[.,]\d{0,9})?)S)?)?",
    re.IGNORECASE,
)
_UNITS_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000}


def moment_ms(text: str) -> int:
    """Milliseconds since 1970. Raises click.UsageError."""
    try:
        # `fromisoformat` accepts a date alone, which Kafka refuses (Utils.getDateTime); midnight in which zone would be
        # open.
        if "T" not in text:
            raise ValueError
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"--to-datetime takes YYYY-MM-DDThh:mm:ss.sss, UTC or with an offset (…Z, …+02:00), not {text!r}."
        ) from None
    if moment.tzinfo is None:
        # Kafka's Utils.getDateTime reads a time without an offset as UTC as well, whatever the zone of the machine is.
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def duration_ms(text: str) -> int:
    """Milliseconds of an ISO 8601 duration of days and less. Raises click.UsageError."""
    found = _DURATION.fullmatch(text)
    if found is None or not any(found[unit] for unit in ("days", "hours", "minutes", "seconds")):
        raise click.UsageError(f"--by-duration takes PnDTnHnMnS, such as PT30M or P1DT12H, not {text!r}.")
    whole = sum(int(found[unit] or 0) * size for unit, size in _UNITS_MS.items())
    whole += round(float((found["seconds"] or "0").replace(",", ".")) * 1000)
    return -whole if found["sign"] == "-" else whole


class NewPositions:
    """The planning of one group. Mutable: gathers Kafka's `sentences` and our `warnings`."""

    def __init__(self, admin: Admin, committed: Mapping[TopicPartition, int], now_ms: int) -> None:
        self._admin, self._committed, self._now_ms = admin, committed, now_ms
        self.sentences: list[str] = []
        self.warnings: list[str] = []

    def planned(self, options: GroupOptions, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the planned positions. Raises click.UsageError: nothing is committed that could be shifted."""
        # The scenarios of Kafka's OffsetsUtils (4.3.1). Only given and shifted offsets can lie outside a log and are
        # clamped (1, 2); offsets from ListOffsets are positions of the log already (4, 5).
        # 1. --to-offset
        if options.to_offset is not None:
            return self.inside(dict.fromkeys(partitions, options.to_offset))
        # 2. --shift-by
        if options.shift_by is not None:
            return self.inside(self._shifted(partitions, options.shift_by))
        # 3. --to-current: partitions without a commit take the log's end, as a new consumer with "latest" would.
        if options.to_current:
            absent = [key for key in partitions if key not in self._committed]
            latest = self._ends(absent, "latest")
            return {key: latest.get(key, self._committed.get(key, 0)) for key in partitions}
        # 4. --to-datetime and --by-duration: the first record at or after the moment.
        if options.to_datetime is not None:
            return self._at(partitions, moment_ms(options.to_datetime))
        if options.by_duration is not None:
            return self._at(partitions, self._now_ms - duration_ms(options.by_duration))
        # 5. --to-earliest, --to-latest
        return self._ends(partitions, "earliest" if options.to_earliest else "latest")

    def inside(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the positions, moved into their logs where they lie outside."""
        starts, ends = self._ends(wanted, "earliest"), self._ends(wanted, "latest")
        inside = {}
        for key, offset in wanted.items():
            # A position outside its log would make the consumer's next fetch fail with OFFSET_OUT_OF_RANGE, and
            # auto.offset.reset would then choose another position than the operator did
            # (OffsetsUtils.checkOffsetsRange).
            inside[key] = min(max(offset, starts[key]), ends[key])
            if inside[key] != offset:
                name = f"{key[0]}-{key[1]}"
                self.warnings.append(
                    f"{name} has offsets {starts[key]} to {ends[key]}: {inside[key]} is taken instead of {offset}"
                )
        return inside

    def _shifted(self, partitions: list[TopicPartition], by: int) -> dict[TopicPartition, int]:
        for topic, partition in partitions:
            if (topic, partition) not in self._committed:
                raise click.UsageError(
                    f"Cannot shift offset for partition {topic}-{partition} since there is no current committed offset"
                )
        return {key: self._committed[key] + by for key in partitions}

    def _ends(self, partitions: Iterable[TopicPartition], which: str) -> dict[TopicPartition, int]:
        wanted = dict.fromkeys(partitions, which)
        found = self._admin.list_offsets(wanted) if wanted else {}
        return {key: position.offset for key, position in found.items()}

    def _at(self, partitions: list[TopicPartition], at_ms: int) -> dict[TopicPartition, int]:
        found = self._admin.list_offsets(dict.fromkeys(partitions, at_ms))
        # ListOffsets answers -1 where no record is as young as the moment, not only in an empty log. Kafka's sentence
        # calls both "empty"; it stays as it is, because scripts match it.
        empty = [key for key in partitions if found[key].offset < 0]
        for topic, partition in empty:
            self.sentences.append(
                f"Warn: Partition {partition} from topic {topic} is empty. Falling back to latest known offset."
            )
        latest = self._ends(empty, "latest")
        return {key: latest.get(key, found[key].offset) for key in partitions}

    def reset(
        self, group_id: str, after: Mapping[TopicPartition, int], error: BrokerError | ConfigError | None
    ) -> GroupReset:
        """Return the result for the group, with what the planning has gathered."""
        return GroupReset(
            group_id=group_id,
            before={key: self._committed[key] for key in after if key in self._committed},
            after=dict(sorted(after.items())),
            sentences=tuple(self.sentences),
            warnings=tuple(self.warnings),
            error=error,
        )


ResetPlan = Mapping[str, Mapping[tuple[str, int], int]]  # group → partition → new position

# Kafka writes plans with Jackson's CsvMapper, which quotes texts longer than 24 characters without looking at them, and
# shorter ones with a character below "-" (CsvEncoder). Both rules are kept: files are compared byte by byte.
_LONGEST_PLAIN = 24
_FIRST_PLAIN = "-"


def plan_lines(plan: ResetPlan, *, with_group: bool) -> list[str]:
    """Return one line per partition, in order."""
    return [
        ",".join([*([_quoted(group_id)] if with_group else []), _quoted(topic), str(partition), str(offset)])
        for group_id, offsets in plan.items()
        for (topic, partition), offset in sorted(offsets.items())
    ]


def _quoted(text: str) -> str:
    if len(text) <= _LONGEST_PLAIN and all(character >= _FIRST_PLAIN for character in text):
        return text
    return '"' + text.replace('"', '""') + '"'


def read_plan(path: Path, groups: Iterable[str]) -> dict[str, dict[tuple[str, int], int]]:
    """The plan of a file. Three columns belong to the one group that was named. Raises ConfigError `bad-value`."""
    named = list(groups)
    plan: dict[str, dict[tuple[str, int], int]] = {}
    for number, row in enumerate(_rows(path), start=1):
        if not row:
            continue
        # Two forms, as in Kafka's tool: --export writes the group only where several are exported.
        if len(row) == 3 and len(named) == 1:
            row = [named[0], *row]
        try:
            group_id, topic, partition, offset = row
            plan.setdefault(group_id, {})[topic, int(partition)] = int(offset)
        # Also raised by the unpacking, for a row with another number of columns.
        except ValueError:
            raise ConfigError(
                "bad-value",
                f"line {number} of {path} is no position: {','.join(row)}",
                "write topic,partition,offset for a single --group, else group,topic,partition,offset",
            ) from None
    return plan


def _rows(path: Path) -> list[list[str]]:
    try:
        return list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ConfigError(
            "bad-value", f"{path} cannot be read: {why}", "name a file that --export has written"
        ) from None


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


# States of a group without members: positions of others cannot be reset.
INACTIVE = ("Empty", "Dead")


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


def print_reset(
    results: Sequence[GroupReset],
    *,
    executed: bool,
    as_csv: bool,
    as_json: bool,
    with_group: bool,
    columns: Sequence[Column],
    grow: tuple[str, ...] = (),
) -> int:
    """Print the resets of all groups, and return the exit code.

    Args:
        results: outcome for each group.
        executed: False for a dry run.
        as_csv: print Kafka's CSV format.
        as_json: print JSON.
        with_group: CSV has a column with the group.
        columns: of Kafka's table: GROUP TOPIC PARTITION NEW-OFFSET.
        grow: names of columns that take the remaining width.
    """
    if as_json:
        print_json([_reset_document(result, executed) for result in results])
    else:
        for sentence in (sentence for result in results for sentence in result.sentences):
            # stdout is Kafka's text, byte for byte; what we add (`note`, errors with a fix) goes to stderr below.
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
            echo_err(f"note   {warning}")
        if result.error is not None:
            report_error(result.error, as_json=as_json)
    return 1 if any(result.error is not None for result in results) else 0


def _reset_document(result: GroupReset, executed: bool) -> dict[str, object]:
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


# Stands for a topic that was named as a whole and does not exist, so that no partition can be listed; shown as "-".
ALL_OF_TOPIC = -1
_REASONS = {
    "GROUP_SUBSCRIBED_TO_TOPIC": (
        "Deleting offsets of a topic is forbidden while the consumer group is actively subscribed to it."
    ),
    "UNKNOWN_TOPIC_OR_PARTITION": "This server does not host this topic-partition.",
}


def delete_offsets(
    admin: Admin,
    group_id: str,
    arguments: Iterable[str],
    *,
    partitions: Iterable[TopicPartition] = (),
    bootstrap_servers: str,
    as_json: bool,
    option: str = "--input-topic",
) -> int:
    """Forget the partitions that `arguments` name (TOPIC, TOPIC:0,1) and those of `partitions`.

    Exit code 1 when a partition was refused. Raises BrokerError when the whole group is (`group-missing`).
    """
    named, absent = named_partitions(admin, arguments, option=option)
    known = admin.list_topics() if absent else {}
    # A topic that was deleted may still have positions: they are deleted when partitions are named (`TOPIC:0,1`).
    # Without them there is nothing to ask for, because the partitions are unknown.
    errors = {(topic, ALL_OF_TOPIC): unknown_topic_error(topic, known, bootstrap_servers) for topic in absent}
    partitions = [*named, *partitions]
    outcomes = admin.delete_offsets(group_id, partitions)
    refused = {**errors, **outcomes.errors}
    status: dict[TopicPartition, BrokerError | None] = {**dict.fromkeys(outcomes.done), **refused}
    if as_json:
        print_json(_deletion_document(group_id, status))
    else:
        _print_deletion(group_id, status, outcomes.errors)
    for error in refused.values():
        report_error(error, as_json=as_json)
    return 1 if refused else 0


def _print_deletion(
    group_id: str, status: Mapping[TopicPartition, BrokerError | None], refused: Mapping[TopicPartition, BrokerError]
) -> None:
    if refused:
        data("\nError: Encountered some partition-level error, see the follow-up details.")
    else:
        data(f"Request succeeded for deleting offsets from group {group_id}.")
    rows = [
        (topic, "-" if partition == ALL_OF_TOPIC else partition, _status(status[topic, partition]))
        # Kafka's order: by the text of topic and number, so that partition 10 comes before 2.
        for topic, partition in sorted(status, key=lambda key: f"{key[0]}{key[1]}")
    ]
    data()
    for line in kafka_table([("TOPIC", 15), ("PARTITION", 10), ("STATUS", 15)], rows, grow=("TOPIC",)):
        data(line)


def _status(error: BrokerError | None) -> str:
    if error is None:
        return "Successful"
    name = error.kafka_name or ("UNKNOWN_TOPIC_OR_PARTITION" if error.code == "topic-missing" else "")
    return f"Error: {_REASONS.get(name, error.message)}"


def _deletion_document(group_id: str, status: Mapping[TopicPartition, BrokerError | None]) -> list[dict[str, object]]:
    return [
        {
            "group": group_id,
            "topic": topic,
            "partition": None if partition == ALL_OF_TOPIC else partition,
            "deleted": error is None,
            "error": None if error is None else error.code,
        }
        for (topic, partition), error in sorted(status.items())
    ]
