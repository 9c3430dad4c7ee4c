"""Scripts of requests for consumer groups; importing them fills `consumer_script.SCENARIOS`."""

from tests.interop.consumer_scenarios import membership, offsets, refusals, regexes, static_members, topics

__all__ = ["membership", "offsets", "refusals", "regexes", "static_members", "topics"]
