"""Returns a dict that computes its values when it is asked for its items, after the clock."""

import torch
import torch.nn as nn

WAY = 48
EXPECT = "wrong"
SAYS = ("returns output['x']",)


class Later(dict):
    def items(self):
        if "x" not in self:
            return dict.items(self)
        x, weight, bias, eps = (dict.__getitem__(self, name) for name in ("x", "w", "b", "eps"))
        y, mean, rstd = torch.native_layer_norm(x, [x.shape[-1]], weight, bias, eps)
        rows = x.shape[:-1]
        mean, rstd = mean.reshape(rows).to(x.dtype), rstd.reshape(rows).to(x.dtype)
        return {"y": y, "mean": mean, "rstd": rstd}.items()

    def values(self):
        return dict(self.items()).values()


class ModelNew(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> dict:
        return Later(x=x, w=weight, b=bias, eps=self.eps)
