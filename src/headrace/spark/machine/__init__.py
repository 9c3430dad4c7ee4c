"""State machine of one subtopology on one instance: events in, commands out.

Pure: no clock, no I/O, no threads, no logging. The runtime uses the rules of `batch_outcome`; the machine itself is
driven by `headrace.simulator` only.
"""
