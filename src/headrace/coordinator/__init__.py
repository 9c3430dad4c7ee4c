"""THE RULES. Pure: no clock, no chance, no I/O, no logging, no await. (state, request, now_ms) → CoordinatorResult."""

import headrace.protocol  # noqa: F401  kio comes in through it: see there what that saves
