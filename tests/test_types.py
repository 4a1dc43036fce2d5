"""The values: what they refuse, and that they survive JSON."""

from __future__ import annotations

import datetime
import math

import pytest
from pydantic import ValidationError

from kernelproof.types import (
    Build,
    Candidate,
    Case,
    Contestant,
    Environment,
    Figures,
    Problem,
    Record,
    Timing,
    Verdict,
)


def record(status: str, timed: bool) -> Record:
    timing = Timing(
        case="default",
        device="cpu",
        threads=1,
        candidate=Contestant(name="x"),
        baselines=(),
        floor=None,
        ratios=(),
    )
    return Record(
        id="a",
        created=datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc),
        problem=Problem(name="p", path="p.py", digest="d", cases=(Case(name="default"),)),
        candidate=Candidate(
            name="c", path="c.py", folder=".", language="pytorch", digest="e", sources=("c.py",)
        ),
        build=Build(status="pass", seconds=0.1),
        verdict=Verdict(
            status=status,
            proof=status == "pass",
            compat=True,
            evidence="cpu",
            device="cpu",
            limit=12,
        ),
        timing=timing if timed else None,
        environment=Environment(
            kernelproof="0",
            commit="",
            python="3",
            torch="2",
            platform="l",
            cpu="c",
            cores=1,
            threads=1,
            compiler="g",
        ),
    )


def test_a_passing_record_holds_a_timing() -> None:
    assert record("pass", True).timing is not None


def test_a_failing_record_cannot_hold_a_timing() -> None:
    assert record("wrong", False).timing is None
    with pytest.raises(ValidationError, match="cannot hold a timing"):
        record("wrong", True)


def test_status_and_proof_agree() -> None:
    with pytest.raises(ValidationError, match="does not go with"):
        Verdict(status="pass", proof=False, compat=True, evidence="cpu", device="cpu", limit=12)


def test_values_are_frozen_and_closed() -> None:
    case = Case(name="a")
    with pytest.raises(ValidationError):
        case.name = "b"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Case(name="a", other=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.5])
def test_figures_survive_json(value: float) -> None:
    figures = Figures(
        max_abs=value, mean_abs=value, rms=value, max_rel=value, max_ulp=value, effective_bits=value
    )
    back = Figures.model_validate_json(figures.model_dump_json())
    assert back.max_abs == value or (math.isnan(back.max_abs) and math.isnan(value))


def test_a_record_survives_json() -> None:
    one = record("pass", True)
    assert Record.model_validate_json(one.model_dump_json()) == one
