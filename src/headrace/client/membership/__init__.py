"""Group memberships as pure state machines: `poll(now_ms)` returns requests, `on_response` takes answers.

No socket, thread, clock or randomness: time and random numbers are arguments, so that the same code runs in a thread,
in the guardian process, and by the thousand in virtual time in `headrace.simulator`.
"""
