"""PyTorch's fused layer normalisation, on rows that have been centred beforehand."""

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight, bias):
        # The fused kernel takes the variance in one pass, which loses digits where the mean is
        # large; after centring its mean is only the rounding error of the first one.
        wide = x.float()
        first = wide.mean(dim=1, keepdim=True)
        y, rest, rstd = torch.native_layer_norm(
            wide - first, [wide.shape[1]], weight.float(), bias.float(), self.eps
        )
        mean = first.view(-1) + rest.view(-1)
        return {"y": y.to(x.dtype), "mean": mean.to(x.dtype), "rstd": rstd.view(-1).to(x.dtype)}
