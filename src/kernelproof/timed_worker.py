"""Modules in workers of their own, as the timing sees them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from typing import TYPE_CHECKING, Any

from kernelproof import forms
from kernelproof.errors import CandidateCrash, CandidateError
from kernelproof.subject import CandidateProcess, threads
from kernelproof.timing import Drawn, Fresh, Picks
from kernelproof.types import Clock
from kernelproof.worker import Worker, packing

if TYPE_CHECKING:
    from kernelproof.options import Options

# The clocks that a contestant can have; those of single calls on a GPU have inputs of their own.
CLOCKS: tuple[Clock, ...] = ("host", "device", "cold", "single", "warm")
_PART = {"cold": 1, "single": 2}
# What a request makes of calls that each may take the time of one: to prepare, the first and some
# warm ones; for a sample, that and one or two for each reading.
_PREPARED_CALLS = 4
# Inputs on which results are looked for that are kept by value: each look needs new ones, and has
# so many bytes of them at most.
_UNSEEN_BYTES = (128 << 20, 16 << 20, 16 << 20)
_SAMPLED_CALLS = 8


class Timed:
    """A module that its worker has loaded, as the timing sees it.

    Args:
        fresh: where its inputs come from.
        timeout: of a request, in seconds.
        picks: where outputs of timed calls go, to be checked; None for a contestant whose outputs
            nobody asks about.
        only: what of a set of inputs it takes.
        built: seconds that import (with what it compiles) and construction took.
        ungraphed: why a CUDA graph of it would not hold what it computes; "" where it may.
    """

    def __init__(
        self, worker: Worker, fresh: Fresh, timeout: float, picks: Picks | None = None,
        only: Callable[[list[Any]], list[Any]] = list, built: tuple[float, float] = (0.0, 0.0),
        ungraphed: str = "",
    ) -> None:  # fmt: skip
        self.worker = worker
        self.fresh = fresh
        self.graph_calls = 0
        self.timeout = timeout
        self.prepare_timeout = _PREPARED_CALLS * timeout
        self.picks = picks
        self.only = only
        self.built = built
        self.ungraphed = ungraphed
        # The first error of a request: it ends the timing of this one.
        self.failure: CandidateError | None = None
        self.call_seconds = 0.0
        self.nonsense = ""
        self.sent: list[Drawn] = []
        # By clock and round: seconds of a request, by the clock of this process, per call and
        # beyond what the worker reports.
        self.outside: dict[Clock, dict[int, float]] = {clock: {} for clock in CLOCKS}
        # Device seconds per call on contents that were new, and on the same again: of the graph,
        # and of calls outside of it.
        self.unseen: dict[str, list[tuple[float, float]]] = {"device": [], "unseen": []}
        self.woken = -1
        # Whoever should rest while this one is timed, and what it has worked in the meantime:
        # seconds of processors, of so many that went by.
        self.resting: Timed | None = None
        self.worked, self.went_by = 0.0, 0.0
        # Whether somebody has changed priority or processors of this one's process.
        self.rescheduled = False
        self._early: Future[dict[str, Any]] | None = None

    def start(self, pool: Executor) -> None:
        """Prepare in the background; `prepare` then waits for it. The inputs of round 0 must have
        been drawn."""
        self._early = pool.submit(self._prepared)

    def stop(self) -> None:
        """End what runs in the background."""
        if self._early is not None and not self._early.cancel() and not self._early.done():
            self.worker.kill()
            # The thread sees its worker end, and cleans up.
            self._early.exception()

    def wait(self) -> None:
        """Until what runs in the background is over, however it ended."""
        if self._early is not None:
            wait([self._early])

    def prepare(self) -> dict[str, Any]:
        return self._prepared() if self._early is None else self._early.result()

    def _prepared(self) -> dict[str, Any]:
        sets = self.fresh.sets(0, self.fresh.most)
        answer = self._made_ready(sets, not self.ungraphed)
        if answer["problem"] and self._renew():
            # A capture that fails leaves its stream the current one, the allocator in its pool, the
            # generator in its state, and errors that the next launch is told of.
            self.ungraphed = answer["problem"]
            answer = self._made_ready(sets, False)
        self.graph_calls = int(answer["graph"])
        self.call_seconds = min(float(answer["host"]), self.timeout)
        built = {"build": self.built[0], "construction": self.built[1]}
        return {**answer, "problem": answer["problem"] or self.ungraphed, **built}

    def _renew(self) -> bool:
        """Take a new worker and load the module there, where this one knows how."""
        return False

    def _made_ready(self, sets: list[Drawn], graph: bool) -> dict[str, Any]:
        payload = self._payload(sets)
        answer = self._ask("prepare", self.prepare_timeout, payload=payload, graph=graph)
        told: dict[str, Any] = forms.read("prepare", answer, forms.PREPARED)
        return told

    def sample(self, clock: Clock, calls: int, number: int) -> list[float]:
        # A graph goes round all sets; calls that are readings need one each.
        wanted = self.fresh.most if self.fresh.cuda else 1 if clock == "warm" else calls
        sets = self.fresh.sets(number, wanted, _PART.get(clock, 0))
        return self._sampled(clock, calls, number, sets)

    def again(self, calls: int, new: bool) -> list[float]:
        """Readings of the host clock, on contents that are ``new`` or those of the last time."""
        sets = [self.fresh.one() for _ in range(calls)] if new else self.sent
        return self._sampled("host", calls, -1, sets, renew=new)

    def look_at_unseen(self) -> None:
        """Fill in ``unseen``; outputs are picked as in any round. Less is asked where inputs take
        long to draw, and nothing where a kernel reads so long that it has no use of kept results:
        the parent's clock sees that."""
        held = self.fresh.bytes * self.fresh.most
        for number in range(sum(held <= most for most in _UNSEEN_BYTES)):
            for clock, found in self.unseen.items():
                if clock == "device" and not (self.graph_calls and held <= _UNSEEN_BYTES[-1]):
                    continue
                sets = [self.fresh.one() for _ in range(self.fresh.most)]
                answer = self._ask("unseen", payload=self._payload(sets), clock=clock)
                answer = forms.read("unseen", answer, forms.UNSEEN)
                found.append((float(answer["new"]), float(answer["seen"])))
                if self.picks is not None:
                    calls = self.graph_calls if clock == "device" else len(sets)
                    kept = min(int(answer["kept"]), calls)
                    self.picks.take(clock, calls, -number, sets, kept, self._collector(clock))

    def once(self) -> None:
        """One call on new inputs, from inputs sent to output received."""
        drawn = self.fresh.one()
        payload = (self.only(drawn.inputs), drawn.seed)
        self._ask("call", payload=payload, poison=False, repeats=1)

    def _sampled(
        self, clock: Clock, calls: int, number: int, sets: list[Drawn], renew: bool = True
    ) -> list[float]:
        # Contents that the worker has already are not sent again: not for a second clock, and not
        # where they are too large to be renewed in every round.
        same = [s.seed for s in sets] == [s.seed for s in self.sent]
        payload = self._payload(sets) if renew and not same else None
        if number != self.woken or number < 0:
            self._ask("warm")
            self.woken = number
        resting = None if self.resting is None else self.resting.worker
        worked = 0.0 if resting is None else resting.processor_seconds()
        started = time.perf_counter()
        answer = self._ask("sample", payload=payload, clock=clock, calls=calls)
        taken = time.perf_counter() - started
        if resting is not None:
            self.worked += resting.processor_seconds() - worked
            self.went_by += taken
            self.rescheduled = self.rescheduled or self.worker.rescheduled
        answer = forms.read("sample", answer, forms.SAMPLED)
        readings, kept = answer["readings"], int(answer["kept"])
        if not readings or not all(isinstance(r, float) and 0 < r < math.inf for r in readings):
            self.nonsense = f"the worker reported {readings!r:.80} as times per call"
            raise CandidateCrash(self.nonsense)
        # A loop on a GPU is one reading of many calls.
        made = calls if clock in ("host", "device") and self.fresh.cuda else len(readings)
        if self.picks is not None and number >= 0:
            last = self.graph_calls if clock == "device" else made
            self.picks.take(clock, last, number, sets, min(kept, last), self._collector(clock))
        self.outside[clock][number] = taken / made - sum(readings) / len(readings)
        return list(readings)

    def _collector(self, clock: str) -> Callable[[int], Any]:
        def collect(chosen: int) -> Any:
            answer = self._ask("collect", clock=clock, numbers=[chosen])
            if not isinstance(answer, list) or len(answer) != 1:
                raise forms.nonsense("collect", answer)
            return answer[0]

        return collect

    def _payload(self, sets: list[Drawn]) -> list[bytes]:
        """Each set by itself, for the worker to unpack when its turn comes."""
        self.sent = sets
        if self.only is list:
            return [drawn.packed for drawn in sets]
        return [packing.packed((d.seed, self.only(d.inputs))) for d in sets]

    def _ask(self, do: str, timeout: float | None = None, **fields: Any) -> Any:
        if timeout is None:
            timeout = self.timeout + _SAMPLED_CALLS * self.call_seconds
        try:
            return self.worker.ask(do, timeout=timeout, **fields)
        except CandidateError as error:
            # A copy, which has no frames: they hold this object, and memory of messages, which the
            # collector cannot take apart.
            self.failure = self.failure or type(error)(error.message, error.detail)
            raise


class TimedCandidate(Timed):
    """A candidate, in the worker of ``subject``, which has constructed it from ``payload``."""

    def __init__(
        self, subject: CandidateProcess, fresh: Fresh, timeout: float, picks: Picks, payload: Any,
        ungraphed: str = "",
    ) -> None:  # fmt: skip
        built = subject.import_seconds, subject.build_seconds - subject.import_seconds
        super().__init__(subject.worker, fresh, timeout, picks, built=built, ungraphed=ungraphed)
        self.subject = subject
        self.payload = payload

    def _renew(self) -> bool:
        self.worker = self.subject.renewed(self.payload)
        return True


def _new(name: str, compiles: bool) -> Worker:
    return Worker(name)


class TimedModule(Timed):
    """A baseline in a worker of its own, which loads it when the timing prepares it.

    ``worker``: gives one by name, and by whether it will compile.
    """

    def __init__(
        self, name: str, path: str, attr: str, device: str, payload: Any, fresh: Fresh,
        options: Options, wrap: str | None = None, only: Callable[[list[Any]], list[Any]] = list,
        tf32: bool | None = None, worker: Callable[[str, bool], Worker] = _new,
    ) -> None:  # fmt: skip
        self.compiles = wrap is not None and wrap.startswith("compile")
        timeout = options.compile_timeout if self.compiles else options.call_timeout
        super().__init__(worker(name, self.compiles), fresh, timeout, only=only)
        if self.compiles:
            # The time of a compilation, which the first call does; the others are quick.
            self.prepare_timeout = timeout
        self.name = name
        self.load: dict[str, Any] = {
            "path": path, "kind": "baseline", "attr": attr, "device": device, "wrap": wrap,
            "language": "pytorch", "threads": threads(), "tf32": tf32,
            "training": options.training,
        }  # fmt: skip
        self.payload = payload

    def _prepared(self) -> dict[str, Any]:
        loaded = self._loaded()
        self.built = loaded["import_seconds"], loaded["construct_seconds"]
        return super()._prepared()

    def _loaded(self) -> dict[str, Any]:
        try:
            return self._told()
        except CandidateError:
            if not self.worker.again:
                raise
            # It may be for what another module has left there.
            self.failure = None
            self._replace()
            return self._told()

    def _renew(self) -> bool:
        self._replace()
        self._told()
        return True

    def _replace(self) -> None:
        self.worker.close()
        self.worker = Worker(self.name)

    def _told(self) -> dict[str, Any]:
        return dict(self._ask("load", payload=self.payload, **self.load))
