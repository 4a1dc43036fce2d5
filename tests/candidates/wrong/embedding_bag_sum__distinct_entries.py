"""An entry that occurs twice in a bag counts once."""

import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, table, indices, offsets):
        y = table.new_zeros(offsets.numel(), table.shape[1])
        ends = [*offsets[1:].tolist(), indices.numel()]
        for bag, (start, end) in enumerate(zip(offsets.tolist(), ends, strict=True)):
            y[bag] = table[indices[start:end].unique()].sum(dim=0)
        return y
