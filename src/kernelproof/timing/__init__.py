"""Stage 5: how fast, beside what? See docs/timing.md."""

from __future__ import annotations

from kernelproof.timing.protocol import Budget, Entrant, measure

__all__ = ["Budget", "Entrant", "measure"]
