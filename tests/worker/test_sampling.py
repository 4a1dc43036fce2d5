"""What is timed: new contents in the same memory, and outputs that can be had afterwards."""

from __future__ import annotations

import pickle
import threading
import time

import torch

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
