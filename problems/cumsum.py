"""Running sums along the last axis (an inclusive scan).

    y[r, t] = sum_{s <= t} x[r, s]

Traps for kernel writers:

- The carry into a block is the sum of all earlier blocks, not of the one before.
- Inclusive: ``y[r, 0] = x[r, 0]``.
- Every output is a partial sum that later ones build on: rounding grows along the row. PyTorch's
  CPU kernel keeps the running sum in fp64 and rounds each output once; a scan in a tree (log
  depth) or a carry in higher precision comes near to that, a serial fp32 sum does not.
- A block that waits for its neighbour's carry must be sure that the neighbour runs.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, dim=-1)


def get_inputs(rows=30, length=200):
    return [torch.randn(rows, length) + 0.1]


# Sums reach the hundreds in the long case, and pass near zero on the way.
TOLERANCE = {"atol": 1e-3, "rtol": 1e-4}

CASES = {
    "default": {},
    "one": {"rows": 1, "length": 1},
    "one_row": {"rows": 1, "length": 33},
    "short_rows": {"rows": 129, "length": 3},
    "eight_rows": {"rows": 8, "length": 130},
    "sixteen_rows": {"rows": 16, "length": 130},
    "odd": {"rows": 17, "length": 257},
    "long": {"rows": 9, "length": 10_007},
}


def _triangular_product(x):
    ones = torch.ones(x.shape[-1], x.shape[-1], dtype=x.dtype, device=x.device)
    return x @ ones.triu()


BASELINES = {"triangular product": _triangular_product}


def FLOPS(rows=30, length=200):
    return rows * length


def BYTES(rows=30, length=200):
    return 4 * 2 * rows * length
