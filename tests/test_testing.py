"""The helper for other people's tests."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")

from kernelproof.testing import check_kernel

SOURCE = """
extern "C" __global__ void reverse(const int* x, int* y) {
  __shared__ int s[64];
  s[threadIdx.x] = x[threadIdx.x];
  SYNC
  y[threadIdx.x] = s[63 - threadIdx.x];
}
"""


def _check(sync: str, expected: object, **how: object) -> None:
    x = np.arange(64, dtype=np.int32)
    source = SOURCE.replace("SYNC", sync)
    check_kernel(
        source, "reverse", grid=1, block=64, args=[x, np.zeros(64, np.int32)],
        uninitialised=["y"], expected={"y": expected}, seeds=(None, 1), **how,
    )  # fmt: skip


def test_a_right_kernel_passes() -> None:
    _check("__syncthreads();", np.arange(64)[::-1])


def test_a_race_fails_though_the_values_are_right() -> None:
    with pytest.raises(AssertionError, match=r"source.cu:6: race: read of s"):
        _check("", np.arange(64)[::-1])


def test_wrong_values_fail() -> None:
    with pytest.raises(AssertionError, match="reverse: y"):
        _check("__syncthreads();", np.arange(64))


def test_a_kind_can_be_allowed() -> None:
    with pytest.raises(AssertionError) as error:
        _check("", np.arange(64), allow=("race",))
    assert "Mismatched elements" in str(error.value)
