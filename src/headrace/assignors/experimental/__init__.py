"""Assignors that use user data, for classic groups; pass an instance as `partition_assignment_strategy`. May change."""

from headrace.assignors.experimental.leader_independent import LeaderIndependentSticky
from headrace.assignors.experimental.warm_spares import Roles, WarmSpares
from headrace.assignors.experimental.weighted import Load, WeightedByLoad

__all__ = ["LeaderIndependentSticky", "Load", "Roles", "WarmSpares", "WeightedByLoad"]
