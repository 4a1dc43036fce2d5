"""The last bag, which has no following offset, is never written."""

import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, table, indices, offsets):
        y = table.new_zeros(offsets.numel(), table.shape[1])
        for bag in range(offsets.numel() - 1):
            y[bag] = table[indices[offsets[bag] : offsets[bag + 1]]].sum(dim=0)
        return y
