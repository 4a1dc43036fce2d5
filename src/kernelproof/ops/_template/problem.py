"""template_op, a product with a gate: ``x * sigmoid(y)``, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """``x`` and ``y`` of one shape to a tensor of that shape."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x * torch.sigmoid(y)


def get_inputs(shape: tuple[int, ...] = (256, 384), spread: float = 1.0) -> list[Tensor]:
    """``[x, y]`` from the normal distribution; ``spread`` is the standard deviation of y."""
    return [torch.randn(shape), spread * torch.randn(shape)]


def get_init_inputs() -> list[Any]:
    return []


# The first case is the one that is timed. The others are what a kernel gets wrong most easily:
# sizes around its blocks, no elements at all, values at which the arithmetic saturates.
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "one_element": {"shape": (1,)},
    "no_axes": {"shape": ()},
    "no_elements": {"shape": (3, 0, 5)},
    "odd_sizes": {"shape": (3, 7, 11)},
    "one_over": {"shape": (257,)},
    "saturated": {"shape": (40, 33), "spread": 60.0},
}
TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}


def _glu(x: Tensor, y: Tensor) -> Tensor:
    """PyTorch's own operator of this form, which wants both tensors in one."""
    return nn.functional.glu(torch.cat((x, y), dim=-1), dim=-1)


def _in_place(x: Tensor, y: Tensor) -> Tensor:
    """One intermediate tensor instead of two."""
    return torch.sigmoid(y).mul_(x)


BASELINES: dict[str, Callable[..., Tensor]] = {"glu": _glu, "in place": _in_place}

MISTAKES: dict[str, Callable[..., Tensor]] = {
    "x and y are swapped": lambda x, y: torch.sigmoid(x) * y,
}


def FLOPS(shape: tuple[int, ...] = (256, 384)) -> int:
    """For each element an exponential, an addition, a division and a multiplication."""
    return 4 * math.prod(shape)


def BYTES(shape: tuple[int, ...] = (256, 384)) -> int:
    """x and y read once and the output written once, 4 bytes an element each."""
    return 12 * math.prod(shape)
