"""Residual addition and ReLU; the reference works in place and so overwrites ``x``.

    y = max(0, x + z)

The returned values are what is judged. What the reference leaves in ``x`` is no part of the
function: a candidate may leave ``x`` alone, and every run starts from its own copy of the inputs.

Traps for kernel writers (and for judges):

- A judge that hands the reference's inputs on to the candidate gives it ``max(0, x + z)`` as
  ``x``.
- ``max(0, NaN)`` is NaN in PyTorch; ``fmaxf(0, NaN)`` is 0 in CUDA and C.
- With the reference in place, its result shares the memory of ``x``.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return x.add_(z).relu_()


def get_inputs(rows=50, columns=70, dtype=torch.float32):
    return [torch.randn(rows, columns).to(dtype), torch.randn(rows, columns).to(dtype)]


CASES = {
    "default": {},
    "one": {"rows": 1, "columns": 1},
    "one_row": {"rows": 1, "columns": 257},
    "odd": {"rows": 33, "columns": 31},
    "large": {"rows": 1000, "columns": 513},
    "fp16": {"dtype": torch.float16},
}


def _out_of_place(x, z):
    return torch.relu(x + z)


BASELINES = {"out of place": _out_of_place}


def FLOPS(rows=50, columns=70, dtype=torch.float32):
    return 2 * rows * columns


def BYTES(rows=50, columns=70, dtype=torch.float32):
    return 3 * rows * columns * dtype.itemsize
