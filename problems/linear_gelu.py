"""Linear layer with GELU: ``y = gelu(x @ weight.T + bias)``, the exact (erf) form.

    gelu(z) = z * (1 + erf(z / sqrt(2))) / 2

``weight`` (out_features, in_features) and ``bias`` are parameters of the module.

Traps for kernel writers:

- The tanh approximation differs by up to 5e-4: it is another function.
- ``weight`` is stored with the reduced axis last; a kernel that reads it as (in, out) is right only
  for symmetric matrices, and runs without complaint on square ones.
- The bias comes before the GELU.
- For z < -5 the exact form is the difference of nearly equal numbers: ``1 + erf`` cancels where
  ``erfc(-z / sqrt(2))`` does not. PyTorch's own result has that error too.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        # Unit-variance outputs: the GELU is used on both of its sides.
        weight = torch.randn(out_features, in_features) / in_features**0.5
        self.weight = nn.Parameter(weight.to(dtype))
        self.bias = nn.Parameter(torch.randn(out_features).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x @ self.weight.T + self.bias)


def get_inputs(batch=37, in_features=96, out_features=80, dtype=torch.float32):
    return [(1.5 * torch.randn(batch, in_features)).to(dtype)]


def get_init_inputs(in_features=96, out_features=80, dtype=torch.float32):
    return [in_features, out_features, dtype]


CASES = {
    "default": {},
    "one_row": {"batch": 1},
    "one_by_one": {"batch": 3, "in_features": 1, "out_features": 1},
    "odd": {"batch": 17, "in_features": 33, "out_features": 65},
    "square": {"batch": 64, "in_features": 64, "out_features": 64},
    "large": {"batch": 512, "in_features": 384, "out_features": 512},
    "bf16": {"dtype": torch.bfloat16},
}


class AddmmGelu(Model):
    """One library call for the product and the bias."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, self.weight, self.bias))


BASELINES = {"F.linear": AddmmGelu}


def FLOPS(batch=37, in_features=96, out_features=80, dtype=torch.float32):
    return 2 * batch * in_features * out_features


def BYTES(batch=37, in_features=96, out_features=80, dtype=torch.float32):
    numbers = batch * (in_features + out_features) + out_features * (in_features + 1)
    return numbers * dtype.itemsize
