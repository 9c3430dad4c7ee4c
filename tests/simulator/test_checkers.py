"""The simulator notices when a rule is broken: each of `mutations` breaks one in the code under simulation."""

from __future__ import annotations

import pytest
from tests.simulator.mutations import MUTATIONS, Mutation

from headrace.simulator.simulation import simulate

SEEDS = range(40)


def first_broken(mutation: Mutation) -> str:
    for seed in (mutation.hint, *SEEDS):
        broken = simulate(seed, mutation.groups).broken
        if broken is not None:
            return broken
    pytest.fail(f"none of {len(SEEDS)} seeds noticed")


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: f"{each.groups}: {each.text}")
def test_a_broken_rule_is_noticed(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutation.owner, mutation.name, mutation.broken(getattr(mutation.owner, mutation.name)))
    broken = first_broken(mutation)
    assert any(text in broken for text in mutation.told), broken
