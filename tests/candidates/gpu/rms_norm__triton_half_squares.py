"""Squares in the format of the input: in fp16 they overflow above 255."""

import torch
import torch.nn as nn
import triton
import triton.language as tl

EXPECT = "wrong"
SAYS = ("case fp16_large", "zero")


@triton.jit
def normalise(x, weight, y, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * columns + at, mask=inside, other=0.0)
    squares = tl.sum((value * value).to(tl.float32), axis=0)
    scale = 1.0 / tl.sqrt(squares / columns + eps)
    gain = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    result = value.to(tl.float32) * scale * gain
    tl.store(y + row * columns + at, result.to(y.dtype.element_ty), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, columns: int, eps: float = 1e-6, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(columns).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        rows, columns = x.shape
        y = torch.empty_like(x)
        block = triton.next_power_of_2(columns)
        normalise[(rows,)](x, self.weight, y, columns, self.eps, BLOCK=block)
        return y
