"""Error figures of one output, and the precision that an error looks like."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch

from kernelproof.types import Figures


@dataclasses.dataclass(frozen=True)
class Sums:
    """What `Figures` are made of, for a part of an output or for all of it."""

    count: int
    error: float
    squares: float
    truth_squares: float
    max_abs: float
    max_rel: float
    max_ulp: float

    @classmethod
    def of(cls, got: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype) -> Sums:
        """Arguments as of `figures`; with at least one element."""
        error, size = (got - truth).abs(), truth.abs()
        return cls(
            count=truth.numel(),
            error=float(error.sum()),
            squares=float(error.square().sum()),
            truth_squares=float(size.square().sum()),
            max_abs=float(error.amax()),
            max_rel=float(torch.where(error == 0, 0.0, error / size).amax()),
            max_ulp=float((error / _ulp(size, dtype)).amax()),
        )

    @classmethod
    def joined(cls, parts: Sequence[Sums]) -> Sums:
        """Of all ``parts`` together; NaN in one of them stays."""
        table = torch.tensor([dataclasses.astuple(part) for part in parts], dtype=torch.float64)
        sums, most = table[:, :4].sum(dim=0).tolist(), table[:, 4:].amax(dim=0).tolist()
        return cls(sum(part.count for part in parts), *sums[1:], *most)

    def figures(self) -> Figures:
        rms = math.sqrt(self.squares / self.count)
        return Figures(
            max_abs=self.max_abs,
            mean_abs=self.error / self.count,
            rms=rms,
            max_rel=self.max_rel,
            max_ulp=self.max_ulp,
            effective_bits=_bits(rms, math.sqrt(self.truth_squares / self.count)),
        )


def figures(got: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype) -> Figures:
    """Figures of ``got`` against ``truth`` (both float64, same shape); ``dtype`` is the output's
    own, whose units in the last place ``max_ulp`` counts."""
    if truth.numel() == 0:
        return Figures(max_abs=0, mean_abs=0, rms=0, max_rel=0, max_ulp=0, effective_bits=math.inf)
    return Sums.of(got, truth, dtype).figures()


def _bits(rms: float, rms_truth: float) -> float:
    """-log2(rms error / rms truth)."""
    if math.isnan(rms):
        return math.nan
    if rms == 0:
        return math.inf
    return math.log2(rms_truth / rms) if rms_truth > 0 and math.isfinite(rms) else -math.inf


def _ulp(size: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Distance between neighbours of ``dtype`` at the magnitudes ``size`` (float64)."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(size.clamp(min=float(info.tiny)))
    return torch.ldexp(torch.full_like(size, float(info.eps)), exponent - 1)


def lower_precision(rms: float, levels: Mapping[str, float]) -> str:
    """Words for an error as large as that of a lower precision than the best of ``levels``; "" for
    any other. Arguments as of `looks_like`."""
    known = [level for level in levels.values() if level > 0]
    names = looks_like(rms, levels)
    near = [level for level in known if 0.5 <= rms / level <= 2]
    if not near or not min(near) > 4 * min(known):
        return ""
    return (
        f"The error is as large as that of {names}: look for TF32 in a matrix product "
        "(allow_tf32, input_precision, mma) or for a cast to 16 bits"
    )


def looks_like(rms: float, levels: Mapping[str, float]) -> str:
    """The precision whose error ``rms`` is nearest to, on a logarithmic scale.

    Args:
        rms: root mean square error of the candidate.
        levels: precision name -> rms error of the reference computed in that precision. Levels
            within a factor of two of each other cannot be told apart and are named together.
    """
    if not math.isfinite(rms):
        return "no number"
    known = {name: level for name, level in levels.items() if level > 0}
    if rms == 0 or not known:
        return "exact" if rms == 0 else ""
    distance = {name: abs(math.log2(rms / level)) for name, level in known.items()}
    best = min(distance, key=lambda name: distance[name])
    if distance[best] > 4 and rms > max(known.values()):
        return "wrong values"
    if rms < min(known.values()):
        # Better than every level, the working precision included.
        best = min(known, key=lambda name: known[name])
        return f"{best} or better"
    alike = [n for n in known if abs(math.log2(known[n] / known[best])) <= 1]
    return " or ".join(sorted(alike, key=lambda name: distance[name]))
