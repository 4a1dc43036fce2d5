"""Stage 4: is it the same function? See docs/verdict.md."""

from __future__ import annotations

from kernelproof.check.judge import Plan, Subject, check

__all__ = ["Plan", "Subject", "check"]
