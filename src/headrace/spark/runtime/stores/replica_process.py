"""The process that keeps copies of state, started by `Replicas`: `python -m` and the name of this module.

It follows the changelogs of tasks that run elsewhere (standby, warm-up, on their way here) and does the long part of a
restore before a task is opened, all in one loop: look at the ends, fetch what is missing of all stores together, write
it, rest. A process of its own, because a replay at full speed would take the driver's interpreter and the slots of
running tasks. It is not a member of the group and decides nothing: the driver names the tasks to follow, and it writes
to a store only while the store belongs to its replay (`TaskStore.load`).

Lines of JSON. To it: the settings; then `find` (where stores on disk stand), `follow` (all tasks to follow, replacing
the last), `open` (bring these tasks near their end, make them the active task's where a batch is named, then let go of
their files), `close`. From it: `progress`, `opened`, `found`, `note`. It ends with its driver.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError, HeadraceError, StateError
from headrace.protocol import arrow_batches
from headrace.spark.runtime.batches.fetch_stage import name_of
from headrace.spark.runtime.stores import bulk_load
from headrace.spark.runtime.stores.replay import (
    Copy,
    Replay,
    TopicPartition,
    changelog_reader,
    committed_position,
    replay_all,
)
from headrace.spark.runtime.stores.replicas import StoreOfTask
from headrace.spark.runtime.stores.store import BatchKey, StoreIdentity, StorePosition, TaskStore, position_on_disk
from headrace.spark.runtime.stores.store_files import path_of_store

__all__ = ["ReplicaProcess", "main"]

log = logging.getLogger("headrace.spark.replicas")

REST_S = 0.1
LONGEST_REST_S = 0.4  # when nothing came for a while
TROUBLE_REST_S = 1.0
PROGRESS_S = 0.25
NEAR_RECORDS = 1_000  # what may be left when a task is handed over: a fraction of a second's work
TOPIC_WAIT_MS = 1_000
MOST_ROUNDS = 8  # of catching up with a changelog that grows meanwhile

Task = tuple[str, int]


class ReplicaProcess:
    """Main loop of the process. `send` takes the messages for the driver."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        commands: queue.Queue[dict[str, Any] | None],
        send: Callable[[dict[str, Any]], None],
    ) -> None:
        self._directory = Path(settings["state_dir"])
        self._boot_id: str = settings["boot_id"]
        self._exactly_once = bool(settings.get("exactly_once"))
        self._incarnation = f"replica-{os.getpid()}-{time.time_ns():x}"
        self._stores = {
            name: tuple(StoreOfTask(**store) for store in stores) for name, stores in settings["stores"].items()
        }
        self._client = NetworkClient(
            settings["bootstrap_servers"], client_id=settings["client_id"], security=settings.get("security") or {}
        )
        self._admin = Admin(self._client)
        self._commands, self._send = commands, send
        self._copies: dict[Task, Copy] = {}
        self._followed: frozenset[Task] = frozenset()
        self._opening: list[dict[str, Any]] = []
        self._writers = 0
        self._reported_s = 0.0
        self._closing = False

    def run(self) -> None:
        """Run until the driver closes."""
        rest, trouble = REST_S, ""
        while True:
            self._take_commands(wait_s=0.0 if self._opening else rest)
            if self._closing:
                break
            try:
                moved = self._open_next() or self._follow()
                rest = REST_S if moved else min(rest * 1.3, LONGEST_REST_S)
                trouble = ""
            except HeadraceError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning("%s", error)
                self._drop(list(self._copies))
                self._take_commands(wait_s=TROUBLE_REST_S)
            self._report_progress()
        self._drop(list(self._copies))

    # -- commands -----------------------------------------------------------------------------------------------------

    def _take_commands(self, wait_s: float) -> None:
        with suppress(queue.Empty):
            self._take(self._commands.get(timeout=wait_s) if wait_s > 0 else self._commands.get_nowait())
            while True:
                self._take(self._commands.get_nowait())

    def _take(self, command: dict[str, Any] | None) -> None:
        match command:
            case None | {"do": "close"}:
                self._closing = True
            case {"do": "follow", "tasks": tasks}:
                self._followed = frozenset((name, partition) for name, partition in tasks)
            case {"do": "find", "tasks": tasks}:
                self._send({"type": "found", "offsets": self._found([(name, partition) for name, partition in tasks])})
            case {"do": "open"}:
                self._opening.append(command)

    @property
    def _is_called(self) -> bool:
        """Whether a command waits that is more urgent than the current work."""
        return not self._commands.empty()

    def _found(self, tasks: Iterable[Task]) -> list[tuple[str, int, int]]:
        """Return the positions of the stores on disk, summed by task, without unusable and unknown ones."""
        found: list[tuple[str, int, int]] = []
        with suppress(HeadraceError):
            for task in tasks:
                stands = [
                    position_on_disk(self._path(task, described), self._identity(described))
                    for described in self._stores[task[0]]
                ]
                # Only tasks with all their stores: the assignor compares sums over the stores of a task.
                if all(stands):
                    found.append((*task, sum(at.changelog_offset for at in stands if at is not None)))
        return found

    # -- opening ------------------------------------------------------------------------------------------------------

    def _open_next(self) -> bool:
        if not self._opening:
            return False
        command = self._opening.pop(0)
        tasks: dict[Task, Mapping[str, int]] = {
            (command["subtopology"], task["partition"]): task["committed"] for task in command["tasks"]
        }
        batch = BatchKey(**command["batch"]) if command["batch"] else None
        near = NEAR_RECORDS if batch is None else 0
        # 1. Records that a followed copy had already are not the work of this opening.
        replayed = -sum(self._copies[task].records for task in tasks if task in self._copies)
        before = replayed
        restored: list[tuple[int, int, int]] = []
        try:
            # 2. Stores at the committed offsets are left as they are; the others are replayed.
            self._refresh_topics(tasks)
            late = [task for task, committed in tasks.items() if not self._is_at(task, committed)]
            # 3. The changelog may grow while it is replayed (its previous owner's last transaction), so look again
            #    until nothing is missing. The number of rounds is bounded; what remains is left to the stage that opens
            #    the task.
            for round_ in range(MOST_ROUNDS if late else 0):
                self._begin(late)
                self._look_up_ends(late)
                replayed = before + sum(self._copies[task].records for task in late)
                lacking = sum(self._copies[task].lacking for task in late)
                if lacking == 0 or (round_ and lacking <= near):
                    break
                self._replay(late, urgent=True)
            # 4. Complete stores become the active task's here and need no Spark job.
            if batch is not None:
                restored = self._assign_positions(tasks, batch)
        except HeadraceError as error:  # the stage that opens the task meets the same, and says it
            log.warning("%s", error)
        # 5. Files are closed before the answer: from then on workers write to these stores.
        finally:
            self._drop(list(tasks))
            self._followed -= set(tasks)
        self._send({"type": "opened", "number": command["number"], "records": replayed, "restored": restored})
        return True

    def _assign_positions(self, tasks: Mapping[Task, Mapping[str, int]], batch: BatchKey) -> list[tuple[int, int, int]]:
        """Assign stores that are complete to these input offsets, as the stage that opens tasks does: (partition, keys,
        bytes) of each task.

        Left to that stage: whatever is not at the very end of its changelog (READ_UNCOMMITTED), or of another topic.
        """
        wheres = [(d.changelog_topic, partition) for name, partition in tasks for d in self._stores[name]]
        # 1. Ends READ_UNCOMMITTED, asked for after the replay: an open transaction in the changelog makes the end
        #    larger than any committed position, and the task is left to the stage, which waits for that transaction.
        first = self._offsets(wheres, "earliest", "read_uncommitted")
        ends = self._offsets(wheres, "latest", "read_uncommitted")
        restored: list[tuple[int, int, int]] = []
        for task, committed in tasks.items():
            described = self._stores[task[0]]
            logs = [(first[each.changelog_topic, task[1]], ends[each.changelog_topic, task[1]]) for each in described]
            mine = [self._inputs(task, each, committed) for each in described]
            with ExitStack() as own:
                # 2. `assign_position` compares the position once more, in the write transaction itself (`store-taken`).
                stores = self._finished(task, logs, mine, own)
                for inputs, (store, at) in zip(mine, stores, strict=True) if stores else ():
                    store.assign_position(batch, inputs, over=at)
                if stores:
                    sizes = [(store.count(), store.size_bytes()) for store, _ in stores]
                    restored.append((task[1], sum(keys for keys, _ in sizes), sum(size for _, size in sizes)))
        return restored

    def _finished(
        self, task: Task, logs: list[tuple[int, int]], inputs: list[dict[str, int]], own: ExitStack
    ) -> list[tuple[TaskStore, StorePosition]]:
        """The stores of a task that has nothing left to replay; none of any other. `own` closes what is opened here."""
        described, copy = self._stores[task[0]], self._copies.get(task)
        if copy is not None:
            ends = [end for _, end in logs]
            # A topic that was deleted and created again has another id, and positions in the old one mean nothing.
            is_same = copy.identities == [self._identity(each) for each in described]
            is_finished = is_same and [r.position for r in copy.replays] == ends
            return [(r.store, r.stored_position) for r in copy.replays] if is_finished else []
        stores = []
        for each, (first, end), mine in zip(described, logs, inputs, strict=True):
            store = self._opened(task, each)
            own.callback(store.close)
            at = store.position()
            if at is None or at.restoring or at.input_offsets != mine or not first <= at.changelog_offset <= end:
                return []
            stores.append((store, at))
        return stores

    def _refresh_topics(self, tasks: Iterable[Task]) -> None:
        """Refresh the topic ids: a changelog that was deleted and created again has another id."""
        topics = {described.changelog_topic for name, _ in tasks for described in self._stores[name]}
        self._client.known_topics(topics, refresh=True, timeout_ms=TOPIC_WAIT_MS)

    def _inputs(self, task: Task, described: StoreOfTask, committed: Mapping[str, int]) -> dict[str, int]:
        """The offsets of this store's inputs. The driver names topic ids, as this process reads no inputs."""
        names = {name_of(topic, task[1]) for topic in described.source_topics}
        return {name: offset for name, offset in committed.items() if name.rpartition("@")[0] in names}

    def _is_at(self, task: Task, committed: Mapping[str, int]) -> bool:
        """Whether the stores of a task without a replay are at these input offsets already."""
        if task in self._copies:
            return False
        for described in self._stores[task[0]]:
            if not self._path(task, described).exists():
                return False
            store = self._opened(task, described)
            try:
                mine = self._inputs(task, described, committed)
                if not committed_position(store, mine, trust_prepared=not self._exactly_once):
                    return False
            except StateError as error:
                if error.code != "state-corrupt":
                    raise
                return False  # condemned, and set aside when it is opened next
            finally:
                store.close()
        return True

    # -- following ----------------------------------------------------------------------------------------------------

    def _follow(self) -> bool:
        """Run one round over all followed tasks. Return whether there was work."""
        # Files of tasks that are no longer followed are closed: workers may open them next.
        self._drop([task for task in self._copies if task not in self._followed])
        if not self._followed:
            return False
        tasks = sorted(self._followed)
        self._begin(tasks)
        self._look_up_ends(tasks)
        behind = [task for task in tasks if task in self._copies and self._copies[task].lacking]
        if behind:
            self._replay(behind, urgent=False)
        return bool(behind)

    def _begin(self, tasks: Iterable[Task]) -> None:
        """Take over the stores that are not being replayed yet."""
        fresh = [task for task in tasks if task not in self._copies]
        if not fresh:
            return
        wheres = [(d.changelog_topic, partition) for name, partition in fresh for d in self._stores[name]]
        self._refresh_topics(fresh)
        first = self._offsets(wheres, "earliest", "read_uncommitted")
        ends = self._offsets(wheres, "latest", "read_uncommitted")
        for task in fresh:
            copy = Copy()
            self._copies[task] = copy
            for described in self._stores[task[0]]:
                where = (described.changelog_topic, task[1])
                # Each replay is a writer of its own, so a replay that this process began earlier cannot write any more
                # either.
                self._writers += 1
                writer = BatchKey(incarnation=self._incarnation, batch_id=self._writers)
                copy.identities.append(self._identity(described))
                store = self._opened(task, described)
                start = store.begin_replay(writer, first[where], ends[where])
                fingerprint = bytes.fromhex(described.fingerprint)
                copy.replays.append(
                    Replay(store=store, changelog=where, writer=writer, position=start, fingerprint=fingerprint)
                )
                self._note(store)

    def _look_up_ends(self, tasks: Iterable[Task]) -> None:
        """Look up the committed end offsets of the changelogs."""
        replays = [replay for task in tasks for replay in self._copies[task].replays]
        ends = self._offsets([replay.changelog for replay in replays], "latest", "read_committed")
        for task in tasks:
            copy = self._copies[task]
            copy.ends = {replay.changelog: ends[replay.changelog] for replay in copy.replays}
            if any(ends[replay.changelog] < replay.position for replay in copy.replays):
                # The log ends before the place we stand at: it is another topic, or was cut. Opening anew finds out.
                self._drop([task])
                self._begin([task])
                self._copies[task].ends = copy.ends

    def _replay(self, tasks: list[Task], *, urgent: bool) -> None:
        replays = [replay for task in tasks for replay in self._copies[task].replays]
        ends = {where: end for task in tasks for where, end in self._copies[task].ends.items()}
        try:
            replay_all(
                changelog_reader(self._client),
                replays,
                ends,
                goes_on=lambda: urgent or not self._is_called,
                on_progress=self._report_progress,
            )
        # The store was taken over by a task that is being opened, or it is damaged. Neither is an error of this
        # process.
        except StateError as error:
            if error.code not in ("store-taken", "state-corrupt"):
                raise
            log.info("%s", error)
            self._drop(tasks)  # begun anew in the next round, if they are still to be followed
        except BrokerError as error:
            # Retention or a deletion moved the log's start behind the position. The next round begins anew from the
            # start of the log.
            if error.code not in ("offset-out-of-range", "topic-recreated"):
                raise
            self._drop(tasks)
        for task in tasks:
            if task in self._copies:
                copy = self._copies[task]
                copy.records = sum(replay.records for replay in copy.replays)
                copy.bytes = sum(replay.bytes for replay in copy.replays)

    def _drop(self, tasks: Iterable[Task]) -> None:
        """Close the files of these tasks."""
        for task in tasks:
            copy = self._copies.pop(task, None)
            for replay in copy.replays if copy is not None else ():
                replay.store.close()

    # -- small things -------------------------------------------------------------------------------------------------

    def _path(self, task: Task, described: StoreOfTask) -> Path:
        return path_of_store(self._directory, *task, described.name)

    def _opened(self, task: Task, described: StoreOfTask) -> TaskStore:
        store = TaskStore(self._path(task, described), self._identity(described))
        self._note(store)
        return store

    def _identity(self, described: StoreOfTask) -> StoreIdentity:
        topic = described.changelog_topic
        return StoreIdentity(
            changelog_topic_id=str(self._client.known_topics([topic], timeout_ms=TOPIC_WAIT_MS).topics[topic].topic_id),
            schema_hash=described.schema_hash,
            boot_id=self._boot_id,
        )

    def _note(self, store: TaskStore) -> None:
        if store.rebuilt is not None:
            self._send({"type": "note", "text": f"the store {store.path} is rebuilt: {store.rebuilt}"})
            store.rebuilt = None

    def _offsets(self, wheres: list[TopicPartition], of: str, isolation_level: Any) -> dict[TopicPartition, int]:
        found = self._admin.list_offsets(dict.fromkeys(wheres, of), isolation_level=isolation_level)
        return {where: row.offset for where, row in found.items()}

    def _report_progress(self) -> None:
        now = time.monotonic()
        if now - self._reported_s < PROGRESS_S:
            return
        self._reported_s = now
        tasks = [
            {
                "task": [name, partition],
                "position": copy.position,
                "end": copy.end,
                "records": sum(replay.records for replay in copy.replays),
                "bytes": sum(replay.bytes for replay in copy.replays),
                "remaining": copy.remaining,
                "seconds": round(now - copy.began, 3),
                "looked": bool(copy.ends),
            }
            for (name, partition), copy in sorted(self._copies.items())
        ]
        self._send({"type": "progress", "tasks": tasks})


class _NoPandas(MetaPathFinder):
    """Import hook that hides pandas.

    Arrow would import it for the first list it gets, at a cost of 34 MB and a third of a second.
    """

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("nothing here needs it", name=fullname)


def main() -> None:
    """Run the process: settings and commands arrive on stdin, and its end is the end of the driver."""
    sys.meta_path.insert(0, _NoPandas())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they reach whole process groups; the driver decides what they mean
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="headrace replicas: %(message)s")
    logging.raiseExceptions = False
    settings = json.loads(sys.stdin.readline())
    commands: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            commands.put(json.loads(line))
        os._exit(0)  # a crash of the driver; a replay under way is what LMDB's atomic commits are for

    def send(message: dict[str, Any]) -> None:
        with suppress(OSError, ValueError):
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()

    threading.Thread(target=listen, daemon=True).start()
    bulk_load.warm_up()
    arrow_batches.warm_up()
    send({"type": "ready"})
    ReplicaProcess(settings, commands, send).run()
    # Stores are closed. Taking down an interpreter with numba and Arrow in it takes longer than all of the above, and
    # the driver waits for the end of this process.
    os._exit(0)


if __name__ == "__main__":
    main()
