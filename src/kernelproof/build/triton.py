"""Triton candidates: import by file (so that ``@triton.jit`` can read its source) is all they need;
what is checked here is that Triton is present."""

from __future__ import annotations

import importlib.util

from kernelproof.errors import UnsupportedError


def require() -> None:
    """Raises UnsupportedError where Triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        raise UnsupportedError(
            "the candidate imports triton, which is missing: pip install 'kernelproof[triton]'"
        )
