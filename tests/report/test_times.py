"""What stands beside the main table of times."""

from __future__ import annotations

from kernelproof.report import text, times
from kernelproof.timing.stats import series
from kernelproof.types import Conditions, Contestant, GpuState, Ratio, Timing


def contestant(name: str, cold: float, **more) -> Contestant:
    one = series([cold], [0])
    return Contestant(name=name, host=one, device=one, cold=one, single=one, **more)


def timing(**changes) -> Timing:
    ratio = {"ratio": 2.0, "low": 1.9, "high": 2.1, "answer": "FASTER", "baseline": "eager"}
    values = {
        "case": "c", "device": "cuda", "threads": 1, "floor": None,
        "candidate": contestant("mine", 2e-6, build=1.5, construction=2e-3, first_call=0.25),
        "baselines": (contestant("eager", 4e-6), Contestant(name="dead", problem="it broke")),
        "ratios": (Ratio(clock="device", **{**ratio, "ratio": 7.0}), Ratio(clock="cold", **ratio)),
    }  # fmt: skip
    return Timing(**values | changes)


def test_other_clocks_have_rows_of_their_own() -> None:
    one = timing()
    head, mine, eager, dead = times.clock_rows(one, text.contestants(one))
    assert head == ["", "cold (L2 flushed)", "ratio", "answer", "single call"]
    assert mine[:2] == ["candidate", "2.00 us [2.00, 2.00]"] and mine[3] == ""
    assert eager[2:4] == ["2.00x [1.90, 2.10]", "FASTER"]
    assert dead[0] == "dead" and dead[1] == "-"


def test_a_record_without_them_has_no_such_table() -> None:
    old = timing(candidate=Contestant(name="x"), baselines=())
    assert times.clock_rows(old, text.contestants(old)) == []
    assert list(times.lines(old, text.contestants(old))) == []


def test_what_happened_once_is_told_apart() -> None:
    one = timing()
    assert times.once_rows(text.contestants(one)) == [
        ["once", "build", "construction", "first call"],
        ["candidate", "1.50 s", "2.00 ms", "250 ms"],
    ]
    assert "first call" not in " ".join(text.time_facts(one))


def test_conditions_are_spans() -> None:
    states = (
        GpuState(number=0, sm_clock=1980, temperature=40, power=200.2),
        GpuState(number=1, sm_clock=1755, temperature=40, power=700.4, throttled=("power cap",)),
    )
    conditions = Conditions(
        threads=2, processors=(0, 1, 2), load_before=0.5, load_during=1.25, gpu=states
    )
    machine, gpu = times.condition_lines(conditions)
    assert machine == (
        "conditions: 2 threads on 3 processors, load average 0.5 before and at most 1.2 during "
        "the rounds"
    )
    assert gpu == (
        "GPU between rounds: SM clock 1755 to 1980 MHz, temperature 40 C, power 200 to 700 W, "
        "clocks held back in 1 of 2 rounds"
    )
    assert times.condition_lines(None) == []
