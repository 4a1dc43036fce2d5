"""Workers on this machine: one or, where nothing is timed, several for each GPU, or some on the
CPU."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelproof.errors import KernelproofError, UsageError
from kernelproof.spare import starved
from kernelproof.suite.judging import Judge, Lost, Order, Starved, by_core, processors_of
from kernelproof.suite.model import Item
from kernelproof.suite.room import Room, needed, needed_of_host
from kernelproof.worker.limits import available_memory

VISIBLE = "CUDA_VISIBLE_DEVICES"
# Beside GPUs, a share of the processors' number is how many candidates are compiled at a time; and
# how far compilers step back for what is timed.
_COMPILE_SHARE = 4
_MOST_COMPILING = 8
NICE = 10
# Seconds that an item which needs all of a GPU's memory waits for others to leave it.
PATIENCE = 60.0


class Rules:
    """How every item of a run is judged.

    Args:
        timed: whether candidates that pass are timed.
        options: fields of `pipeline.Options`, as JSON has them.
        limit: seconds that the judgement of an item may take in all.
    """

    def __init__(self, timed: bool, options: Mapping[str, Any], limit: float) -> None:
        self.timed = timed
        self.options = dict(options)
        self.limit = limit

    def order(self, item: Item, problem: str, candidate: str, arch: str = "") -> Order:
        """The order of ``item``, whose files are at these paths."""
        return Order(problem, candidate, {**self.options, **item.options}, self.timed, arch)


class Worker:
    """A judging process that is started when there is something to judge, and again after it was
    lost; see `engine.Slot`."""

    def __init__(self, name: str, rules: Rules, **how: Any) -> None:
        self.name = name
        self.rules = rules
        self._how = how
        self._judge: Judge | None = None
        self._lock = threading.Lock()
        self._closed = False

    def prepare(self) -> None:
        """Start its process now, which imports for some seconds before it can judge."""
        with contextlib.suppress(Lost):
            self._started()

    def judge(self, item: Item) -> dict[str, Any]:
        order = self.rules.order(item, str(item.problem), str(item.candidate))
        answer: dict[str, Any] = self.carry_out("judge", order)
        return answer

    def carry_out(self, do: str, order: Order | None) -> Any:
        """The answer of the process, see `Judge.ask`. It is ended after whatever goes wrong in it:
        a CUDA error stays with a process."""
        judge = self._started()
        try:
            return judge.ask(do, order, self.rules.limit)
        except UsageError:
            raise
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._end()

    def _started(self) -> Judge:
        with self._lock:
            if self._closed:
                raise Lost("the run is over")
            if self._judge is None:
                self._judge = Judge(**self._how)
            return self._judge

    def _end(self) -> None:
        with self._lock:
            judge, self._judge = self._judge, None
        if judge is not None:
            judge.close()


class Lane(Worker):
    """One of several workers of a GPU, whose memory is ``room``; ``host`` is the machine's."""

    def __init__(self, name: str, rules: Rules, room: Room, host: Room, **how: Any) -> None:
        super().__init__(name, rules, **how)
        self.room = room
        self.host = host

    def judge(self, item: Item) -> dict[str, Any]:
        order = self.rules.order(item, str(item.problem), str(item.candidate))
        order = dataclasses.replace(order, held=True)
        # What a reference takes while it is weighed is to be missing to nobody who is alone.
        with self.room.taken(needed(0)):
            weight = self.carry_out("weigh", order)
        self.room.hold(weight["lease"])
        need, of_host = needed(weight["bytes"]), needed_of_host(weight["bytes"])
        if need < self.room.size:
            # In this order everywhere, so that nobody waits for one who waits for it.
            with self.room.taken(need), self.host.taken(of_host):
                among = self._among(order)
            if among is not None:
                return among
        with self.room.taken(self.room.size), self.host.taken(of_host):
            return self._alone(order)

    def _alone(self, order: Order) -> dict[str, Any]:
        """The answer that counts. Where memory ran out while others held some, it is judged again
        once they are gone; raises Starved where they are not in time."""
        lacking = self.room.lacking()
        try:
            answer: dict[str, Any] = self.carry_out("judge", order)
            ran_out = _ran_out(answer)
        except (KernelproofError, Lost) as error:
            ran_out = starved(str(error))
            if not (ran_out and (lacking or self.room.lacking())):
                raise
        if not (ran_out and (lacking or self.room.lacking())):
            return answer
        lacking = self.room.lacking(PATIENCE)
        if lacking:
            raise Starved(lacking)
        answer = self.carry_out("judge", order)
        return answer

    def _among(self, order: Order) -> dict[str, Any] | None:
        """The answer beside others; None where memory was missing."""
        try:
            answer: dict[str, Any] = self.carry_out(
                "judge", dataclasses.replace(order, crowded=True)
            )
        except (KernelproofError, Lost) as error:
            if not starved(str(error)):
                raise
            return None
        return None if _ran_out(answer, notes=True) else answer


def _ran_out(answer: dict[str, Any], notes: bool = False) -> bool:
    """Whether memory was missing for a verdict; with ``notes``, for anything that it could tell."""
    verdict = json.loads(answer["record"])["verdict"]
    told = (verdict["message"], verdict["detail"], *(verdict["notes"] if notes else ()))
    return any(map(starved, told))


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU of this machine: what CUDA_VISIBLE_DEVICES calls it, and which it is ``of`` how many.
    Its worker has that share of the processors whatever other GPUs do, so that times do not depend
    on how many are used."""

    name: str
    number: int
    of: int


class Local:
    """The workers of this machine; see `engine.Crew`.

    Args:
        gpus: see `visible`; one worker each. Without any, candidates are judged on the CPU.
        jobs: beside GPUs, how many candidates are compiled at a time, else how many are judged.
            None for a number that fits the machine.
        lanes: how many candidates are judged at a time on each GPU, where nothing is timed.
    """

    patience = 0.0

    def __init__(
        self, rules: Rules, gpus: Sequence[Gpu], jobs: int | None = None, lanes: int = 1
    ) -> None:
        cores = by_core(list(os.sched_getaffinity(0)))
        self._rules = rules
        self._builders: list[Worker] = []
        self._idle: list[Worker] = []
        self._lock = threading.Lock()
        self._rooms: list[Room] = []
        self._host = Room(float(available_memory()))
        _check_lanes(rules, gpus, lanes)
        # Builds for other GPUs than the first are made when they are judged.
        self._arch = _capability(gpus[0].name) if gpus else ""
        if gpus:
            share = min(_MOST_COMPILING, max(1, len(cores) // _COMPILE_SHARE))
            self.builders = share if jobs is None else jobs
            self._slots = [
                worker
                for gpu in gpus
                for worker in self._of(gpu, processors_of(gpu.number, gpu.of, cores), lanes)
            ]
            return
        self.builders = 0
        usual = 1 if rules.timed else max(1, len(cores) // 2)
        count = usual if jobs is None else jobs
        if rules.timed and count > 1:
            raise UsageError(f"--jobs {count}: on a CPU times are taken one at a time; --jobs 1")
        self._slots = [
            Worker(f"cpu {n}", rules, environment={VISIBLE: ""},
                   processors=processors_of(n, count, cores))
            for n in range(count)
        ]  # fmt: skip

    def _of(self, gpu: Gpu, cores: list[int], lanes: int) -> list[Worker]:
        """The workers of one GPU, which has these processors."""
        how = {VISIBLE: gpu.name}
        if lanes == 1:
            return [Worker(f"gpu {gpu.name}", self._rules, environment=how, processors=cores)]
        size, free, holders = _memory(gpu.name)
        room = Room(size, free, lanes, holders)
        self._rooms.append(room)
        return [
            Lane(
                f"gpu {gpu.name}, lane {n}",
                self._rules,
                room,
                self._host,
                environment=how,
                processors=cores,
            )
            for n in range(lanes)
        ]

    def prepare(self, count: int) -> None:
        """Start the processes of ``count`` workers, or of all, now."""
        for worker in self._slots[:count]:
            worker.prepare()

    def slots(self) -> Sequence[Worker]:
        new, self._slots = self._slots, []
        return new

    def build(self, item: Item) -> None:
        builder = self._builder()
        try:
            order = self._rules.order(item, str(item.problem), str(item.candidate), self._arch)
            builder.carry_out("build", order)
        finally:
            with self._lock:
                self._idle.append(builder)

    def close(self) -> None:
        for worker in (*self._slots, *self._builders):
            worker.close()
        for room in self._rooms:
            room.close()

    def _builder(self) -> Worker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            made = Worker("builder", self._rules, environment={VISIBLE: ""}, nice=NICE)
            self._builders.append(made)
            return made


def _check_lanes(rules: Rules, gpus: Sequence[Gpu], lanes: int) -> None:
    if lanes < 1 or (lanes > 1 and (rules.timed or not gpus)):
        why = "on a CPU it is --jobs that says how many" if not gpus else (
            "a GPU on which candidates are timed has one at a time; give --no-time with it"
        )  # fmt: skip
        raise UsageError(f"--lanes {lanes}: {why}")


def _capability(gpu: str) -> str:
    """Of a GPU that CUDA_VISIBLE_DEVICES takes by this name, such as "9.0"; "" where NVML does not
    tell, and then nothing is built ahead for it. Asked there, since CUDA would make a context."""
    try:
        nvml, handle = _handle(gpu)
        return ".".join(map(str, nvml.nvmlDeviceGetCudaComputeCapability(handle)))
    except Exception:
        # ImportError, or one of NVML's own.
        return ""


def _memory(gpu: str) -> tuple[float, Callable[[], float], Callable[[], dict[int, float]]]:
    """Bytes of memory of a GPU that CUDA_VISIBLE_DEVICES takes by this name; how many are free; and
    how many each process holds, where NVML tells. Raises UsageError where it tells nothing."""
    try:
        nvml, handle = _handle(gpu)
        size = float(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        return (
            size,
            lambda: float(nvml.nvmlDeviceGetMemoryInfo(handle).free),
            lambda: {
                int(process.pid): float(process.usedGpuMemory or 0)
                for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            },
        )
    except Exception as error:
        raise UsageError(
            f"--lanes needs to know how much memory GPU {gpu} has, which NVML does not tell "
            f"({error}); --lanes 1"
        ) from error


def _handle(gpu: str) -> tuple[Any, Any]:
    import pynvml

    pynvml.nvmlInit()
    if gpu.isdigit():
        return pynvml, pynvml.nvmlDeviceGetHandleByIndex(int(gpu))
    return pynvml, pynvml.nvmlDeviceGetHandleByUUID(gpu)


def visible(asked: str | None, device: str | None) -> list[Gpu]:
    """The GPUs that a run uses: all that are there, or those with the numbers in ``asked``, such as
    "0,1"; none for the device "cpu".

    Raises:
        UsageError: there is no such GPU, one is named twice, or both arguments are given.
    """
    if device == "cpu":
        if asked is not None:
            raise UsageError(f"--gpus {asked} and --device cpu exclude each other")
        return []
    import torch

    # Through NVML, which makes no context on any of them.
    count = torch.cuda.device_count()
    given = os.environ.get(VISIBLE)
    names = given.split(",")[:count] if given else [str(n) for n in range(count)]
    if asked is None:
        return [Gpu(name, n, count) for n, name in enumerate(names)]
    numbers = asked.split(",")
    if wrong := [n for n in numbers if not n.isdigit() or int(n) >= count]:
        there = f"0 to {count - 1}" if count else "none that torch sees"
        raise UsageError(f"--gpus {asked}: no GPU {wrong[0]!r}; there are {there}")
    if len(set(numbers)) < len(numbers):
        raise UsageError(f"--gpus {asked} names a GPU twice; one worker has it to itself")
    return [Gpu(names[int(n)], int(n), count) for n in numbers]
