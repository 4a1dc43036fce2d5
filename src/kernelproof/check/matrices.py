"""Inputs that are matrices of a kind: symmetric, triangular, banded.

A kernel may rely on it, as on half of a product that it need not form, or on a transposition that
changes nothing. Nothing but the numbers says so.
"""

from __future__ import annotations

import torch

# Below this most matrices are of some kind.
_LEAST = 3
# Of the largest element: what a product such as A A^T is off from being symmetric.
_ROUNDINGS = 16
# Of all elements, those on diagonals that are zero throughout: of a triangle nearly a half.
_BAND_SHARE = 0.25


def of_a_kind(x: torch.Tensor) -> bool:
    """Whether the last two axes of ``x`` are symmetric or antisymmetric matrices, or such with
    diagonals of zeros, all at the same places: a triangle, a band."""
    if x.dim() < 2 or not x.is_floating_point() or min(x.shape[-2:]) < _LEAST or not x.numel():
        return False
    return _symmetric(x.detach()) or _banded(x.detach())


def _symmetric(x: torch.Tensor) -> bool:
    if x.shape[-1] != x.shape[-2]:
        return False
    wide = x.to(torch.float64)
    limit = _ROUNDINGS * torch.finfo(x.dtype).eps * float(wide.abs().max())
    return any(float((wide - sign * wide.mT).abs().max()) <= limit for sign in (1, -1))


def _banded(x: torch.Tensor) -> bool:
    zero = (x == 0).flatten(0, -3).all(dim=0) if x.dim() > 2 else x == 0
    least = _BAND_SHARE * zero.numel()
    if int(zero.sum()) < least:
        return False
    rows, columns = zero.shape
    diagonals = (zero.diagonal(k) for k in range(1 - rows, columns))
    return sum(d.numel() for d in diagonals if bool(d.all())) >= least
