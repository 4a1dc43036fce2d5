"""Softmax over the last axis, together with the logarithm of its denominator (two outputs).

    lse[r]  = log(sum_c exp(x[r, c]))
    p[r, c] = exp(x[r, c] - lse[r])

The pair is what a blockwise attention kernel hands on, so that partial results can be merged.

Traps for kernel writers:

- Without subtraction of the row's maximum ``exp`` overflows above 88 (the case ``large_logits``).
- An online pass has to rescale the running sum whenever the maximum moves.
- Padding of a row to a whole tile has to be -inf, not 0.
- The outputs are a tuple ``(p, lse)``; ``lse`` has one axis less.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.softmax(x, dim=-1), torch.logsumexp(x, dim=-1)


def get_inputs(rows=48, columns=250, scale=3.0, dtype=torch.float32):
    # A scale of 3 gives peaked rows: an output of all zeros is then far from right.
    return [(scale * torch.randn(rows, columns)).to(dtype)]


CASES = {
    "default": {},
    "one_column": {"rows": 5, "columns": 1},
    "one_row": {"rows": 1, "columns": 33},
    "odd": {"rows": 19, "columns": 65},
    "large_logits": {"rows": 16, "columns": 129, "scale": 60.0},
    "wide": {"rows": 8, "columns": 20_011, "scale": 8.0},
    "fp16": {"dtype": torch.float16},
}


def _exp_of_difference(x):
    lse = torch.logsumexp(x, dim=-1)
    return torch.exp(x - lse.unsqueeze(-1)), lse


BASELINES = {"exp(x - lse)": _exp_of_difference}


def FLOPS(rows=48, columns=250, scale=3.0, dtype=torch.float32):
    return 5 * rows * columns


def BYTES(rows=48, columns=250, scale=3.0, dtype=torch.float32):
    return (2 * rows * columns + rows) * dtype.itemsize
