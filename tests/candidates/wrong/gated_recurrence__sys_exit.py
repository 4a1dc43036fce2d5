"""Leaves the process politely, with the exit code of success."""

import sys

import torch.nn as nn

EXPECT = "crash"


class ModelNew(nn.Module):
    def forward(self, q, k, v, gate):
        sys.exit(0)
