"""`python -m headrace.simulator`: one seed with its transcript, several seeds with a verdict, and the exit code."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import pytest

from headrace.simulator import __main__ as program
from headrace.simulator.simulation import simulate


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["simulator", *arguments])
    return program.main()


def test_one_seed_prints_its_transcript_and_digest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "3", "--groups", "streams") == 0
    out, err = capsys.readouterr()
    outcome = simulate(3, "streams")
    assert out.splitlines() == [*outcome.transcript, f"digest {outcome.digest}"]
    assert err.startswith("1 seeds, 0 broken")


def test_a_broken_rule_is_reported_with_its_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = simulate(3, "streams")

    def broken(seed: int, groups: str) -> Any:
        return dataclasses.replace(sound, seed=seed, broken="two owners of task 0_1")

    monkeypatch.setattr(program, "simulate", broken)
    monkeypatch.setattr(program, "PROGRESS", 2)
    assert run(monkeypatch, "--seeds", "2", "--first", "7") == 1
    err = capsys.readouterr().err
    assert "seed 7 (streams): two owners of task 0_1" in err
    assert "2 seeds, up to 8: 2 broken" in err
    assert "2 seeds, 2 broken" in err
