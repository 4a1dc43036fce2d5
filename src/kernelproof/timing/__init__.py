"""Stage 5: how fast, beside what? See docs/timing.md."""

from __future__ import annotations

from kernelproof.timing.fresh import Drawn, Fresh
from kernelproof.timing.picks import Pick, Picks
from kernelproof.timing.protocol import Budget, Entrant, measure

__all__ = ["Budget", "Drawn", "Entrant", "Fresh", "Pick", "Picks", "measure"]
