"""Execution of a compiled topology: tasks of a streams group as few, wide, vectorised Spark micro-batches.

Workers prepare, the driver commits (docs/internals/spark.md). `application.py` holds an application together,
`batch_runner.py` drives the machine of one subtopology, and `stages.py` is what runs in the Python workers.

Arrow's execution engine prints a warning on stderr for every buffer that is not aligned to its type, then uses the
buffer anyway. Headrace's buffers are aligned; those of Spark's IPC or of a user's function may not be, which x86-64 and
ARM64 handle. So the warning is switched off in the driver and in workers, unless the user has set the variable. Arrow
reads it on first use, not on import.
"""

import os

os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "ignore")
