"""`ParallelConsumer`: poller → bounded buffer → workers. Pure rules (offsets, lanes, retries), threads around them."""
