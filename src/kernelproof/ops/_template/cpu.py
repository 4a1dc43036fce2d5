"""template_op on a CPU: launches ``kernel.cpp``, and is a candidate."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from kernelproof.build import c_library


def launch(x: Tensor, y: Tensor) -> Tensor:
    """``x * sigmoid(y)`` for valid float32 tensors of one shape; strided ones are copied first."""
    x, y = x.contiguous(), y.contiguous()
    out = x.new_empty(x.shape)
    _function()(x.data_ptr(), y.data_ptr(), out.data_ptr(), out.numel())
    return out


class ModelNew(nn.Module):
    """The CPU kernel as a candidate for ``problem.Model``."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return launch(x, y)


@functools.cache
def _function() -> Any:
    function = c_library([Path(__file__).with_name("kernel.cpp")]).template_op_cpu
    function.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64]
    function.restype = None
    return function
