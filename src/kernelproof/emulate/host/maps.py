"""cuTensorMapEncodeTiled for host code in C++."""

from __future__ import annotations

import ctypes
from typing import Any

from kernelproof.emulate.tensor_maps import BYTES, packed, why_not

_INVALID_VALUE, _NOT_SUPPORTED = 1, 801  # CUresult
_SWIZZLES = {0: 0, 1: 32, 2: 64, 3: 128}  # CUtensorMapSwizzle

_LONGS, _INTS = ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint32)
# The same as `Encoder` in runtime.cpp.
ENCODER = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_int, _LONGS, _LONGS,
    _INTS, _INTS, ctypes.c_int, ctypes.c_int, ctypes.c_int,
)  # fmt: skip


def encode(
    made: int, address: int, kind: int, axes: int, sizes: Any, strides: Any, box: Any, steps: Any,
    interleave: int, swizzle: int, fill: int,
) -> int:  # fmt: skip
    """Write the map to ``made``; gives a CUresult."""
    if interleave or swizzle not in _SWIZZLES:
        return _NOT_SUPPORTED
    if not 1 <= axes <= 5:
        return _INVALID_VALUE
    how = (
        kind, sizes[:axes], strides[: axes - 1], box[:axes], steps[:axes], _SWIZZLES[swizzle],
        bool(fill),
    )  # fmt: skip
    if why_not(address, *how):
        return _INVALID_VALUE
    ctypes.memmove(made, packed(address, *how), BYTES)
    return 0
