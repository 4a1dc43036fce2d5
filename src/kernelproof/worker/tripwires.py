"""What candidate code did to its own process: functions replaced, and looks at what is not its own.

Evidence for the parent, which decides. Code in the same process can in the end hide from any look
that this process takes at itself; docs/trust.md says what that leaves open. Replaced functions are
found by comparing with what was there before the candidate, and so is what can stand between any
function and its caller: modes of torch, kernels of torch's dispatcher, profile and trace functions.
Looks around are found by an audit hook, which Python cannot remove.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import hashlib
import json
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._device import DeviceContext

# Not torch.manual_seed: torch itself replaces it when torch._dynamo is imported.
# Module or class -> names that the measurement or a comparison rests on.
_WATCHED: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
    ("time", time, ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time",
                    "time_ns", "process_time", "process_time_ns", "sleep")),
    ("builtins", builtins, ("abs", "all", "any", "float", "getattr", "int", "isinstance", "len",
                            "max", "min", "open", "range", "sum", "type", "__import__")),
    ("sys", sys, ("_getframe", "addaudithook", "settrace", "setprofile")),
    ("gc", gc, ("get_objects", "get_referrers", "collect")),
    ("os", os, ("_exit", "write", "getpid", "fork")),
    ("json", json, ("dumps", "loads")),
    ("pickle", pickle, ("dumps", "loads")),
    ("struct", struct, ("pack", "unpack", "Struct")),
    ("hashlib", hashlib, ("sha256",)),
    ("socket.socket", socket.socket, ("send", "sendall", "recv", "recv_into")),
    ("threading.Thread", threading.Thread, ("start", "join")),
    ("torch", torch, ("allclose", "equal", "isclose", "eq", "no_grad", "randn",
                      "randint", "rand", "empty", "empty_like", "zeros", "clone", "frombuffer",
                      "isnan", "from_numpy", "view_as_real", "is_tensor")),
    ("numpy", np, ("copyto", "frombuffer", "asarray", "resize", "empty")),
    ("torch.testing", torch.testing, ("assert_close",)),
    ("torch.random", torch.random, ("manual_seed",)),
    # All that a tensor can do: inputs are put in place and outputs taken away by it.
    ("torch.Tensor", torch.Tensor, tuple(sorted(
        {name for base in torch.Tensor.__mro__ for name in vars(base)}
        - {"__repr__", "__format__", "__dir__", "__module__"}))),
    ("torch.nn.Module", torch.nn.Module, ("__call__", "_call_impl", "state_dict",
                                          "load_state_dict", "to", "eval")),
    ("torch.cuda", torch.cuda, ("synchronize", "Event", "Stream", "CUDAGraph", "graph",
                                "current_stream", "is_available")),
    ("torch.cuda.Event", torch.cuda.Event, ("record", "elapsed_time", "synchronize", "query",
                                            "wait")),
    ("torch.cuda.Stream", torch.cuda.Stream, ("synchronize", "wait_stream", "record_event")),
    ("torch.cuda.CUDAGraph", torch.cuda.CUDAGraph, ("replay", "capture_begin", "capture_end")),
    ("torch.autograd.profiler", torch.autograd.profiler, ("profile", "record_function")),
    ("torch.autograd.profiler.profile", torch.autograd.profiler.profile, tuple(
        name for name, value in vars(torch.autograd.profiler.profile).items()
        if isinstance(value, (types.FunctionType, property)))),
    ("torch._C", torch._C, ("_cuda_synchronize", "_cuda_getCurrentStream")),
)  # fmt: skip
_OWN = "kernelproof"
# Operators by which inputs are put in place and outputs taken away, as torch's dispatcher has them.
# Importing torch.compile, Triton or the like changes none of them.
_OPERATORS = (
    "alias",
    "as_strided",
    "clone",
    "contiguous",
    "copy_",
    "detach",
    "empty.memory_format",
    "empty_like",
    "empty_strided",
    "equal",
    "narrow",
    "reshape",
    "resolve_conj",
    "resolve_neg",
    "set_.source_Storage_storage_offset",
    "view",
    "view.dtype",
    "zero_",
)

# Audit event -> what code that raises it looks at.
_LOOKS = {
    "gc.get_objects": "lists all objects of the process (gc)",
    "gc.get_referrers": "asks who holds an object (gc)",
    "gc.get_referents": "asks what an object holds (gc)",
    "sys._getframe": "reads the frames of its callers",
    "sys._current_frames": "reads the frames of all threads",
    "sys.settrace": "sets a trace function",
    "sys.setprofile": "sets a profile function",
    "subprocess.Popen": "starts a process",
    "os.system": "starts a process",
    "os.exec": "replaces its process",
    "os.posix_spawn": "starts a process",
    "os.fork": "forks",
    "os.kill": "sends a signal",
    "socket.connect": "connects to a network",
    "socket.bind": "opens a port",
}
# Attributes that lead to frames without a call; Python tells of these as "object.__getattr__".
_FRAMES_OF = ("tb_frame", "gi_frame", "cr_frame", "ag_frame")
_ATTRIBUTE = "object.__getattr__"
# What is then called around every function. While calls are timed nobody who is honest sets it, and
# it could take itself away before anybody looks.
_BETWEEN = ("sys.settrace", "sys.setprofile", "sys.monitoring.register_callback")
# Files by which a process looks into another or into its own memory.
_PROCESS_FILES = ("/mem", "/maps", "/fd", "/environ", "/cwd", "/root", "/pagemap")
_MOST_SEEN = 20
# Seconds after which the interpreter lets another thread have its turn; Python's own are 0.005.
_SWITCHES = 1e-3
_FRAMES = 6


class Tripwires:
    """Made before candidate code is imported.

    Args:
        folder: where the candidate's files are; what other code does is not its doing.
    """

    # Of all in a process (tests have many): to look at a frame is an event too, which each of the
    # others would look at.
    _busy = False

    def __init__(self, folder: str) -> None:
        self.folder = folder.rstrip("/") + "/"
        self.seen: dict[str, None] = {}
        self.opened: dict[str, None] = {}
        self._threads = threading.active_count()
        self._left = set(_interposed())
        self._found: dict[str, None] = {}
        self._objects: list[tuple[Any, type, dict[str, Any], dict[str, type]]] = []
        self._kept = dict(_present())
        self._kernels = _kernels()
        sys.addaudithook(self._hook)

    def keep(self, one: Any) -> None:
        """From now on ``one``, an object of kernelproof, is to have what it has: what it calls, and
        plain lists and dicts where it keeps things."""
        held = {name: value for name, value in vars(one).items() if callable(value)}
        plain = {name: type(v) for name, v in vars(one).items() if type(v) in (list, dict)}
        self._objects.append((one, type(one), held, plain))

    def let_go(self) -> None:
        """Hold none of what `keep` was given any longer."""
        self._objects.clear()

    def look(self) -> None:
        """Note what stands between functions and their callers by now. Asked for again and again
        while calls are timed: what is there in between could be gone at the end."""
        self._found.update(dict.fromkeys(n for n in _interposed() if n not in self._left))
        for one, kind, held, plain in self._objects:
            has = vars(one)
            changed = [name for name, value in held.items() if has.get(name) is not value]
            changed += [name for name, form in plain.items() if type(has.get(name)) is not form]
            if type(one) is not kind:
                changed.append("__class__")
            if getattr(one, "replaced", False):
                changed.append("replaced (what it measures with, between two calls)")
            self._found.update(dict.fromkeys(f"{kind.__name__}.{name}" for name in changed))

    def report(self) -> dict[str, list[str] | int]:
        """``patched``: functions that are no longer what they were; ``seen``: where the candidate
        looked; ``opened``: files that it opened; ``threads``: Python threads more than before."""
        now = dict(_present())
        patched = [name for name, kept in self._kept.items() if now.get(name) is not kept]
        kernels = _kernels()
        patched += [f"aten::{n}" for n, kept in self._kernels.items() if kernels[n] != kept]
        self.look()
        patched += self._found
        return {
            "patched": patched,
            "seen": list(self.seen),
            "opened": list(self.opened),
            "threads": max(0, threading.active_count() - self._threads),
        }

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        words = _LOOKS.get(event)
        if event in _BETWEEN and self._objects:
            self._found[f"{event} (while it is timed)"] = None
        if event == _ATTRIBUTE and args[1] in _FRAMES_OF:
            words = _LOOKS["sys._getframe"]
        if (words is None and event != "open") or Tripwires._busy:
            return
        Tripwires._busy = True
        try:
            if event == "open":
                self._note_open(args[0])
            else:
                # Only what its own code asks for: libraries read frames for their own reasons.
                line = self._line(sys._getframe(1), 1)
                if line:
                    self._note(f"{line} {words}")
        finally:
            Tripwires._busy = False

    def _note_open(self, path: Any) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        name = os.fsdecode(path)
        line = self._line(sys._getframe(2), _FRAMES)
        if not line or name.startswith(self.folder) or len(self.opened) >= _MOST_SEEN:
            return
        self.opened.setdefault(name, None)
        if name.startswith("/proc/") and any(part in name for part in _PROCESS_FILES):
            self._note(f"{line} opens {name}")

    def _note(self, text: str) -> None:
        if len(self.seen) < _MOST_SEEN:
            self.seen.setdefault(text, None)

    def _line(self, frame: Any, depth: int) -> str:
        """Such as "candidate.py:12" of the first frame within ``depth`` of the candidate's."""
        while frame is not None and depth:
            name = frame.f_code.co_filename
            if name.startswith(self.folder):
                return f"{name.removeprefix(self.folder)}:{frame.f_lineno}"
            frame, depth = frame.f_back, depth - 1
        return ""


def _present() -> Iterator[tuple[str, Any]]:
    """Each watched function by name, as it is now; a Python function also by its code."""
    for place, holder, names in _WATCHED:
        if isinstance(holder, types.ModuleType):
            # What an import inside a function finds.
            yield f"sys.modules[{place!r}]", sys.modules.get(place)
        for name in names:
            found = _attribute(holder, name)
            yield f"{place}.{name}", found
            if isinstance(found, types.FunctionType):
                yield f"{place}.{name}.__code__", found.__code__
    for module_name in sorted(n for n in list(sys.modules) if n.split(".")[0] == _OWN):
        module = sys.modules.get(module_name)
        yield module_name, module
        for name, value in list(getattr(module, "__dict__", {}).items()):
            yield from _own(f"{module_name}.{name}", value)


def _kernels() -> dict[str, str]:
    """What torch's dispatcher has for each watched operator."""
    return {name: torch._C._dispatch_dump(f"aten::{name}") for name in _OPERATORS}


def _interposed() -> Iterator[str]:
    """What is called before or after functions that are themselves unchanged."""
    if sys.getprofile() is not None:
        yield "sys.setprofile (a profile function is set)"
    if sys.gettrace() is not None:
        yield "sys.settrace (a trace function is set)"
    # A handler runs between any two steps of the main thread, and so does another thread where
    # the interpreter changes between them after microseconds.
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            yield f"signal.signal (a handler of signal {int(number)} is set)"
    if sys.getswitchinterval() < _SWITCHES:
        yield f"sys.setswitchinterval ({sys.getswitchinterval():.3g} s)"
    # Since Python 3.12; it has room for six tools.
    tool: Any = getattr(getattr(sys, "monitoring", None), "get_tool", lambda number: None)
    yield from (f"sys.monitoring (tool {tool(n)})" for n in range(6) if tool(n) is not None)
    if torch._C._len_torch_dispatch_stack():
        yield "torch's dispatch (a TorchDispatchMode stays on)"
    modes = torch.overrides._get_current_function_mode_stack()
    # `torch.set_default_device` is such a mode, and nobody's secret.
    if any(type(mode) is not DeviceContext for mode in modes):
        yield "torch's functions (a TorchFunctionMode stays on)"


def _own(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A function or class of kernelproof, with what is in the class; or what its modules call by a
    name of their own: functions of torch and numpy, other modules."""
    if isinstance(value, types.FunctionType):
        yield name, value
        yield f"{name}.__code__", value.__code__
    elif isinstance(value, type) and value.__module__.split(".")[0] == _OWN:
        yield name, value
        for key, item in list(vars(value).items()):
            if isinstance(item, types.FunctionType):
                yield f"{name}.{key}", item
                yield f"{name}.{key}.__code__", item.__code__
    elif callable(value) or isinstance(value, types.ModuleType):
        yield name, value


def _attribute(holder: Any, name: str) -> Any:
    """Where a class is asked: what stands in the class or its bases, unbound."""
    if isinstance(holder, type):
        for base in holder.__mro__:
            if name in vars(base):
                return vars(base)[name]
        return None
    with contextlib.suppress(AttributeError):
        return getattr(holder, name)
    return None
