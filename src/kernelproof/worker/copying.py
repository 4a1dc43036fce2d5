"""Copies of inputs and outputs that are made beside a clock, by functions taken over at import,
which is before any candidate."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kernelproof.worker.inputs import bits

_clone, _detach = torch.Tensor.clone, torch.Tensor.detach
_copyto = np.copyto


def copied(tensor: Any) -> Any:
    """A copy by torch's own functions: an object may carry others under the same names."""
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return tensor
    plain = _detach(tensor)
    if plain.device.type != "cpu" or plain.is_conj() or plain.is_neg():
        return _clone(plain)
    copy = torch.empty_like(plain)
    fill(copy, plain)
    return copy


def fill(into: Any, value: Any) -> None:
    """Copy values. On a CPU by numpy, which uses no threads: torch's would go on spinning for a
    while, and a kernel that has threads of its own would be timed beside them."""
    if into.device.type == "cpu":
        _copyto(bits(into).numpy(), bits(_detach(value)).numpy())
    else:
        into.copy_(value)
