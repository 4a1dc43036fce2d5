"""The padding of the tile enters the variance as (0 - mean)^2: right only where the row length is a
power of two."""

import torch
import torch.nn as nn
import triton
import triton.language as tl

EXPECT = "wrong"


@triton.jit
def normalise(x, weight, bias, y, mean, rstd, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    centre = tl.sum(value, axis=0) / columns
    away = value - centre
    scale = 1.0 / tl.sqrt(tl.sum(away * away, axis=0) / columns + eps)
    gain = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    result = away * scale * gain + shift
    tl.store(y + row * columns + at, result.to(y.dtype.element_ty), mask=inside)
    tl.store(mean + row, centre.to(mean.dtype.element_ty))
    tl.store(rstd + row, scale.to(rstd.dtype.element_ty))


class ModelNew(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight, bias):
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        rows, columns = x.shape
        y, mean, rstd = torch.empty_like(x), x.new_empty(rows), x.new_empty(rows)
        block = triton.next_power_of_2(columns)
        normalise[(rows,)](x, weight, bias, y, mean, rstd, columns, self.eps, BLOCK=block)
        return {"y": y, "mean": mean, "rstd": rstd}
