"""Queries into the state of a running application: keys, ranges, windows and whole stores, over HTTP."""
