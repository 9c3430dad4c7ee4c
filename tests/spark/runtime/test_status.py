"""The status file of a running application."""

import json

import pytest

pytestmark = pytest.mark.spark


def test_the_status_file_shows_the_state_to_other_processes(broker, make_app, running, tmp_path, flights):
    flights.send(broker, range(50))
    app = running(flights.count_by_origin(make_app()))
    app.wait_until("caught-up", timeout=60)
    path = tmp_path / "a" / "status.json"

    def told():
        status = json.loads(path.read_text())
        return (status["state"], status["records"]["flights"], status["state_keys"]) == ("running", 50, 3)

    app._wait(told, None, "told")
    status = json.loads(path.read_text())
    assert status["member_id"] == app.member.member_id
    assert status["tasks"]["flights"] == [0, 1, 2, 3]
    assert status["error"] is None
