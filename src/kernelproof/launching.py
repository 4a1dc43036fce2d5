"""Launches that are refused, by the rules of the driver; and what has been refused in this process.

A refused launch is an error that the next call can ask for. Code that does not ask goes on as if
the kernel had run, so what was refused is kept here for whoever wants to know.
"""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any, NoReturn

from kernelproof.errors import CandidateCrash

# Bytes of shared memory, static and dynamic together, that a block gets without opting in, and
# threads of a block, on every GPU so far (CUDA C++ guide, 5.2.3 and the table of compute
# capabilities).
SHARED_WITHOUT_OPT_IN = 48 * 1024
MOST_THREADS = 1024
_GRID = (1 << 31, 1 << 16, 1 << 16)
# The most that any GPU grants a block that opts in, from compute capability 9.0 on (same table).
SHARED_AT_MOST = 227 * 1024
_REMEDY = (
    "raise the limit once, with cudaFuncSetAttribute(kernel, "
    "cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), and check cudaGetLastError() after the "
    "launch; or use less"
)

# cudaErrorInvalidValue, InvalidConfiguration, InvalidDeviceFunction, NoKernelImageForDevice and
# LaunchOutOfResources (driver_types.h): what a launch itself returns.
_REFUSALS = (1, 9, 98, 209, 701)

_refused: list[str] = []


def check(
    name: str, grid: tuple[int, ...], block: tuple[int, ...], shared: int, opt_in: bool,
    static: int = 0,
) -> None:  # fmt: skip
    """Refuse what the driver of any GPU would.

    Args:
        grid, block: blocks and threads along each axis.
        shared: dynamic shared memory in bytes; ``opt_in``: whether the attribute asks for it where
            it and the static memory are more than 48 KiB.
        static: shared memory in bytes that the kernel declares with a size.

    Raises:
        CandidateCrash: it asks for more than a block can have.
    """
    words = refused_sizes(grid, block)
    if not words and static + shared > SHARED_AT_MOST:
        words = (
            f"{asked(shared, static)}; no GPU grants more than {SHARED_AT_MOST:,}, also by opting "
            "in"
        )
    elif not words and shared > without_opt_in(static) and not opt_in:
        words = (
            f"{asked(shared, static)}; without opting in it gets at most "
            f"{SHARED_WITHOUT_OPT_IN:,}: {_REMEDY}"
        )
    if words:
        refuse(name, words)


def refused_sizes(grid: tuple[int, ...], block: tuple[int, ...]) -> str:
    """Why no GPU takes a launch of these blocks and threads along each axis; empty if one does."""
    threads = math.prod(block)
    if any(not 0 < n < most for n, most in zip(grid, _GRID, strict=False)):
        return f"a grid of {grid} blocks; it may have 1 to 2^31 - 1, 65,535 and 65,535"
    if not 0 < threads <= MOST_THREADS or block[2:] > (64,):
        return f"a block of {threads:,} threads; it may have 1 to {MOST_THREADS:,}, 64 along z"
    return ""


def without_opt_in(static: int) -> int:
    """Bytes of dynamic shared memory that a kernel gets without opting in, beside ``static`` ones.
    With more than 48 KiB of these, which the assembler takes for targets such as sm_90a, it has
    opted in: seen on an H200."""
    return (SHARED_WITHOUT_OPT_IN if static <= SHARED_WITHOUT_OPT_IN else SHARED_AT_MOST) - static


def asked(shared: int, static: int = 0) -> str:
    """How much shared memory a launch asks for, in words."""
    beside = f" and {static:,} of static" if static else ""
    return f"{shared:,} bytes of dynamic{beside} shared memory for a block"


def refuse(name: str, words: str) -> NoReturn:
    """Raises CandidateCrash: the launch of kernel ``name`` asks for ``words``; kept for `taken`."""
    text = f"the launch of {name} was refused, so the kernel did not run: it asks for {words}"
    _refused.append(text)
    raise CandidateCrash(text)


def taken(device: str = "cpu") -> list[str]:
    """What was refused since the last call, each text once. On a CUDA device also what CUDA's
    runtime holds against a ``<<<...>>>`` that nobody has checked; it is cleared."""
    found, _refused[:] = list(dict.fromkeys(_refused)), []
    pending = "" if device == "cpu" else _pending_error()
    if pending:
        found.append(
            f"a launch was refused, so the kernel did not run, and nobody has looked at the error "
            f"({pending}): it may ask for more than {SHARED_WITHOUT_OPT_IN:,} bytes of dynamic "
            f"shared memory without opting in ({_REMEDY}), or for a block of more than "
            f"{MOST_THREADS:,} threads"
        )
    return found


def _pending_error() -> str:
    """The error of an earlier launch that the runtime keeps for this thread; "" for none."""
    runtime = _runtime()
    if runtime is None:
        return ""
    code = int(runtime.cudaGetLastError())
    return str(runtime.cudaGetErrorName(code).decode()) if code in _REFUSALS else ""


@functools.cache
def _runtime() -> Any:
    """The CUDA runtime that torch has loaded, by its name; None where it is linked otherwise."""
    import torch

    version = (torch.version.cuda or "").split(".")[0]
    try:
        runtime = ctypes.CDLL(f"libcudart.so.{version}")
    except OSError:
        return None
    runtime.cudaGetErrorName.restype = ctypes.c_char_p
    return runtime
