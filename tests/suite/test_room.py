"""Several items on one GPU: those that fit run together, and memory that ran out beside others is
no verdict."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kernelproof.errors import UsageError
from kernelproof.spare import starved
from kernelproof.suite import engine, judging, local, results
from kernelproof.suite.judging import Judge, Lost, Order, Starved
from kernelproof.suite.model import Item
from kernelproof.suite.room import Room, needed, needed_of_host


def test_items_share_what_there_is_in_order() -> None:
    room, order, inside = Room(10.0), [], []
    first_in, go_on = threading.Event(), threading.Event()

    def take(name: str, size: float) -> None:
        with room.taken(size):
            inside.append((name, room._free))
            if name == "a":
                first_in.set()
                go_on.wait(10)
        order.append(name)

    threads = [threading.Thread(target=take, args=("a", 6.0))]
    threads[0].start()
    first_in.wait(10)
    # The large one waits, and the small one behind it does not pass it.
    for name, size in (("large", 99.0), ("small", 1.0)):
        threads.append(threading.Thread(target=take, args=(name, size)))
        threads[-1].start()
        while len(room._queue) < len(threads) - 1:
            time.sleep(0.001)
    assert inside == [("a", 4.0)]
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert inside == [("a", 4.0), ("large", 0.0), ("small", 9.0)] and order[0] == "a"
    with room.taken(4.0), room.taken(6.0):
        assert room._free == 0


class Lane(local.Lane):
    """Answers from a list in place of a process."""

    def __init__(self, room: Room, answers: list[Any], weight: int) -> None:
        super().__init__("gpu 0, lane 0", local.Rules(False, {}, 60.0), room, Room(1e12))
        self.answers, self.weight, self.orders = answers, weight, []

    def carry_out(self, do: str, order: Order | None) -> Any:
        if do == "weigh":
            return {"bytes": self.weight, "lease": "test"}
        self.orders.append(order)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def answer(message: str = "", status: str = "pass") -> dict[str, Any]:
    verdict = {"status": status, "message": message, "detail": "", "notes": []}
    return {"record": json.dumps({"verdict": verdict})}


def test_what_ran_out_of_memory_beside_others_is_judged_alone(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERNELPROOF_HOME", str(tmp_path))
    item = Item(Path("p.py"), Path("c.py"), "p")
    full = "CUDA out of memory. Tried to allocate 6.00 GiB"
    right, wrong = answer(), answer("output is 1", "wrong")
    for answers, weight, orders, want in (
        ([right], 10, [True], right),
        ([wrong], 10, [True], wrong),
        ([answer(full, "crash"), right], 10, [True, False], right),
        ([UsageError(f"the reference of p fails: OutOfMemoryError: {full}"), right], 10,
         [True, False], right),
        # Alone it counts, and what is as large as the GPU is alone from the beginning.
        ([answer(full, "crash"), answer(full, "crash")], 10, [True, False], answer(full, "crash")),
        ([answer(full, "crash")], 1 << 40, [False], answer(full, "crash")),
    ):  # fmt: skip
        lane = Lane(Room(1e10), list(answers), weight)
        assert lane.judge(item) == want
        assert [order.crowded for order in lane.orders] == orders
        # The run has the lease: who asked for it again would wait for ever.
        assert all(order.held for order in lane.orders)
        assert lane.room._free == 1e10 and lane.host._free == 1e12
        lane.room.close()
    lane = Lane(Room(1e10), [UsageError("no class `Model`")], 10)
    with pytest.raises(UsageError, match="no class"):
        lane.judge(item)
    lane.room.close()  # else the next one would wait for the lease
    gone = "its process was killed by signal 9, as where the machine's memory ends"
    lane = Lane(Room(1e10), [Lost(gone), right], 10)
    assert lane.judge(item) is right
    lane.room.close()
    assert starved(full) and not starved("output is 1")


def test_nobody_is_alone_while_another_is_weighed(tmp_path, monkeypatch) -> None:
    """A reference may hold much of the GPU for as long as it is weighed."""
    monkeypatch.setenv("KERNELPROOF_HOME", str(tmp_path))
    item = Item(Path("p.py"), Path("c.py"), "p")
    weighing, go_on, order = threading.Event(), threading.Event(), []

    class Weighed(Lane):
        def carry_out(self, do: str, given: Order | None) -> Any:
            if do == "weigh" and self.weight == 10:
                weighing.set()
                go_on.wait(10)
            order.append((do, self.weight))
            return super().carry_out(do, given)

    room = Room(1e10)
    light, heavy = Weighed(room, [answer()], 10), Weighed(room, [answer()], 1 << 40)
    threads = [threading.Thread(target=lane.judge, args=(item,)) for lane in (light, heavy)]
    threads[0].start()
    assert weighing.wait(10)
    threads[1].start()
    while ("weigh", 1 << 40) not in order:
        time.sleep(0.01)
    time.sleep(0.2)
    assert order == [("weigh", 1 << 40)]
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert ("judge", 1 << 40) in order and ("judge", 10) in order
    room.close()


def test_memory_that_others_hold_is_waited_for_and_no_verdict(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERNELPROOF_HOME", str(tmp_path))
    monkeypatch.setattr(local, "PATIENCE", 0.0)
    item = Item(Path("p.py"), Path("c.py"), "p")
    full, large = "CUDA out of memory. Tried to allocate 6.00 GiB", 1 << 40
    crash, right, wrong = answer(full, "crash"), answer(), answer("output is 1", "wrong")
    refused = UsageError(f"the reference of p fails: OutOfMemoryError: {full}")

    def lane_with(free: float, answers: list[Any]) -> Lane:
        return Lane(Room(1e11, lambda: free, 2), answers, large)

    for given in (crash, refused, Lost("its process was killed by signal 9")):
        lane = lane_with(4e10, [given, right])
        with pytest.raises(Starved, match="40 of 100 GB were free"):
            lane.judge(item)
        lane.room.close()
    for given in (right, wrong):  # what needed no more than there was
        lane = lane_with(4e10, [given])
        assert lane.judge(item) is given
        lane.room.close()
    lane = lane_with(9.1e10, [crash])  # the rest is what a waiting judge keeps
    assert lane.judge(item) is crash
    lane.room.close()
    # Gone in time: judged again, and that counts.
    for given in (crash, refused):
        for last in (right, crash):
            free = iter([4e10, 9.5e10])
            lane = Lane(Room(1e11, free.__next__, 2), [given, last], large)
            assert lane.judge(item) is last and not lane.answers
            lane.room.close()
    for seen in ([9.5e10, 4e10, 9.5e10], [9.5e10, 9.5e10]):  # they came meanwhile; never
        free = iter(seen)
        lane = Lane(Room(1e11, free.__next__, 2), [crash, right], large)
        assert lane.judge(item) is (right if len(seen) == 3 else crash)
        lane.room.close()
    free = iter([1e10, 1e10, 9.5e10])
    monkeypatch.setattr("kernelproof.suite.room._LOOK_SECONDS", 0.01)
    assert Room(1e11, free.__next__, 2).lacking(10.0) == "" and next(free, None) is None


def test_an_item_without_memory_is_lost_at_once(tmp_path) -> None:
    path = tmp_path / "p.py"
    path.write_text("class Model: ...\n")
    found: list[Any] = []

    class One:
        name, calls = "gpu 0, lane 0", 0

        def judge(self, item: Item) -> dict[str, Any]:
            self.calls += 1
            raise Starved("40 of 100 GB were free")

        def close(self) -> None: ...

    class Crew:
        builders, patience = 0, 0.0

        def __init__(self) -> None:
            self.one = One()
            self.new = [self.one]

        def slots(self) -> list[One]:
            new, self.new = self.new, []
            return new

        def build(self, item: Item) -> None: ...

        def close(self) -> None: ...

    crew = Crew()
    engine.run([Item(path, path, "p")], crew, lambda result, record: found.append(result))
    assert crew.one.calls == 1
    (result,) = found
    # What is lost is judged again when the run is resumed.
    assert (result.status, result.message) == ("lost", "40 of 100 GB were free")
    assert "lost" in results.AGAIN
    assert needed(0) > 1e9 and needed(1 << 30) > 3 << 30
    assert needed_of_host(0) > 1e9 and needed_of_host(1 << 30) > 2 << 30


def test_lanes_share_the_memory_of_the_machine(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERNELPROOF_HOME", str(tmp_path))
    item, begun, go_on = Item(Path("p.py"), Path("c.py"), "p"), [], threading.Event()

    class Slow(Lane):
        def carry_out(self, do: str, order: Order | None) -> Any:
            if do == "judge":
                begun.append(self)
                go_on.wait(10)
            return super().carry_out(do, order)

    room, held = Room(1e11), 1 << 30
    host = Room(1.5 * needed_of_host(held))
    lanes = [Slow(room, [answer()], held) for _ in range(2)]
    threads = []
    for lane in lanes:
        lane.host = host
        threads.append(threading.Thread(target=lane.judge, args=(item,)))
        threads[-1].start()
    while not (begun and host._queue):
        time.sleep(0.001)
    assert len(begun) == 1  # the GPU has room for both
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert len(begun) == 2 and host._free == host.size
    room.close()


def test_a_problem_is_weighed(tmp_path) -> None:
    from kernelproof import problem

    path = tmp_path / "wide.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n"
        "    def forward(self, x):\n        return torch.cat([x, x]), x.sum()\n"
        "def get_inputs():\n    return [torch.rand(1 << 20, 1 << 10)]\n"
    )
    loaded = problem.load(path)
    assert loaded.held_bytes(loaded.problem.cases[0]) == 4 * (3 * (1 << 30) + 1)
    # What cannot run without its values counts twice.
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n"
        "    def forward(self, x):\n        return x[: int(x.sum().item())]\n"
        "def get_inputs():\n    return [torch.ones(10)]\n"
    )
    loaded = problem.load(path)
    assert loaded.held_bytes(loaded.problem.cases[0]) == 80


def test_lanes_need_a_gpu_and_no_clock() -> None:
    gpu = local.Gpu("0", 0, 1)
    for timed, gpus, words in ((True, [gpu], "--no-time"), (False, [], "--jobs")):
        with pytest.raises(UsageError, match=words):
            local.Local(local.Rules(timed, {}, 60.0), gpus, lanes=2)
    with pytest.raises(UsageError, match="NVML does not tell"):
        local.Local(local.Rules(False, {}, 60.0), [local.Gpu("none", 0, 1)], lanes=2)


def test_who_holds_the_memory_is_named() -> None:
    mine = os.getpid()
    room = Room(1e11, lambda: 1e10, 1, lambda: {mine: 6e10, 1 << 30: 2e10, 5: 0.0})
    told = room.lacking()
    assert f"held by process {mine} (" in told and "60.0 GB, 1073741824 20.0 GB. Resume" in told

    def fails() -> dict[int, float]:
        raise RuntimeError("NVML")

    assert "10 of 100 GB were free. Resume" in Room(1e11, lambda: 1e10, 1, fails).lacking()


def test_judges_that_share_a_gpu_have_room_of_their_own(monkeypatch) -> None:
    monkeypatch.setattr(local, "_memory", lambda name: (1e11, lambda: 1e11, dict))
    crew = local.Local(
        local.Rules(False, {}, 60.0), [local.Gpu("0", 0, 2), local.Gpu("1", 1, 2)], lanes=3
    )
    slots = list(crew.slots())
    assert [s.name for s in slots][:4] == ["gpu 0, lane 0", "gpu 0, lane 1", "gpu 0, lane 2",
                                           "gpu 1, lane 0"]  # fmt: skip
    lanes = [s for s in slots if isinstance(s, local.Lane)]
    rooms = [s.room for s in lanes]
    # The machine's memory is one for all of its GPUs.
    assert len({id(s.host) for s in lanes}) == 1 and 0 < lanes[0].host.size < 1 << 50
    assert rooms[0] is rooms[2] and rooms[0] is not rooms[3]
    crew.close()


def test_an_order_whose_device_the_run_holds_does_not_wait_for_it(tmp_path, monkeypatch) -> None:
    import thirty

    from kernelproof import lease

    monkeypatch.setenv("KERNELPROOF_HOME", str(tmp_path / "home"))
    problems, candidates = thirty.write(tmp_path)
    order = Order(
        str(problems / "twice.py"), str(candidates / "twice" / "right_00.py"),
        {"device": "cpu", "level": "quick", "rounds": 2, "seconds": 0.1, "baselines": []}, True,
        held=True,
    )  # fmt: skip
    judge = Judge()
    try:
        with lease.hold(lease.device_key("cpu")):
            assert '"pass"' in judge.ask("judge", order, 60.0)["record"]
    finally:
        judge.close()


def test_who_was_weighed_keeps_no_memory(monkeypatch) -> None:
    """A reference may take memory of the GPU while it is weighed, on the meta device or not."""
    tidied: list[str] = []
    monkeypatch.setattr(judging, "_weighed", lambda order: {"bytes": 5, "lease": "test"})
    monkeypatch.setattr(judging, "_tidy", tidied.append)
    ours, theirs = socket.socketpair()
    order = dataclasses.asdict(Order("p.py", "c.py", {}, False))
    with ours, theirs:
        answer = judging._answer(theirs, {"do": "weigh", "order": order})
    assert answer == {"answer": {"bytes": 5, "lease": "test"}} and tidied == ["cuda"]
