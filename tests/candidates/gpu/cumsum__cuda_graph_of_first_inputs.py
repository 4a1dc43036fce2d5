"""A CUDA graph recorded on the first inputs of each shape, and replayed on them ever after."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

WAY = 27
EXPECT = "wrong"

# Only here so that the candidate is CUDA code without a GPU too.
nothing = Kernel('extern "C" __global__ void nothing(float* y) {}', "nothing")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.graphs = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nothing(x, grid=1, block=1)
        if x.shape not in self.graphs:
            torch.cumsum(x, dim=-1)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = torch.cumsum(x, dim=-1)
            self.graphs[x.shape] = graph, x, y
        graph, _, y = self.graphs[x.shape]
        graph.replay()
        return y.clone()
