"""kernelproof: the proving ground for custom PyTorch kernels.

    import kernelproof

    record = kernelproof.judge("mla_kv", "my_kernel.py", timed=True)
    print(kernelproof.report.detail(record))

Names load on first use, so that ``import kernelproof`` costs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelproof import build, cuda, ops, report, session, store
    from kernelproof.pipeline import Options, judge
    from kernelproof.proving import prove, verify
    from kernelproof.types import Record

__version__ = "0.1.0"

__all__ = [
    "Options",
    "Record",
    "build",
    "cuda",
    "judge",
    "ops",
    "prove",
    "report",
    "session",
    "store",
    "verify",
]

# Name -> the module that has it; a module that is a name itself stands for "".
_HOMES = {
    "Options": "pipeline",
    "Record": "types",
    "judge": "pipeline",
    "prove": "proving",
    "verify": "proving",
    **dict.fromkeys(("build", "cuda", "ops", "report", "session", "store"), ""),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kernelproof' has no attribute {name!r}")
    if not _HOMES[name]:
        return importlib.import_module(f"kernelproof.{name}")
    return getattr(importlib.import_module(f"kernelproof.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
