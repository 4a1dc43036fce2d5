"""What a wrong output looks like: the pattern, in words, for whoever has to find the bug."""

from __future__ import annotations

import torch

_CLOSE = 1e-2  # relative rms below which two tensors count as the same up to rounding


def pattern(got: torch.Tensor, truth: torch.Tensor, wrong: torch.Tensor) -> str:
    """A sentence on how ``got`` differs from ``truth`` (float64, same shape), or "".

    Args:
        wrong: boolean mask of the elements that are off.
    """
    bad = ~torch.isfinite(got) & torch.isfinite(truth)
    if bool(bad.any()):
        return _unwritten(got, bad)
    if bool((got == 0).all()) and bool((truth != 0).any()):
        return "every element is zero"
    for find in (_scaled, _transposed, _shifted, _one_slice):
        found = find(got, truth, wrong)
        if found:
            return found
    return ""


def _unwritten(got: torch.Tensor, bad: torch.Tensor) -> str:
    count, total = int(bad.sum()), bad.numel()
    kind = "NaN" if bool(got[bad].isnan().all()) else "NaN or Inf"
    where = _where(bad)
    return (
        f"{count} of {total} elements are {kind}{where}: never written (outputs are filled with "
        "NaN beforehand), or computed from such memory, or an overflow"
    )


def _where(mask: torch.Tensor) -> str:
    """Text such as " (only axis 1 index 3..7)" when the marked elements fill few indices of one
    axis, else ""."""
    for axis in range(mask.dim()):
        others = [d for d in range(mask.dim()) if d != axis]
        hit = mask.any(dim=others) if others else mask
        n = int(hit.sum())
        if n and n <= hit.numel() // 2:
            index = hit.nonzero().flatten().tolist()
            if index[-1] - index[0] + 1 == n:
                span = f"{index[0]}" if n == 1 else f"{index[0]}..{index[-1]}"
                return f" (only axis {axis} index {span} of {hit.numel()})"
    return ""


def _scaled(got: torch.Tensor, truth: torch.Tensor, wrong: torch.Tensor) -> str:
    factor = float((got * truth).sum() / truth.square().sum())
    if factor and _distance(got / factor, truth) < _CLOSE and abs(factor - 1) > 1e-3:
        if abs(factor + 1) < 1e-3:
            return "the sign is flipped everywhere"
        return f"every element is {factor:.6g} times the expected value: a factor is off"
    return ""


def _transposed(got: torch.Tensor, truth: torch.Tensor, wrong: torch.Tensor) -> str:
    for a in range(truth.dim()):
        for b in range(a + 1, truth.dim()):
            if truth.shape[a] == truth.shape[b] > 1 and (
                _distance(got.transpose(a, b), truth) < _CLOSE
            ):
                return f"axes {a} and {b} are swapped"
    return ""


def _shifted(got: torch.Tensor, truth: torch.Tensor, wrong: torch.Tensor) -> str:
    for axis in range(truth.dim()):
        n = truth.shape[axis]
        if n < 4:
            continue
        for step in (1, -1):
            a = got.narrow(axis, max(step, 0), n - 1)
            b = truth.narrow(axis, max(-step, 0), n - 1)
            if _distance(a, b) < _CLOSE:
                return f"shifted along axis {axis}: index i holds what belongs at i{-step:+d}"
    return ""


def _one_slice(got: torch.Tensor, truth: torch.Tensor, wrong: torch.Tensor) -> str:
    where = _where(wrong)
    return f"wrong elements lie together{where}" if where else ""


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative rms distance; inf where the norm of ``b`` is zero."""
    norm = float(b.norm())
    return float((a - b).norm()) / norm if norm > 0 else float("inf")
