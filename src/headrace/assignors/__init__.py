"""Client-side assignors of classic consumer groups: the leader of a group divides the partitions with one of these."""
