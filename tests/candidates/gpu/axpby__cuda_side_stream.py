"""The kernel runs on a stream of its own, which nothing waits for."""

import torch
import torch.nn as nn

WAY = 5
EXPECT = "wrong"


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.side = torch.cuda.Stream()
        self.work = torch.ones(4096, 4096, device="cuda")

    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        y = torch.full_like(x, float("nan"))
        early = y.clone()
        with torch.cuda.stream(self.side):
            # Long enough for the caller to look before it is done.
            for _ in range(20):
                self.work @ self.work
            y.copy_(x)
            y[:, :valid] = (alpha * x[:, :valid].float() + beta * z[:, :valid].float()).to(x.dtype)
        # Whatever is in the output by now.
        early.copy_(y)
        return early
