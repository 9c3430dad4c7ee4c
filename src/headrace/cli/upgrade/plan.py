"""Plan of an upgrade and its execution: keep, save, delete, state, restore, and a check of all positions.

The plan is made by pure functions from the state of the group and of the save file. Every step may be repeated: a run
that was interrupted is recognised by looking at the group and the file, and the same command continues.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.cli.upgrade.group_state import GroupState, read_group_state
from headrace.client.admin_results import CommittedOffset
from headrace.errors import BrokerError, HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from headrace.cli.upgrade.saved_state import SavedPosition, SavedState, SaveFile
    from headrace.client.admin import Admin

__all__ = ["Plan", "carry_out", "plan_rollback", "plan_upgrade", "utc_now", "wait_until_empty", "with_state"]

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`file` is what the positions come from; `save_to` where they are written first, None: they are there already.

    `state`: what is done with internal topics; `back` when they are restored. `keep_as` is where a rollback puts the
    positions that it takes away, None: there is nothing to keep.
    """

    group_id: str
    file: SaveFile
    path: Path
    save: bool
    delete: bool
    restore: Mapping[TopicPartition, CommittedOffset]
    resumed: bool
    keep_as: Path | None = None
    kept: SaveFile | None = None
    notes: tuple[str, ...] = ()
    state: SavedState | None = None
    back: bool = False


def with_state(plan: Plan, saved: SavedState) -> Plan:
    """The plan of an upgrade that replaces stored state as well."""
    return replace(
        plan,
        state=saved,
        file=replace(plan.file, state=saved),
        restore={**plan.restore, **_committed(saved.forward_positions())},
    )


def _committed(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, CommittedOffset]:
    return {key: CommittedOffset(offset=offset) for key, offset in offsets.items()}


def plan_upgrade(state: GroupState, found: SaveFile | None, path: Path, *, at: str) -> Plan:
    """Plan an upgrade.

    Raises HeadraceError `group-not-empty`, `save-file-bad`, `save-file-finished`, `positions-changed`.

    The group exists and is in the way, unless a file says that an upgrade has begun.
    """
    # 1. No file: a new upgrade. The members must have stopped, or they would commit after their positions were saved.
    if found is None:
        state.check_empty()
        saved = state.saved(at=at)
        restore, lost = _restorable(state, saved)  # what cannot be restored must be known before the group is deleted
        return Plan(
            group_id=state.group_id,
            file=saved,
            path=path,
            save=True,
            delete=True,
            restore=restore,
            resumed=False,
            notes=(*lost, *_notes_of_group(state)),
        )
    # 2. A file: an upgrade that was interrupted, continued where it stopped. The file must be of this group and
    #    cluster, and not of an upgrade that was finished.
    _check_same(state, found, path)
    if found.finished_at is not None:
        raise HeadraceError(
            "save-file-finished",
            f"{path} belongs to an upgrade of {state.group_id} that was finished at {found.finished_at}",
            "name another file with --file; keep this one as long as you may want to go back",
            path=str(path),
        )
    state.check_empty()
    # 3. A client that committed since then would lose its progress to the older positions of the file.
    _check_unchanged(state, found, path)
    restore, notes = _restorable(state, found)
    plan = Plan(
        group_id=state.group_id,
        file=found,
        path=path,
        save=False,
        delete=state.blocks_members,
        restore=restore,
        resumed=True,
        notes=notes,
    )
    if found.state is None:
        return plan
    # 4. Internal topics that the interrupted run has replaced already are recognised by their ids.
    present = {name: str(topic.topic_id) for name, topic in state.topics.items() if topic.topic_id is not None}
    return with_state(plan, found.state.in_present_topics(present))


def plan_rollback(state: GroupState, found: SaveFile, path: Path, *, at: str) -> Plan:
    """The group gets the file's positions and loses its topology.

    Raises HeadraceError as `plan_upgrade`, and `rollback-counts-twice` where only the positions would go back.
    """
    _check_same(state, found, path)
    state.check_empty()
    restore, notes = _restorable(state, found)
    if found.state is not None:
        restore |= _committed(found.state.rollback_positions())
    else:
        _check_counted_once(state, found, restore)
    differs = state.exists and dict(state.positions) != restore
    delete = state.blocks_members or differs
    return Plan(
        group_id=state.group_id,
        file=found,
        path=path,
        save=False,
        delete=delete,
        restore=restore,
        resumed=False,
        keep_as=_free_name(path) if differs and state.positions else None,
        kept=state.saved(at=at) if differs and state.positions else None,
        notes=(*notes, *_going_back(state, restore, with_state=found.state is not None)),
        state=found.state,
        back=True,
    )


def _check_same(state: GroupState, found: SaveFile, path: Path) -> None:
    if found.group != state.group_id:
        raise HeadraceError(
            "save-file-bad",
            f"{path} holds the positions of {found.group}, not of {state.group_id}",
            "name another with --file",
            path=str(path),
        )
    if found.cluster_id != state.cluster_id:
        raise HeadraceError(
            "save-file-bad",
            f"{path} was written for the cluster {found.cluster_id}, this is {state.cluster_id}",
            "check --bootstrap-server; positions mean nothing on another cluster",
            path=str(path),
        )


def _check_unchanged(state: GroupState, found: SaveFile, path: Path) -> None:
    """An upgrade was begun: the group has the file's positions, some of them, or none any more."""
    # A position may be the saved one, or the one that an interrupted run has set; both are ours. Any other was
    # committed by a client. While the old group exists, a saved position that is missing was deleted by someone else.
    saved = found.committed()
    targets = found.state.forward_positions() if found.state is not None else {}
    changed = [
        key
        for key, now in state.positions.items()
        if now.offset not in {targets.get(key), saved[key].offset if key in saved else None}
    ]
    if state.blocks_members:
        changed += [key for key in saved if key not in state.positions and key[0] in state.topics]
    if changed:
        topic, partition = min(changed)
        raise HeadraceError(
            "positions-changed",
            f"{state.group_id} has other positions than {path}, for {topic}-{partition} at least: a client worked",
            f"to begin anew move the file away; to go back to its positions:  headrace upgrade --rollback {path}",
            path=str(path),
        )


def _restorable(state: GroupState, found: SaveFile) -> tuple[dict[TopicPartition, CommittedOffset], tuple[str, ...]]:
    """Leave out positions in topics that were deleted or created again: they have no meaning any more."""
    # A topic of the same name with another id is another topic: its offsets have nothing in common with the saved ones.
    # Internal topics that the upgrade itself re-creates are not reported as lost.
    restore, lost = {}, []
    made_anew = {topic.name for topic in found.state.topics} if found.state is not None else set()
    for position in found.positions:
        if _same_topic(state, position):
            restore[position.key] = position.committed
        elif position.topic not in lost and position.topic not in made_anew:
            lost.append(position.topic)
    return restore, tuple(
        f"{topic} is not the topic that was saved (deleted, or made anew): its positions are left out" for topic in lost
    )


def _same_topic(state: GroupState, position: SavedPosition) -> bool:
    topic = state.topics.get(position.topic)
    if topic is None or position.partition not in topic.partitions:
        return False
    return position.topic_id is None or topic.topic_id is None or str(topic.topic_id) == position.topic_id


def _check_counted_once(state: GroupState, found: SaveFile, restore: Mapping[TopicPartition, CommittedOffset]) -> None:
    """Stores hold what the new version made of the records behind the saved positions: reading these records once more
    counts them twice. The changelogs are named by either topology: the group has none before its first member joined.
    """
    changelogs = state.changelog_topics | {name for each in found.topology for name in each.changelog_topics}
    changelogs &= set(state.topics)
    ahead = _offsets_ahead(state, restore)
    if ahead and changelogs:
        raise HeadraceError(
            "rollback-counts-twice",
            f"{ahead:,} offsets were read since {found.saved_at}, and the file holds no state: the old version would "
            f"read these records again on stores that hold them already ({', '.join(sorted(changelogs))})",
            f"to go on with the old version where the group is now:  headrace upgrade {found.group}  ; to count the "
            f"sources from their beginning:  headrace upgrade {found.group} --program OLD --state recompute",
            group=found.group,
            offsets=ahead,
        )


def _offsets_ahead(state: GroupState, restore: Mapping[TopicPartition, CommittedOffset]) -> int:
    return sum(max(0, now.offset - restore[key].offset) for key, now in state.positions.items() if key in restore)


def _free_name(path: Path) -> Path:
    number = 1
    while (free := path.with_name(f"{path.stem}.before-rollback-{number}{path.suffix}")).exists():
        number += 1
    return free


def _notes_of_group(state: GroupState) -> tuple[str, ...]:
    """Return the notes that an operator needs before the topology changes."""
    notes = []
    waiting = {
        topic: sum(lag.records for key, lag in state.lags.items() if key[0] == topic)
        for topic in sorted(state.repartition_topics)
    }
    for topic, records in waiting.items():
        if records:
            notes.append(
                f"{topic}: {records:,} records wait there. The new version reads them on if it has this topic; "
                "else they are lost: let the old version catch up first"
            )
    for topic in sorted(state.repartition_topics | state.source_topics):
        without = [
            str(partition)
            for (name, partition), lag in sorted(state.lags.items())
            if name == topic and lag.committed is None and lag.end > lag.start
        ]
        if without:
            notes.append(
                f"{topic}: no position in partition {', '.join(without)}; there auto.offset.reset decides, as before"
            )
    if state.changelog_topics:
        notes.append(
            f"changelogs stay as they are ({', '.join(sorted(state.changelog_topics))}): a store of the same name "
            "goes on with its state; a new or renamed one begins empty, and the old changelog is yours to delete"
        )
    notes.append(
        "local state is a copy of the changelogs: tasks whose subtopology keeps its name open it again, "
        "others restore from the changelog"
    )
    return tuple(notes)


def _going_back(
    state: GroupState, restore: Mapping[TopicPartition, CommittedOffset], *, with_state: bool
) -> tuple[str, ...]:
    ahead = _offsets_ahead(state, restore)
    if not ahead:
        return ()
    notice = f"{ahead:,} offsets were read since the file was saved: the old version reads them again, " + (
        "on the state as it was saved" if with_state else "and writes its results again"
    )
    return (notice,)


POLL_S = 0.2


def utc_now() -> str:
    """`2026-11-21T06:30:00Z`."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def wait_until_empty(admin: Admin, group_id: str, seconds: float, tell: Callable[[str], None]) -> GroupState:
    """The group as it is when its members are gone, or when the time is over."""
    deadline = None
    notice = ""
    while True:
        state = read_group_state(admin, group_id)
        try:
            state.check_empty()
        except BrokerError as error:
            if deadline is None:  # from the first look on: that one may take longer than a short wait
                deadline = time.monotonic() + seconds
            if time.monotonic() >= deadline:
                return state
            if error.message != notice:
                notice = error.message
                tell(f"waiting: {notice}")
            time.sleep(POLL_S)
        else:
            return state


def carry_out(admin: Admin, plan: Plan) -> Iterator[str]:
    """Do the steps and yield the name of each that was done. Raises BrokerError, HeadraceError; then run it again.

    The file is on the disk before anything is deleted.
    """
    # The order makes every prefix of the steps repeatable; a crash between two of them loses no position.
    # 1. A rollback first keeps the present positions in a file of their own where they differ from the saved ones, so
    #    that it can be undone.
    if plan.keep_as is not None and plan.kept is not None:
        plan.kept.write(plan.keep_as)
        yield "keep"
    # 2. State before positions: the file with the positions marks the save as complete, so that a crash in between
    #    leaves no file that claims state which was not saved.
    if plan.save:
        if plan.state is not None:
            _save_state(admin, plan.state)
        plan.file.write(plan.path)
        yield "save"
    # 3. Only now the group is deleted: Kafka keeps the topology of an empty group and refuses another one
    #    (KIP-1071), and deleting it is the only way that the protocol offers. Its positions go with it.
    if plan.delete:
        _delete(admin, plan)
        yield "delete"
    # 4. Internal topics while the group does not exist: no member can join and read half of them.
    if plan.state is not None:
        _replace_state(admin, plan.state, back=plan.back)
        yield "state"
    # 5. Positions last, because the first of them makes the group visible again.
    _restore(admin, plan)
    yield "restore"
    if plan.file.finished_at is None:
        plan.file.finished(utc_now()).write(plan.path)


def _save_state(admin: Admin, saved: SavedState) -> None:
    from headrace.cli.upgrade.state_topics import save_topics  # Arrow, which groups without state do without

    save_topics(admin, saved)


def _replace_state(admin: Admin, saved: SavedState, *, back: bool) -> None:
    from headrace.cli.upgrade.state_topics import replace_topics, restore_topics

    (restore_topics if back else replace_topics)(admin, saved)


def _delete(admin: Admin, plan: Plan) -> None:
    outcome = admin.try_delete_groups([plan.group_id])
    for error in outcome.errors.values():
        if error.code != "group-missing":
            raise error


def _restore(admin: Admin, plan: Plan) -> None:
    """Commit positions for a group without members; a member that joined meanwhile is an error."""
    try:
        if plan.restore:
            admin.alter_offsets(plan.group_id, plan.restore)
    except BrokerError as error:
        if error.kafka_name != "UNKNOWN_MEMBER_ID":
            raise
        raise BrokerError(
            "group-not-empty",
            f"a member joined {plan.group_id} before its positions were restored",
            f"stop it; it began where auto.offset.reset said. Then:  headrace upgrade --rollback {plan.path}",
            group_id=plan.group_id,
        ) from error
    there = admin.list_group_offsets(plan.group_id)
    missing = [
        key for key, committed in plan.restore.items() if key not in there or there[key].offset != committed.offset
    ]
    if missing:
        topic, partition = min(missing)
        raise HeadraceError(
            "positions-changed",
            f"the position of {topic}-{partition} in {plan.group_id} is not the saved one after it was restored",
            f"another client commits to the group; stop it, then:  headrace upgrade --rollback {plan.path}",
            group_id=plan.group_id,
        )
