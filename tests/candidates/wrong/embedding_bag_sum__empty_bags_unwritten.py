"""Rows of empty bags are left as the allocator gave them."""

import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, table, indices, offsets):
        y = table.new_empty(offsets.numel(), table.shape[1])
        ends = [*offsets[1:].tolist(), indices.numel()]
        for bag, (start, end) in enumerate(zip(offsets.tolist(), ends, strict=True)):
            if end > start:
                y[bag] = table[indices[start:end]].sum(dim=0)
        return y
