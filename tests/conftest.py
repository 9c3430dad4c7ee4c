"""For all tests: what a program inherits from the shell that started the run must not decide a test."""

from __future__ import annotations

import signal

# A run started in the background by a shell ignores SIGINT, and its children would inherit that: Ctrl-C is tested here.
signal.signal(signal.SIGINT, signal.default_int_handler)
