"""Raw clock readings of one module, each call on contents that it has not seen. No statistics here.

The parent sends the inputs of every round, and asks for outputs of timed calls after the clock has
stopped, by numbers that it draws then; so what is timed is also checked. What this module measures
with is taken over when it is imported, which is before any candidate.
"""

from __future__ import annotations

import gc
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat, takewhile
from operator import truth
from typing import Any

import torch

from kernelproof.worker import copying, nests, packing, steady
from kernelproof.worker import inputs as placing
from kernelproof.worker.copying import copied as _copy
from kernelproof.worker.copying import fill as _fill
from kernelproof.worker.inputs import (
    Placed,
    bytes_of,
    form_of,
    leaves_of,
    mapped,
    without_repeats,
)
from kernelproof.worker.streams import CYCLES, blocking_stream
from kernelproof.worker.streams import reset_persisting_l2 as _reset_persisting_l2

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
_AHEAD_CYCLES = int(_AHEAD_SECONDS * CYCLES)
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


_zero = torch.Tensor.zero_
# Of the generator itself: `torch.manual_seed` calls much that a candidate could replace, just
# before the clock starts.
_seed = torch.default_generator.manual_seed
# From before inputs are put in place until the output is copied no cycles are looked for: that
# calls functions of whoever asks for it (`gc.callbacks`), outside the clock.
_collects, _collects_not = gc.enable, gc.disable
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
        self.seeded: Callable[[int], Any] = _seed
        self.event: Any = torch.cuda.Event
        self.flushed: Any = None
        self.slots: list[list[Any]] = []
        self.seeds: list[int] = []
        self.kept: dict[str, list[Any]] = {}
        self.graph: Any = None
        self.graph_calls = _GRAPH_CALLS
        self.seconds = 0.0  # of a warm call
        self.names = steady.Names(self, ["clock", "sleep", "seeded", "synchronize", "event"])
        self.replaced = False  # something of what it measures with, between two calls
        self.size = 0  # bytes of an output
        self.began = 0  # when the calls of a sample did
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
        if not plain or [form_of(x) for x in held] != [form_of(x) for x in new]:
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
            output = self.module(*self.idle)
            self._wait()
            first = (self.clock() - started) * 1e-9
            self.size = bytes_of(output)
            del output
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
            side = blocking_stream(self.device)
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
        return [nests.rebuilt(self.kept[clock][number], _copy) for number in numbers]

    # What is made while a candidate runs is in no frame that it could reach from its own: readings,
    # copies of outputs and the inputs of later calls are in iterators of C, or lists that these are
    # filling, until the last call is over. None of them may have a name here.

    def _sample_calls(self, calls: int, sets: list[bytes]) -> list[float]:
        count = len(sets) or min(calls, len(self.slots))
        self.began = self.clock()
        # In the order in which `map` asks: inputs come once all that is not timed is done.
        wakes, packed = [map(self._woken, range(count))], [chain(_emptied(sets), repeat(b""))]
        same = [_known.steady(), self.names.steady()]
        return self._taken(
            "host",
            [map(self._new_call, range(count), wakes.pop(), same.pop(), same.pop(), packed.pop())],
        )

    def _repeat(self, calls: int, sets: list[bytes]) -> list[float]:
        if sets:
            self.seeds[:1] = [self._put(0, sets[0])]
        self.began = self.clock()
        most = room_for(bytes_of(self.module(*self.slots[0])))
        same = [_known.steady(), self.names.steady()]
        return self._taken(
            "warm", [map(self._old_call, range(calls), same.pop(), same.pop(), repeat(most))]
        )

    def _taken(self, clock: str, made: list[Iterator[Any]]) -> list[float]:
        """Readings of the calls that ``made``, of one iterator, makes until it gives None; their
        outputs, where they are kept, are then to be collected."""
        try:
            found = list(takewhile(truth, made.pop()))
        except KeyError as error:
            self.replaced = self.replaced or error.args == (False,)
            raise
        self.kept[clock] = [kept[0] for _, kept in found if kept]
        return [reading for reading, _ in found]

    def _woken(self, number: int) -> bool:
        """A call on what the slot held, so that threads are awake and code is in the caches; False
        where there is no time left."""
        if self._late(number):
            return False
        if number < len(self.slots):
            self.module(*self.slots[number])
        return True

    def _new_call(
        self, number: int, woken: bool, same: bool, own: bool, data: bytes
    ) -> tuple[float, list[Any]] | None:
        if not woken:
            return None
        _collects_not()
        # Inputs are unpacked just before their call, so that no earlier one can work ahead, and
        # written last: a thread may look whether there are new ones at the old addresses.
        if data:
            self.seeds[number : number + 1] = [self._put(number, data, self.seeded)]
        else:
            self.seeded(self.seeds[number])
        return self._timed(self.slots[number], True)

    def _old_call(
        self, number: int, same: bool, own: bool, most: int
    ) -> tuple[float, list[Any]] | None:
        if self._late(number):
            return None
        _collects_not()
        self.seeded(self.seeds[0])
        return self._timed(self.slots[0], number < most)

    def _timed(self, inputs: list[Any], keep: bool) -> tuple[float, list[Any]]:
        """A reading, and a list with the copy of the output where it is to be kept."""
        module, clock = self.module, self.clock
        started = clock()
        output = module(*inputs)
        seconds = (clock() - started) * 1e-9
        _collects_not()
        # At once: what a thread computes later must not get into it.
        kept = [nests.rebuilt(output, _copy)] if keep else []
        _collects()
        return seconds, kept

    def _alone(self, clock: str, calls: int) -> list[float]:
        """Readings of single calls, each on a slot of its own."""
        count = min(calls, len(self.slots))
        # Outputs of the last ones are kept, as many as there is room for.
        first = count - room_for(self.size)
        self.began = self.clock()
        keep = [number >= first for number in range(count)]
        return self._taken(clock, [map(self._call_alone, repeat(clock), range(count), keep)])

    def _call_alone(self, clock: str, number: int, keep: bool) -> tuple[float, list[Any]] | None:
        if self._late(number):
            return None
        inputs = self.slots[number]
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
        kept = [nests.rebuilt(output, _copy)] if keep else []
        self._wait()
        return begin.elapsed_time(end) * 1e-3, kept

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

    def _late(self, made: int) -> bool:
        """Never before the third: a first call that takes for itself what others save must show."""
        return made >= 3 and (self.clock() - self.began) * 1e-9 > _SAMPLE_SECONDS

    def _wait(self) -> None:
        if self.cuda:
            self.synchronize()


def _emptied(sets: list[bytes]) -> Iterator[bytes]:
    """What ``sets`` held, which is empty from then on: nobody else holds them any longer."""
    held = tuple(sets)
    sets.clear()
    return iter(held)


def room_for(size: int) -> int:
    """How many outputs of ``size`` bytes are kept: one at least."""
    return max(1, _KEPT_BYTES // max(1, size))


def _trim(outputs: list[Any]) -> None:
    """Let the first of ``outputs`` go where all together are too large."""
    while len(outputs) > room_for(bytes_of(outputs[-1])):
        outputs.pop(0)


_known = steady.of_modules([sys.modules[__name__], copying, placing, nests, packing])
