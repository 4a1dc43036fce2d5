"""Running sums over all looked-up rows in fp64; a bag is the difference of two of them."""

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def forward(self, table, indices, offsets):
        running = table.double()[indices].cumsum(dim=0)
        running = torch.cat((running.new_zeros(1, table.shape[1]), running))
        ends = torch.cat((offsets[1:], offsets.new_tensor([indices.numel()])))
        return (running[ends] - running[offsets]).to(table.dtype)
