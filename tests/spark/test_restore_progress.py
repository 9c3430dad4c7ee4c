"""Progress bars of long restores."""

from typing import Any


class Restoring:
    """A running application of which only its restores are looked at."""

    def __init__(self):
        self.now = {}

    def restoring(self):
        return self.now


def test_bars_come_with_a_long_restore_and_go_with_it(capsys):
    from headrace.spark.restore_progress import SHOWN_AFTER, RestoreProgress

    app: Any = Restoring()
    bar = RestoreProgress(app, is_terminal=True)
    app.now = {("counts", 1): (1500, 500, 750_000.0)}
    for _ in range(SHOWN_AFTER - 1):
        bar.look()
    assert capsys.readouterr().err == ""
    bar.look()
    app.now = {}
    bar.look()
    shown = capsys.readouterr()
    assert "restoring counts_1" in shown.err
    assert "1500/2000" in shown.err.replace(" ", "")
    assert shown.out == ""
    bar.close()
