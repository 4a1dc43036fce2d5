"""Raw clock readings of one module, each call on contents that it has not seen. No statistics here.

The parent sends the inputs of every round, and asks for outputs of timed calls after the clock has
stopped, by numbers that it draws then; so what is timed is also checked. What this module measures
with is taken over when it is imported, which is before any candidate.
"""

from __future__ import annotations

import ctypes
import pickle
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kernelproof.worker.inputs import Placed, bits, leaves_of, mapped, without_repeats

# A graph holds this many calls, so that the cost of a replay (a few microseconds) is spread thin;
# fewer where they take longer than this in all, which then hide that cost by themselves.
_GRAPH_CALLS = 50
_GRAPH_SECONDS = 0.02
# Untimed calls: as many, or fewer where they take longer than this.
_WARM_CALLS = 3
_WARM_SECONDS = 20e-3
# Before each single call comes one that is not timed, which wakes everything; not where a call
# takes so long that waking is nothing beside it.
_LONG_SECONDS = 3e-3
# No further single call after this time, however many were planned: on a busy machine some calls
# take hundreds of times as long as others. Not sooner: what a request takes by itself is shared
# among its calls where the parent's clock is compared.
_SAMPLE_SECONDS = 2.0
# Before a cold call the GPU is kept busy for so long, the same for all contestants, while Python
# prepares the launch: then the time between the events is the device's own.
_AHEAD_SECONDS = 200e-6
# The same for several calls in a row: so many times what their Python takes, and no longer.
_AHEAD_SHARE, _AHEAD_MOST_SECONDS = 1.5, 20e-3
_CYCLES = 2e9  # of a second; a GPU with a slower clock is busy a little longer
_AHEAD_CYCLES = int(_AHEAD_SECONDS * _CYCLES)
# libgomp's idle threads spin for up to some 20 ms before they sleep. On a CPU that is another
# contestant's pool competing for the cores; wait until it is quiet.
_SETTLE_SECONDS = 0.03
# Outputs of a graph's calls are all kept up to this many bytes, else the last ones.
_KEPT_BYTES = 256 << 20


def _nanoseconds(
    now: Callable[[], int] = time.perf_counter_ns, sleep: Callable[[float], None] = time.sleep
) -> tuple[Callable[[], int], Callable[[float], None]]:
    """Clock and sleep as they were at import, whatever `time` holds by now."""
    return now, sleep


_clone, _detach, _zero = torch.Tensor.clone, torch.Tensor.detach, torch.Tensor.zero_
_copyto = np.copyto
_spin: Any = getattr(torch.cuda, "_sleep", None)


class Sampler:
    """Times ``module`` on inputs that are replaced from round to round, under `torch.no_grad`.

    Clocks: ``host`` is the time per call as Python sees it (on a GPU: a loop of calls that ends in
    a synchronisation of the whole device); ``device`` is the time per call inside the replay of a
    CUDA graph, by events. On a GPU ``single`` is the time by events of a call on an idle device,
    ``cold`` that of a call after L2 was flushed, queued behind work so that it has no launch in
    it. On a CPU ``warm`` is the time of a call repeated on the same inputs.

    ``captured``: what the graph is of, where ``module`` is a graph itself.
    """

    def __init__(self, module: Any, sets: list[bytes], device: str, captured: Any = None) -> None:
        self.module = module
        self.captured = module if captured is None else captured
        self.device = device
        self.cuda = device != "cpu"
        self.clock, self.sleep = _nanoseconds()
        self.synchronize = torch.cuda.synchronize
        self.seeded = torch.manual_seed
        self.event: Any = torch.cuda.Event
        self.flushed: Any = None
        self.slots: list[list[Any]] = []
        self.seeds: list[int] = []
        self.kept: dict[str, list[Any]] = {}
        self.graph: Any = None
        self.graph_calls = _GRAPH_CALLS
        self.seconds = 0.0  # of a warm call
        # The warm-up has inputs of its own: what a call does to them is no business of a timed one.
        self.idle = Placed(pickle.loads(sets[0])[1], device).given
        self.fill(sets)

    def fill(self, sets: list[bytes]) -> None:
        """Put ``sets`` (of a seed and inputs, pickled) into the first slots."""
        self.seeds = [self._put(number, data) for number, data in enumerate(sets)]

    def _put(
        self, number: int, data: bytes, before: Callable[[int], Any] = lambda seed: None
    ) -> int:
        """Put inputs into slot ``number``: into the memory of earlier ones, where they fit. Written
        through ``.data``, so that not even a tensor's version tells. Returns their seed.
        ``before`` is called with it when all but the writing is done."""
        seed, inputs = pickle.loads(data)
        before(int(seed))
        if number >= len(self.slots) or not self._refilled(number, inputs):
            self.slots[number : number + 1] = [Placed(inputs, self.device).given]
        return int(seed)

    def _refilled(self, number: int, inputs: list[Any]) -> bool:
        """Whether slot ``number`` could take ``inputs`` into its own memory."""
        held, new = list(leaves_of(self.slots[number])), list(leaves_of(inputs))
        plain = all(type(x) is torch.Tensor and x.layout is torch.strided for x in [*held, *new])
        if not plain or [_form(x) for x in held] != [_form(x) for x in new]:
            return False
        for into, value in zip(held, new, strict=True):
            _fill(without_repeats(into.data), without_repeats(value))
        tensors = iter(held)
        self.slots[number] = mapped(inputs, lambda _: next(tensors))
        return True

    def prepare(self, graph: bool) -> dict[str, Any]:
        """First call, warm-up and graph capture.

        Returns ``first`` (seconds of the first call), ``host`` (seconds per warm call, to plan
        with), ``graph`` (calls in it, 0 where there is none) and ``problem`` (why not).
        """
        with torch.no_grad():
            started = self.clock()
            self.module(*self.idle)
            self._wait()
            first = (self.clock() - started) * 1e-9
            started = self.clock()
            for _ in range(_WARM_CALLS):
                self.module(*self.idle)
            self._wait()
            warm = (self.clock() - started) * 1e-9 / _WARM_CALLS
            self.seconds = warm
            problem = self._capture(warm) if graph and self.cuda else ""
            if self.cuda:
                size = torch.cuda.get_device_properties(self.device).L2_cache_size
                # Twice the L2, so that whatever it replaces first, nothing is left.
                self.flushed = torch.empty(2 * size, dtype=torch.uint8, device=self.device)
        calls = self.graph_calls if self.graph is not None else 0
        return {"first": first, "host": warm, "graph": calls, "problem": problem}

    def _capture(self, warm: float) -> str:
        self.graph_calls = max(2, min(_GRAPH_CALLS, int(_GRAPH_SECONDS / warm)))
        outputs: list[Any] = []
        try:
            side = _blocking_stream(self.device)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.captured(*self.idle)
            torch.cuda.current_stream().wait_stream(side)
            self.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side):
                for number in range(self.graph_calls):
                    # What is kept is not written again by a later call of the same graph.
                    outputs.append(self.captured(*self.slots[number % len(self.slots)]))
                    _trim(outputs)
            graph.replay()
            self.synchronize()
        except Exception as error:
            self.synchronize()
            return f"not capturable in a CUDA graph: {str(error).splitlines()[0]}"
        self.graph, self.kept["device"] = graph, outputs
        return ""

    @property
    def long(self) -> bool:
        """Whether a call takes so long that waking takes nothing beside it."""
        return self.seconds > _LONG_SECONDS

    def warm(self) -> None:
        """Calls that are not timed, in a request of their own: while they run, the inputs of the
        timed ones are not yet in this process. On a GPU none where one takes the whole time."""
        if not self.cuda:
            self.sleep(_SETTLE_SECONDS)
        elif self.seconds > _WARM_SECONDS:
            return
        began = self.clock()
        with torch.no_grad():
            for _ in range(_WARM_CALLS):
                self.module(*self.idle)
                if (self.clock() - began) * 1e-9 > _WARM_SECONDS:
                    break
            self._wait()

    def sample(self, clock: str, calls: int, sets: list[bytes]) -> dict[str, Any]:
        """``readings``, and ``kept``: how many outputs, those of the last calls, can be collected.

        On a CPU each call is a reading, and there are as many as ``sets``, each timed once, or
        ``calls`` on one of them. On a GPU a reading averages over ``calls`` calls, which go round
        the slots, or is of one call, at most one on each; without ``sets`` the slots hold what
        they held.
        """
        with torch.no_grad():
            if not self.cuda:
                repeat = clock == "warm"
                readings = (self._repeat if repeat else self._sample_calls)(calls, sets)
            else:
                if sets:
                    self.fill(sets)
                if clock in ("cold", "single"):
                    readings = self._alone(clock, calls)
                else:
                    readings = self._sample_graph(calls) if clock == "device" else self._loop(calls)
        return {"readings": readings, "kept": len(self.kept[clock])}

    def collect(self, clock: str, numbers: list[int]) -> list[Any]:
        """Outputs of timed calls: of the kept ones, those with these numbers."""
        return [mapped(self.kept[clock][number], _copy) for number in numbers]

    def _sample_calls(self, calls: int, sets: list[bytes]) -> list[float]:
        module, clock, seeded = self.module, self.clock, self.seeded
        readings = []
        kept = self.kept["host"] = []
        began = clock()
        for number in range(len(sets) or min(calls, len(self.slots))):
            # A call on what the slot held, so that threads are awake and code is in the caches.
            if number < len(self.slots):
                module(*self.slots[number])
            # Inputs are unpacked just before their call, so that no earlier one can work ahead, and
            # written last: a thread may look whether there are new ones at the old addresses.
            if sets:
                self.seeds[number : number + 1] = [self._put(number, sets[number], seeded)]
            else:
                seeded(self.seeds[number])
            inputs = self.slots[number]
            started = clock()
            output = module(*inputs)
            readings.append((clock() - started) * 1e-9)
            # At once: what a thread computes later must not get into it.
            kept.append(mapped(output, _copy))
            if self._late(began, readings):
                break
        return readings

    def _repeat(self, calls: int, sets: list[bytes]) -> list[float]:
        module, clock, seeded = self.module, self.clock, self.seeded
        if sets:
            self.seeds[:1] = [self._put(0, sets[0])]
        inputs, seed, readings = self.slots[0], self.seeds[0], []
        kept = self.kept["warm"] = []
        began = clock()
        module(*inputs)
        for _ in range(calls):
            seeded(seed)
            started = clock()
            output = module(*inputs)
            readings.append((clock() - started) * 1e-9)
            kept.append(mapped(output, _copy))
            _trim(kept)
            if self._late(began, readings):
                break
        return readings

    def _alone(self, clock: str, calls: int) -> list[float]:
        """Readings of single calls, each on a slot of its own."""
        readings = []
        kept: list[Any] = []
        began = self.clock()
        for inputs in self.slots[:calls]:
            begin, end = self.event(enable_timing=True), self.event(enable_timing=True)
            if not self.long:
                self.module(*self.idle)
                self._wait()
            _reset_persisting_l2()
            if clock == "cold":
                _spin(_AHEAD_CYCLES)
                _zero(self.flushed)
            begin.record()
            output = self.module(*inputs)
            end.record()
            # At once, in the order of the stream: what another stream does later is not in it.
            kept.append(mapped(output, _copy))
            self._wait()
            readings.append(begin.elapsed_time(end) * 1e-3)
            _trim(kept)
            if self._late(began, readings):
                break
        self.kept[clock] = kept
        return readings

    def _loop(self, calls: int) -> list[float]:
        _reset_persisting_l2()
        slots = self.slots
        kept: list[Any] = [None] * min(calls, len(slots))
        self._wait()
        started = self.clock()
        for number in range(calls):
            kept[number % len(kept)] = self.module(*slots[number % len(slots)])
        self._wait()
        readings = [(self.clock() - started) * 1e-9 / calls]
        # In the order of the calls: `kept` was a ring.
        turn = calls % len(kept)
        self.kept["host"] = kept[turn:] + kept[:turn]
        return readings

    def _sample_graph(self, calls: int) -> list[float]:
        _reset_persisting_l2()
        readings = []
        if not self.long:
            self.graph.replay()
        for _ in range(max(1, calls // self.graph_calls)):
            begin, end = self.event(enable_timing=True), self.event(enable_timing=True)
            begin.record()
            self.graph.replay()
            end.record()
            self._wait()
            readings.append(begin.elapsed_time(end) * 1e-3 / self.graph_calls)
        return readings

    def unseen(self, clock: str, sets: list[bytes]) -> dict[str, Any]:
        """Seconds per call by events on ``sets``, which are ``new``, and on the same contents again
        (``seen``); and how many outputs are ``kept``. A GPU's kernel could keep results by value,
        which no cache in Python needs to know of. ``clock``: "device", of the graph, or "unseen",
        of calls that are queued behind other work, so that no launch is waited for.

        Both times inputs, and what others than these need, were just read.
        """
        self.fill(sets)
        calls = self.graph_calls if clock == "device" else len(self.slots)
        with torch.no_grad():
            for inputs in self.slots:
                if 2 * _bytes(inputs) <= self.flushed.numel():
                    mapped(inputs, _copy)
            new, seen = self._queued(clock), self._queued(clock)
        return {"new": new / calls, "seen": seen / calls, "kept": len(self.kept[clock])}

    def _queued(self, clock: str) -> float:
        """Seconds of a replay, or of a call on each slot."""
        for _ in range(_WARM_CALLS):
            self.module(*self.idle)
        self._wait()
        _reset_persisting_l2()
        begin, end = self.event(enable_timing=True), self.event(enable_timing=True)
        ahead = max(_AHEAD_SECONDS, _AHEAD_SHARE * self.seconds * len(self.slots))
        _spin(int(min(ahead, _AHEAD_MOST_SECONDS) * _CYCLES))
        begin.record()
        if clock == "device":
            self.graph.replay()
            outputs = None
        else:
            outputs = [self.module(*inputs) for inputs in self.slots]
        end.record()
        if outputs is not None:
            self.kept[clock] = [mapped(output, _copy) for output in outputs]
            _trim(self.kept[clock])
        self._wait()
        return float(begin.elapsed_time(end)) * 1e-3

    def _late(self, began: int, readings: list[float]) -> bool:
        """Never before the third: a first call that takes for itself what others save must show."""
        return len(readings) >= 3 and (self.clock() - began) * 1e-9 > _SAMPLE_SECONDS

    def _wait(self) -> None:
        if self.cuda:
            self.synchronize()


def _copy(tensor: Any) -> Any:
    """A copy by torch's own functions: an object may carry others under the same names."""
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return tensor
    plain = _detach(tensor)
    if plain.device.type != "cpu" or plain.is_conj() or plain.is_neg():
        return _clone(plain)
    copy = torch.empty_like(plain)
    _fill(copy, plain)
    return copy


def _fill(into: Any, value: Any) -> None:
    """Copy values. On a CPU by numpy, which uses no threads: torch's would go on spinning for a
    while, and a kernel that has threads of its own would be timed beside them."""
    if into.device.type == "cpu":
        _copyto(bits(into).numpy(), bits(_detach(value)).numpy())
    else:
        into.copy_(value)


def _form(tensor: Any) -> tuple[Any, ...]:
    return tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.requires_grad


def _bytes(value: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in leaves_of(value))


def _trim(outputs: list[Any]) -> None:
    """Let the first of ``outputs`` go where all together are too large."""
    while len(outputs) > 1 and len(outputs) * _bytes(outputs[-1]) > _KEPT_BYTES:
        outputs.pop(0)


def _blocking_stream(device: str) -> Any:
    """A stream that waits for the legacy default stream, which torch's own do not. While one like
    this is captured, a launch on the default stream is an error (CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    of the driver); else it would run at once, and be missing from the graph. Never destroyed."""
    with torch.cuda.device(device):
        torch.cuda.current_stream().synchronize()  # the context is there, and current
        made = ctypes.c_void_p()
        error = ctypes.CDLL("libcuda.so.1").cuStreamCreate(ctypes.byref(made), 0)
        if error:
            raise RuntimeError(f"cuStreamCreate: error {error}")
        return torch.cuda.ExternalStream(made.value)


def _reset_persisting_l2() -> None:
    """Give back what an access policy window keeps in L2 from one call to the next."""
    library = ctypes.CDLL("libcuda.so.1")
    library.cuCtxResetPersistingL2Cache()
