"""The key of a micro-batch."""

from headrace.spark.runtime.stores.store import BatchKey

BATCH = BatchKey(incarnation="i", batch_id=7, attempt=1)
