"""With nothing to scale a view of the input is returned: right numbers, shared memory."""

import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int):
        if valid == 0:
            return x[:]
        y = x.clone()
        y[:, :valid] = (alpha * x[:, :valid].float() + beta * z[:, :valid].float()).to(x.dtype)
        return y
