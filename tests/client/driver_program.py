"""A driver for the guardian's tests: joins a group through a guardian, has a child with a grandchild, and waits.

    python driver_program.py BOOTSTRAP GROUP MEMBER

Prints one JSON line per step: pids first, then each assignment. Ends when its stdin does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading

from headrace.client.guardian_link import GuardianLink, GuardianSettings
from headrace.client.membership.events import Assigned, AssignmentChanged
from headrace.client.membership.topology import Subtopology, Topology

TOPOLOGY = Topology(subtopologies=(Subtopology(subtopology_id="flights", source_topics=("flights",)),))
CHILD = """
import subprocess, sys
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
print(grandchild.pid, flush=True)
grandchild.wait()
"""


def main(bootstrap: str, group: str, member: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    link = GuardianLink.start(
        GuardianSettings(
            bootstrap_servers=bootstrap, group_id=group, topology=TOPOLOGY, member_id=member, process_id=f"p-{member}"
        )
    )
    link.watch_process(child.pid)
    print(json.dumps({"child": child.pid, "grandchild": grandchild, "guardian": link.pid}), flush=True)
    ended = threading.Event()

    def wait_for_the_end_of_stdin() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end_of_stdin, daemon=True).start()
    while not ended.is_set():
        for event in link.events(0.05):
            if isinstance(event, Assigned | AssignmentChanged):
                link.acknowledge(event.assignment.active)
                print(json.dumps({"active": event.assignment.active}), flush=True)
    link.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
