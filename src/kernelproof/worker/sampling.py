"""Raw clock readings of one module on one set of inputs. No statistics here."""

from __future__ import annotations

import time
from typing import Any

# A graph holds this many calls, so that the cost of a replay (a few microseconds) is spread thin.
_GRAPH_CALLS = 50
_WARM_CALLS = 3
# libgomp's idle threads spin for up to some 20 ms before they sleep. On a CPU that is another
# contestant's pool competing for the cores; wait until it is quiet.
_SETTLE_SECONDS = 0.03


class Sampler:
    """Times ``module(*inputs)`` under `torch.no_grad`.

    Clocks: ``host`` is the time per call as Python sees it (on a GPU: a loop of calls that ends in
    a synchronisation); ``device`` is the time per call inside the replay of a CUDA graph, by
    events.
    """

    def __init__(self, module: Any, inputs: list[Any], device: str) -> None:
        self.module = module
        self.inputs = inputs
        self.cuda = device != "cpu"
        self.graph: Any = None
        self.graph_calls = _GRAPH_CALLS

    def prepare(self, graph: bool) -> Any:
        """First call, warm-up and graph capture.

        Returns ``first`` (seconds of the first call), ``host`` (seconds per warm call, to plan
        with), ``graph`` (whether one was captured) and ``problem`` (why not).
        """
        import torch

        with torch.no_grad():
            started = time.perf_counter()
            self.module(*self.inputs)
            self._wait()
            first = time.perf_counter() - started
            started = time.perf_counter()
            for _ in range(_WARM_CALLS):
                self.module(*self.inputs)
            self._wait()
            warm = (time.perf_counter() - started) / _WARM_CALLS
            problem = self._capture(warm) if graph and self.cuda else ""
        return {
            "first": first,
            "host": warm,
            "graph": self.graph is not None,
            "problem": problem,
        }

    def _capture(self, warm: float) -> str:
        import torch

        if warm > 0.02:
            # A call this long hides launch costs; a few of them make a graph long enough.
            self.graph_calls = 2
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(side):
                self.module(*self.inputs)
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(self.graph_calls):
                    self.module(*self.inputs)
            graph.replay()
            torch.cuda.synchronize()
        except Exception as error:
            torch.cuda.synchronize()
            return f"not capturable in a CUDA graph: {str(error).splitlines()[0]}"
        self.graph = graph
        return ""

    def sample(self, clock: str, calls: int) -> list[float]:
        """``calls`` readings on a CPU; on a GPU one reading that averages over the calls."""
        import torch

        with torch.no_grad():
            if clock == "device":
                return self._sample_graph(calls)
            if self.cuda:
                return self._sample_loop(calls)
            return self._sample_calls(calls)

    def _sample_calls(self, calls: int) -> list[float]:
        module, inputs, clock = self.module, self.inputs, time.perf_counter_ns
        time.sleep(_SETTLE_SECONDS)
        for _ in range(_WARM_CALLS):
            module(*inputs)
        readings = []
        for _ in range(calls):
            started = clock()
            module(*inputs)
            readings.append((clock() - started) * 1e-9)
        return readings

    def _sample_loop(self, calls: int) -> list[float]:
        self._wait()
        started = time.perf_counter_ns()
        for _ in range(calls):
            self.module(*self.inputs)
        self._wait()
        return [(time.perf_counter_ns() - started) * 1e-9 / calls]

    def _sample_graph(self, calls: int) -> list[float]:
        import torch

        readings = []
        self.graph.replay()
        for _ in range(max(1, calls // self.graph_calls)):
            begin = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            begin.record()
            self.graph.replay()
            end.record()
            end.synchronize()
            readings.append(begin.elapsed_time(end) * 1e-3 / self.graph_calls)
        return readings

    def _wait(self) -> None:
        if self.cuda:
            import torch

            torch.cuda.synchronize()
