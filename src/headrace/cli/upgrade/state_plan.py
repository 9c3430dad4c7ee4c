"""The decision about stored state: which aggregates changed, what each stored value means afterwards. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headrace.cli.upgrade.saved_state import SavedState, SavedTopic, StateChoice
from headrace.errors import StateError

if TYPE_CHECKING:
    from headrace.cli.upgrade.group_state import GroupState
    from headrace.spark.runtime.rows.row_schema import StoredSchema

__all__ = ["InternalTopic", "describe_choice", "plan_state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopic:
    """A changelog or repartition topic as it is. `stored` None: it is empty; `program` None: not the new version's."""

    kind: Literal["changelog", "repartition"]
    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]
    stored: StoredSchema | None = None
    program: StoredSchema | None = None

    @property
    def is_changed(self) -> bool:
        """Whether the new version cannot read the rows of this changelog."""
        return self.stored is not None and self.program is not None and bool(self.stored.difference(self.program))


def plan_state(
    state: GroupState,
    internal: tuple[InternalTopic, ...],
    choice: StateChoice | None,
    *,
    directory: str,
    first: Mapping[tuple[str, int], int],
) -> SavedState | None:
    """Return the plan for the stored state; None if the new version continues with it as it is.

    Args:
        state: the group, empty.
        internal: the internal topics of both versions that exist.
        choice: the user's.
        directory: where records are saved.
        first: the log start offset of each source partition.

    Raises:
        StateError: `state-schema-changed` without a choice, or when the choice is not possible.
    """
    # 1. Same columns: the new version continues with the changelogs, and nothing is planned. `recompute` may be
    #    chosen without a change of columns.
    changed = [topic for topic in internal if topic.is_changed]
    if not changed and choice != "recompute":
        return None
    if choice is None:
        raise StateError(
            "state-schema-changed",
            "the new version keeps other columns: " + "; ".join(map(_difference_of, changed)),
            "Choose --state recompute (empty the state, read the sources again from their beginning) or --state keep "
            "(take over what both versions keep, begin new aggregates now); --dry-run shows what each one means.",
        )
    # 2. `keep` converts rows. It is refused here, before anything is changed, if a column cannot be converted or if
    #    records wait in a repartition topic that the new version cannot read.
    if choice == "keep":
        for changelog in changed:
            _check_kept(state, changelog)
    # 3. `recompute` replaces every internal topic, because a store that stayed would count the sources a second time.
    #    `keep` replaces what changed, with the repartition topic that feeds it.
    everything = choice == "recompute"
    replaced = {topic.name for topic in (internal if everything else changed)}
    replaced |= {_repartition_of(topic) for topic in changed}
    topics = tuple(_saved(state, topic, replaced=topic.name in replaced) for topic in internal)
    # 4. Where the new version starts to read: sources from their first record if all is computed anew, and replaced
    #    repartition topics from 0, since a new topic has no other offset.
    targets = dict(first) if everything else {}
    for topic in topics:
        if topic.kind == "repartition" and topic.replaced:
            targets |= {(topic.name, partition): 0 for partition in range(topic.partitions)}
    return SavedState(
        choice=choice,
        directory=directory,
        topics=topics,
        targets=tuple((topic, partition, offset) for (topic, partition), offset in sorted(targets.items())),
        source_ids={
            topic: str(state.topics[topic].topic_id)
            for topic in sorted({topic for topic, _ in first} if everything else ())
            if topic in state.topics and state.topics[topic].topic_id is not None
        },
    )


def _repartition_of(changelog: InternalTopic) -> str:
    return changelog.name.removesuffix("-changelog") + "-repartition"


def _difference_of(changelog: InternalTopic) -> str:
    assert changelog.stored is not None
    assert changelog.program is not None
    return f"{changelog.name}: {changelog.stored.difference(changelog.program)}"


def _saved(state: GroupState, topic: InternalTopic, *, replaced: bool) -> SavedTopic:
    waits = {str(key[1]): committed.offset for key, committed in state.positions.items() if key[0] == topic.name}
    return SavedTopic(
        kind=topic.kind,
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=dict(topic.configs),
        starts=waits if topic.kind == "repartition" else {},
        replaced=replaced,
        old=None if topic.stored is None else topic.stored.value.decode(),
        new=None if topic.program is None else topic.program.value.decode(),
    )


def _check_kept(state: GroupState, changelog: InternalTopic) -> None:
    from headrace.spark.runtime.rows.row_conversion import check_convertible

    assert changelog.stored is not None
    assert changelog.program is not None
    check_convertible(changelog.stored.state, changelog.program.state)
    if changelog.stored.inputs == changelog.program.inputs:
        return
    topic = _repartition_of(changelog)
    waiting = sum(lag.records for key, lag in state.lags.items() if key[0] == topic)
    if waiting:
        raise StateError(
            "state-schema-changed",
            f"{waiting:,} records wait in {topic}, whose columns the new version does not read",
            "Start the old version, let it catch up (headrace top: lag 0), stop it, and run the command again.",
        )


def describe_choice(saved: SavedState, first: Mapping[tuple[str, int], int]) -> list[str]:
    """Return the meaning of the values after the upgrade, as lines."""
    from headrace.spark.runtime.rows.row_schema import StoredSchema

    if saved.choice == "recompute":
        again = "every aggregate is computed anew from the records that the sources hold now"
        return [
            f"{again}; outputs are written again, also those without state",
            *(
                f"{topic}-{partition} begins at offset {at}: what was deleted before it is not in the results"
                for (topic, partition), at in sorted(first.items())
                if at > 0
            ),
        ]
    lines = []
    for topic in saved.topics:
        if not topic.replaced or topic.old is None or topic.new is None:
            continue
        old, new = (StoredSchema.from_value(text.encode()).state for text in (topic.old, topic.new))
        for column in new.values:
            name = f"{column.role}({column.expression})"
            if column in old.values:
                lines.append(f"{topic.name}: {name} goes on with what is stored")
            elif column.role == "count":
                lines.append(f"{topic.name}: {name} begins at 0 and counts records from the saved positions on")
            else:
                lines.append(
                    f"{topic.name}: {name} is null until its group has a record with a value, and is then of the "
                    "records from the saved positions on"
                )
        lines += [
            f"{topic.name}: {column.role}({column.expression}) is given up; it stays in {saved.directory}"
            for column in old.values
            if column not in new.values
        ]
    lines.append("a group's output row is written again with its next record; until then the last one stays")
    return lines
