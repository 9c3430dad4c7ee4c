"""`headrace upgrade`: a changed topology for a group that exists, without losing its positions.

Kafka 4.3 refuses another topology, also for an empty group; deleting the group deletes its positions. The tested way
round: all members leave, positions are saved, the group is deleted, the positions are restored, the new version joins.
"""
