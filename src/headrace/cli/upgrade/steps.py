"""The steps of a plan, one by one: keep, save, delete, state, restore, and a check that all positions are there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.cli.upgrade.group_state import GroupState, look_at
from headrace.errors import BrokerError, HeadraceError

if TYPE_CHECKING:
    from headrace.cli.upgrade.plan import Plan
    from headrace.cli.upgrade.saved_state import SavedState
    from headrace.client.admin import Admin

__all__ = ["carry_out", "utc_now", "wait_until_empty"]

POLL_S = 0.2


def utc_now() -> str:
    """`2026-11-21T06:30:00Z`."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def wait_until_empty(admin: Admin, group_id: str, seconds: float, tell: Callable[[str], None]) -> GroupState:
    """The group as it is when its members are gone, or when the time is over."""
    deadline = None
    told = ""
    while True:
        state = look_at(admin, group_id)
        try:
            state.check_empty()
        except BrokerError as error:
            if deadline is None:  # from the first look on: that one may take longer than a short wait
                deadline = time.monotonic() + seconds
            if time.monotonic() >= deadline:
                return state
            if error.message != told:
                told = error.message
                tell(f"waiting: {told}")
            time.sleep(POLL_S)
        else:
            return state


def carry_out(admin: Admin, plan: Plan) -> Iterator[str]:
    """Does the steps and yields the name of each that was done. Raises BrokerError, HeadraceError; then run it again.

    The file is on the disk before anything is deleted.
    """
    if plan.keep_as is not None and plan.kept is not None:
        plan.kept.write(plan.keep_as)
        yield "keep"
    if plan.save:
        if plan.state is not None:
            _save_state(admin, plan.state)
        plan.file.write(plan.path)
        yield "save"
    if plan.delete:
        _delete(admin, plan)
        yield "delete"
    if plan.state is not None:
        _replace_state(admin, plan.state, back=plan.back)
        yield "state"
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
