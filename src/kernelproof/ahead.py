"""What a run on a GPU starts before it is needed.

A context on the GPU, the imports of `torch.compile`, a profile, an inspection take seconds each,
and none needs the other. Where there are processors enough they run beside the check, in processes
of their own; elsewhere everything but imports runs when it is asked for. `Ahead.settle` waits for
what runs, so that nothing does beside what is timed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

from kernelproof.standby import Spare, standby, start_cuda
from kernelproof.worker import Worker

_T = TypeVar("_T")

# Fewer processors are busy enough with the check itself.
_MANY_PROCESSORS = 8
_THREADS = 16
# One of these is there where a CUDA driver is (the second on WSL).
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg")


def has_driver() -> bool:
    return any(Path(path).exists() for path in _DRIVERS)


def many_processors() -> bool:
    return len(os.sched_getaffinity(0)) >= _MANY_PROCESSORS


class Ahead:
    """Work in the background, and trusted workers that have started CUDA. Use as a context manager,
    which ends what is still running.

    Args:
        device: where workers start CUDA; "cpu" for nowhere.
        many: whether to start anything before it is asked for.
    """

    def __init__(self, device: str, many: bool) -> None:
        self.device = device
        self.many = many
        self._pool = ThreadPoolExecutor(_THREADS, "ahead")
        self._work: list[Future[Any]] = []
        self._workers: list[Worker] = []
        self._spares: dict[bool, list[Spare]] = {False: [], True: []}
        self._lock = threading.Lock()
        self._over = False

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._over = True
        for worker in self._workers:
            worker.kill()
        self._return()
        self._pool.shutdown()

    def start(self, work: Callable[[], _T], anywhere: bool = False) -> Callable[[], _T]:
        """Run ``work`` in the background, or where that is not worth it when it is asked for.
        Returns what waits for its result, or raises what it raised. ``anywhere``: on any machine,
        as work that fits into the time in which this process waits for others."""
        if not (self.many or anywhere):
            return functools.cache(work)
        future = self._pool.submit(work)
        self._work.append(future)
        return future.result

    def watched(self, worker: Worker) -> None:
        """``worker``, which a thread in the background waits for, ends with this."""
        with self._lock:
            self._workers.append(worker)
            over = self._over
        if over:
            worker.kill()

    def wait(self) -> None:
        """Until nothing runs in the background."""
        wait(self._work)
        standby.wait()

    def settle(self) -> None:
        """The same, now that no more spares are needed."""
        self._return()
        self.wait()

    def context(self) -> None:
        """Make this process's own context on the GPU in the background: the driver does it without
        Python's lock, while torch is being imported."""
        if self.many and self.device != "cpu":
            self.start(functools.partial(retain_context, self.device))

    def cuda(self, worker: Worker) -> None:
        """Start CUDA in ``worker``; its next request waits for that."""
        if self.many and self.device != "cpu":
            self.start(functools.partial(start_cuda, worker, self.device))

    def spares(self, compiled: Sequence[bool]) -> None:
        """Have a trusted worker for each of these; where it is true with `torch.compile` too."""
        for one in compiled if self.many else ():
            self._spares[one].append(self._spare(one))

    def worker(self, name: str, compiles: bool = False) -> Worker:
        """A trusted worker, one that has been started if there is one."""
        for kind in (compiles, not compiles):
            if self._spares[kind]:
                worker = self._spares[kind].pop(0).worker()
                worker.name = name
                return worker
        return Worker(name)

    def done(self, worker: Worker, compiles: bool = False) -> None:
        """Nobody needs ``worker`` any more, in which a module was. One that has compiled is not
        used again: what torch has compiled for one module it would keep beside the next."""
        if self.many and not compiles:
            standby.give_back(worker, self.device)
        else:
            worker.close()

    def _spare(self, compiles: bool) -> Spare:
        if not standby.lasting:
            return Spare.starting(self.device, compiles, self._submitted)
        return standby.take(self.device, compiles) or standby.start(self.device, compiles)

    def _submitted(self, work: Callable[[], Any]) -> Future[Any]:
        self._work.append(self._pool.submit(work))
        return self._work[-1]

    def _return(self) -> None:
        """Spares that nobody took wait for the next judgement, or end."""
        for kind in self._spares.values():
            while kind:
                standby.give(kind.pop())


def _index(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def retain_context(device: str) -> None:
    """Make the primary context of a GPU, which torch then finds there (CUDA driver API)."""
    with contextlib.suppress(OSError):
        driver = ctypes.CDLL("libcuda.so.1")
        number, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(number), _index(device)) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number)
