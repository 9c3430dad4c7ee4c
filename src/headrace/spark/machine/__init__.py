"""State machine of one subtopology on one instance: events in, commands out.

Pure: no clock, no I/O, no threads, no logging. Driven by `headrace.spark.runtime.batches.batch_runner` in an
application, and by `headrace.simulator` in tests.
"""
