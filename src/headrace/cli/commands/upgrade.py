"""`headrace upgrade`: make room for a changed topology, positions kept; and the way back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.options import bootstrap_option, command_config_option, json_option, open_admin, timeout_option
from headrace.cli.terminal import data, echo_err, print_json

if TYPE_CHECKING:
    from headrace.cli.upgrade.group_state import GroupState
    from headrace.cli.upgrade.plan import Plan
    from headrace.cli.upgrade.saved_state import SavedState, StateChoice
    from headrace.client.admin import Admin
    from headrace.spark.topology.nodes import CompiledTopology

__all__ = ["command"]


@click.command("upgrade")
@click.argument("group", required=False)
@click.option(
    "--file",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where the positions are saved.  [default: GROUP.positions.json, then GROUP.positions-2.json …]",
)
@click.option(
    "--program",
    metavar="APP",
    help="The new version, flights.py or package.module:app: whether it can go on with the stored state.",
)
@click.option(
    "--state",
    "choice",
    type=click.Choice(["recompute", "keep"]),
    help="What becomes of stored state that the new version cannot read: compute everything anew from the sources, or "
    "take over what both versions keep and begin new aggregates now. Needs --program.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@click.option(
    "--rollback",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Go back: the group gets the positions of this file, and the old version may join again.",
)
@click.option(
    "--wait", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Wait so long for members to leave."
)
@timeout_option
@bootstrap_option
@command_config_option
@json_option
def command(
    group: str | None,
    file: Path | None,
    dry_run: bool,
    rollback: Path | None,
    program: str | None,
    choice: StateChoice | None,
    wait: float,
    timeout_ms: int,
    bootstrap_servers: str,
    command_config: Path | None,
    as_json: bool,
) -> int:
    """Prepare a streams group for a version of its application with another topology.

    Kafka refuses another topology for a group that exists, also for an empty one. Stop all members; this command saves
    the group's positions to a file, deletes the group and restores the positions; then start the new version. After a
    crash in the middle run the same command again. Works on Apache Kafka, too.

    \b
      headrace upgrade flight-delays --dry-run
      headrace upgrade flight-delays --wait 60
      headrace upgrade flight-delays --program flights.py --state keep --dry-run
      headrace upgrade --rollback flight-delays.positions.json
    """
    from headrace.cli.upgrade.plan import carry_out

    # 1. Usage, before Spark or a connection is opened.
    if (group is None) == (rollback is None):
        raise click.UsageError("Give GROUP, or --rollback FILE.")
    if rollback is not None and file is not None:
        raise click.UsageError("--file goes with GROUP; --rollback names its file itself.")
    if choice is not None and program is None:
        raise click.UsageError("--state needs --program APP: the new version decides what is kept.")
    if program is not None and rollback is not None:
        raise click.UsageError("--program goes with GROUP; --rollback takes the state from its file.")
    # 2. The new version is compiled before the group is looked at: a program that does not load must not leave an
    #    upgrade half planned, and Spark's start takes longer than the members may stay away.
    compiled = _compiled(program) if program is not None else None
    with open_admin(
        bootstrap_servers, client_id="headrace-upgrade", timeout_ms=timeout_ms, command_config=command_config
    ) as admin:
        if rollback is not None:
            state, plan = _rollback(admin, rollback, wait)
        else:
            assert group is not None
            state, plan = _upgrade(admin, group, file or _free_or_unfinished(group), wait)
            # 3. A resumed upgrade takes the decision about state from its file. Deciding again could differ, since the
            #    internal topics may be replaced already.
            if compiled is not None and not plan.resumed:
                plan = _with_state(admin, state, plan, compiled, choice)
        # 4. `carry_out` is lazy: without `list` nothing would be done.
        done = [] if dry_run else list(carry_out(admin, plan))
    if as_json:
        print_json(_document(plan, dry_run=dry_run, done=done))
    else:
        for line in _lines(state, plan, dry_run=dry_run, back=rollback is not None):
            data(line)
    return 0


def _free_or_unfinished(group: str) -> Path:
    """`GROUP.positions.json`, or with a number where that belongs to an upgrade that was finished."""
    from headrace.cli.upgrade.saved_state import SaveFile

    name, number = group.replace("/", "_"), 1
    path = Path(f"{name}.positions.json")
    # An unfinished file ends the search: it is the upgrade to continue. Finished ones are ways back and are never
    # overwritten.
    while (found := SaveFile.read(path)) is not None and found.finished_at is not None:
        number += 1
        path = Path(f"{name}.positions-{number}.json")
    return path


def _upgrade(admin: Admin, group: str, path: Path, wait: float) -> tuple[GroupState, Plan]:
    from headrace.cli.upgrade.group_state import no_such_group
    from headrace.cli.upgrade.plan import plan_upgrade, utc_now, wait_until_empty
    from headrace.cli.upgrade.saved_state import SaveFile

    found = SaveFile.read(path)
    state = wait_until_empty(admin, group, wait, echo_err)
    if found is None and state.kind not in ("streams", "consumer"):
        raise no_such_group(admin, group)
    return state, plan_upgrade(state, found, path, at=utc_now())


def _compiled(program: str) -> CompiledTopology:
    """The new version's topology; nothing of it runs."""
    from headrace.cli.application import load_application, spark_quietly

    with spark_quietly():
        return load_application(program).compile()


def _with_state(
    admin: Admin, state: GroupState, plan: Plan, compiled: CompiledTopology, choice: StateChoice | None
) -> Plan:
    from headrace.cli.upgrade.plan import with_state
    from headrace.cli.upgrade.state_plan import describe_choice, plan_state
    from headrace.cli.upgrade.state_topics import look_at_internal_topics, offsets_of

    if compiled.app_name != state.group_id:
        raise click.UsageError(f"--program is the application {compiled.app_name}, not {state.group_id}.")
    # Read before anything is deleted: with `recompute` these are the positions that the new version begins at.
    first = offsets_of(admin, state.topics, state.source_topics, "earliest")
    saved = plan_state(
        state,
        look_at_internal_topics(admin, state, compiled),
        choice,
        directory=str(plan.path.with_suffix(".state")),
        first=first,
    )
    if saved is None:
        return replace(
            plan, notes=(*plan.notes, "the new version goes on with the stored state: its columns are the same")
        )
    plan = with_state(plan, saved)
    # With a decision about state the two notes on untouched changelogs and local state are no longer true.
    stays = tuple(note for note in plan.notes if not note.startswith(("changelogs stay", "local state")))
    return replace(plan, notes=(*stays, *describe_choice(saved, first)))


def _rollback(admin: Admin, path: Path, wait: float) -> tuple[GroupState, Plan]:
    from headrace.cli.upgrade.plan import plan_rollback, utc_now, wait_until_empty
    from headrace.cli.upgrade.saved_state import SaveFile

    found = SaveFile.read(path)
    assert found is not None
    state = wait_until_empty(admin, found.group, wait, echo_err)
    return state, plan_rollback(state, found, path, at=utc_now())


def _lines(state: GroupState, plan: Plan, *, dry_run: bool, back: bool) -> list[str]:
    group = plan.group_id
    what = f"{state.kind} group, {state.state}" if state.exists else "no group at the moment"
    lines = [f"{group}   {what}" + ("   (an upgrade was begun; it goes on)" if plan.resumed else "")]
    if plan.keep_as is not None:
        lines.append(f"  keep     its present positions in {plan.keep_as}")
    carried = _counted(plan)
    lines.append(f"  save     {carried} to {plan.path}" if plan.save else f"  saved    {carried} in {plan.path}")
    lines.append(f"  delete   the group {group}, and with it its topology" if plan.delete else "  deleted  already")
    if plan.state is not None:
        lines += _state_lines(plan.state, back=back)
    lines.append("  restore  the positions; a classic group without members holds them until the next member joins")
    lines.append(f"  then     start the {'old' if back else 'new'} version: it brings its own topology")
    lines += [f"  note     {note}" for note in plan.notes]
    if dry_run:
        lines.append("Nothing was done: this was a dry run.")
    elif back:
        lines.append(f"Done. {group} is where it was at {plan.file.saved_at}.")
    else:
        lines.append(f"Done. Keep {plan.path}: the way back is  headrace upgrade --rollback {plan.path}")
    return lines


def _state_lines(saved: SavedState, *, back: bool) -> list[str]:
    names = ", ".join(topic.name for topic in saved.topics if topic.replaced or back)
    if back:
        return [f"  state    {names}: deleted, created, and filled with the records in {saved.directory}"]
    how = "emptied" if saved.choice == "recompute" else "deleted, created, and filled with the values that are kept"
    where = "the beginning of the sources" if saved.choice == "recompute" else "the saved positions"
    return [
        f"  state    the records of {len(saved.topics)} internal topics are saved to {saved.directory};",
        f"           {names}: {how} ({saved.choice}); the new version reads on from {where}",
    ]


def _counted(plan: Plan) -> str:
    kinds = [position.kind for position in plan.file.positions if position.key in plan.restore]
    parts = [f"{kinds.count(kind)} of {kind} topics" for kind in ("source", "repartition", "other") if kind in kinds]
    return f"{len(kinds)} positions" + (f" ({', '.join(parts)})" if parts else "")


def _document(plan: Plan, *, dry_run: bool, done: list[str]) -> dict[str, object]:
    wanted = {
        "keep": plan.keep_as is not None,
        "save": plan.save,
        "delete": plan.delete,
        "state": plan.state is not None,
        "restore": True,
    }
    return {
        "group": plan.group_id,
        "file": str(plan.path),
        "dry_run": dry_run,
        "resumed": plan.resumed,
        "steps": [{"step": step, "needed": needed, "done": step in done} for step, needed in wanted.items()],
        "kept": None if plan.keep_as is None else str(plan.keep_as),
        "positions": [
            {"topic": topic, "partition": partition, "offset": committed.offset}
            for (topic, partition), committed in sorted(plan.restore.items())
        ],
        "notes": list(plan.notes),
    }
