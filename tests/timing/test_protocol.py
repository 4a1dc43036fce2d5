"""The interleaved run, with contestants whose times are known."""

from __future__ import annotations

from kernelproof.errors import CandidateCrash
from kernelproof.timing import Budget, Entrant, measure

ORDER: list[str] = []


class Fake:
    def __init__(self, name: str, seconds: float, graph: bool = False, dies_at: int = 10**9):
        self.name, self.seconds, self.graph, self.left = name, seconds, graph, dies_at

    def prepare(self):
        if self.left == 0:
            raise CandidateCrash("died in prepare")
        return {"first": 1.0, "host": self.seconds, "graph": self.graph, "problem": ""}

    def sample(self, clock, calls, number):
        self.left -= 1
        if self.left < 0:
            raise CandidateCrash("died in sample")
        ORDER.append(self.name)
        return [self.seconds * (0.5 if clock == "device" else 1.0)] * min(calls, 3)


def run(*others: Fake, device: str = "cpu", **kwargs):
    ORDER.clear()
    return measure(
        Entrant("mine", Fake("mine", 1e-3, device != "cpu")),
        [Entrant(o.name, o) for o in others],
        Entrant("floor", Fake("floor", 1e-6, device != "cpu")),
        case="default",
        device=device,
        threads=1,
        budget=Budget(rounds=10),
        **kwargs,
    )


def test_every_contestant_is_timed_in_every_round() -> None:
    timing = run(Fake("eager", 2e-3), flops=10.0, nbytes=20.0)
    assert timing.candidate.host is not None
    assert set(timing.candidate.host.rounds) == set(range(10))
    assert (timing.flops, timing.bytes) == (10.0, 20.0)
    (ratio,) = timing.ratios
    assert (ratio.baseline, ratio.clock, ratio.answer) == ("eager", "host", "FASTER")
    assert abs(ratio.ratio - 2.0) < 1e-9
    assert timing.floor is not None and timing.floor.host is not None


def test_the_order_within_rounds_changes() -> None:
    run(Fake("eager", 2e-3))
    rounds = {tuple(ORDER[i : i + 3]) for i in range(0, 30, 3)}
    assert all(sorted(r) == ["eager", "floor", "mine"] for r in rounds)
    assert len(rounds) > 1


def test_a_gpu_has_two_clocks() -> None:
    timing = run(Fake("eager", 2e-3, graph=True), device="cuda")
    assert timing.candidate.device is not None and timing.candidate.host is not None
    assert timing.candidate.device.median == 0.5 * timing.candidate.host.median
    assert {r.clock for r in timing.ratios} == {"device", "host"}


def test_a_baseline_that_fails_is_reported_and_costs_nothing_else() -> None:
    timing = run(Fake("early", 1e-3, dies_at=0), Fake("late", 1e-3, dies_at=3))
    early, late = timing.baselines
    assert early.host is None and "died in prepare" in early.problem
    assert "died in sample" in late.problem
    assert timing.candidate.host is not None


def test_without_a_graph_there_is_no_device_time() -> None:
    timing = run(Fake("eager", 2e-3, graph=False), device="cuda")
    assert timing.baselines[0].device is None
    assert [r.clock for r in timing.ratios] == ["host"]


def test_the_time_budget_ends_the_run() -> None:
    timing = measure(
        Entrant("mine", Fake("mine", 1e-3)),
        [],
        None,
        case="d",
        device="cpu",
        threads=1,
        budget=Budget(rounds=1000, least=3, seconds=0.0),
    )
    assert timing.candidate.host is not None
    assert len(set(timing.candidate.host.rounds)) == 3
