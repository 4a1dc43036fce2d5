"""A scan in Triton: one program per row, in blocks with an fp64 carry."""

import torch
import torch.nn as nn
import triton
import triton.language as tl

EXPECT = "pass"


@triton.jit
def scan(x, y, length, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    carry = tl.full([], 0.0, tl.float64)
    for start in range(0, length, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * length + at, mask=at < length, other=0.0).to(tl.float64)
        result = carry + tl.cumsum(value, axis=0)
        tl.store(y + row * length + at, result.to(tl.float32), mask=at < length)
        carry += tl.sum(value, axis=0)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        rows, length = x.shape
        y = torch.empty_like(x)
        scan[(rows,)](x, y, length, BLOCK=512)
        return y
