"""THE RULES. Pure: no clock, no chance, no I/O, no logging, no await. (state, request, now_ms) → CoordinatorResult."""
