"""Running a compiled topology: tasks of a streams group as few, wide, vectorised Spark micro-batches.

Workers prepare, the driver commits (design, "The Spark runtime"). Start at `driver.py`, which holds an application
together; the micro-batches of one subtopology are `batch_runner.py`; what happens inside the Python workers is
`stages.py`.

Arrow's execution engine warns on stderr of buffers that are not aligned to their type, then takes them as they are.
Ours are aligned, those that arrive from elsewhere (Spark's IPC, a user's function) need not be; the processors we run
on read both. So it is told not to warn, in the driver and in workers, unless the user has said otherwise. It reads the
variable when it is first used, not when it is imported.
"""

import os

os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "ignore")
