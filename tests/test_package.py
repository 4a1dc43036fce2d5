"""The public names."""

from __future__ import annotations

from pathlib import Path

import kernelproof

ROOT = Path(__file__).parents[1]


def test_exported_names_exist_and_are_sorted() -> None:
    assert sorted(kernelproof.__all__) == kernelproof.__all__
    for name in kernelproof.__all__:
        assert getattr(kernelproof, name) is not None
    assert set(kernelproof.__all__) <= set(dir(kernelproof))


def test_the_operators_are_functions_in_whatever_order_they_are_imported() -> None:
    import kernelproof.ops.mla_kv.cpu
    from kernelproof.ops import mla_kv

    assert callable(mla_kv) and mla_kv.__name__ == "mla_kv"
    assert kernelproof.ops.mla_kv is mla_kv
    for name in kernelproof.ops.names():
        assert callable(getattr(kernelproof.ops, name))


def test_a_cuda_build_of_torch_can_be_installed_under_the_constraints() -> None:
    # Torch from PyPI asks for versions of its own of these: pinned for all, nothing fits.
    of_torch = {"triton", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime"}

    def pinned(name: str) -> set[str]:
        lines = (ROOT / name).read_text().splitlines()
        return {line.partition("==")[0] for line in lines if "==" in line}

    assert not pinned("constraints.txt") & of_torch
    assert pinned("constraints-cpu.txt") == of_torch
    assert "-c constraints-cpu.txt" in (ROOT / "Makefile").read_text()
