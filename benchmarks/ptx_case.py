"""What a micro-test of a PTX instruction is, and how it runs on a GPU."""

from __future__ import annotations

import ctypes
import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class TensorMapOf:
    """A tensor map over array ``number`` of a case (-1: its result). ``kind``: of an element, as in
    `KINDS`; sizes, box and steps in elements, the contiguous axis first; strides in bytes.
    ``corner``: where the box that the case copies begins."""

    number: int
    kind: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    steps: tuple[int, ...] = ()
    nan: bool = False
    corner: tuple[int, ...] = ()


# Bytes of an element.
SIZES = {"u1": 1, "u2": 2, "f2": 2, "b2": 2, "u4": 4, "f4": 4, "f8": 8}
KINDS = {"u1": "uint8", "u2": "uint16", "f2": "float16", "b2": "bfloat16", "u4": "uint32",
         "f4": "float32", "f8": "float64"}  # fmt: skip


HEAD = """
typedef unsigned long long u64;
typedef unsigned u32;
static __device__ u32 at(const void* p) { return (u32)__cvta_generic_to_shared(p); }
static __device__ u64 matrix(u32 start, u32 leading, u32 stride, u64 base, u64 swizzle) {
  return (u64)((start & 0x3FFFF) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32
         | base << 49 | swizzle << 62;
}
"""


def random_words(count: int) -> Callable[[np.random.Generator], list[Any]]:
    """Inputs of a case: one array of so many random words."""
    return lambda random: [random.integers(0, 1 << 32, count).astype(np.uint32)]


@dataclasses.dataclass(frozen=True)
class Case:
    """``source`` has a kernel ``t``, which takes the arrays, the result and the tensor maps;
    ``inputs`` makes its arrays; ``dtype`` and ``count`` are of the result."""

    name: str
    source: str
    inputs: Callable[[np.random.Generator], list[Any]]
    dtype: Any
    count: int
    ulp: float = 0.0  # allowed distance; 0 is bitwise
    block: int = 256
    halves: str = ""  # f16 or bf16 where the result holds these, one or two to an element
    open: Callable[[list[Any]], Any] | None = None  # mask over elements that PTX leaves open
    why: str = ""  # the words of the ISA for ``open``
    grid: int = 1
    cluster: int = 1
    maps: tuple[TensorMapOf, ...] = ()

    def arrays(self) -> tuple[list[Any], Any]:
        random = np.random.default_rng(zlib.crc32(self.name.encode()))
        return self.inputs(random), np.zeros(self.count, self.dtype)


def emulated(case: Case) -> Any:
    from kernelproof import emulate

    arrays, out = case.arrays()
    given = [*arrays, out]
    maps = [
        emulate.TensorMap(given[m.number], m.sizes, m.strides, m.box, m.swizzle, m.steps or None,
                          m.nan, KINDS[m.kind])
        for m in case.maps
    ]  # fmt: skip
    cluster = case.cluster if case.cluster > 1 else None
    result = emulate.launch(
        case.source, "t", case.grid, case.block, [*given, *maps], cluster=cluster
    )
    assert not result.errors, [str(f) for f in result.errors]
    return out


def on_gpu(case: Case) -> Any:
    import torch

    from kernelproof.cuda import Kernel

    arrays, out = case.arrays()
    given = [torch.from_numpy(x.view(np.uint8).copy()).cuda() for x in (*arrays, out)]
    maps = [encoded_map(m, given[m.number].data_ptr()) for m in case.maps]
    how = {"cluster": case.cluster} if case.cluster > 1 else {}
    Kernel(case.source, "t")(*given, *maps, grid=case.grid, block=case.block, **how)
    torch.cuda.synchronize()
    return given[-1].cpu().numpy().view(case.dtype)


def encoded_map(m: TensorMapOf, address: int) -> bytes:
    """The driver's 128 bytes. Raises ValueError where it refuses."""
    import cuda.bindings.driver as driver

    rank, fill = len(m.sizes), driver.CUtensorMapFloatOOBfill
    number = getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{KINDS[m.kind].upper()}")
    swizzle = f"CU_TENSOR_MAP_SWIZZLE_{f'{m.swizzle}B' if m.swizzle else 'NONE'}"
    status, made = driver.cuTensorMapEncodeTiled(
        number, rank, address, [driver.cuuint64_t(n) for n in m.sizes],
        # The driver wants an array here for one axis too.
        [driver.cuuint64_t(n) for n in m.strides or (16,)], [driver.cuuint32_t(n) for n in m.box],
        [driver.cuuint32_t(n) for n in m.steps or (1,) * rank],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, swizzle),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        fill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA if m.nan
        else fill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )  # fmt: skip
    if int(status):
        raise ValueError(f"cuTensorMapEncodeTiled refuses {m} ({status!r})")
    return ctypes.string_at(int(made.getPtr()), 128)
