"""Tensor maps: what the copy engine of sm_90 (TMA) is told of a tensor in global memory."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelproof.errors import UnsupportedError

if TYPE_CHECKING:
    import torch

# The copy engine reads a base and strides in units of 16 bytes (CUDA driver API,
# cuTensorMapEncodeTiled), and a box side has at most 256 elements.
ALIGNMENT = 16
_MOST_BOX = 256
# A CUtensorMap, its alignment, and what is left out of it: interleaving, and zeros (0) outside.
_BYTES, _MAP_ALIGNMENT, _NO_INTERLEAVE, _ZEROS = 128, 64, 0, 0
# Element types by name; of int8 the bits are copied.
_KINDS = {"bfloat16": "BFLOAT16", "float16": "FLOAT16", "float32": "FLOAT32", "int8": "UINT8"}


class TensorMap(NamedTuple):
    """A tiled view of a tensor, passed to a kernel as a ``const __grid_constant__ CUtensorMap``.

    What lies outside ``sizes`` is read as zero.

    Args:
        tensor: whose first element is the map's base; fp32, fp16, bf16 or int8.
        sizes: elements along each axis, the contiguous axis first.
        strides: bytes from one element to the next along every axis but the first.
        box: elements that one copy takes along each axis.
        swizzle: bytes over which 16-byte pieces are permuted in shared memory: 0 (not at all), 32,
            64 or 128; the first side of the box is at most that long.
        promotion: bytes by which the L2 cache is filled: 0, 64, 128 or 256.
    """

    tensor: torch.Tensor
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 128
    promotion: int = 256

    def encoded(self) -> bytes:
        """The 128 bytes of the map. Raises ValueError for what the copy engine cannot take."""
        return _encode(self.tensor.data_ptr(), self.tensor.dtype, *self[1:])

    def encoder(self) -> Callable[[int], bytes]:
        """`encoded` for tensors of the same form, by their addresses: for calls that follow one
        another, in less host time than `encoded` takes where an address is new.

        Raises ValueError as `encoded`, and the function it returns for an address that the copy
        engine cannot take.
        """
        self.encoded()
        rank = len(self.sizes)
        kind, *modes = _modes(self.tensor.dtype, self.swizzle, self.promotion)
        kept = (
            (ctypes.c_uint64 * rank)(*self.sizes), (ctypes.c_uint64 * rank)(*self.strides),
            (ctypes.c_uint32 * rank)(*self.box), (ctypes.c_uint32 * rank)(*[1] * rank),
        )  # fmt: skip
        places = [ctypes.addressof(part) for part in kept]
        make = _cu_tensor_map_encode_tiled()

        @functools.lru_cache(maxsize=64)
        def encode(address: int, alive: object = kept) -> bytes:
            memory = ctypes.create_string_buffer(_BYTES + _MAP_ALIGNMENT)
            at = -(-ctypes.addressof(memory) // _MAP_ALIGNMENT) * _MAP_ALIGNMENT
            status = make(at, kind, rank, address, *places, _NO_INTERLEAVE, *modes, _ZEROS)
            if status:
                raise ValueError(
                    f"cuTensorMapEncodeTiled refuses the address {address:#x} (status {status})"
                )
            return ctypes.string_at(at, _BYTES)

        return encode


@functools.cache
def _cu_tensor_map_encode_tiled() -> Any:
    """The driver's function as it is, which torch has loaded."""
    function = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    pointer, number, small = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32
    function.argtypes = [pointer, number, small, *[pointer] * 5, *[number] * 4]
    function.restype = number
    return function


def _modes(dtype: torch.dtype, swizzle: int, promotion: int) -> tuple[int, int, int]:
    """The driver's numbers for an element type, a swizzle and a promotion."""
    import cuda.bindings.driver as driver

    kind = _KINDS.get(str(dtype).removeprefix("torch."))
    if kind is None:
        raise ValueError(f"a tensor map of {dtype}; accepted are {', '.join(_KINDS)}")
    names = (
        (driver.CUtensorMapDataType, f"DATA_TYPE_{kind}"),
        (driver.CUtensorMapSwizzle, f"SWIZZLE_{f'{swizzle}B' if swizzle else 'NONE'}"),
        (
            driver.CUtensorMapL2promotion,
            f"L2_PROMOTION_{f'L2_{promotion}B' if promotion else 'NONE'}",
        ),
    )
    a, b, c = (getattr(kinds, f"CU_TENSOR_MAP_{name}") for kinds, name in names)
    return a, b, c


@functools.lru_cache(maxsize=4096)
def _encode(
    address: int,
    dtype: torch.dtype,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    swizzle: int,
    promotion: int,
) -> bytes:
    try:
        import cuda.bindings.driver as driver
    except ImportError as error:
        raise UnsupportedError(
            "tensor maps need cuda-bindings: pip install 'kernelproof[cuda]'", str(error)
        ) from None
    if address % ALIGNMENT or any(stride % ALIGNMENT for stride in strides):
        raise ValueError(
            f"a tensor map needs a base and strides that are multiples of {ALIGNMENT} bytes, got "
            f"{address:#x} and {strides}; copy the tensor with .contiguous()"
        )
    if not all(0 < side <= _MOST_BOX for side in box):
        raise ValueError(f"a box of {box} elements; each side may have 1 to {_MOST_BOX}")
    kind, swizzled, promoted = _modes(dtype, swizzle, promotion)
    rank = len(sizes)
    status, made = driver.cuTensorMapEncodeTiled(
        kind,
        rank,
        address,
        [driver.cuuint64_t(n) for n in sizes],
        [driver.cuuint64_t(n) for n in strides],
        [driver.cuuint32_t(n) for n in box],
        [driver.cuuint32_t(1)] * rank,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzled,
        promoted,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status:
        raise ValueError(
            f"cuTensorMapEncodeTiled refuses sizes {sizes}, strides {strides} and box {box} "
            f"({status!r})"
        )
    return ctypes.string_at(int(made.getPtr()), _BYTES)
