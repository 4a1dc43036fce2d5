"""Whether a 16-bit output is rounded by cutting bits off, which an error within one unit hides."""

from __future__ import annotations

import torch

from kernelproof.check import budget


class Truncation:
    """Counts over the runs of a case. A factor that is too small lowers elements as well, but
    raises none to what cutting would give."""

    def __init__(self) -> None:
        self._cut = self._lower = self._elements = 0

    def add(self, got: torch.Tensor, truth: torch.Tensor) -> None:
        """One run: an output, and the oracle's in float64. Other than 16-bit ones add nothing."""
        if got.dtype not in (torch.float16, torch.bfloat16):
            return
        cut, lower, elements = _cut_off(got, truth)
        self._cut += cut
        self._lower += lower
        self._elements += elements

    @property
    def found(self) -> bool:
        """Whether the output is the truth with its bits cut off."""
        n = self._elements
        return (
            n >= budget.TRUNCATION_ELEMENTS
            and self._cut >= budget.TRUNCATION_MATCH * n
            and self._lower >= budget.TRUNCATION_SHARE * n
        )

    def words(self) -> str:
        share = 100 * self._lower / self._elements
        return (
            f"the store cuts bits off instead of rounding to nearest: {share:.0f}% of the elements "
            "are one unit nearer to zero than the rounded truth, as cutting leaves them"
        )


def _cut_off(got: torch.Tensor, truth: torch.Tensor) -> tuple[int, int, int]:
    """(elements that are the truth with the bits cut off which ``got``'s 16-bit format lacks; those
    of them that rounding to nearest would have raised; normal elements)."""
    best = truth.to(got.dtype)
    normal = torch.isfinite(best) & (best.abs() > torch.finfo(got.dtype).tiny)
    raised = best.double().abs() > truth.abs()
    # One less in the bits is the neighbour nearer to zero, for either sign.
    cut = torch.where(raised, (best.view(torch.int16) - 1).view(got.dtype), best)
    same = normal & (got == cut)
    return int(same.sum()), int((same & raised).sum()), int(normal.sum())
