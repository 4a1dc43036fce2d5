"""Statistics by blocks of columns in fp64, merged by Chan's formula."""

import torch
import torch.nn as nn

EXPECT = "pass"

BLOCK = 48


class ModelNew(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight, bias):
        wide = x.float()
        count, mean, squares = 0, 0.0, 0.0
        for part in wide.split(BLOCK, dim=1):
            more = part.shape[1]
            part = part.double()
            part_mean = part.mean(dim=1)
            part_squares = (part - part_mean.unsqueeze(1)).square().sum(dim=1)
            delta = part_mean - mean
            squares = squares + part_squares + delta * delta * (count * more / (count + more))
            mean = mean + delta * (more / (count + more))
            count += more
        rstd = 1.0 / torch.sqrt(squares / count + self.eps)
        y = (wide - mean.unsqueeze(1)) * rstd.unsqueeze(1) * weight.double() + bias.double()
        return {"y": y.to(x.dtype), "mean": mean.to(x.dtype), "rstd": rstd.to(x.dtype)}
