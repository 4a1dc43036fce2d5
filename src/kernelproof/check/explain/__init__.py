"""What a wrong output looks like: the pattern, in words, for whoever has to find the bug."""

from __future__ import annotations

import torch

from kernelproof.check.explain import values
from kernelproof.check.explain.region import Region, describe
from kernelproof.check.explain.values import Finding


def pattern(got: torch.Tensor, truth: torch.Tensor, wrong: torch.Tensor) -> str:
    """One or two sentences on how ``got`` differs from ``truth`` and what to look at, or "".

    Args:
        got, truth: float64, same shape.
        wrong: boolean mask of the elements that are off. Where it is empty (an error that is small
            everywhere), the largest errors take its place.
    """
    bad = ~torch.isfinite(got) & ((got != truth) & torch.isfinite(truth))
    if bool(bad.any()):
        return _not_finite(got, bad)
    # Infinities that are expected there say nothing about the others.
    known = torch.isfinite(got) & torch.isfinite(truth)
    got, truth = torch.where(known, got, 0.0), torch.where(known, truth, 0.0)
    wrong = wrong & known
    if not bool(wrong.any()):
        error = (got - truth).abs()
        wrong = error > 0.1 * error.max()
    if not bool(wrong.any()) or truth.dim() == 0:
        return _sentence(_whole(got, truth)) if truth.dim() == 0 else ""
    region = describe(wrong)
    if region is None or int(wrong.sum()) > 0.5 * wrong.numel():
        found = _everywhere(got, truth)
        if found:
            return _sentence(found)
    found = values.moved(got, truth) or values.mask_moved(got, truth)
    if found is None:
        found = values.large_only(got, truth, wrong)
    if found:
        return _sentence(found)
    local = values.local(got[wrong], truth[wrong], truth.shape)
    if region is None and local is None:
        # Two bugs of one cause: values that are missing, and others that make up for them.
        missing = values.zeros(got, truth)
        gap = describe(missing)
        if gap and gap.dense and int(missing.sum()) >= 2:
            look = "a mask that hides too much, or a loop or store that does not get there"
            return _sentence(Finding(f"zero where values are expected, {gap.where}", look))
    return _combined(region, local)


def _everywhere(got: torch.Tensor, truth: torch.Tensor) -> Finding | None:
    """Relations that explain the whole output."""
    for find in (_whole, values.transposed, values.shifted, values.dropped, values.moved):
        found = find(got, truth)
        if found:
            return found
    return values.by_axis(got, truth)


def _whole(got: torch.Tensor, truth: torch.Tensor) -> Finding | None:
    found = values.local(got, truth, truth.shape)
    return Finding(f"every element is {found.what}", found.look) if found else None


def _not_finite(got: torch.Tensor, bad: torch.Tensor) -> str:
    count, total = int(bad.sum()), bad.numel()
    kind = "NaN" if bool(got[bad].isnan().all()) else "NaN or Inf"
    if bool(got[bad].isinf().all()):
        kind = "infinite"
    region = describe(bad)
    where = f" ({region.where})".replace(",)", ")") if region else ""
    text = (
        f"{count} of {total} elements are {kind}{where}: never written (outputs are filled with "
        "NaN beforehand), or computed from such memory, or an overflow"
    )
    return text + (f". First look at {region.look}" if region and region.look else "")


def _combined(region: Region | None, found: Finding | None) -> str:
    if region is None:
        return (
            _sentence(Finding(f"the wrong elements are {found.what}", found.look)) if found else ""
        )
    what, look = f"wrong {region.where}", region.look
    if found:
        what = f"{what.removesuffix(',')}, where each is {found.what}"
        # A factor or an offset is a better start than a place; zeros are not.
        look = found.look if found.look and found.what != "zero" else look
    return _sentence(Finding(what.removesuffix(","), look))


def _sentence(found: Finding | None) -> str:
    if found is None:
        return ""
    return found.what + (f". First look at {found.look}" if found.look else "")
