"""Client-side assignors of classic consumer groups: the leader of a group assigns the partitions with one of them."""
