"""The kernels of zoo.cu, compiled once for each architecture that a test asks for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelproof.errors import UnsupportedError
from kernelproof.inspect.compile import Compiled, source_file

ZOO = Path(__file__).with_name("zoo.cu")


@functools.cache
def _compiled(arch: str, compiler: str) -> Compiled:
    return source_file(ZOO, arch, compiler)


@pytest.fixture
def zoo() -> Callable[..., Compiled]:
    """``zoo("sm_90a")``: by NVRTC, or another compiler that is named."""

    def compiled(arch: str = "sm_90a", compiler: str = "nvrtc") -> Compiled:
        try:
            return _compiled(arch, compiler)
        except UnsupportedError as error:
            pytest.skip(error.message)

    return compiled
