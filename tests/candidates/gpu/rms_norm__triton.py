"""RMS normalisation in Triton: one program per row."""

import torch
import torch.nn as nn
import triton
import triton.language as tl

EXPECT = "pass"


@triton.jit
def normalise(x, weight, y, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value) / columns + eps)
    gain = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * columns + at, (value * scale * gain).to(y.dtype.element_ty), mask=inside)


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
