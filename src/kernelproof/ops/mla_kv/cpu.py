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
from kernelproof.ops.mla_kv.layout import as_two_axes, check_kinds, check_shapes, layout_of


@functools.cache
def _entry(dtype: torch.dtype) -> Callable[..., int]:
    library = c_library([Path(__file__).with_name("kernel.cpp")])
    function = getattr(library, "mla_kv_" + str(dtype).removeprefix("torch."))
    function.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_int64]
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=1024)
def _call(kv_heads: int, *key: Any) -> tuple[Any, int, tuple[int, ...]]:
    """The layout as a C array, its address, and the output's shape. ``key`` is the operands'
    shapes and strides in turn, so that a layout is checked and worked out once."""
    tensors = [torch.empty_strided(key[i], key[i + 1], device="meta") for i in range(0, 8, 2)]
    check_shapes(*tensors, kv_heads=kv_heads)
    layout = layout_of(*tensors)
    array = (ctypes.c_int64 * len(layout))(*layout)
    shape = (*key[0][:-1], 2, kv_heads, layout.columns // kv_heads)
    return array, ctypes.addressof(array), shape


def mla_kv_cpu(
    hidden: torch.Tensor,
    w_down: torch.Tensor,
    w_up_k: torch.Tensor,
    w_up_v: torch.Tensor,
    kv_heads: int,
) -> torch.Tensor:
    """Keys and values ``(..., 2, H, D)`` on ``torch.get_num_threads()`` threads. Arguments as
    `kernelproof.ops.mla_kv.mla_kv`, all on the CPU.

    Raises:
        TypeError, ValueError: the operands do not fit together.
        MemoryError: the scratch memory cannot be had.
        CompileError, UnsupportedError: the kernel cannot be built here.
    """
    check_kinds(hidden, w_down, w_up_k, w_up_v)
    if not hidden.is_cpu:
        raise ValueError(f"mla_kv: this is the CPU kernel, the operands are on {hidden.device}")
    hidden = as_two_axes(hidden)
    _, layout, shape = _call(
        kv_heads, hidden.shape, hidden.stride(), w_down.shape, w_down.stride(),
        w_up_k.shape, w_up_k.stride(), w_up_v.shape, w_up_v.stride(),
    )  # fmt: skip
    out = torch.empty(shape, dtype=hidden.dtype)
    if out.numel() == 0:
        return out
    status = _entry(hidden.dtype)(
        hidden.data_ptr(), w_down.data_ptr(), w_up_k.data_ptr(), w_up_v.data_ptr(),
        out.data_ptr(), layout, torch.get_num_threads(),
    )  # fmt: skip
    if status != 0:
        raise MemoryError(
            "mla_kv: no memory for its scratch space; free some, or pass fewer tokens"
        )
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
