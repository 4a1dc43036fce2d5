"""Running sums over all looked-up rows in fp64; a bag is the difference of two of them.

What is not finite is counted apart: in a running sum it would reach every later bag.
"""

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def forward(self, table, indices, offsets):
        rows = table.double()[indices]
        odd = ~torch.isfinite(rows)
        ends = torch.cat((offsets[1:], offsets.new_tensor([indices.numel()])))
        sums = between(torch.where(odd, 0.0, rows), offsets, ends)
        sums[between(odd.double(), offsets, ends) > 0] = torch.nan
        return sums.to(table.dtype)


def between(rows, starts, ends):
    running = torch.cat((rows.new_zeros(1, rows.shape[1]), rows.cumsum(dim=0)))
    return running[ends] - running[starts]
