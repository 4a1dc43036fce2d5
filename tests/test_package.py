"""The public names."""

from __future__ import annotations

import kernelproof


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
