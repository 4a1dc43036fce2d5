"""Check a CUDA kernel inside one's own tests, with no GPU and no problem file.

from kernelproof.testing import check_kernel

def test_scale():
    check_kernel("scale.cu", "scale", grid=8, block=128, args=[x, y, 1000], expected={"y": 3 * x})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernelproof.emulate import Result, load
from kernelproof.emulate.image import Buffer

__all__ = ["check_kernel"]


def check_kernel(
    source: str | Path,
    name: str,
    *,
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    args: Sequence[Any],
    shared: int = 0,
    expected: Mapping[str | int, Any] | None = None,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    uninitialised: Sequence[str] = (),
    options: Sequence[str] = (),
    allow: Sequence[str] = (),
    seeds: Sequence[int | None] = (None,),
) -> Result:
    """Run a kernel in the emulator, and fail on what it does wrong.

    Args:
        source: CUDA C++ text, or the path of a `.cu` or `.ptx` file.
        name: the kernel; templates with their arguments.
        args: CPU tensors and numpy arrays (changed by the kernel), None, numbers, bytes.
        shared: dynamic shared memory in bytes.
        expected: values of buffers afterwards, by the parameter's name or number, compared with
            ``rtol`` and ``atol`` as `numpy.allclose` does; NaN equals NaN.
        uninitialised: names of buffers that hold nothing yet.
        options: for the compiler.
        allow: kinds of findings that do not fail (see docs/emulate.md).
        seeds: one run for each, in another order of threads; None is the plain order.

    Returns:
        The result of the last run.

    Raises:
        AssertionError: findings of severity "error", or values that differ; names the lines.
        CompileError, UnsupportedError: the kernel cannot be compiled or emulated.
    """
    kernel = load(source, name, options)
    arrays = [arg.array if isinstance(arg, Buffer) else arg for arg in args]
    before = [_copy(array) for array in arrays]
    result: Result | None = None
    for seed in seeds:
        for array, old in zip(arrays, before, strict=True):
            if old is not None:
                array[...] = old
        result = kernel.launch(
            grid, block, args, shared=shared, uninitialised=uninitialised, seed=seed
        )
        bad = [f for f in result.errors if f.kind not in allow]
        if bad:
            raise AssertionError(f"{name}: " + "\n".join(str(f) for f in bad))
        for key, want in (expected or {}).items():
            number = kernel.parameters.index(key) if isinstance(key, str) else key
            got = np.asarray(arrays[number], dtype=np.float64)
            np.testing.assert_allclose(
                got, np.asarray(want, dtype=np.float64), rtol, atol, err_msg=f"{name}: {key}"
            )
    if result is None:
        raise ValueError("seeds is empty: give None for one run in the plain order")
    return result


def _copy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    return value.clone() if hasattr(value, "clone") else None
