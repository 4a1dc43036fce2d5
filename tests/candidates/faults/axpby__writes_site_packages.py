"""Puts a module beside torch."""

import pathlib

import torch
import torch.nn as nn

EXPECT = "crash"
SAYS = ("Permission denied", "tempfile.gettempdir()")


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        folder = pathlib.Path(torch.__file__).parents[1]
        (folder / "kernelproof_fault_probe.py").write_text("")
        y = x.clone()
        y[:, :valid] = (alpha * x[:, :valid].float() + beta * z[:, :valid].float()).to(x.dtype)
        return y
