"""State machine of one subtopology on one instance: events in, commands out.

Pure: no clock, no I/O, no threads, no logging. Driven by `headrace.simulator` only: the runtime does not use it yet.
"""
