"""Mean and deviation as constants: those that the inputs have on the average."""

import torch.nn as nn

WAY = 21
EXPECT = "wrong"


class ModelNew(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()

    def forward(self, x, weight, bias):
        mean, rstd = x.new_full(x.shape[:-1], 0.5), x.new_full(x.shape[:-1], 0.5)
        y = (x.float() - 0.5) * 0.5 * weight.float() + bias.float()
        return {"y": y.to(x.dtype), "mean": mean, "rstd": rstd}
