"""Dies by a signal, as after a corrupted heap."""

import os

import torch.nn as nn

EXPECT = "crash"


class ModelNew(nn.Module):
    def forward(self, q, k, v, gate):
        os.abort()
