"""What is kept of a record with times: on a GPU, and on a CPU, where two clocks are one."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from test_types import record

from kernelproof.suite import numbers, results
from kernelproof.suite.model import Item
from kernelproof.types import Contestant, Ratio, Record, Series, SuiteResult

ITEM = Item(Path("p.py"), Path("c.py"), "p/c", "level1", 2)
ANSWER = {"device": "a device", "seconds": 1.5}


def series(*samples: float) -> Series:
    median = statistics.median(samples)
    rounds = tuple(range(len(samples)))
    return Series(samples=samples, rounds=rounds, median=median, low=median / 2, high=median * 2)


def made(where: str, by: str, **clocks: tuple[Series, Series]) -> SuiteResult:
    """``clocks``: name of a clock -> series of the candidate and of eager."""
    mine, eager = ({name: pair[n] for name, pair in clocks.items()} for n in (0, 1))
    plain = record("pass", True)
    assert plain.timing is not None
    ratios = [
        Ratio(baseline="eager", clock=name, ratio=r, low=r - 1, high=r + 1, answer="FASTER")
        for name, r in ((by, 3.0), ("single", 9.0))
    ]  # fmt: skip
    update = {
        "device": where,
        "candidate": Contestant(name="c", **mine),
        "baselines": (Contestant(name="eager", **eager), Contestant(name="none")),
        "ratios": tuple(ratios),
    }
    timing = plain.timing.model_copy(update=update)
    full: Record = plain.model_copy(update={"timing": timing})
    return results.of_record(ITEM, "d", full, ANSWER, 2, "gpu 0")


def test_on_a_gpu_means_are_of_single_calls_and_ratios_of_the_device() -> None:
    found = made(
        "cuda", "device", device=(series(1.0, 2.0, 9.0), series(6.0, 6.0)),
        single=(series(2.0, 4.0), series(5.0, 7.0)),
    )  # fmt: skip
    assert found.time == (2.0, 1.0, 4.0)
    assert [(r.clock, r.ratio) for r in found.ratios] == [("device", 3.0)]
    means = found.means["eager"]
    assert (means.clock, means.baseline, means.candidate) == ("single", 6.0, 3.0)
    assert list(found.means) == ["eager"]
    assert (found.item, found.category, found.sample, found.attempts) == ("p/c", "level1", 2, 2)
    assert (found.device, found.seconds, found.record_id) == ("a device", 1.5, "a")


def test_on_a_cpu_ratios_by_the_host_are_those_of_the_device() -> None:
    same = series(1.0, 2.0, 9.0), series(6.0, 6.0)
    found = made("cpu", "host", device=same, host=same)
    assert [r.ratio for r in found.ratios] == [3.0]
    assert (found.means["eager"].baseline, found.means["eager"].candidate) == (6.0, 4.0)
    (fast,) = (f for f in numbers.tally("", [found]).fast if f.p == 1.5)
    assert (fast.theirs, fast.ours) == (0.0, 1.0)  # 6 / 4 is not more than 1.5; [2, 4] is above


@pytest.mark.parametrize("status", ["wrong", "crash"])
def test_without_a_verdict_there_are_no_times(status: str) -> None:
    found = results.of_record(ITEM, "d", record(status, False), ANSWER, 1, "")
    assert (found.status, found.time, found.ratios, found.proof) == (status, None, (), False)


def test_compat_is_what_the_harness_would_say() -> None:
    """A candidate whose values it takes may still fail there, and one that it takes may cheat."""
    right, wrong = record("pass", True), record("wrong", False)
    for whole, said, want in (
        (
            right,
            {"accepted": False, "word": "incorrect", "reasons": ["it copies no weights"]},
            False,
        ),
        (wrong, {"accepted": True, "word": "correct", "reasons": []}, True),
        (right, {"accepted": None, "word": "luck", "reasons": []}, False),
        (right, None, right.verdict.compat),
    ):
        found = results.of_record(ITEM, "d", whole, {**ANSWER, "harness": said}, 1, "")
        assert found.compat is want and found.proof is whole.verdict.proof
        assert (found.harness.word if found.harness else None) == (said["word"] if said else None)
    again = SuiteResult.model_validate_json(found.model_dump_json())
    assert again == found
