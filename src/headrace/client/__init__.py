"""Clients of a Kafka cluster: network client, administration, producing, fetching, consumers and group memberships.

It knows no coordinator and no storage: what it knows about a broker it learns over the wire, from Headrace's broker and
Apache Kafka alike.
"""

import headrace.protocol  # noqa: F401  kio comes in through it: see there what that saves
