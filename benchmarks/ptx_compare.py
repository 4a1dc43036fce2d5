"""Outputs of benchmarks/ptx_microtests.py in the emulator beside those of a GPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

NAN = "half and single precision instructions return an unspecified NaN (9.7.3, 9.7.4)"


@dataclasses.dataclass(frozen=True)
class Compared:
    """One case beside the GPU's output. ``distance``: the largest of the compared elements, in
    units in the last place for an approximate case; otherwise how many differ in their bits.
    ``open``: elements that PTX leaves open, of which ``open_same`` have the GPU's bits too."""

    name: str
    elements: int
    differ: int
    distance: float
    bound: float
    open: int
    open_same: int
    why: str

    @property
    def right(self) -> bool:
        return self.distance <= self.bound


def compare(case: Any, got: Any, want: Any) -> Compared:
    """``case`` of ptx_microtests. A NaN on both sides is open, unless of float64, whose payloads
    PTX keeps; one beside a number counts as different."""
    if case.halves:
        got, want = got.view(np.uint16), want.view(np.uint16)
    left_open = _nan(case, got) & _nan(case, want)
    why = NAN if left_open.any() else ""
    if case.open is not None:
        left_open, why = case.open(case.arrays()[0]), case.why
    bits = f"u{got.dtype.itemsize}"
    other = got.view(bits) != want.view(bits)
    differ = int((other & ~left_open).sum())
    distance = float(differ)
    if case.ulp:
        steps = np.abs(_ordered(got) - _ordered(want))
        distance = float(np.where(left_open, 0, steps).max())
    same = int((left_open & ~other).sum())
    return Compared(
        case.name, len(got), differ, distance, case.ulp, int(left_open.sum()), same, why
    )


def _nan(case: Any, x: Any) -> Any:
    if case.halves:
        return (x & 0x7FFF) > (0x7C00 if case.halves == "f16" else 0x7F80)
    return np.isnan(x) if x.dtype == np.float32 else np.zeros(len(x), bool)


def _ordered(x: Any) -> Any:
    """Integers in the order of the floats."""
    bits = x.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
