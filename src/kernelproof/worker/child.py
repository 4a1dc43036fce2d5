"""What runs inside a worker: load a module, call it, time it, and answer with outputs and facts.

Requests (see `client.Worker.ask`):

    load     import the file, construct the module, take over weights
    call     run forward once or more on given inputs; returns outputs and what was seen on the way
    prepare  keep inputs for timing, make the first call, capture a CUDA graph where there is one
    cuda     start CUDA
    warm     calls that are not timed
    sample   time calls on new inputs; returns raw clock readings in seconds per call
    collect  outputs of calls that were timed
    capture  which kernels the candidate compiles and how it launches them, without a GPU
    kernels  device time and launch of each kernel of one call, by torch's profiler
    gradients  those of one call; see `backward`
    build    import the file, which compiles it, for a GPU that need not be there
    traced   what the candidate did to the process, and where one call spends its time
    clear    be without the module again; returns what is left of it

A worker never judges.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernelproof import launching
from kernelproof.importing import import_file
from kernelproof.seeding import seed_all
from kernelproof.spare import spare_memory
from kernelproof.worker import packing, unseen, wire, wrapping
from kernelproof.worker.constructing import constructed, factory_of
from kernelproof.worker.describing import described
from kernelproof.worker.inputs import Placed, leaves_of, nearer
from kernelproof.worker.profiling import profiled
from kernelproof.worker.restoring import Before, changed, settings
from kernelproof.worker.sampling import Sampler
from kernelproof.worker.sharing import Earlier, overlapping, shared
from kernelproof.worker.streams import call_on_side_stream
from kernelproof.worker.tripwires import Tripwires


def serve(sock: socket.socket) -> None:
    """Answer requests on ``sock`` until it closes."""
    host = Host()
    while True:
        try:
            request, buffers = wire.receive(sock, trusting=True)
        except wire.Closed:
            return
        payload = packing.whole(buffers) if buffers else None
        # Nor has this frame, which a candidate can reach, what it has not got yet.
        buffers.clear()
        out: list[wire.Buffer] = []
        try:
            answer: Any = {"answer": wire.encode(host.handle(request, payload), out)}
        except BaseException as error:
            # A candidate that calls sys.exit, or raises what stands for an interrupt, has not
            # answered; it must not end the worker quietly.
            answer, out = described(error, request.get("path") or host.path), []
        wire.send(sock, answer, out, waits=True)
        out.clear()
        if request["do"] == "call":
            spare_memory(host.device)


class Host:
    """The loaded module and what is kept between requests."""

    def __init__(self) -> None:
        self.path = ""
        self.device = "cpu"
        self.source: Any = None
        self.module: Any = None
        self.captured: Any = None  # by the device's clock
        self.earlier = Earlier()
        self.sampler: Sampler | None = None
        self.tripwires: Tripwires | None = None
        self.recorder: Any = None  # of emulated launches
        self.before: Before | None = None
        self.settings: dict[str, Any] = {}  # of this process before the candidate

    def handle(self, request: dict[str, Any], payload: Any) -> Any:
        do = request["do"]
        if do == "load":
            return self.load(request, payload)
        if do == "call":
            return self.call(request, payload)
        if do == "prepare":
            return self.prepare(request, payload)
        if do == "cuda":
            return _start_cuda(request.get("device", "cuda"), bool(request.get("compile")))
        if do == "traced":
            return self.traced(payload)
        if do == "kernels":
            from kernelproof.worker.kernels import kernel_times

            return kernel_times(self.module, Placed(payload, self.device).given)
        if do == "capture":
            from kernelproof.inspect.capture import capture

            return capture(self, request, payload)
        if do == "gradients":
            return self.gradients(*payload)
        if do == "build":
            return _build(request)
        if do == "clear":
            return self.clear()
        assert self.sampler is not None and self.tripwires is not None
        try:
            if do == "warm":
                return self.sampler.warm()
            clock = request["clock"]
            if do == "sample":
                return self.sampler.sample(clock, int(request["calls"]), payload or [])
            if do == "unseen":
                return unseen.look(self.sampler, clock, payload)
            if do == "collect":
                return self.sampler.collect(clock, request["numbers"])
            raise ValueError(f"unknown request {do!r}")
        finally:
            self.tripwires.look()

    def load(self, request: dict[str, Any], payload: Any) -> Any:
        """Import, construct under the given seed, and take over the reference's weights."""
        import torch

        self.path = request["path"]
        self.device = request["device"]
        torch.set_num_threads(int(request["threads"]))
        current = request.get("current") or self.device
        if ":" in current:
            torch.cuda.set_device(current)
        started = time.perf_counter()
        if request.get("emulated") and self.recorder is None:
            from kernelproof.emulate.standin import Recorder

            self.recorder = Recorder(apart=True)
            self.recorder.prepare(request["language"], Path(self.path))
        if self.source is None:
            if self.tripwires is None:
                # Before anything is imported that could change what is watched.
                self.tripwires = Tripwires(str(Path(self.path).parent))
                self.settings = settings()
            if request["kind"] == "baseline":
                self.before = Before(Path(self.path).parent)
            sys.meta_path.append(_Beside(Path(self.path).parent))
            _prepare_toolchain(request["language"])
            self.source = import_file(Path(self.path), request["kind"])
        imported = time.perf_counter() - started
        factory = factory_of(self.source, request["attr"], self.path)
        args, kwargs, seed, state = payload
        seed_all(seed, self.device != "cpu")
        with self._launches():
            self.module, weights, alike = constructed(factory, args, kwargs, state)
        if isinstance(self.module, torch.nn.Module):
            self.module = self.module.to(self.device).train(bool(request.get("training")))
            if self.recorder is not None:
                self.recorder.moved(self.module)
        self.captured = self.module
        if request["kind"] == "baseline":
            wrapping.precision(request.get("tf32"))
            self.module, self.captured = wrapping.wrapped(self.module, request.get("wrap"))
        return {
            "import_seconds": imported,
            "construct_seconds": time.perf_counter() - started - imported,
            "weights": weights,
            "alike": alike,
        }

    def call(self, request: dict[str, Any], payload: Any) -> Any:
        """Run ``repeats`` calls on the same inputs; the first is poisoned when asked for."""
        import torch

        runs = []
        inputs, seed = payload
        inputs = nearer(inputs, self.device, int(request["repeats"]))
        taken = 0.0
        for index in range(int(request["repeats"])):
            placed = Placed(inputs, self.device)
            seed_all(seed, self.device != "cpu")
            drawn = torch.default_generator.get_state()
            poisoned = request["poison"] and index == 0
            poison = _poisoned_memory() if poisoned else contextlib.nullcontext()
            with torch.no_grad(), poison, self._launches():
                began = time.perf_counter()
                # The third call of a check, which is compared with the second, is on a stream of
                # its own.
                if index == 2 and request["poison"] and self.device != "cpu":
                    output = call_on_side_stream(self.module, placed.given, taken)
                else:
                    output = self.module(*placed.given)
                refused = launching.taken(self.device)
                _synchronize(self.device)
                taken = time.perf_counter() - began
            leaves = list(leaves_of(output))
            runs.append(
                {
                    "output": output,
                    "mutated": placed.mutated(),
                    "overrun": placed.overrun(),
                    "views_input": shared(leaves, list(leaves_of(placed.given))),
                    "reused": self.earlier.seen_in(leaves),
                    "overlaps": overlapping(leaves),
                    "devices": [str(leaf.device) for leaf in leaves],
                    "emulated": _emulated(self.recorder, leaves),
                    "refused": refused,
                    "draws": not torch.equal(drawn, torch.default_generator.get_state()),
                }
            )
            # Not one set more than is needed: inputs may be a large part of a GPU's memory.
            del placed
        return runs

    def _launches(self) -> Any:
        """Where launches go: to the emulator, if that was asked for."""
        if self.recorder is None:
            return contextlib.nullcontext()
        from kernelproof.emulate.standin import standing_in

        return standing_in(self.recorder)

    def gradients(self, inputs: list[Any], seed: int) -> Any:
        from kernelproof.backward import Gradients

        placed = Placed(inputs, self.device).given
        seed_all(seed, self.device != "cpu")
        found = Gradients(self.module)(*placed)
        _synchronize(self.device)
        return [x if x is None else x.detach() for x in found]

    def prepare(self, request: dict[str, Any], payload: Any) -> Any:
        self.sampler = Sampler(self.module, payload, self.device, self.captured)
        if self.tripwires is not None:
            self.tripwires.keep(self.sampler)
        return self.sampler.prepare(graph=bool(request["graph"]))

    def clear(self) -> list[str]:
        """Be without the module again, for another. Returns what is left of it. Not for candidates,
        who would find a way to leave something."""
        if self.before is None or self.tripwires is None:
            return []
        patched = [str(name) for name in self.tripwires.report()["patched"]]  # type: ignore[union-attr]
        self.tripwires.let_go()
        self.source = self.module = self.captured = self.sampler = None
        self.earlier = Earlier()
        sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _Beside)]
        left = self.before.left(self.device)
        self.before = None
        return [*left, *patched]

    def traced(self, payload: Any) -> Any:
        """The tripwires' report and, where inputs are given, a profile of one call on them: for
        that the memory of timed calls is given back."""
        assert self.tripwires is not None
        told = {**self.tripwires.report(), "settings": changed(self.settings)}
        answer = {"tripwires": told, "profile": None}
        if payload is not None:
            self.sampler = None
            self.tripwires.let_go()
            spare_memory(self.device)
            answer["profile"] = profiled(
                self.module, Placed(payload, self.device).given, self.device
            )
        return answer


def _build(request: dict[str, Any]) -> dict[str, Any]:
    from kernelproof import build

    path = Path(request["path"])
    if request["capability"]:
        build.for_target(request["capability"])
    sys.meta_path.append(_Beside(path.parent))
    build.prepare(request["language"])
    import_file(path, "candidate")
    return {}


class _Beside(importlib.abc.MetaPathFinder):
    """Finds modules beside the candidate, after everything installed.

    Not through sys.path: there a candidate's `cuda.py` would hide the namespace package `cuda`,
    wherever on the path it stood.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if path is not None:
            return None
        return importlib.machinery.PathFinder.find_spec(name, [self.folder])


def _start_cuda(device: str, compiles: bool) -> dict[str, Any]:
    """Start CUDA in this process, and torch.compile if asked to; raises where one does not."""
    import torch

    torch.ones(8, device=device).sum().item()
    if compiles:
        # What is imported and started once; a compilation of the module itself is yet to come.
        torch.compile(torch.sin)(torch.ones(8, device=device))
    return {}


def _prepare_toolchain(language: str) -> None:
    """Refuse early what this machine cannot build, and make load_inline report user lines."""
    from kernelproof.build import prepare

    prepare(language)


@contextlib.contextmanager
def _poisoned_memory() -> Iterator[None]:
    """Every `empty` is filled with NaN (integers: their maximum), in C++ as in Python."""
    import torch

    before = torch.are_deterministic_algorithms_enabled()
    warn = torch.is_deterministic_algorithms_warn_only_enabled()
    # Not use_deterministic_algorithms: that imports all of inductor, a second for each worker.
    switch = torch._C._set_deterministic_algorithms
    switch(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings():
            # Its warnings speak of determinism, which is not why the mode is on.
            warnings.simplefilter("ignore")
            yield
    finally:
        switch(before, warn_only=warn)


def _emulated(recorder: Any, leaves: list[Any]) -> dict[str, Any] | None:
    """Launches of a call and their findings, as plain values; None where nothing is emulated."""
    if recorder is None:
        return None
    apart = recorder.untouched(leaves)
    results = recorder.taken()
    return {
        "apart": apart,
        "launches": len(results),
        "errors": [str(f) for r in results for f in r.errors],
        "notes": [str(f) for r in results for f in r.notes],
    }


def _synchronize(device: str) -> None:
    if device != "cpu":
        import torch

        torch.cuda.synchronize()
        # Where another device is the current one.
        torch.cuda.synchronize(device)
