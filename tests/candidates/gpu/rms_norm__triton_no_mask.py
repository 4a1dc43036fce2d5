"""The same without a mask on the loads: right where the row length is a power of two, else it sums
what lies behind the row."""

import torch
import torch.nn as nn
import triton
import triton.language as tl

EXPECT = "wrong"


@triton.jit
def normalise(x, weight, y, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + at).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value) / columns + eps)
    gain = tl.load(weight + at, mask=at < columns, other=0.0).to(tl.float32)
    result = (value * scale * gain).to(y.dtype.element_ty)
    tl.store(y + row * columns + at, result, mask=at < columns)


class ModelNew(nn.Module):
    def __init__(self, columns: int, eps: float = 1e-6, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(columns).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        columns = x.shape[-1]
        block = triton.next_power_of_2(columns)
        normalise[(x.numel() // columns,)](x, self.weight, y, columns, self.eps, BLOCK=block)
        return y
