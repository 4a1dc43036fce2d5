"""Causal convolution along time, channel by channel, with SiLU (the short filter of many models).

    z[b, t, c] = bias[c] + sum_{w < W} weight[c, w] * x[b, t - (W - 1) + w, c]
    y[b, t, c] = z * sigmoid(z)

``x`` is (B, T, C), with channels last, and counts as 0 before t = 0; ``weight`` (C, W) and ``bias``
(C,) are arguments of ``forward``. ``x`` is often a slice of the columns of a fused projection.

Traps for kernel writers:

- ``weight[c, W - 1]`` meets the present token; the reverse order is another filter.
- A sequence shorter than the filter: T = 1 sees only ``weight[c, W - 1]``.
- The rows of ``x`` have gaps (the case ``columns``), or all are one row (``expanded``, stride 0):
  use the strides.
- Blocks along T need W - 1 tokens of the block before; at t = 0 those are zero, and must not be the
  last tokens of the batch row before.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        length, width = x.shape[1], weight.shape[1]
        padded = F.pad(x.float(), (0, 0, width - 1, 0))
        z = bias.float().expand(x.shape)
        for w in range(width):
            z = z + weight[:, w].float() * padded[:, w : w + length]
        return F.silu(z).to(x.dtype)


def get_inputs(batch=2, length=40, channels=24, width=4, layout="contiguous", dtype=torch.float32):
    """``layout``: "contiguous", "columns" (a slice of a wider tensor), "expanded" (one token)."""
    x = torch.randn(batch, length, channels).to(dtype)
    if layout == "columns":
        x = torch.cat((torch.full_like(x[..., :5], 9), x, torch.full_like(x, 9)), dim=-1)
        x = x[..., 5 : 5 + channels]
    if layout == "expanded":
        x = x[:, :1].expand(batch, length, channels)
    return [x, torch.randn(channels, width).to(dtype), torch.randn(channels).to(dtype)]


CASES = {
    "default": {},
    "one_of_each": {"batch": 1, "length": 1, "channels": 1, "width": 1},
    "one_token": {"batch": 3, "length": 1, "channels": 33},
    "two_tokens": {"batch": 3, "length": 2, "channels": 17},
    "no_tokens": {"length": 0},
    "odd": {"batch": 3, "length": 65, "channels": 31, "width": 3},
    "columns": {"length": 33, "layout": "columns"},
    "expanded": {"length": 19, "layout": "expanded"},
    "large": {"batch": 2, "length": 515, "channels": 64},
    "bf16": {"dtype": torch.bfloat16},
}


def _library(x, weight, bias):
    """`torch.nn.functional.conv1d`, one group a channel."""
    channels, width = weight.shape
    if x.shape[1] == 0:
        return torch.empty_like(x)
    z = F.conv1d(x.mT, weight.unsqueeze(1), bias, padding=width - 1, groups=channels)
    return F.silu(z[..., : x.shape[1]]).mT.contiguous()


BASELINES = {"F.conv1d": _library}

MISTAKES = {
    "the filter is reversed: weight[c, W - 1] meets the present token": (
        lambda x, weight, bias: Model()(x, weight.flip(1), bias)
    ),
}


def FLOPS(batch=2, length=40, channels=24, width=4):
    return batch * length * channels * (2 * width + 4)


def BYTES(batch=2, length=40, channels=24, width=4, dtype=torch.float32):
    return (2 * batch * length * channels + channels * (width + 1)) * dtype.itemsize
