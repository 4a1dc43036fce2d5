"""Leaves the process at once, with the exit code of success and without any clean-up."""

import os

import torch.nn as nn

EXPECT = "crash"


class ModelNew(nn.Module):
    def forward(self, q, k, v, gate):
        os._exit(0)
