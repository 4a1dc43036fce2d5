"""What a run over all rungs tells of one of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernelproof.timing.stats import series
from kernelproof.types import Bound, Contestant, Limit, RungResult, Timing

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import ladder_times

CALL = Bound(kind="call", name="one call", seconds=1e-6, amount=1.0, rate=1e6)


def one(name: str, device: float | None, problem: str = "") -> Contestant:
    if device is None:
        return Contestant(name=name, problem=problem)
    times = [device * (1 + 1e-3 * (n % 3)) for n in range(10)]
    found = {
        "device": series(times, range(10)),
        "host": series([2 * t for t in times], range(10)),
        "cold": series([3 * t for t in times], range(10)),
    }
    return Contestant(name=name, **found)


@pytest.fixture
def timing() -> Timing:
    last = one("cuda", 4e-6)
    assert last.device is not None
    return Timing(
        case="founding", device="cuda", threads=1, candidate=last, floor=one("empty launch", 1e-6),
        baselines=(
            one("eager", 4e-5), one("two matmuls", 1e-5), one("01_plain", 2e-5),
            one("02_slip", 5e-6), one("03_refused", None, "the launch of k was refused"),
        ),
        ratios=(), limit=Limit(bounds=(CALL,), share=0.25),
        notes=(
            "timing ended after 10 rounds: x; not yet narrow: the ratio to eager (+-9%)",
            "02_slip does not compute the same function: off by 3",
        ),
    )  # fmt: skip


def row(timing: Timing, name: str) -> RungResult | None:
    found, right = ladder_times.of_rung(timing, name, "09_last")
    if found is None:
        return None
    return RungResult(problem="p", rung=name, **ladder_times.row(found, right))


def test_a_rung_has_its_times_and_ratios(timing: Timing) -> None:
    plain = row(timing, "01_plain")
    assert plain is not None and plain.device == pytest.approx(2e-5, rel=0.01)
    assert plain.times["rung"].host == pytest.approx(4e-5, rel=0.01)
    assert plain.times["floor"].device == pytest.approx(1e-6, rel=0.01)
    eager, best = plain.over("eager"), plain.over(plain.baseline)
    assert eager is not None and eager.answer == "FASTER"
    assert eager.ratio == pytest.approx(2.0, rel=0.01)
    assert best is not None and best.answer == "SLOWER" and best.baseline == "two matmuls"
    assert plain.limit == CALL and plain.limit_share == pytest.approx(0.05, rel=0.01)
    assert plain.right_when_timed and plain.rounds == 10
    assert plain.time_notes == ("timing ended after 10 rounds: x",)


def test_the_candidate_of_the_run_is_the_last_rung(timing: Timing) -> None:
    last = row(timing, "09_last")
    assert last is not None and last.device == pytest.approx(4e-6, rel=0.01)


def test_what_is_wrong_while_timed_is_said(timing: Timing) -> None:
    slip = row(timing, "02_slip")
    assert slip is not None and slip.right_when_timed is False
    assert slip.time_notes[-1] == "02_slip does not compute the same function: off by 3"


def test_a_rung_without_times_has_no_row(timing: Timing) -> None:
    assert row(timing, "03_refused") is None
    assert row(timing, "04_added_later") is None
