"""The interleaved run, with contestants whose times are known."""

from __future__ import annotations

import random

import pytest

from kernelproof.errors import CandidateCrash
from kernelproof.timing import Budget, Entrant, conditions, measure
from kernelproof.timing.stats import ratio
from kernelproof.types import GpuState

ORDER: list[str] = []
SPEED = {"host": 1.0, "device": 0.5, "cold": 0.8, "single": 0.9, "warm": 0.7}


class Fake:
    def __init__(
        self, name: str, seconds: float, graph: bool = False, dies_at: int = 10**9, noise=0.0
    ):
        self.name, self.seconds, self.graph, self.left = name, seconds, graph, dies_at
        self.draw, self.noise = random.Random(name), noise
        self.asked: list[tuple[str, int]] = []

    def prepare(self):
        if self.left == 0:
            raise CandidateCrash("died in prepare")
        graph = 50 if self.graph else 0
        told = {"first": 1.0, "host": self.seconds, "graph": graph, "problem": ""}
        return {**told, "build": 3.0, "construction": 0.5}

    def sample(self, clock, calls, number):
        self.left -= 1
        if self.left < 0:
            raise CandidateCrash("died in sample")
        self.asked.append((clock, calls))
        if clock == "host":
            ORDER.append(self.name)
        taken = self.seconds * SPEED[clock] * (1 + self.draw.gauss(0, self.noise))
        return [taken] * min(calls, 3)


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
    ratio, warm = timing.ratios
    assert (ratio.baseline, ratio.clock, ratio.answer) == ("eager", "host", "FASTER")
    assert abs(ratio.ratio - 2.0) < 1e-9
    assert warm.clock == "warm" and timing.candidate.warm is not None
    assert timing.candidate.device == timing.candidate.host
    assert (timing.candidate.build, timing.candidate.construction) == (3.0, 0.5)
    assert timing.floor is not None and timing.floor.host is not None


def test_the_order_within_rounds_changes() -> None:
    run(Fake("eager", 2e-3))
    rounds = {tuple(ORDER[i : i + 3]) for i in range(0, 30, 3)}
    assert all(sorted(r) == ["eager", "floor", "mine"] for r in rounds if r)
    assert len(rounds) > 1


def test_a_gpu_has_four_clocks() -> None:
    timing = run(Fake("eager", 2e-3, graph=True), device="cuda")
    mine = timing.candidate
    assert mine.device and mine.host and mine.cold and mine.single and not mine.warm
    assert mine.device.median == 0.5 * mine.host.median
    assert [r.clock for r in timing.ratios] == ["device", "host", "cold"]
    assert all(set(s.rounds) == set(range(10)) for s in (mine.cold, mine.single))


def test_a_graph_is_replayed_for_about_the_slice() -> None:
    short, long = Fake("short", 1e-6, graph=True), Fake("long", 1e-2, graph=True)
    run(short, long, device="cuda")
    assert {calls for clock, calls in short.asked if clock == "device"} == {250}
    assert {calls for clock, calls in long.asked if clock == "device"} == {50}
    assert {calls for clock, calls in long.asked if clock == "host"} == {2}


def started(*others: Fake, seconds: float = 60.0, rounds: int = 160):
    return measure(
        Entrant("mine", Fake("mine", 1e-3, noise=0.005)),
        [Entrant(o.name, o) for o in others],
        None, case="d", device="cpu", threads=1, budget=Budget(rounds=rounds, seconds=seconds),
    )  # fmt: skip


def test_the_run_ends_when_the_intervals_are_narrow() -> None:
    timing = started(Fake("near", 1.02e-3, noise=0.005))
    (note,) = timing.notes
    assert "the intervals are narrow" in note
    ratio = timing.ratios[0]
    assert ratio.answer == "FASTER" and ratio.high - ratio.low < 0.011
    assert 10 <= max(timing.candidate.host.rounds) < 80


def test_a_baseline_that_is_far_off_is_timed_no_more() -> None:
    far, near = Fake("far", 5e-2, noise=0.005), Fake("near", 1e-3, noise=0.01)
    timing = started(far, near)
    rounds = [max(one.host.rounds) + 1 for one in timing.baselines]
    assert rounds[0] == 8 and rounds[1] > 20
    assert [r.answer for r in timing.ratios if r.clock == "host"] == ["FASTER", "SAME"]


@pytest.mark.parametrize(
    ("seconds", "noise", "rounds"), [(3.1e-3, 0.002, 8), (3e-4, 0.002, 8), (2.9e-3, 0.002, 10)]
)
def test_only_far_ratios_end_the_run_early(seconds: float, noise: float, rounds: int) -> None:
    timing = started(Fake("one", seconds, noise=noise))
    assert max(timing.candidate.host.rounds) + 1 == rounds


def test_a_far_ratio_that_is_not_narrow_does_not_end_it() -> None:
    timing = started(Fake("wild", 1e-1, noise=0.3))
    assert max(timing.candidate.host.rounds) + 1 > 10


def test_what_is_not_narrow_when_the_budget_ends_is_named() -> None:
    timing = started(Fake("wild", 1e-3, noise=0.5), Fake("calm", 3e-3, noise=0.001), rounds=40)
    (note,) = timing.notes
    assert "40 rounds, the most" in note and "wild (+-" in note and "calm" not in note


class Hot:
    """Stands for the GPU: it is throttled in some rounds."""

    rounds: tuple[int, ...] = ()

    def __init__(self, device: str) -> None:
        pass

    def held(self):
        return {}

    def state(self, number, before):
        why = ("heat",) if number in self.rounds else ()
        return GpuState(number=number, sm_clock=1980, throttled=why)


def test_throttled_rounds_keep_a_run_from_ending_early(monkeypatch) -> None:
    monkeypatch.setattr(conditions, "Gpu", Hot)
    rounds = []
    for hot in ((), (3,)):
        monkeypatch.setattr(Hot, "rounds", hot)
        timing = run(Fake("far", 1e-1, graph=True), device="cuda")
        rounds.append(max(timing.candidate.host.rounds) + 1)
    assert rounds == [8, 10]


@pytest.mark.parametrize(("hot", "left_out"), [((2, 5), (2, 5)), (tuple(range(40)), ())])
def test_throttled_rounds_are_left_out_where_enough_are_left(hot, left_out, monkeypatch) -> None:
    monkeypatch.setattr(conditions, "Gpu", Hot)
    monkeypatch.setattr(Hot, "rounds", hot)
    mine = Entrant("mine", Fake("mine", 1e-3, True, noise=0.02))
    eager = Entrant("eager", Fake("eager", 2e-3, True, noise=0.02))
    timing = measure(
        mine, [eager], None, case="d", device="cuda", threads=1, budget=Budget(rounds=40)
    )
    assert timing.throttled == left_out
    assert timing.conditions is not None and timing.conditions.gpu[2].throttled == ("heat",)
    words = "left out of the ratios" if left_out else "too many to leave them out"
    (note,) = [note for note in timing.notes if "held its clocks back" in note]
    assert words in note and "heat" in note
    device = next(r for r in timing.ratios if r.clock == "device")
    assert device.ratio == ratio(timing.baselines[0].device, timing.candidate.device, left_out)[0]


def test_a_baseline_that_fails_is_reported_and_costs_nothing_else() -> None:
    timing = run(Fake("early", 1e-3, dies_at=0), Fake("late", 1e-3, dies_at=3))
    early, late = timing.baselines
    assert early.host is None and "died in prepare" in early.problem
    assert "died in sample" in late.problem
    assert timing.candidate.host is not None


def test_without_a_graph_there_is_no_device_time() -> None:
    timing = run(Fake("eager", 2e-3, graph=False), device="cuda")
    assert timing.baselines[0].device is None
    assert [r.clock for r in timing.ratios] == ["host", "cold"]


def test_on_a_busy_machine_six_rounds_must_do(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    class Slow(Fake):
        def sample(self, clock, calls, number):
            now[0] += 1.0
            return super().sample(clock, calls, number)

    timing = measure(
        Entrant("mine", Slow("mine", 1e-3)), [], None, case="d", device="cpu", threads=1,
        budget=Budget(seconds=4.0),
    )  # fmt: skip
    assert len(set(timing.candidate.host.rounds)) == 6
    assert "the 4 s for rounds were over" in timing.notes[0]


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
