"""Stage 4: is it the same function? See docs/verdict.md."""

from __future__ import annotations

from kernelproof.check.judge import check
from kernelproof.check.plan import Plan, Subject

__all__ = ["Plan", "Subject", "check"]
