"""RMS normalisation, as in most language models: fp32 inside, 16 bits outside.

    y[r, c] = x[r, c] / sqrt(mean_c(x[r, c]^2) + eps) * weight[c]

``weight`` (C,) is a parameter with the dtype of ``x``. The product with ``weight`` is taken in
fp32 and rounded once.

Traps for kernel writers:

- Squares in fp16 overflow above 255 (the case ``fp16_large``); sums of squares do so much earlier.
- ``eps`` is inside the root, and added to the mean, not to the sum.
- Rounding before the product with ``weight`` (as some models do) is another function in 16 bits.
- No mean is subtracted: this is not layer normalisation.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, columns: int, eps: float = 1e-6, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(columns).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (wide * scale * self.weight.float()).to(x.dtype)


def get_inputs(rows=40, columns=192, scale=1.0, eps=1e-6, dtype=torch.float32):
    # A mean away from zero tells this from layer normalisation.
    return [(scale * (torch.randn(rows, columns) + 0.5)).to(dtype)]


def get_init_inputs(columns=192, eps=1e-6, dtype=torch.float32):
    return [columns, eps, dtype]


CASES = {
    "default": {},
    "fp16": {"dtype": torch.float16},
    "bf16": {"dtype": torch.bfloat16},
    "fp16_large": {"scale": 300.0, "dtype": torch.float16},
    "one_column": {"rows": 9, "columns": 1},
    "one_row": {"rows": 1, "columns": 65},
    "odd": {"rows": 17, "columns": 33},
    "large_eps": {"rows": 8, "columns": 48, "eps": 0.5},
    "large": {"rows": 256, "columns": 2047},
}


class LibraryRmsNorm(Model):
    """`torch.nn.functional.rms_norm`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, [x.shape[-1]], self.weight, self.eps)


BASELINES = {"F.rms_norm": LibraryRmsNorm}


def FLOPS(rows=40, columns=192, scale=1.0, eps=1e-6, dtype=torch.float32):
    return 4 * rows * columns


def BYTES(rows=40, columns=192, scale=1.0, eps=1e-6, dtype=torch.float32):
    return (2 * rows * columns + columns) * dtype.itemsize
