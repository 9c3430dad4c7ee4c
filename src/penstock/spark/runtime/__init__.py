"""Running a compiled topology: tasks of a streams group as few, wide, vectorised Spark micro-batches.

Workers prepare, the driver commits (design, "The Spark runtime"). Start at `driver.py`, which holds an application
together; the micro-batches of one subtopology are `batch_runner.py`; what happens inside the Python workers is
`stages.py`.
"""
