"""Modules in workers of their own, as the check and the timing see them."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelproof.errors import CandidateCrash, UnsupportedError
from kernelproof.timing import Drawn, Fresh, Picks
from kernelproof.types import Build, Candidate, Clock, Verdict
from kernelproof.worker import Worker, landlock, packing
from kernelproof.worker.limits import confine
from kernelproof.worker.probe import without_for_cuda
from kernelproof.worker.traces import Traces

if TYPE_CHECKING:
    from kernelproof.pipeline import Options
    from kernelproof.problem import Reference
    from kernelproof.types import Case


# Languages whose launches can be interpreted without a GPU.
EMULATED = ("cuda-nvrtc", "cuda-inline", "cuda-stable", "triton")
# The clocks that a contestant can have; those of single calls on a GPU have inputs of their own.
CLOCKS: tuple[Clock, ...] = ("host", "device", "cold", "single", "warm")
_PART = {"cold": 1, "single": 2}
# What a worker tells, and of which type: it can send anything.
_FACTS = {
    "output": object, "mutated": list, "overrun": list, "views_input": list, "reused": list,
    "devices": list, "emulated": (dict, type(None)), "refused": list,
}  # fmt: skip
_LOADED = {
    "import_seconds": float, "construct_seconds": float, "weights": str,
    "alike": (bool, type(None)),
}  # fmt: skip
_TRACED = {"tripwires": dict, "profile": (dict, type(None))}
_TRIPWIRES = {"patched": list, "seen": list, "opened": list, "threads": int}
_PROFILE = {"seconds": float, "library": float, "names": list}
_CAPTURED = {"modules": list, "stopped": str}
_KERNEL = {"name": str, "seconds": float, "count": int, "grid": list, "block": list, "shared": int}
_PREPARED = {"first": float, "host": float, "graph": int, "problem": str}
_SAMPLED = {"readings": list, "kept": int}


class CandidateProcess:
    """The candidate in its worker, as the check sees it.

    Args:
        hides: files that it may not read.
        current: the device that is current while it runs on ``device``; "" for the same.
    """

    def __init__(
        self, candidate: Candidate, device: str, options: Options, hides: Sequence[str] = (),
        current: str = "",
    ) -> None:  # fmt: skip
        self.current = current
        self.candidate = candidate
        self.device = device
        self.options = options
        self.hides = hides
        # Kernels for a GPU that is not there: their launches are interpreted on the CPU.
        self.emulated = device == "cpu" and candidate.language in EMULATED
        limits = confine(candidate, hides, device != "cpu", options.memory)
        if limits.gpu:
            limits = dataclasses.replace(limits, without=without_for_cuda())
        self.traces = None
        if "files" in limits.without or not landlock.version():
            folder = Path(candidate.folder)
            self.traces = Traces([folder / name for name in candidate.sources])
        self.limits = limits
        self.worker = Worker(candidate.name, limits)
        self.weights = ""
        self.alike: bool | None = None
        self.build_seconds = 0.0
        self.import_seconds = 0.0
        self.built = False
        # Whether the present worker has the candidate: one that took another's place has not.
        self.loaded = False
        # Called after the first construction.
        self.once_built: Callable[[], None] | None = None

    def __enter__(self) -> CandidateProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.close()

    def construct(self, args: Any, kwargs: Any, seed: int, state: Any) -> str:
        answer = self._ask(
            "load",
            timeout=self.options.build_timeout,
            payload=(args, kwargs, seed, state),
            path=self.candidate.path,
            kind="candidate",
            attr="ModelNew",
            device=self.device,
            language=self.candidate.language,
            threads=threads(),
            emulated=self.emulated,
            current=self.current,
            training=self.options.training,
        )
        _form("load", answer, _LOADED)
        self.loaded = True
        if not self.built:
            self.import_seconds = answer["import_seconds"]
            self.build_seconds = self.import_seconds + answer["construct_seconds"]
            self.weights, self.alike = answer["weights"], answer["alike"]
            self.built = True
            if self.once_built is not None:
                self.once_built()
        return str(answer["weights"])

    def call(self, inputs: list[Any], seed: int, poison: bool, repeats: int) -> Any:
        answer = self._ask(
            "call",
            timeout=self.options.call_timeout,
            payload=(inputs, seed),
            poison=poison,
            repeats=repeats,
        )
        # A candidate can write to its worker's channel: what comes is taken for what it looks like.
        if not isinstance(answer, list) or len(answer) != repeats:
            raise _nonsense("call", answer)
        for run in answer:
            _form("call", run, _FACTS)
        return answer

    def gradients(self, inputs: list[Any], seed: int) -> list[Any]:
        """Gradients for ``inputs``, the last of which are the cotangents; see `backward`."""
        answer = self._ask(
            "gradients", timeout=self.options.call_timeout, payload=(inputs, seed)
        )  # fmt: skip
        if not isinstance(answer, list):
            raise _nonsense("gradients", answer)
        return answer

    def another(self, device: str = "") -> CandidateProcess:
        """The same candidate in a process of its own; on another ``device`` while the present one
        is current, where one is given."""
        current = self.device if device else ""
        on = device or self.device
        return CandidateProcess(self.candidate, on, self.options, self.hides, current)

    def revive(self) -> None:
        """A new worker, where the present one has ended."""
        if not self.worker.alive:
            self.worker = Worker(self.candidate.name, self.limits)
            self.loaded = False

    def traced(self, inputs: list[Any] | None) -> dict[str, Any]:
        """What the worker's tripwires saw, and a profile of one call where ``inputs`` are given."""
        answer: dict[str, Any] = self._ask(
            "traced", timeout=self.options.call_timeout, payload=inputs
        )
        _form("traced", answer, _TRACED)
        _form("traced", answer["tripwires"], _TRIPWIRES)
        if answer["profile"] is not None:
            _form("traced", answer["profile"], _PROFILE)
        return answer

    def captured(self, gpu: str, multiprocessors: int, payload: Any) -> dict[str, Any]:
        """The kernels of the candidate compiled for ``gpu``, and its launches in one call;
        ``payload`` as of `inspect.capture`."""
        answer: dict[str, Any] = self._ask(
            "capture", timeout=self.options.build_timeout, payload=payload, gpu=gpu,
            multiprocessors=multiprocessors, path=self.candidate.path, kind="candidate",
            attr="ModelNew", device="cpu", language=self.candidate.language, threads=threads(),
        )  # fmt: skip
        _form("capture", answer, _CAPTURED)
        return answer

    def kernel_times(self, inputs: list[Any]) -> list[dict[str, Any]]:
        """The kernels of one call of the constructed candidate on the GPU; see `worker.kernels`."""
        answer = self._ask("kernels", timeout=self.options.call_timeout, payload=inputs)
        if not isinstance(answer, list):
            raise _nonsense("kernels", answer)
        for one in answer:
            _form("kernels", one, _KERNEL)
        return answer

    def build_ahead(self, capability: str) -> None:
        """Import the candidate, whose builds are then in the cache; for a GPU of ``capability``,
        such as "9.0", which need not be there. It is not constructed."""
        self._ask(
            "build", timeout=self.options.build_timeout, path=self.candidate.path,
            language=self.candidate.language, capability=capability,
        )  # fmt: skip

    def audited(self, verdict: Verdict) -> Verdict:
        """The verdict in view of files that the candidate has changed, where it could."""
        changed = self.traces.changed() if self.traces is not None else []
        if not changed:
            return verdict
        message = f"files that are not the candidate's to change have changed: {changed[0]}"
        message += f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        return verdict.model_copy(
            update={"status": "cheat", "proof": False, "compat": False, "message": message}
        )

    def build(self, verdict: Verdict) -> Build:
        """The build's outcome, once the check is over."""
        confinement = self.worker.protections()
        if self.built:
            return Build(
                status="pass", seconds=self.build_seconds, weights=self.weights,
                alike=self.alike, confinement=confinement,
            )  # fmt: skip
        return Build(
            status=verdict.status if verdict.status != "pass" else "crash",
            seconds=0.0,
            message=verdict.message,
            detail=verdict.detail,
            confinement=confinement,
        )

    def _ask(self, do: str, **fields: Any) -> Any:
        try:
            return self.worker.ask(do, **fields)
        except CandidateCrash as error:
            if not self.candidate.for_gpu or self.device != "cpu" or self.emulated:
                raise
            raise UnsupportedError(
                f"the candidate is {self.candidate.language} code and ran on the CPU, where it "
                f"failed: {error.message}. It needs an NVIDIA GPU; see `kernelproof doctor`",
                error.detail,
            ) from error


class Timed:
    """A module that its worker has loaded, as the timing sees it.

    Args:
        fresh: where its inputs come from.
        timeout: of a request, in seconds.
        picks: where outputs of timed calls go, to be checked; None for a contestant whose outputs
            nobody asks about.
        only: what of a set of inputs it takes.
        built: seconds that import (with what it compiles) and construction took.
    """

    def __init__(
        self, worker: Worker, fresh: Fresh, timeout: float, picks: Picks | None = None,
        only: Callable[[list[Any]], list[Any]] = list, built: tuple[float, float] = (0.0, 0.0),
    ) -> None:  # fmt: skip
        self.worker = worker
        self.fresh = fresh
        self.graph_calls = 0
        self.timeout = timeout
        self.picks = picks
        self.only = only
        self.built = built
        self.nonsense = ""
        self.sent: list[Drawn] = []
        # By clock and round: seconds of a request, by the clock of this process, per call and
        # beyond what the worker reports.
        self.outside: dict[Clock, dict[int, float]] = {clock: {} for clock in CLOCKS}
        self.woken = -1
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
        answer: dict[str, Any] = self._ask("prepare", payload=self._payload(sets), graph=True)
        _form("prepare", answer, _PREPARED)
        self.graph_calls = int(answer["graph"])
        return {**answer, "build": self.built[0], "construction": self.built[1]}

    def sample(self, clock: Clock, calls: int, number: int) -> list[float]:
        # A graph goes round all sets; calls that are readings need one each.
        wanted = self.fresh.most if self.fresh.cuda else 1 if clock == "warm" else calls
        sets = self.fresh.sets(number, wanted, _PART.get(clock, 0))
        return self._sampled(clock, calls, number, sets)

    def again(self, calls: int, new: bool) -> list[float]:
        """Readings of the host clock, on contents that are ``new`` or those of the last time."""
        sets = [self.fresh.one() for _ in range(calls)] if new else self.sent
        return self._sampled("host", calls, -1, sets, renew=new)

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
        started = time.perf_counter()
        answer = self._ask("sample", payload=payload, clock=clock, calls=calls)
        taken = time.perf_counter() - started
        _form("sample", answer, _SAMPLED)
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

    def _collector(self, clock: Clock) -> Callable[[int], Any]:
        def collect(chosen: int) -> Any:
            answer = self._ask("collect", clock=clock, numbers=[chosen])
            if not isinstance(answer, list) or len(answer) != 1:
                raise _nonsense("collect", answer)
            return answer[0]

        return collect

    def _payload(self, sets: list[Drawn]) -> list[bytes]:
        """Each set by itself, for the worker to unpack when its turn comes."""
        self.sent = sets
        if self.only is list:
            return [drawn.packed for drawn in sets]
        return [packing.packed((d.seed, self.only(d.inputs))) for d in sets]

    def _ask(self, do: str, **fields: Any) -> Any:
        return self.worker.ask(do, timeout=self.timeout, **fields)


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
        compiled = wrap is not None and wrap.startswith("compile")
        timeout = options.compile_timeout if compiled else options.call_timeout
        super().__init__(worker(name, compiled), fresh, timeout, only=only)
        self.name = name
        self.load = {
            "path": path, "kind": "baseline", "attr": attr, "device": device, "wrap": wrap,
            "language": "pytorch", "threads": threads(), "tf32": tf32,
            "training": options.training,
        }  # fmt: skip
        self.payload = payload

    def _prepared(self) -> dict[str, Any]:
        loaded = self._ask("load", payload=self.payload, **self.load)
        self.built = loaded["import_seconds"], loaded["construct_seconds"]
        return super()._prepared()


def _form(do: str, answer: Any, fields: dict[str, Any]) -> None:
    """Raises CandidateCrash where ``answer`` is no dict with ``fields`` of these types."""
    if not isinstance(answer, dict):
        raise _nonsense(do, answer)
    for name, kind in fields.items():
        if name not in answer or not isinstance(answer[name], kind):
            raise _nonsense(do, {name: answer.get(name)})


def _nonsense(do: str, answer: Any) -> CandidateCrash:
    return CandidateCrash(f"the worker sent nonsense in answer to {do!r}: {answer!r:.80}")


def payload_of(reference: Reference, case: Case, seed: int) -> tuple[Any, Any, int, Any]:
    """What a worker needs to construct a module with the weights that the reference has under
    ``seed``: arguments, keywords, seed, weights."""
    from kernelproof.check.reference import construct, state_of

    args, kwargs = reference.init_args(case)
    training = reference.problem.training
    model = construct(reference.module.Model, args, kwargs, seed, "cpu", training)
    return args, kwargs, seed, state_of(model)


def threads() -> int:
    import torch

    return torch.get_num_threads()
