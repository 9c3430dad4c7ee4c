"""Finding and killing what descends from a process, with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.harness.polling import wait_until

from headrace.client.process_tree import ProcessEntry, ProcessTree, process_table

# A parent, like Spark's JVM: its child makes a process group of its own and forks workers, as Spark's daemon does.
JVM = """
import os, subprocess, sys, time
daemon = subprocess.Popen([sys.executable, "-c", '''
import os, time
os.setpgid(0, 0)
for _ in range(2):
    if os.fork() == 0:
        time.sleep(300)
time.sleep(300)
'''])
print(daemon.pid, flush=True)
time.sleep(300)
"""


def children_of(pid: int) -> list[int]:
    return [entry.pid for entry in process_table().values() if entry.parent == pid]


@pytest.fixture
def jvm() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The parent and its daemon's pid, when the two workers are there."""
    process = subprocess.Popen([sys.executable, "-c", JVM], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    daemon = int(process.stdout.readline())
    wait_until(lambda: len(children_of(daemon)) == 2)
    family = [process.pid, daemon, *children_of(daemon)]
    yield process, daemon
    process.stdout.close()
    for pid in family:
        if pid in process_table():
            os.kill(pid, 9)
    process.wait()


def test_we_are_in_the_table_ourselves() -> None:
    entry = process_table()[os.getpid()]
    assert (entry.parent, entry.group) == (os.getppid(), os.getpgrp())


def test_all_descendants_die(jvm: tuple[subprocess.Popen[str], int]) -> None:
    process, daemon = jvm
    workers = children_of(daemon)
    tree = ProcessTree()
    assert tree.watch(process.pid)
    assert set(tree.kill()) == {process.pid, daemon, *workers}
    assert process.wait() == -9
    wait_until(lambda: not {daemon, *workers} & process_table().keys())


def test_workers_whose_parents_died_first_are_remembered(jvm: tuple[subprocess.Popen[str], int]) -> None:
    process, daemon = jvm
    workers = children_of(daemon)
    tree = ProcessTree()
    tree.watch(process.pid)
    tree.observe()
    process.kill()
    process.wait()
    os.kill(daemon, 9)
    wait_until(lambda: daemon not in process_table())
    assert set(tree.kill()) == set(workers)
    wait_until(lambda: not set(workers) & process_table().keys())


def test_a_worker_born_after_the_last_look_is_found_by_its_group(jvm: tuple[subprocess.Popen[str], int]) -> None:
    """Its parent is dead and adopted it away; the daemon's process group still names it."""
    process, daemon = jvm
    tree = ProcessTree()
    tree.watch(process.pid)
    tree.observe()
    workers = children_of(daemon)
    for pid in workers:
        tree._known.pop(pid)
    os.kill(daemon, 9)
    wait_until(lambda: daemon not in process_table())
    assert set(workers) <= set(tree.kill())


def test_a_pid_that_was_used_again_is_left_alone() -> None:
    tree = ProcessTree()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        real = process_table()[process.pid]
        tree._known[process.pid] = ProcessEntry(real.pid, real.parent, real.group, started="long ago")
        assert tree.kill() == ()
        assert process.poll() is None
        process.communicate(b"\n")
    assert process.returncode == 0


def test_neither_we_nor_our_parent_can_be_watched() -> None:
    tree = ProcessTree()
    assert not tree.watch(os.getpid())
    assert not tree.watch(os.getppid())
    assert tree.known == ()


def test_a_process_that_is_not_there_is_told() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    assert not ProcessTree().watch(ended.pid)
