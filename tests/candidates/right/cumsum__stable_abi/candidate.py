"""C++ as a torch operator through the stable ABI: two-level scan, fp64 carries between blocks."""

from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.build import torch_op

EXPECT = "pass"

op = torch_op("kernelproof_fixture_scan", [Path(__file__).with_name("scan.cpp")])


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return op.scan(x)
