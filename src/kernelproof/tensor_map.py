"""Tensor maps: what the copy engine of sm_90 (TMA) is told of a tensor in global memory."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, NamedTuple

from kernelproof.errors import UnsupportedError

if TYPE_CHECKING:
    import torch

# The copy engine reads a base and strides in units of 16 bytes (CUDA driver API,
# cuTensorMapEncodeTiled), and a box side has at most 256 elements.
ALIGNMENT = 16
_MOST_BOX = 256
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
    swizzles = driver.CUtensorMapSwizzle
    promotions = driver.CUtensorMapL2promotion
    kind = _KINDS.get(str(dtype).removeprefix("torch."))
    if kind is None:
        raise ValueError(f"a tensor map of {dtype}; accepted are {', '.join(_KINDS)}")
    rank = len(sizes)
    status, made = driver.cuTensorMapEncodeTiled(
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{kind}"),
        rank,
        address,
        [driver.cuuint64_t(n) for n in sizes],
        [driver.cuuint64_t(n) for n in strides],
        [driver.cuuint32_t(n) for n in box],
        [driver.cuuint32_t(1)] * rank,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(swizzles, f"CU_TENSOR_MAP_SWIZZLE_{f'{swizzle}B' if swizzle else 'NONE'}"),
        getattr(
            promotions,
            f"CU_TENSOR_MAP_L2_PROMOTION_{f'L2_{promotion}B' if promotion else 'NONE'}",
        ),
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status:
        raise ValueError(
            f"cuTensorMapEncodeTiled refuses sizes {sizes}, strides {strides} and box {box} "
            f"({status!r})"
        )
    return ctypes.string_at(int(made.getPtr()), 128)
