"""PTX that Triton has made (see triton_ptx/make_ptx.py): the usual trio, with lines of Python."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelproof import emulate

FOLDER = Path(__file__).parent / "triton_ptx"


def launch(name: str, grid: Any, args: list[Any], change: tuple[str, str] = ("", "")) -> Any:
    text = (FOLDER / f"{name}.ptx").read_text().replace(*change)
    shared = int(re.findall(r"shared memory: (\d+)", text)[0])
    kernel = emulate.load(text, name)
    # Triton's last parameters are scratch memory, which these kernels do not use.
    missing = len(kernel.program().params) - len(args)
    return kernel.launch(grid, 128, [*args, *[None] * missing], shared=shared)


def floats(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_add() -> None:
    x, y, z = floats(1000), floats(1000) + 1, np.zeros(1000, np.float32)
    assert not launch("add", 2, [x, y, z, 1000]).findings
    assert (z == x + y).all()


def test_softmax() -> None:
    x, y = floats(6, 200), np.zeros((6, 200), np.float32)
    result = launch("softmax", 6, [x, y, 200])
    assert not result.errors
    e = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)


def test_softmax_without_a_barrier_is_a_race_on_a_line_of_python() -> None:
    x, y = floats(1, 200), np.zeros((1, 200), np.float32)
    result = launch("softmax", 1, [x, y, 200], ("bar.sync", "// bar.sync"))
    assert "race" in {f.kind for f in result.errors}
    assert all(f.file.endswith(".py") for f in result.errors)


def test_matmul_with_cp_async_ldmatrix_and_mma() -> None:
    a, b = floats(96, 128).astype(np.float16), floats(128, 80).astype(np.float16)
    c = np.zeros((96, 80), np.float32)
    result = launch("matmul", (2, 2), [a, b, c, 96, 80, 128])
    assert not result.errors
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("wait", ["cp.async.wait_group"])
def test_matmul_without_waiting_is_a_race(wait: str) -> None:
    a, b = floats(64, 128).astype(np.float16), floats(128, 64).astype(np.float16)
    c = np.zeros((64, 64), np.float32)
    result = launch("matmul", (1, 1), [a, b, c, 64, 64, 128], (wait, f"// {wait}"))
    assert {f.kind for f in result.errors} & {"race", "copy in flight"}
