"""What an instruction does to memory, known before anything runs."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Access:
    """``operation``: number of the instruction. ``kind``: load, store, atomic or copy (cp.async).
    ``dtype``: numpy type of one element, ``count`` of them. ``order``: weak, volatile, relaxed,
    acquire, release or acq_rel. ``read_only``: through the read-only path (ld.global.nc).
    ``what``, ``ty``, ``returns``: of an atomic. ``unused``: elements of a vector that nothing reads
    from their registers."""

    operation: int
    kind: str
    space: str
    dtype: str
    count: int
    order: str = "weak"
    read_only: bool = False
    what: str = ""
    ty: str = ""
    returns: bool = False
    unused: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """Bytes."""
        return np.dtype(self.dtype).itemsize * self.count

    @property
    def strong(self) -> bool:
        """Conflicts with other strong accesses are no data races."""
        return self.kind == "atomic" or self.order != "weak"
