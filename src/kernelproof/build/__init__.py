"""Stage 3: build a candidate. ``kernelproof.build.torch_op`` is the helper for candidates."""

from __future__ import annotations

from kernelproof.build.stable import compile_library, torch_op

__all__ = ["compile_library", "torch_op"]
