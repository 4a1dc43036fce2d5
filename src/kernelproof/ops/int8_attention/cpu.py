"""CPU launcher, and the kernel as a kernelproof candidate."""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kernelproof.build.c_library import c_library
from kernelproof.ops.int8_attention.contract import check, unit_stride

# struct Problem in kernel.cpp. One packed argument costs a third of 24 converted by ctypes.
_pack = struct.Struct("=7Q16qd").pack


@functools.cache
def _function() -> Any:
    # Contraction to fused multiply-add is GCC's default for C++, but not every compiler's.
    library = c_library([Path(__file__).parent / "kernel.cpp"], cflags=["-ffp-contract=fast"])
    function = library.kernelproof_int8_attention
    function.argtypes = [ctypes.c_char_p]
    function.restype = ctypes.c_int
    return function


def launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    causal: bool,
    scale: float,
) -> Tensor:
    """`int8_attention` on CPU tensors; arguments and errors as there.

    Raises MemoryError where the scratch memory (below 1 MB per thread up to D = 512) is refused.
    """
    check(q, k, v, q_scale, k_scale, v_scale)
    out = torch.empty_like(q, dtype=torch.float32, memory_format=torch.contiguous_format)
    if out.numel() == 0:
        return out
    if k.numel() == 0:
        return out.zero_()
    q, k, v = unit_stride(q), unit_stride(k), unit_stride(v)
    # Named, because a copy must outlive the call that reads it.
    scales = q_scale.contiguous(), k_scale.contiguous(), v_scale.contiguous()
    packed = _pack(
        q.data_ptr(), k.data_ptr(), v.data_ptr(),
        scales[0].data_ptr(), scales[1].data_ptr(), scales[2].data_ptr(), out.data_ptr(),
        *q.shape, k.shape[1], k.shape[2],
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], causal, scale,
    )  # fmt: skip
    failed = _function()(packed)
    if failed:
        raise MemoryError(
            f"no scratch memory for int8_attention with a head dimension of {q.shape[3]}"
        )
    return out


class ModelNew(nn.Module):
    """The problem's ``Model`` on the CPU kernel."""

    def __init__(self, causal: bool = True) -> None:
        super().__init__()
        self.causal = causal

    def forward(
        self,
        q_q: Tensor,
        k_q: Tensor,
        v_q: Tensor,
        q_scale: Tensor,
        k_scale: Tensor,
        v_scale: Tensor,
    ) -> Tensor:
        scale = 1 / math.sqrt(max(q_q.shape[3], 1))
        return launch(q_q, k_q, v_q, q_scale, k_scale, v_scale, self.causal, scale)
