"""What is timed: new contents in the same memory, and outputs that can be had afterwards."""

from __future__ import annotations

import gc
import pickle
import sys
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch

from kernelproof.worker import copying, nests, sampling, steady, unseen
from kernelproof.worker.inputs import mapped
from kernelproof.worker.sampling import Sampler


def sets(*values: float) -> list[bytes]:
    return [pickle.dumps((int(v), [torch.full((4, 6), v)[:, :5], 2])) for v in values]


def sampler(module, *values: float) -> Sampler:
    return Sampler(module, sets(*values), "cpu")


def test_new_contents_come_into_the_same_memory_unseen() -> None:
    seen = []

    def module(x, n):
        seen.append((x.data_ptr(), x._version, float(x[0, 0]), x.stride()))
        return x * n

    one = sampler(module, 1, 2)
    for values in ((3, 4), (5, 6)):
        readings = one.sample("host", 2, sets(*values))
        assert len(readings["readings"]) == readings["kept"] == 2
    pointers = {p for p, *_ in seen}
    values = [value for _, _, value, _ in seen]
    # Before each timed call one on what the slot held until then.
    assert len(pointers) == 2 and values[1::2] == [3, 4, 5, 6] and values[::2] == [1, 2, 3, 4]
    assert len({version for _, version, _, _ in seen}) == 1
    assert {stride for *_, stride in seen} == {(6, 1)}
    assert [float(o[0, 0]) for o in one.collect("host", [1, 0])] == [12, 10]


def test_other_shapes_and_other_scalars_are_taken() -> None:
    one = sampler(lambda x, n: x * n, 1)
    one.sample("host", 1, [pickle.dumps((9, [torch.ones(7), 3]))])
    (output,) = one.collect("host", [0])
    assert torch.equal(output, torch.full((7,), 3.0))


def test_inputs_are_written_when_all_else_is_done(monkeypatch) -> None:
    """A thread may look whether there is something new at the old addresses: between the writing
    and the clock it has no time."""
    done = []
    one = sampler(lambda x, n: x, 1)
    monkeypatch.setattr(sampling, "_known", steady.of_modules([nests]))
    one.seeded = lambda seed: done.append(("seed", seed))
    fill, clock = sampling._fill, one.clock
    monkeypatch.setattr(
        sampling, "_fill", lambda into, value: (done.append(("write",)), fill(into, value))
    )
    one.clock = lambda: (done.append(("clock",)), clock())[1]
    one.names = steady.Names(one, ["clock", "seeded"])
    one.sample("host", 1, sets(7))
    begin = done.index(("seed", 7))
    assert done[begin : begin + 3] == [("seed", 7), ("write",), ("clock",)]


def test_random_numbers_start_at_the_seed_of_the_inputs() -> None:
    one = sampler(lambda x, n: torch.rand(3), 1)
    one.sample("host", 1, sets(7))
    torch.manual_seed(7)
    assert torch.equal(one.collect("host", [0])[0], torch.rand(3))


def test_what_a_thread_writes_later_is_not_in_the_output() -> None:
    def module(x, n):
        out = torch.zeros(3)

        def later() -> None:
            time.sleep(0.05)
            out.fill_(1)

        threading.Thread(target=later).start()
        return out

    one = sampler(module, 1)
    one.sample("host", 1, sets(2))
    time.sleep(0.2)
    assert one.collect("host", [0])[0].tolist() == [0, 0, 0]


def test_the_clock_is_that_of_the_import(monkeypatch) -> None:
    one = sampler(lambda x, n: time.sleep(0.01), 1)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 0)
    (reading,) = one.sample("host", 1, sets(2))["readings"]
    assert reading > 0.009


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def test_named_tuples_keep_their_type_as_inputs_only() -> None:
    one = sampler(lambda x, n: Pair(x * n, x), 1)
    assert one.sample("host", 1, sets(4))["kept"] == 1
    (output,) = one.collect("host", [0])
    # To make one would be to call a function of the candidate's.
    assert type(output) is tuple and float(output[0][0, 0]) == 8
    assert mapped(torch.max(torch.ones(2, 3), 0), torch.clone).values.tolist() == [1, 1, 1]


def within_reach() -> list[object]:
    """What a module can find in the frames of its callers here, and in what these hold."""
    frame, found = sys._getframe(2), []
    while frame is not None and frame.f_code.co_filename.endswith("sampling.py"):
        todo = list(frame.f_locals.values())
        while todo:
            value = todo.pop()
            if not any(value is other for other in found):
                found.append(value)
                todo += value if isinstance(value, (list, tuple)) else ()
                todo += vars(value).values() if isinstance(value, Sampler) else ()
        frame = frame.f_back
    return found


@pytest.mark.parametrize(("clock", "sent"), [("host", (4, 5, 6)), ("warm", (4,))])
def test_readings_copies_and_later_inputs_are_out_of_reach(clock: str, sent) -> None:
    """Else a call could shorten the first, write into the second, and work ahead on the third."""
    seen = []

    def module(x, n):
        found = within_reach()
        # The copies are contiguous; inputs are parts of wider rows.
        copies = [t for t in found if isinstance(t, torch.Tensor) and t.is_contiguous()]
        numbers = sum(isinstance(value, float) for value in found)
        later = sum(isinstance(value, bytes) and len(value) > 0 for value in found)
        seen.append((len(copies), numbers, later, any(isinstance(v, Iterator) for v in found)))
        return x * n

    one = sampler(module, 1, 2, 3)
    assert len(one.sample(clock, 3, sets(*sent))["readings"]) == 3
    # A number is among the sampler's attributes; inputs of the call that is next, packed.
    assert all(found[:2] == (0, 1) and found[2] <= 1 and not found[3] for found in seen)


def test_no_cycles_are_looked_for_between_inputs_and_copy(monkeypatch) -> None:
    """Callbacks of the collector would run there, outside the clock, with the inputs at hand."""
    seen = []
    fill = copying.fill

    def filled(into, value) -> None:
        seen.append(gc.isenabled())
        fill(into, value)

    def module(x, n):
        gc.enable()
        return x * n

    monkeypatch.setattr(sampling, "_fill", filled)
    monkeypatch.setattr(copying, "fill", filled)
    monkeypatch.setattr(sampling, "_known", steady.of_modules([nests]))
    one = sampler(module, 1)
    one.sample("host", 1, sets(2))
    # Inputs written, output copied.
    assert seen == [False, False] and gc.isenabled()


@pytest.mark.parametrize("name", ["clock", "_fill", "__code__"])
def test_what_it_measures_with_is_the_same_before_each_call(name: str) -> None:
    """Also where it is replaced in one call and put back in the next."""
    kept = []

    def module(x, n):
        place = {"clock": one, "_fill": sampling}.get(name, Sampler._timed)
        if kept:
            setattr(place, name, kept.pop())
        else:
            kept.append(getattr(place, name))
            other = other_function.__code__ if name == "__code__" else other_function
            setattr(place, name, other)
        return x * n

    def other_function(self, *rest):
        return 0

    one = Sampler(module, sets(1, 2), "cpu")
    with pytest.raises(KeyError, match="False"):
        one.sample("host", 2, sets(3, 4))
    assert one.replaced
    module(torch.ones(1), 1)  # puts it back


def test_a_warm_call_repeats_one_on_new_contents() -> None:
    seen = []

    def module(x, n):
        seen.append((x.data_ptr(), float(x[0, 0])))
        return x * n

    one = sampler(module, 1, 2)
    answer = one.sample("warm", 3, sets(7))
    assert len(answer["readings"]) == answer["kept"] == 3
    assert len(set(seen)) == 1 and seen[0][1] == 7 and len(seen) == 4
    assert [float(o[0, 0]) for o in one.collect("warm", [0, 2])] == [14, 14]
    assert all(0 < reading < 1 for reading in answer["readings"])


def test_a_busy_machine_ends_a_sample_early(monkeypatch) -> None:
    monkeypatch.setattr(sampling, "_SAMPLE_SECONDS", 0.03)
    one = sampler(lambda x, n: time.sleep(0.02) or x * n, *range(1, 9))
    answer = one.sample("host", 8, sets(*range(11, 19)))
    assert 3 <= len(answer["readings"]) == answer["kept"] < 8
    # The outputs are those of the first sets.
    assert float(one.collect("host", [0])[0][0, 0]) == 22
    assert 3 <= len(one.sample("warm", 8, sets(5))["readings"]) < 8


class Log(list):
    """What happens on a GPU that is not there, in order."""


class FakeEvent:
    log = Log()

    def __init__(self, enable_timing: bool) -> None:
        self.at = -1

    def record(self) -> None:
        self.at = len(self.log)
        self.log.append("event")

    def elapsed_time(self, end: FakeEvent) -> float:
        return float(end.at - self.at)


@pytest.fixture
def gpu(monkeypatch) -> Log:
    log = Log()
    monkeypatch.setattr(FakeEvent, "log", log)
    monkeypatch.setattr(sampling, "_spin", lambda cycles: log.append("spin"))
    monkeypatch.setattr(sampling, "_zero", lambda buffer: log.append("flush"))
    monkeypatch.setattr(sampling, "_reset_persisting_l2", lambda: log.append("reset"))
    monkeypatch.setattr(sampling, "_copy", lambda t: log.append("copy") or t.clone())
    return log


def on_fake_gpu(log: Log, *values: float) -> Sampler:
    def module(x, n):
        log.append(f"call {float(x[0, 0]):g}")
        return x * n

    one = sampler(module, *values)
    one.cuda, one.event, one.synchronize = True, FakeEvent, lambda: log.append("wait")
    return one


def test_a_cold_call_follows_a_flush_that_is_not_timed(gpu: Log) -> None:
    one = on_fake_gpu(gpu, 1, 2)
    answer = one.sample("cold", 5, sets(3, 4))
    # A call on other inputs wakes everything; each slot is timed once, its output kept at once.
    before = ["call 1", "wait", "reset", "spin", "flush", "event"]
    assert gpu == [*before, "call 3", "event", "copy", "wait",
                   *before, "call 4", "event", "copy", "wait"]  # fmt: skip
    assert answer == {"readings": [2e-3, 2e-3], "kept": 2}
    assert [float(o[0, 0]) for o in one.collect("cold", [0, 1])] == [6, 8]


def test_a_single_call_finds_the_device_idle(gpu: Log) -> None:
    one = on_fake_gpu(gpu, 1, 2)
    assert len(one.sample("single", 1, sets(3, 4))["readings"]) == 1
    assert gpu == ["call 1", "wait", "reset", "event", "call 3", "event", "copy", "wait"]


def test_long_calls_need_no_waking(gpu: Log) -> None:
    one = on_fake_gpu(gpu, 1, 2)
    one.seconds = 4e-3
    assert len(one.sample("single", 2, sets(3, 4))["readings"]) == 2
    timed = [["reset", "event", f"call {n}", "event", "copy", "wait"] for n in (3, 4)]
    assert gpu == [*timed[0], *timed[1]]


@pytest.mark.parametrize(("seconds", "long"), [(2.9e-3, False), (3.1e-3, True)])
def test_a_call_is_long_by_its_warm_calls(seconds: float, long: bool) -> None:
    one = sampler(lambda x, n: x * n, 1)
    ticks = iter([0, 0, 0, round(3 * seconds * 1e9)])  # of the first call, and of three warm ones
    one.clock = lambda: next(ticks)
    one.prepare(graph=False)
    assert one.long is long


@pytest.mark.parametrize(("seconds", "calls"), [(0.019, 3), (0.021, 0)])
def test_calls_of_a_whole_turn_are_not_warmed_up(gpu: Log, seconds: float, calls: int) -> None:
    one = on_fake_gpu(gpu, 1, 2)
    one.seconds = seconds
    one.clock = lambda: 0
    one.warm()
    assert gpu.count("call 1") == calls


def test_few_large_outputs_are_kept(gpu: Log, monkeypatch) -> None:
    monkeypatch.setattr(sampling, "_KEPT_BYTES", 2 * 20 * 8)
    one = on_fake_gpu(gpu, 1, 2, 3, 4)
    one.size = 20 * 8
    assert one.sample("cold", 4, sets(5, 6, 7, 8))["kept"] == 2
    assert [float(o[0, 0]) for o in one.collect("cold", [0, 1])] == [14, 16]


def test_new_contents_are_timed_as_the_same_ones_are_after_them(gpu: Log, monkeypatch) -> None:
    monkeypatch.setattr(unseen, "_spin", lambda cycles: gpu.append("spin"))
    monkeypatch.setattr(unseen, "reset_persisting_l2", lambda: gpu.append("reset"))

    def copied(value):
        gpu.extend(["copy"] if isinstance(value, torch.Tensor) else [])
        return copying.copied(value)

    monkeypatch.setattr(unseen, "copied", copied)
    one = on_fake_gpu(gpu, 1, 2)
    one.flushed = torch.empty(1 << 20, dtype=torch.uint8)
    answer = unseen.look(one, "unseen", sets(3, 4))
    turn = ["call 1", "call 1", "wait", "reset", "spin", "event", "call 3", "call 4", "event"]
    turn += ["copy", "copy", "wait"]
    assert gpu == ["copy", "copy", *turn, *turn]  # first what brings the inputs into L2
    assert answer == {"new": 1.5e-3, "seen": 1.5e-3, "kept": 2}
    assert [float(o[0, 0]) for o in one.collect("unseen", [0, 1])] == [6, 8]

    one.graph, one.graph_calls = type("Graph", (), {"replay": lambda _: gpu.append("replay")})(), 50
    one.kept["device"] = [torch.ones(1)] * 50
    del gpu[:]
    answer = unseen.look(one, "device", sets(5, 6))
    turn = ["call 1", "call 1", "wait", "reset", "spin", "event", "replay", "event", "wait"]
    assert gpu == ["copy", "copy", *turn, *turn]
    assert answer == {"new": 2e-3 / 50, "seen": 2e-3 / 50, "kept": 50}
