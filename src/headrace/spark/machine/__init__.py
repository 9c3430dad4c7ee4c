"""State machine of one subtopology on one instance: events in, commands out.

Pure: no clock, no I/O, no threads, no logging. `runtime/batch_runner.py` and `headrace.simulator` drive it.
"""
