"""Trusted workers that have started CUDA before they are needed.

A context on a GPU takes a third of a second, most of it in the driver, which makes one at a time
for all GPUs of a machine; to end one takes nearly as long. So a process that judges one candidate
after another (`Standby.lasting`) uses such workers again: those that nobody took, and those whose
module could be taken out of them (see `worker.restoring`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from kernelproof.errors import CandidateError, KernelproofError
from kernelproof.timeline import span
from kernelproof.worker import Worker

_START_SECONDS = 120.0
_CLEAR_SECONDS = 10.0
# No judgement has many more baselines than there are usual ones.
_MOST = 8

Submit = Callable[[Callable[[], Any]], Future[Any]]


def start_cuda(worker: Worker, device: str, compiles: bool = False) -> None:
    """Start CUDA in ``worker``, and `torch.compile` where it ``compiles``. What does not start here
    does not start when it is needed either, and is told then."""
    with contextlib.suppress(CandidateError, KernelproofError):
        worker.ask("cuda", timeout=_START_SECONDS, device=device, compile=compiles)


class Spare:
    """A worker that has started CUDA on ``device``, and `torch.compile` where it ``compiles``, or
    that is about to."""

    def __init__(self, device: str, compiles: bool) -> None:
        self.device = device
        self.compiles = compiles
        self._worker: Future[Worker] = Future()
        self._started: Future[Any] = Future()

    @classmethod
    def starting(cls, device: str, compiles: bool, submit: Submit) -> Spare:
        """A new one; ``submit`` runs a function in the background."""
        made = cls(device, compiles)
        made._started = submit(made._start)
        return made

    @classmethod
    def of(cls, worker: Worker, device: str) -> Spare:
        """A worker that is there."""
        made = cls(device, False)
        made._worker.set_result(worker)
        made._started.set_result(None)
        return made

    def worker(self) -> Worker:
        """It; its next request waits until CUDA has started. Raises what its start has raised."""
        return self._worker.result()

    def wait(self) -> None:
        """Until CUDA has started, or has not."""
        wait([self._started])

    def usable(self) -> bool:
        """Whether nobody has ended, replaced or slowed it."""
        if self._worker.exception() is not None:
            return False
        worker = self.worker()
        return worker.alive and not (worker.replaced or worker.rescheduled)

    def end(self) -> None:
        if self._worker.exception() is None:
            self.worker().close()

    def _start(self) -> None:
        try:
            worker = Worker("spare")
        except BaseException as error:
            self._worker.set_exception(error)
            return
        self._worker.set_result(worker)
        start_cuda(worker, self.device, self.compiles)


class Standby:
    """The spare workers that no judgement of this process has. ``lasting``: whether they are kept
    from one judgement to the next; else each ends its own."""

    def __init__(self) -> None:
        self.lasting = False
        self._pool: ThreadPoolExecutor | None = None
        self._idle: list[Spare] = []
        self._lock = threading.Lock()

    def start(self, device: str, compiles: bool) -> Spare:
        """A new one, which may outlast the judgement that starts it."""
        with self._lock:
            self._pool = self._pool or ThreadPoolExecutor(_MOST, "standby")
        return Spare.starting(device, compiles, self._pool.submit)

    def take(self, device: str, compiles: bool) -> Spare | None:
        """One that is there. What a candidate has done to it is looked at now, not when it was
        given: by now that candidate is gone."""
        while True:
            with self._lock:
                fit = [s for s in self._idle if (s.device, s.compiles) == (device, compiles)]
                if not fit:
                    return None
                self._idle.remove(fit[0])
            if fit[0].usable():
                return fit[0]
            fit[0].end()

    def give(self, spare: Spare) -> None:
        """Keep one for the next judgement, or end it."""
        with self._lock:
            if self.lasting and len(self._idle) < _MOST:
                self._idle.append(spare)
                return
        spare.end()

    def give_back(self, worker: Worker, device: str) -> None:
        """Keep a worker that a module was in; or end it, where something of that is left."""
        if not (self.lasting and worker.alive):
            worker.close()
            return
        try:
            left = list(worker.ask("clear", timeout=_CLEAR_SECONDS))
        except (CandidateError, KernelproofError) as error:
            left = [str(error)]
        if not left:
            worker.again = True
            self.give(Spare.of(worker, device))
            return
        with span(f"{worker.name} is not used again: {', '.join(map(str, left))}"):
            worker.close()

    def wait(self) -> None:
        """Until none is starting."""
        with self._lock:
            idle = list(self._idle)
        for spare in idle:
            spare.wait()

    def end(self) -> None:
        """End those that are there."""
        with self._lock:
            idle, self._idle = self._idle, []
        for spare in idle:
            spare.end()


standby = Standby()
