"""The proving ground: coordinator shards, their log, members and applications in one process, under virtual time.

Real rules (`GroupCoordinatorShard` through `ShardRunner`) and real members (`StreamsMembership`) meet over a network
that delays, drops and duplicates; processes and the broker crash; a disk refuses. Everything follows from one
seed: a seed that fails is replayed by `python -m headrace.simulator SEED`, which prints the story.
"""
