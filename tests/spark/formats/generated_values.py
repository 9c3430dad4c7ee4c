"""Values that Hypothesis generates, all of them for one Spark job."""

from hypothesis import HealthCheck, Phase, given, settings

__all__ = ["generated"]

PHASES = (Phase.explicit, Phase.generate)  # no shrinking
ALL_CHECKS = list(HealthCheck)


def generated(strategy, count):
    """Return up to `count` values of a strategy, the same in each run.

    A job for each example costs too much, and so does a long list as one example: Hypothesis limits the size of an
    example, and drops nearly all lists of a hundred records but the simplest ones.
    """
    values = []

    @settings(
        max_examples=count, deadline=None, derandomize=True, phases=PHASES, suppress_health_check=list(HealthCheck)
    )
    @given(value=strategy)
    def generate(value):
        values.append(value)

    generate()
    return values
