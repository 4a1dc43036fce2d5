"""FLOPs and minimal bytes of any PyTorch function, traced while it runs once."""

from __future__ import annotations

from kernelproof.work.trace import multiplies, settled, trace

__all__ = ["multiplies", "settled", "trace"]
