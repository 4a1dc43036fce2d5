"""One serial fp32 sum over the classes of a row; the rows' losses in fp64."""

from ctypes import c_int64, c_void_p
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.build import c_library

EXPECT = "pass"

cross_entropy = c_library([Path(__file__).with_name("kernel.cpp")]).cross_entropy
cross_entropy.argtypes = [c_void_p] * 3 + [c_int64] * 2
cross_entropy.restype = None


class ModelNew(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits, target = logits.contiguous(), target.contiguous()
        loss = torch.empty(())
        cross_entropy(logits.data_ptr(), target.data_ptr(), loss.data_ptr(), *logits.shape)
        return loss
