"""Batch normalisation, dropout and ReLU in evaluation mode (a module with buffers).

    y = max(0, (x - running_mean) / sqrt(running_var + eps) * weight + bias)

Modules are judged in evaluation mode: the running statistics are used, and dropout is the
identity. ``x`` is (B, C, L); the statistics are buffers (C,), the affine vectors parameters (C,).

Traps for kernel writers:

- Statistics of the present batch are another function, and at B = L = 1 always zero.
- Buffers arrive through ``load_state_dict``, after the constructor has run: scale and shift folded
  in the constructor are those of untrained buffers.
- Dropout that is still active gives another answer in each run, with 1 / (1 - p) of the scale.
- Folding into ``x * scale + shift`` cancels where the mean is large beside the spread.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels: int, p: float = 0.3):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)
        self.dropout = nn.Dropout(p)
        with torch.no_grad():  # as after training; the defaults would make this the identity
            self.norm.running_mean.normal_()
            self.norm.running_var.uniform_(0.5, 2.0)
            self.norm.weight.normal_()
            self.norm.bias.normal_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.dropout(self.norm(x)))


def get_inputs(batch=6, channels=20, length=50):
    return [2 * torch.randn(batch, channels, length) + 0.5]


def get_init_inputs(channels=20):
    return [channels]


CASES = {
    "default": {},
    "one_row": {"batch": 1, "channels": 33, "length": 1},
    "one_channel": {"batch": 5, "channels": 1, "length": 17},
    "odd": {"batch": 3, "channels": 31, "length": 65},
    "large": {"batch": 16, "channels": 64, "length": 1000},
}


def FLOPS(batch=6, channels=20, length=50):
    return 3 * batch * channels * length


def BYTES(batch=6, channels=20, length=50):
    return 4 * (2 * batch * channels * length + 4 * channels)
