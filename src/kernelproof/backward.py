"""Forward and backward as one function, so that gradients are judged like any output."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves


class Gradients(nn.Module):
    """Gradients of a module by its floating inputs and its parameters.

    ``forward(*inputs, cotangents)``: the inputs of ``module``, then one tensor for each of its
    tensor outputs, of the same shape and dtype. Returns the gradients of the sum of outputs times
    cotangents by the floating tensors among ``inputs``, in order, and by the parameters that
    require one; None where an output does not depend on it. Empty where no output has a gradient.
    """

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> list[Any]:
        *inputs, cotangents = args
        with torch.enable_grad():
            given = [_tracked(value) for value in inputs]
            by = [x for x in given if isinstance(x, torch.Tensor) and x.requires_grad]
            by += [p for p in self.module.parameters() if p.requires_grad]
            outputs = list(zip(tensors(self.module(*given)), cotangents, strict=True))
            kept = [(y, c.to(y.dtype)) for y, c in outputs if y.requires_grad]
            if not kept or not by:
                return []
            if not any(y.is_complex() for y, _ in kept):
                # Handed over as they are, cotangents make torch import sympy, which takes a second.
                total = sum((y * c).sum() for y, c in kept)
                return list(torch.autograd.grad([total], by, allow_unused=True))
            ys, cs = zip(*kept, strict=True)
            return list(torch.autograd.grad(ys, by, cs, allow_unused=True))

    def names(self, inputs: list[Any]) -> list[str]:
        """What each gradient is by, such as "argument 0" or "parameter w"."""
        by = [f"argument {i}" for i, value in enumerate(inputs) if _floating(value)]
        return by + [f"parameter {n}" for n, p in self.module.named_parameters() if p.requires_grad]

    def outputs(self, inputs: list[Any]) -> list[torch.Tensor]:
        """The tensors of the output, with their graph."""
        with torch.enable_grad():
            return tensors(self.module(*[_tracked(value) for value in inputs]))


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in ``value``."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _tracked(value: Any) -> Any:
    return value.detach().requires_grad_() if _floating(value) else value
