"""A convolution of rows with fixed weights."""

import torch
import torch.nn as nn

WEIGHTS = (0.1, 0.2, 0.4, 0.2, 0.1)


class Model(nn.Module):
    def forward(self, x):
        weights = torch.tensor(WEIGHTS, dtype=x.dtype, device=x.device).view(1, 1, 5)
        return torch.nn.functional.conv1d(x[:, None], weights, padding=2)[:, 0]


def get_inputs(rows=3, columns=130):
    return [torch.randn(rows, columns)]
