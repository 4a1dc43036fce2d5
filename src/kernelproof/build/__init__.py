"""Stage 3: build a candidate. ``torch_op`` and ``c_library`` are the helpers for candidates.

Building happens inside the worker, when the candidate is imported; `prepare` makes the toolchain
of its language ready beforehand.
"""

from __future__ import annotations

from collections.abc import Callable

from kernelproof.build.c_library import c_library
from kernelproof.build.stable import compile_library, torch_op

__all__ = ["c_library", "compile_library", "prepare", "torch_op"]


def _inline() -> None:
    from kernelproof.build import inline

    inline.install()


def _triton() -> None:
    from kernelproof.build import triton

    triton.require()


def _nothing() -> None:
    return


# Language (as `candidate.load` names it) -> what must be done before its file is imported.
_TOOLCHAINS: dict[str, Callable[[], None]] = {
    "pytorch": _nothing,
    "cpp-c": _nothing,
    "cpp-stable": _nothing,
    "cuda-stable": _nothing,
    "cpp-inline": _inline,
    "cuda-inline": _inline,
    "cuda-nvrtc": _nothing,
    "triton": _triton,
}


def prepare(language: str) -> None:
    """Make ready what ``language`` needs. Raises UnsupportedError where it is missing."""
    _TOOLCHAINS[language]()


def for_target(capability: str) -> None:
    """Build CUDA code in this process for a GPU of ``capability``, such as "9.0", without having
    it, to the very builds that a process with such a GPU then finds in the cache."""
    import os

    from kernelproof.build import inline, stable

    stable.target = f"sm_{capability.replace('.', '')}"
    inline.ahead = True
    # What torch takes where nothing is said and it sees such a GPU.
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", f"{capability}+PTX")
