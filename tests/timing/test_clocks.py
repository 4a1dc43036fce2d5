"""The parent's clock: what is reported as cheating, and what noise may do."""

from __future__ import annotations

import math

from kernelproof.timing import clocks
from kernelproof.timing.stats import series
from kernelproof.types import Contestant, Ratio, Timing


def timed(samples: list[float], calls: int, name: str = "mine") -> Contestant:
    rounds = [i // calls for i in range(len(samples))]
    return Contestant(name=name, host=series(samples, rounds))


def outside(seconds: float, wobble: float = 0.0, rounds: int = 10) -> dict[int, float]:
    return {n: seconds + wobble * (n % 5) for n in range(rounds)}


def test_time_that_the_worker_does_not_report_is_found() -> None:
    mine = timed([1e-3] * 20, 2)
    honest = clocks.of_parent("host", mine, outside(2e-3), outside(2e-3))
    hidden = clocks.of_parent("host", mine, outside(9e-3), outside(2e-3))
    half = clocks.of_parent("host", mine, outside(3e-3), outside(2e-3))
    assert honest and honest.outcome == "pass"
    assert hidden and hidden.outcome == "fail" and "0.001 s" in hidden.message
    assert half and half.outcome == "note" and "suspicious" in half.message


def test_noise_of_the_machine_is_no_cheat() -> None:
    mine = timed([1e-3] * 20, 2)
    noisy = outside(2e-3, wobble=2e-3)
    check = clocks.of_parent("host", mine, outside(4e-3, wobble=2e-3), noisy)
    assert check and check.outcome == "pass"
    # A few rounds in which something else had the processor do not count.
    some = outside(2e-3) | {0: 0.5, 1: 0.5, 2: 0.5}
    check = clocks.of_parent("host", mine, some, outside(2e-3))
    assert check and check.outcome == "pass"


def test_too_few_rounds_say_nothing() -> None:
    mine = timed([1e-3] * 4, 2)
    assert clocks.of_parent("host", mine, outside(9e-3, rounds=2), outside(1e-3, rounds=2)) is None


def test_a_call_that_does_the_work_of_others_is_found() -> None:
    assert clocks.uneven(timed([2e-2, 1e-6, 1e-6, 1e-6] * 6, 4))
    assert not clocks.uneven(timed([2e-4, 1e-4, 1e-4, 1e-4] * 6, 4))
    assert not clocks.uneven(timed([1e-3] * 6, 1))
    assert clocks.batched([1e-3] * 9, [1.6e-2] * 9, 16).outcome == "fail"
    # Threads that are woken slowly are so whatever was sent.
    assert clocks.batched([1e-2] * 9, [1.1e-2] * 9, 16).outcome == "pass"
    assert clocks.batched([1e-3] * 9, [1e-3] * 5 + [1.0] * 4, 16).outcome == "pass"


def test_results_kept_by_value_are_found() -> None:
    assert clocks.repeated([5e-3] * 4, [1e-6] * 4, cuda=True).outcome == "fail"
    assert clocks.repeated([5e-3] * 4, [1e-6] * 4, cuda=False).outcome == "note"
    assert clocks.repeated([1e-4] * 4, [8e-5] * 4, cuda=True).outcome == "pass"


def test_what_python_does_in_a_call_is_no_hidden_work_of_the_device() -> None:
    # A cold call of 10 us, of which Python takes 1 ms to launch; the host's clock tells of it.
    mine = timed([1e-3] * 20, 2).model_copy(update={"cold": series([1e-5] * 20, range(20))})
    honest = clocks.of_parent("cold", mine, outside(1.2e-3), outside(3e-4))
    hidden = clocks.of_parent("cold", mine, outside(9e-3), outside(3e-4))
    assert honest and honest.outcome == "pass"
    assert hidden and hidden.outcome == "fail" and "(cold)" in hidden.name


def test_a_cache_by_value_gets_no_time_of_repeated_calls() -> None:
    check = clocks.repeated([5e-3] * 4, [1e-6] * 4, cuda=False)
    both = [Ratio(baseline="eager", clock=clock, ratio=9.0, low=9.0, high=9.0, answer="FASTER")
            for clock in ("host", "warm")]  # fmt: skip
    full = timing(1e-3, 2e-3).model_copy(update={"ratios": tuple(both)})
    warm = full.candidate.model_copy(update={"warm": series([1e-6], [0])})
    full = full.model_copy(update={"candidate": warm})
    less = clocks.without_warm(full, [check])
    assert less.candidate.warm is None and [r.clock for r in less.ratios] == ["host"]
    assert "no time of repeated calls" in less.notes[0]
    doubted = clocks.of_parent("warm", timed([1e-3] * 20, 2).model_copy(
        update={"warm": series([1e-5] * 20, range(20))}), outside(9e-3), outside(2e-3))  # fmt: skip
    assert doubted and doubted.outcome == "note"
    assert clocks.without_warm(full, [doubted]).candidate.warm is None
    passed = clocks.repeated([1e-4] * 4, [9e-5] * 4, cuda=False)
    assert clocks.without_warm(full, [passed]) is full


def timing(mine: float, eager: float) -> Timing:
    return Timing(
        case="d", device="cpu", threads=1, candidate=timed([mine] * 10, 1),
        baselines=(timed([eager] * 10, 1, "eager"),), floor=None, ratios=(),
    )  # fmt: skip


def test_a_saving_must_be_seen_by_the_parent(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: now[0])

    def taking(seconds: float):
        def call() -> None:
            now[0] += seconds + 0.03  # the transfer

        return call

    fake = clocks.saving(timing(1e-5, 2e-2), taking(0.02), taking(0.02))
    true = clocks.saving(timing(1e-5, 2e-2), taking(0.0), taking(0.02))
    assert fake and fake.outcome == "fail" and "saves 0.02 s" in fake.message
    assert true and true.outcome == "pass"
    # What is saved is too little to be seen from here.
    assert clocks.saving(timing(1e-5, 2e-4), taking(0.0), taking(0.0)) is None


def test_who_works_while_others_are_timed_is_found() -> None:
    assert clocks.at_rest(2.6, 6.7, 0.0).outcome == "fail"
    assert "2.6 s of processor time" in clocks.at_rest(2.6, 6.7, 0.0).message
    assert clocks.at_rest(0.0, 6.7, 0.0).outcome == "pass"
    # As much as eager: threads that spin, where the user wants that.
    assert clocks.at_rest(2.6, 6.7, 0.5).outcome == "pass"
    # Ten ticks of the kernel's clock tell nothing.
    assert clocks.at_rest(0.09, 0.1, 0.0).outcome == "pass"


def test_results_that_a_gpu_keeps_by_value_are_seen_by_its_own_clock() -> None:
    """Also those of kernels that are quicker than their launch."""
    cheat = [(9.0e-6, 2.1e-6), (9.2e-6, 2.0e-6)]
    assert clocks.unseen("unseen", cheat).outcome == "fail"
    # 8 of 50 calls of a graph are on new contents.
    graph = [((8 * 9e-6 + 42 * 2e-6) / 50, 2e-6)]
    assert clocks.unseen("device", graph).outcome == "fail"
    # Once is enough to be quick: noise only adds.
    assert clocks.unseen("unseen", [*cheat, (2.2e-6, 2.1e-6)]).outcome == "pass"
    for clock in ("unseen", "device"):
        assert clocks.unseen(clock, [(1.5e-6, 1.3e-6), (1.4e-6, 1.4e-6)]).outcome == "pass"
        assert clocks.unseen(clock, [(math.nan, 1e-6)]).outcome == "fail"
