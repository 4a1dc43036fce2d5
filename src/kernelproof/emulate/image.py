"""The memory of a launch: buffers and module variables in one arena, and the parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernelproof.emulate.memory.layout import GLOBAL_BASE, RED_ZONE, Layout, Region
from kernelproof.emulate.memory.space import SET, UNSET, Space
from kernelproof.emulate.program import Program

Array = Any
_ALIGN = 512  # of an allocation, as cudaMalloc gives


@dataclasses.dataclass
class Buffer:
    """An argument with its name in messages. ``initialised``: False for memory that the kernel
    must write before it reads; ``written`` then tells, per byte of its allocation, what has a
    value already."""

    array: Any
    name: str = ""
    initialised: bool = True
    written: Any = None


@dataclasses.dataclass
class Packed:
    """A parameter's bytes as the host passes them; at ``buffers``' keys stand pointers, each to so
    many bytes behind the start of its buffer."""

    data: bytes
    buffers: dict[int, tuple[Buffer, int]]


@dataclasses.dataclass
class _Storage:
    """One allocation: all its bytes, and the part of it that the kernel may touch."""

    data: Array
    name: str
    start: int
    stop: int
    complete: bool
    written: Any = None
    offset: int = 0  # of byte 0 of the allocation in the arena

    def join(self, name: str, start: int, stop: int, complete: bool) -> None:
        self.name = self.name if name in self.name.split("/") else f"{self.name}/{name}"
        self.start, self.stop = min(self.start, start), max(self.stop, stop)
        self.complete = self.complete or complete


class Image:
    """Buffers in the order of ``args``. Raises TypeError for arguments that cannot be passed."""

    def __init__(
        self, program: Program, args: Sequence[Any], names: Sequence[str], module_data: Array
    ) -> None:
        if len(args) != len(program.params):
            raise TypeError(
                f"{program.name} takes {len(program.params)} arguments, {len(args)} given"
            )
        self.program = program
        self.module_data = module_data
        self.storages: dict[int, _Storage] = {}
        pointers: list[Any] = []
        for number, arg in enumerate(args):
            name = names[number] if number < len(names) else f"argument {number}"
            if isinstance(arg, Packed):
                pointers.append({at: self._add(b, name) for at, (b, _) in arg.buffers.items()})
            else:
                pointers.append(self._add(arg, name))
        at = -(-program.module_bytes // _ALIGN) * _ALIGN + _ALIGN
        if program.parameters_at >= 0:
            at = -(-(program.parameters_at + program.param_bytes + RED_ZONE) // _ALIGN) * _ALIGN
        for storage in self.storages.values():
            storage.offset = at
            at = -(-(at + len(storage.data) + RED_ZONE) // _ALIGN) * _ALIGN
        self.size = at + _ALIGN
        self.parameters = np.zeros(program.param_bytes + 16, np.uint8)
        for (offset, size), arg, pointer in zip(program.params, args, pointers, strict=True):
            data = self._encoded(arg, pointer, size)
            self.parameters[offset : offset + size] = np.frombuffer(data, np.uint8)

    def _add(self, arg: Any, name: str) -> tuple[int, int] | None:
        """(key of the storage, byte offset in it) of a buffer; None for values."""
        buffer = arg if isinstance(arg, Buffer) else Buffer(arg)
        found = _bytes_of(buffer.array)
        if found is None:
            return None
        key, data, start, stop = found
        name = buffer.name or name
        storage = self.storages.get(key)
        if storage is None:
            self.storages[key] = _Storage(
                data, name, start, stop, buffer.initialised, buffer.written
            )
        else:
            storage.join(name, start, stop, buffer.initialised)
        return key, start

    def _address(self, pointer: tuple[int, int]) -> int:
        return GLOBAL_BASE + self.storages[pointer[0]].offset + pointer[1]

    def _encoded(self, arg: Any, pointer: Any, size: int) -> bytes:
        if isinstance(arg, Packed):
            data = bytearray(self._encoded(arg.data, None, size))
            for at, (_, into) in arg.buffers.items():
                data[at : at + 8] = (self._address(pointer[at]) + into).to_bytes(8, "little")
            return bytes(data)
        if pointer is not None:
            if size != 8:
                raise TypeError(f"a parameter of {size} bytes was given a buffer")
            return self._address(pointer).to_bytes(size, "little")
        if arg is None:
            return bytes(size)
        if isinstance(arg, (bytes, bytearray)):
            if len(arg) != size:
                raise TypeError(f"a parameter of {size} bytes was given {len(arg)}")
            return bytes(arg)
        if isinstance(arg, (bool, int)) and not isinstance(arg, np.generic):
            return (int(arg) % (1 << 8 * size)).to_bytes(size, "little")
        if isinstance(arg, float):
            kind = {2: np.float16, 4: np.float32, 8: np.float64}[size]
            return np.array(arg, kind).tobytes()
        if isinstance(arg, np.generic):
            if arg.dtype.itemsize != size:
                raise TypeError(f"a parameter of {size} bytes was given {arg.dtype}")
            return arg.tobytes()
        raise TypeError(
            f"cannot pass {type(arg).__name__}; accepted are CPU tensors, numpy arrays, None, "
            "bool, int, float, numpy scalars and bytes"
        )

    def space(self, tracked: set[str]) -> Space:
        """A fresh copy of everything."""
        regions = [dataclasses.replace(region) for region in self.program.module_regions]
        copied, length = self.program.parameters_at, self.program.param_bytes
        if copied >= 0:
            regions.append(Region("the parameters", copied, copied + length, constant=True))
        for storage in self.storages.values():
            start, stop = storage.offset + storage.start, storage.offset + storage.stop
            regions.append(Region(storage.name, start, stop, storage.complete))
        for region in regions:
            region.tracked = region.name in tracked
        layout = Layout(regions)
        unit = self.program.units["global"]
        space = Space("global", layout, self.size, 1, unit, races=True, fill=0)
        space.data[: len(self.module_data)] = self.module_data
        if copied >= 0:
            space.data[copied : copied + length] = self.parameters[:length]
        for storage in self.storages.values():
            part = slice(storage.offset + storage.start, storage.offset + storage.stop)
            space.data[part] = storage.data[storage.start : storage.stop]
            if storage.written is not None and not storage.complete:
                # A unit has a value when each of its bytes has.
                empty = np.nonzero(~storage.written[storage.start : storage.stop])[0]
                units = (empty + storage.offset + storage.start) >> space.shift
                first = (storage.offset + storage.start) >> space.shift
                last = -(-(storage.offset + storage.stop) // space.unit)
                space.state[first:last] = SET
                space.state[units] = UNSET
        return space

    def write_back(self, space: Space) -> tuple[int, ...]:
        """What the kernel wrote, into the buffers and module variables. Returns the identities of
        the allocations that it wrote to: of tensors the addresses of their storages."""
        self.module_data[:] = space.data[: len(self.module_data)]
        wrote = []
        for region in space.layout.regions:
            if not region.written:
                continue
            for key, storage in self.storages.items():
                if region.start == storage.offset + storage.start:
                    part = space.data[region.start : region.stop]
                    storage.data[storage.start : storage.stop] = part
                    wrote.append(key)
        return tuple(wrote)

    def unwritten(self, space: Space) -> dict[str, int]:
        """Bytes of buffers without a value that the kernel left so, by name."""
        out = {}
        for region in space.layout.regions:
            if not region.complete:
                first, last = region.start >> space.shift, -(-region.stop // space.unit)
                left = int((space.state[first:last] == UNSET).sum()) * space.unit
                if left:
                    out[region.name] = left
        return out


def module_image(program: Program, constants: Mapping[str, Any]) -> Array:
    """The module's variables at their start; ``constants`` replaces some by name.

    Raises:
        TypeError: no variable of that name, or the value is larger.
    """
    data = np.zeros(program.module_bytes, np.uint8)
    places = {}
    for variable, region in zip(program.module_variables, program.module_regions, strict=True):
        places[region.name] = places[variable.name] = region
        part = np.frombuffer(variable.data, np.uint8)
        data[region.start : region.start + len(part)] = part
        for offset, name in variable.names:
            address = GLOBAL_BASE + places[name].start if name in places else 0
            at = region.start + offset
            data[at : at + 8] = np.frombuffer(address.to_bytes(8, "little"), np.uint8)
    for name, value in constants.items():
        if name not in places:
            raise TypeError(f"{program.name} has no variable {name!r}; it has {sorted(places)}")
        raw = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
        region = places[name]
        if len(raw) > region.size:
            raise TypeError(f"{name} has {region.size} bytes, {len(raw)} given")
        data[region.start : region.start + len(raw)] = raw
    return data


def _bytes_of(value: Any) -> tuple[int, Array, int, int] | None:
    """(identity, all bytes, first, end) of the allocation behind a buffer; None for values."""
    if isinstance(value, np.ndarray):
        base = value
        while isinstance(base.base, np.ndarray):
            base = base.base
        low, high = (
            np.lib.array_utils.byte_bounds(value) if value.size else (value.ctypes.data,) * 2
        )
        if not base.flags.c_contiguous:
            base = value
        start = base.ctypes.data
        data = base.reshape(-1).view(np.uint8) if base.size else np.zeros(0, np.uint8)
        return start, data, low - start, high - start
    if not hasattr(value, "data_ptr") or not hasattr(value, "untyped_storage"):
        return None
    if value.device.type != "cpu":
        raise TypeError(f"the emulator takes CPU tensors, this one is on {value.device}")
    import torch

    storage = value.untyped_storage()
    if storage.nbytes() == 0:
        return id(storage), np.zeros(0, np.uint8), 0, 0
    data = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    first = value.storage_offset() * value.element_size()
    span = sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    last = first + (span + 1) * value.element_size() if value.numel() else first
    return storage.data_ptr(), data, first, last
