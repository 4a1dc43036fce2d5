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
