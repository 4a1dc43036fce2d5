"""Group normalisation and SiLU (constructor arguments: groups, channels, eps).

    mean, var over the channels of a group and all positions (biased variance)
    z = (x - mean) / sqrt(var + eps) * weight[channel] + bias[channel]
    y = z * sigmoid(z)

``x`` is (B, C, L); ``weight`` and ``bias`` (C,) are parameters.

Traps for kernel writers:

- ``weight`` goes by channel, the statistics by group of C / groups neighbouring channels.
- A group is contiguous in (B, C, L), but not after a transpose to channels-last.
- The affine step can be folded into one multiply-add per channel; fold in fp32.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, groups: int, channels: int, eps: float = 1e-5):
        super().__init__()
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.randn(channels))
        self.bias = nn.Parameter(torch.randn(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(F.group_norm(x, self.groups, self.weight, self.bias, self.eps))


def get_inputs(batch=3, channels=24, length=50, groups=6, eps=1e-5):
    # Each channel with its own mean and spread: groups can be told apart.
    spread = 0.5 + torch.rand(channels, 1)
    return [torch.randn(batch, channels, length) * spread + torch.randn(channels, 1)]


def get_init_inputs(groups=6, channels=24, eps=1e-5):
    return [groups, channels, eps]


CASES = {
    "default": {},
    "one_group": {"batch": 2, "channels": 7, "length": 33, "groups": 1},
    "one_position": {"batch": 5, "channels": 12, "length": 1, "groups": 3},
    "group_per_channel": {"batch": 1, "channels": 5, "length": 65, "groups": 5},
    "large_eps": {"batch": 2, "channels": 8, "length": 17, "groups": 2, "eps": 0.2},
    "large": {"batch": 4, "channels": 64, "length": 1025, "groups": 16},
}


class ModuleGroupNorm(nn.Module):
    """`nn.GroupNorm` and `nn.SiLU`, as a model would have them."""

    def __init__(self, groups: int, channels: int, eps: float = 1e-5):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, eps)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.norm(x))


BASELINES = {"nn.GroupNorm + nn.SiLU": ModuleGroupNorm}


def FLOPS(batch=3, channels=24, length=50, groups=6, eps=1e-5):
    return 12 * batch * channels * length


def BYTES(batch=3, channels=24, length=50, groups=6, eps=1e-5):
    return 4 * (2 * batch * channels * length + 2 * channels)
