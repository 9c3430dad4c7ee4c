"""Parallel processing of a consumer's records: one thread polls, a bounded buffer, workers call the handler.

`work_plan`, `work`, `offset_tracker` and `stats` are pure rules; the other modules are the threads and processes around
them.
"""
