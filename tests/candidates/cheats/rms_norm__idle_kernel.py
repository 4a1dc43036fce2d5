"""Launches a kernel on memory that nobody reads, and leaves the work to torch."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

WAY = 24
EXPECT = "pass"
SAYS = ("no kernel had a part in output 0",)

kernel = Kernel('extern "C" __global__ void idle(float* y) { y[threadIdx.x] = 1; }', "idle")


class ModelNew(nn.Module):
    def __init__(self, columns: int, eps: float = 1e-6, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(columns).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kernel(torch.empty(32, device=x.device), grid=1, block=32)
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (wide * scale * self.weight.float()).to(x.dtype)
