"""The same with the default of `tl.dot`, which for fp32 operands is TF32: eleven bits are kept."""

import torch
import torch.nn as nn
import triton
import triton.language as tl

EXPECT = "wrong"


@triton.jit
def linear_gelu(x, weight, bias, y, rows, columns, depth, BLOCK: tl.constexpr):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, depth, BLOCK):
        k = start + tl.arange(0, BLOCK)
        in_x = (m[:, None] < rows) & (k[None, :] < depth)
        in_w = (n[None, :] < columns) & (k[:, None] < depth)
        a = tl.load(x + m[:, None] * depth + k[None, :], mask=in_x, other=0.0)
        b = tl.load(weight + n[None, :] * depth + k[:, None], mask=in_w, other=0.0)
        total += tl.dot(a.to(tl.float32), b.to(tl.float32))
    z = total + tl.load(bias + n, mask=n < columns, other=0.0).to(tl.float32)[None, :]
    result = 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476))
    inside = (m[:, None] < rows) & (n[None, :] < columns)
    at = y + m[:, None] * columns + n[None, :]
    tl.store(at, result.to(y.dtype.element_ty), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out_features, in_features).to(dtype))
        self.bias = nn.Parameter(torch.randn(out_features).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        rows, depth = x.shape
        columns = self.weight.shape[0]
        y = x.new_empty(rows, columns)
        grid = (triton.cdiv(rows, 32), triton.cdiv(columns, 32))
        linear_gelu[grid](x, self.weight, self.bias, y, rows, columns, depth, BLOCK=32)
        return y
