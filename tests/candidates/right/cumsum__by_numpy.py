"""The work is numpy's, and so is the memory of the output."""

import numpy as np
import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.cumsum(x.numpy(), axis=-1, dtype=np.float64).astype(np.float32))
