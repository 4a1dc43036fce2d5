"""Right; an object of its own raises when it is deleted, which Python prints and ignores."""

import torch
import torch.nn as nn

EXPECT = "pass"


class _Raises:
    def __del__(self) -> None:
        raise RuntimeError("in __del__")


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        del_me = _Raises()
        del del_me
        y = x.clone()
        y[:, :valid] = (alpha * x[:, :valid].float() + beta * z[:, :valid].float()).to(x.dtype)
        return y
