"""Message versions of Apache Kafka 4.4 that kio does not have: heartbeat and describe of streams groups.

Root classes are ours, on kio's machinery: kio reads and writes them like its own. Nested classes that did not change
are kio's. Fields, their order and defaults: Kafka's message definitions, KIP-1331 and KIP-1357. The annotations must be
objects, not strings, because kio reads them.
"""
