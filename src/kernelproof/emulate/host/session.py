"""The emulator's end of a candidate's host code: launches, memory and variables."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernelproof.emulate.api import Loaded, Result, load
from kernelproof.emulate.frontend import HOPPER, target_of
from kernelproof.emulate.host import compile as compiling
from kernelproof.emulate.host import maps
from kernelproof.emulate.host.signature import kernel_name
from kernelproof.emulate.image import Buffer, Packed
from kernelproof.emulate.report import Finding
from kernelproof.errors import UnsupportedError
from kernelproof.launching import (
    MOST_THREADS,
    SHARED_AT_MOST,
    SHARED_WITHOUT_OPT_IN,
    without_opt_in,
)

_INVALID_VALUE, _INVALID_CONFIGURATION = 1, 9  # cudaError_t
# Memory of up to this size is looked through for pointers, which have no meaning to a kernel.
_SCANNED_BYTES = 1 << 20


class _Launch(ctypes.Structure):
    """The same as `Launch` in runtime.cpp."""

    _fields_ = [
        ("unit", ctypes.c_char_p), ("signature", ctypes.c_char_p), ("names", ctypes.c_char_p),
        ("templates", ctypes.c_char_p), ("kinds", ctypes.POINTER(ctypes.c_char)),
        ("pointers", ctypes.POINTER(ctypes.c_void_p)), ("sizes", ctypes.POINTER(ctypes.c_size_t)),
        ("count", ctypes.c_int64), ("line", ctypes.c_int64), ("grid", ctypes.c_int64 * 3),
        ("block", ctypes.c_int64 * 3), ("shared", ctypes.c_int64), ("cluster", ctypes.c_int64 * 3),
        ("allowed", ctypes.c_int64),
    ]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Device:
    """The device text of a unit, as `load` takes it, and where it was written."""

    text: str
    options: tuple[str, ...]
    file: str

    @functools.cached_property
    def arch(self) -> str:
        """The target, by the instructions of what stands behind the beginning of every source."""
        return target_of(self.text.split(f'"{self.file}"', 1)[-1])


class Session:
    """``keep`` takes results; ``written`` tells which bytes of new memory have a value."""

    def __init__(
        self, keep: Callable[[Result], None], written: Callable[[Any], Any],
        as_buffer: Callable[[torch.Tensor], Any],
    ) -> None:  # fmt: skip
        self.keep = keep
        self.written = written
        self.as_buffer = as_buffer
        self.units: dict[str, Device] = {}
        self.error: Exception | None = None
        self._loaded: dict[tuple[str, str], Loaded] = {}
        self._tensors: list[torch.Tensor] = []
        self._depth = 0
        self._variables: dict[str, list[tuple[str, int, int]]] = {}

    @functools.cached_property
    def runtime(self) -> ctypes.CDLL:
        library = compiling.runtime()
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Launch))
        self._callback = kind(self._called)
        library.kernelproof_set_callback(self._callback)
        self._encoder = maps.ENCODER(maps.encode)
        library.kernelproof_set_encoder(self._encoder)
        library.kernelproof_allocations.restype = ctypes.c_int64
        library.kernelproof_variables.restype = ctypes.c_int64
        library.kernelproof_variable_at.restype = ctypes.c_char_p
        library.kernelproof_refusal.restype = ctypes.c_char_p
        return library

    # ---- calls from Python

    def wrapped(self, function: Any) -> Any:
        """``function`` of an extension, whose launches and memory are followed."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.inside(args, kwargs):
                return function(*args, **kwargs)

        return call

    @contextlib.contextmanager
    def inside(self, *args: Any) -> Iterator[None]:
        """Around a call into an extension with ``args``."""
        if self._depth:
            yield
            return
        fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
        self._tensors = list(_tensors(args))
        self._depth, self.error = 1, None
        self.runtime.kernelproof_hopper(any(u.arch == HOPPER for u in self.units.values()))
        self.runtime.kernelproof_begin()
        # New memory carries a mark already, which a fill would take for a value.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        try:
            yield
        except Exception:
            if self.error is not None:
                raise self.error from None
            refusal = self.runtime.kernelproof_refusal().decode()
            if refusal:
                raise UnsupportedError(f"{refusal}; run this candidate on a GPU") from None
            raise
        finally:
            self._depth = 0
            self.runtime.kernelproof_end()
            torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
            self._tensors = []

    # ---- launches

    def _called(self, given: Any) -> int:
        try:
            return self._launch(given.contents)
        except Exception as error:
            # It cannot cross the host code's frames: kept for the call that is around them.
            self.error = error
            return -1

    def _launch(self, launch: _Launch) -> int:
        unit = launch.unit.decode()
        name = kernel_name(launch.signature.decode(), launch.templates.decode())
        device = self.units[unit]
        grid, block = tuple(launch.grid), tuple(launch.block)
        key = (unit, name)
        if key not in self._loaded:
            self._loaded[key] = load(device.text, name, device.options, arch=device.arch)
        kernel = self._loaded[key]
        kernel.parameters = [n for n in launch.names.decode().split(", ") if n]
        refused = self._refused(kernel, launch)
        if refused:
            code, message = refused
            found = Finding(
                "launch refused", "error", message, kernel.name, device.file, int(launch.line)
            )
            self.keep(Result(kernel.name, (found,), "", {}, 0, 0.0))
            return code
        memory = _Memory(self)
        args = [memory.argument(launch, n) for n in range(launch.count)]
        memory.refuse_pointers(args, kernel.name)
        cluster = tuple(launch.cluster) if launch.cluster[0] else None
        variables = self._of(unit)
        result = kernel.launch(
            grid, block, args, shared=int(launch.shared), cluster=cluster,
            constants={n: _bytes(at, size) for n, at, size in variables
                       if n in kernel.variables()},
        )  # fmt: skip
        after = kernel.variables()
        for variable, at, size in variables:
            if variable in after:
                _bytes(at, size)[:] = np.frombuffer(after[variable][:size], np.uint8)
        self.keep(result)
        return 0

    def _refused(self, kernel: Loaded, launch: _Launch) -> tuple[int, str] | None:
        """What a GPU would refuse: (cudaError_t, message)."""
        threads = int(np.prod(list(launch.block)))
        grid, block = tuple(launch.grid), tuple(launch.block)
        if min(*grid, *block) < 1:
            return _INVALID_CONFIGURATION, f"grid {grid} and block {block} have a size of zero"
        if threads > MOST_THREADS or block[2] > 64:
            return _INVALID_CONFIGURATION, (
                f"a block of {block} threads is larger than a GPU takes: at most 1024, 64 in z"
            )
        if max(grid[1:]) > 65535 or grid[0] >= 1 << 31:
            return _INVALID_CONFIGURATION, f"the grid {grid} is larger than a GPU takes"
        return _shared_refused(kernel.program().static_shared, int(launch.shared), launch.allowed)

    def _of(self, unit: str) -> list[tuple[str, int, int]]:
        """(name, address, bytes) of the host's copies of a unit's variables."""
        if unit not in self._variables:
            found: dict[str, list[tuple[str, int, int]]] = {key: [] for key in self.units}
            for n in range(self.runtime.kernelproof_variables()):
                owner, at, size = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_uint64()
                name = self.runtime.kernelproof_variable_at(
                    ctypes.c_int64(n), ctypes.byref(owner), ctypes.byref(at), ctypes.byref(size)
                )
                assert owner.value is not None and at.value is not None
                one = (name.decode(), at.value, int(size.value))
                found.setdefault(owner.value.decode(), []).append(one)
            self._variables = found
        return self._variables[unit]

    def allocations(self) -> tuple[Any, Any]:
        """(first addresses, bytes) of what the host code has allocated, ascending."""
        count = self.runtime.kernelproof_allocations(ctypes.c_int64(0), None, None)
        starts, sizes = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
        if count:
            self.runtime.kernelproof_allocations(
                ctypes.c_int64(count), starts.ctypes.data_as(ctypes.c_void_p),
                sizes.ctypes.data_as(ctypes.c_void_p),
            )  # fmt: skip
        return starts, sizes

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        return self._tensors


def _shared_refused(static: int, shared: int, allowed: int) -> tuple[int, str] | None:
    """What a GPU says to ``shared`` bytes of dynamic memory beside ``static`` ones; ``allowed``: to
    what the attribute was set, -1 for never. Seen on an H200: the attribute also lowers the limit,
    and setting it to more than is left beside the static memory fails."""
    asked = f"{shared} bytes of dynamic shared memory beside {static} static ones"
    attribute = "cudaFuncSetAttribute(cudaFuncAttributeMaxDynamicSharedMemorySize)"
    if allowed >= 0 and static + allowed <= SHARED_AT_MOST:
        words = f"{asked}; {attribute} has allowed {allowed}"
        return (_INVALID_VALUE, words) if shared > allowed else None
    if shared <= without_opt_in(static):
        return None
    why = "is not called"
    if allowed >= 0:
        why = f"was refused: it asked for {allowed}, and a block has {SHARED_AT_MOST} at the most"
    return _INVALID_VALUE, (
        f"{asked}; more than {SHARED_WITHOUT_OPT_IN} in all need {attribute}, which {why}"
    )


class _Memory:
    """The memory that there is at a launch, to which pointers may lead."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.starts, self.sizes = session.allocations()
        self.tensors = [
            (t.data_ptr(), t.data_ptr() + _span(t), t) for t in session.tensors if t.numel()
        ]
        self.buffers: dict[int, Buffer] = {}

    def argument(self, launch: _Launch, n: int) -> Packed:
        size = int(launch.sizes[n])
        data = ctypes.string_at(launch.pointers[n], size)
        buffers = {}
        # Pointers are aligned wherever they stand in a structure.
        for offset in range(0, size - 7, 8):
            found = self.find(int.from_bytes(data[offset : offset + 8], "little"))
            if found is not None:
                buffers[offset] = found
        return Packed(data, buffers)

    def find(self, address: int) -> tuple[Buffer, int] | None:
        """The buffer at an address, and how far into it that is."""
        tensors = [t for t in self.tensors if t[0] <= address < t[1]]
        if tensors:
            start, _, tensor = max(tensors, key=lambda t: (t[0] == address, t[1] - t[0]))
            return self._kept(start, lambda: self._of_tensor(tensor)), address - start
        n = int(np.searchsorted(self.starts, np.uint64(address), "right")) - 1
        if n < 0 or address > int(self.starts[n]) + int(self.sizes[n]):
            return None
        start, size = int(self.starts[n]), int(self.sizes[n])
        return self._kept(start, lambda: self._of_bytes(_bytes(start, size))), address - start

    def _kept(self, start: int, make: Callable[[], Buffer]) -> Buffer:
        if start not in self.buffers:
            self.buffers[start] = make()
        return self.buffers[start]

    def _of_tensor(self, tensor: torch.Tensor) -> Buffer:
        given = self.session.as_buffer(tensor)
        if isinstance(given, Buffer):
            return given
        storage = tensor.untyped_storage().data_ptr()
        n = int(np.searchsorted(self.starts, np.uint64(storage)))
        if n < len(self.starts) and int(self.starts[n]) == storage:
            return Buffer(
                tensor,
                initialised=False,
                written=self.session.written(_bytes(storage, int(self.sizes[n]))),
            )
        return Buffer(tensor)

    def _of_bytes(self, data: Any) -> Buffer:
        return Buffer(data, initialised=False, written=self.session.written(data))

    def refuse_pointers(self, args: Sequence[Packed], kernel: str) -> None:
        """Addresses that lie in memory are the host's, which the kernel could not follow."""
        ranges = [(int(s), int(s) + int(n)) for s, n in zip(self.starts, self.sizes, strict=True)]
        ranges += [(start, stop) for start, stop, _ in self.tensors]
        low, high = min((r[0] for r in ranges), default=0), max((r[1] for r in ranges), default=0)
        for arg in args:
            for buffer, _ in arg.buffers.values():
                array = buffer.array
                raw = array if isinstance(array, np.ndarray) else None
                if raw is None or not 8 <= raw.nbytes <= _SCANNED_BYTES:
                    continue
                words = raw[: raw.nbytes // 8 * 8].view(np.uint64)
                near = words[(words >= low) & (words < high)].tolist()
                if any(start <= word < stop for word in near for start, stop in ranges):
                    raise UnsupportedError(
                        f"{kernel} gets pointers through memory, which is not emulated; "
                        "run this candidate on a GPU"
                    )


def _bytes(address: int, size: int) -> Any:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def _span(tensor: torch.Tensor) -> int:
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.layout == torch.strided and value.device.type == "cpu":
            yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def nvrtc_options(flags: Sequence[str], includes: Sequence[str | Path] = ()) -> tuple[str, ...]:
    """Of a candidate's flags for nvcc, those that mean something to the device's text."""
    kept = [f for f in flags if re.match(r"-[DU]\w|--?use_fast_math|--?(fmad|ftz)=|-I", f)]
    fixed = ["--use_fast_math" if f.lstrip("-") == "use_fast_math" else f for f in kept]
    return (*fixed, "--device-as-default-execution-space", *(f"-I{path}" for path in includes))
