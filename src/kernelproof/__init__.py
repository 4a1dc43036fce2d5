"""kernelproof: the proving ground for custom PyTorch kernels.

Names load on first use, so that ``import kernelproof`` costs no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in ("build", "cuda", "ops", "problem", "candidate", "pipeline", "store", "report"):
        return importlib.import_module(f"kernelproof.{name}")
    raise AttributeError(f"module 'kernelproof' has no attribute {name!r}")
