"""The CPU kernel of mla_kv as a function and as a module."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelproof.build.c_library import c_library
from kernelproof.ops.mla_kv.layout import as_two_axes, layout_of

_ENTRIES = {
    torch.float32: "mla_kv_float32",
    torch.float64: "mla_kv_float64",
    torch.float16: "mla_kv_float16",
    torch.bfloat16: "mla_kv_bfloat16",
}


@functools.cache
def _entry(dtype: torch.dtype) -> Callable[..., int]:
    if dtype not in _ENTRIES:
        accepted = ", ".join(str(d) for d in _ENTRIES)
        raise TypeError(f"mla_kv on the CPU takes {accepted}, not {dtype}")
    library = c_library([Path(__file__).with_name("kernel.cpp")])
    function = getattr(library, _ENTRIES[dtype])
    function.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_int64]
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=1024)
def _shared_layout(*key: Any) -> tuple[Any, int, tuple[int, ...]]:
    """The layout as a C array, its address, and the output's shape; ``key`` is shapes, strides
    and the number of heads, from which meta tensors are made: a layout is worked out once."""
    *operands, kv_heads = key
    tensors = [
        torch.empty_strided(operands[i], operands[i + 1], device="meta") for i in range(0, 8, 2)
    ]
    layout = layout_of(*tensors)
    array = (ctypes.c_int64 * len(layout))(*layout)
    shape = (*operands[0][:-1], 2, kv_heads, layout.columns // kv_heads)
    return array, ctypes.addressof(array), shape


def mla_kv_cpu(
    hidden: torch.Tensor,
    w_down: torch.Tensor,
    w_up_k: torch.Tensor,
    w_up_v: torch.Tensor,
    kv_heads: int,
) -> torch.Tensor:
    """Keys and values ``(..., 2, H, D)``; arguments as `kernelproof.ops.mla_kv.mla_kv`, already
    valid. Runs on ``torch.get_num_threads()`` threads.

    Raises:
        TypeError: the dtype has no kernel.
        MemoryError: the scratch memory cannot be had.
        CompileError, UnsupportedError: the kernel cannot be built here.
    """
    hidden = as_two_axes(hidden)
    layout = _shared_layout(
        hidden.shape, hidden.stride(), w_down.shape, w_down.stride(),
        w_up_k.shape, w_up_k.stride(), w_up_v.shape, w_up_v.stride(), kv_heads,
    )  # fmt: skip
    out = torch.empty(layout[2], dtype=hidden.dtype)
    if out.numel() == 0:
        return out
    status = _entry(hidden.dtype)(
        hidden.data_ptr(), w_down.data_ptr(), w_up_k.data_ptr(), w_up_v.data_ptr(),
        out.data_ptr(), layout[1], torch.get_num_threads(),
    )  # fmt: skip
    if status != 0:
        raise MemoryError("mla_kv: no memory for its scratch space; free some, or use less tokens")
    return out


class ModelNew(nn.Module):
    """`problem.Model` on the CPU kernel."""

    def __init__(self, kv_heads: int = 4) -> None:
        super().__init__()
        self.kv_heads = kv_heads

    def forward(
        self,
        hidden: torch.Tensor,
        w_down: torch.Tensor,
        w_up_k: torch.Tensor,
        w_up_v: torch.Tensor,
    ) -> torch.Tensor:
        return mla_kv_cpu(hidden, w_down, w_up_k, w_up_v, self.kv_heads)
