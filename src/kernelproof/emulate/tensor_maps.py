"""Tensor maps as the emulator keeps them: the 128 bytes of a CUtensorMap, which are opaque to
programs, hold here what cuTensorMapEncodeTiled was told, its address as a pointer first."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence
from typing import Any

from kernelproof.emulate.image import Buffer, Packed

# Bytes of an element by number of CUtensorMapDataType (cuda.h): integers, floats, bfloat16. The
# types that round what they load (11, 12) or flush it (10), and the packed ones, are not here.
SIZES = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2}
_FLOATS = (6, 7, 8, 9)
_KINDS = {
    "uint8": 0, "int8": 0, "bool": 0, "uint16": 1, "int16": 1, "uint32": 2, "int32": 3, "uint64": 4,
    "int64": 5, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip
_MAGIC = 0x70726F6F
_FORM = struct.Struct("<QIBBBB5Q4Q5H5B")
BYTES = 128


@dataclasses.dataclass
class TensorMap:
    """A tiled view of a buffer, as cuTensorMapEncodeTiled takes it; give it as a kernel's
    ``const __grid_constant__ CUtensorMap``.

    Args:
        tensor: a CPU tensor or numpy array (or a `Buffer`); its first element is the map's base.
        sizes: elements along each axis, the contiguous axis first.
        strides: bytes from one element to the next along every axis but the first.
        box: elements along each axis of what one copy takes.
        swizzle: 0, 32, 64 or 128 bytes.
        steps: of the traversal along each axis (elementStrides); ones by default.
        nan: elements outside are NaN instead of zero.
        dtype: another than the tensor's, by its name in numpy ("bfloat16" for a uint16 array).
    """

    tensor: Any
    sizes: Sequence[int]
    strides: Sequence[int]
    box: Sequence[int]
    swizzle: int = 0
    steps: Sequence[int] | None = None
    nan: bool = False
    dtype: str = ""


@dataclasses.dataclass(frozen=True)
class Decoded:
    """``address`` as the kernel knows it; sizes in elements, ``strides`` in bytes, of ``rank``
    axes."""

    address: int
    kind: int
    swizzle: int
    nan: bool
    sizes: tuple[int, ...]
    strides: tuple[int, ...]  # of the first axis: the element's size
    box: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def element(self) -> int:
        return SIZES[self.kind]


def why_not(
    address: int, kind: int, sizes: Sequence[int], strides: Sequence[int], box: Sequence[int],
    steps: Sequence[int], swizzle: int, nan: bool,
) -> str:  # fmt: skip
    """What cuTensorMapEncodeTiled would refuse (CUDA driver API), in words; empty for nothing.
    ``kind``: number of the data type; ``strides`` without that of the first axis."""
    if kind not in SIZES:
        return f"the element type {kind} of CUtensorMapDataType is not emulated"
    rank, inner = len(sizes), box[0] * SIZES[kind] if box else 0
    lists = (strides, rank - 1, "strides"), (box, rank, "box"), (steps, rank, "element strides")
    problems = [
        (not 1 <= rank <= 5, f"{rank} axes; there may be 1 to 5"),
        (address % 16 != 0, f"the address {address:#x} is no multiple of 16"),
        *((len(x) != n, f"{len(x)} numbers in {name} for {rank} axes") for x, n, name in lists),
        (any(not 0 < n <= 1 << 32 for n in sizes), f"sizes {tuple(sizes)}; from 1 to 2^32"),
        (any(s % 16 or s >= 1 << 40 for s in strides),
         f"strides of {tuple(strides)} bytes; multiples of 16 below 2^40"),
        (any(not 0 < n <= 256 for n in box), f"a box of {tuple(box)} elements; from 1 to 256"),
        (any(not 0 < n <= 8 for n in steps), f"element strides {tuple(steps)}; from 1 to 8"),
        (inner % 16 != 0, f"a box of {inner} bytes along the first axis; a multiple of 16"),
        (swizzle not in (0, 32, 64, 128), f"a swizzle of {swizzle} bytes; 0, 32, 64 or 128"),
        (bool(swizzle) and inner > swizzle,
         f"a box of {inner} bytes along the first axis, more than the swizzle of {swizzle}"),
        (nan and kind not in _FLOATS, "NaN outside of a tensor of integers"),
    ]  # fmt: skip
    return next((words for wrong, words in problems if wrong), "")


def packed(
    address: int, kind: int, sizes: Sequence[int], strides: Sequence[int], box: Sequence[int],
    steps: Sequence[int], swizzle: int, nan: bool,
) -> bytes:  # fmt: skip
    """The 128 bytes; ``strides`` without that of the first axis."""

    def full(values: Sequence[int], count: int, fill: int) -> list[int]:
        return [*values, *[fill] * (count - len(values))]

    data = _FORM.pack(
        address, _MAGIC, len(sizes), kind, swizzle, nan, *full(sizes, 5, 1), *full(strides, 4, 0),
        *full(box, 5, 1), *full(steps, 5, 1),
    )  # fmt: skip
    return data.ljust(BYTES, b"\0")


def argument(given: Any) -> Packed:
    """A `TensorMap`, or one of `kernelproof.tensor_map`, as a kernel's parameter.

    Raises:
        ValueError: cuTensorMapEncodeTiled would refuse it.
    """
    buffer = given.tensor if isinstance(given.tensor, Buffer) else Buffer(given.tensor)
    name = getattr(given, "dtype", "") or str(buffer.array.dtype).removeprefix("torch.")
    sizes, strides, box = (tuple(map(int, x)) for x in (given.sizes, given.strides, given.box))
    steps = tuple(getattr(given, "steps", None) or (1,) * len(sizes))
    nan = bool(getattr(given, "nan", False))
    if name not in _KINDS:
        raise ValueError(f"a tensor map of {name}; accepted are {', '.join(_KINDS)}")
    # Buffers lie at multiples of 512 bytes; an offset into one counts.
    base = _offset(buffer.array)
    wrong = why_not(base, _KINDS[name], sizes, strides, box, steps, int(given.swizzle), nan)
    if wrong:
        raise ValueError(f"a tensor map with {wrong}")
    return Packed(
        packed(0, _KINDS[name], sizes, strides, box, steps, int(given.swizzle), nan),
        {0: (buffer, 0)},
    )


def _offset(array: Any) -> int:
    """Bytes from the start of the allocation to the first element."""
    if hasattr(array, "storage_offset"):
        return int(array.storage_offset() * array.element_size())
    base = array
    while isinstance(base.base, type(array)):
        base = base.base
    return int(array.ctypes.data - base.ctypes.data)


def decode(data: bytes) -> Decoded | None:
    """None where the bytes are no tensor map."""
    address, magic, rank, kind, swizzle, nan, *rest = _FORM.unpack(data[: _FORM.size])
    if magic != _MAGIC:
        return None
    sizes, strides, box, steps = rest[:5], rest[5:9], rest[9:14], rest[14:19]
    return Decoded(
        address, kind, swizzle, bool(nan), tuple(sizes[:rank]),
        (SIZES[kind], *strides[: rank - 1]), tuple(box[:rank]), tuple(steps[:rank]),
    )  # fmt: skip
