"""Assignors that use user data, for classic groups: give an instance as `partition_assignment_strategy`. May change."""

from penstock.assignors.experimental.leader_independent import LeaderIndependentSticky
from penstock.assignors.experimental.warm_spares import Roles, WarmSpares
from penstock.assignors.experimental.weighted import Load, WeightedByLoad

__all__ = ["LeaderIndependentSticky", "Load", "Roles", "WarmSpares", "WeightedByLoad"]
