"""Sets other precisions for the whole process, in which its caller goes on."""

import torch
import torch.nn as nn

WAY = 51
EXPECT = "pass"
SAYS = ("settings of the whole process changed: dtype, precision",)

torch.set_default_dtype(torch.float64)
torch.set_float32_matmul_precision("medium")
torch.set_flush_denormal(True)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, dim=-1)
