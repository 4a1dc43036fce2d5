"""The scalars of the first call are kept, as when they are compiled into a kernel."""

import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int):
        if not hasattr(self, "scalars"):
            self.scalars = (alpha, beta, valid)
        alpha, beta, valid = self.scalars
        y = x.clone()
        y[:, :valid] = (alpha * x[:, :valid].float() + beta * z[:, :valid].float()).to(x.dtype)
        return y
