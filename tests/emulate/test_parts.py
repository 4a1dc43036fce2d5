"""Which tensors an emulated kernel had a part in."""

from __future__ import annotations

import torch

from kernelproof.emulate.parts import Parts


def parts(*written: torch.Tensor) -> Parts:
    made = Parts()
    made.wrote([t.untyped_storage().data_ptr() for t in written], [*written, 3, None])
    return made


def test_what_torch_makes_of_a_kernels_numbers_is_of_the_kernel() -> None:
    x, y, z = torch.ones(3), torch.ones(3), torch.ones(3)
    known = parts(y)
    assert known.apart([x, y, y[1:], z]) == [0, 3]
    total = y + x
    known.made("add", (y, x), {}, total, False)
    known.made("__setitem__", (z, 0, total), {}, None, False)
    assert known.apart([total, z, x, torch.empty(0)]) == [2]
    both = [torch.ones(2), torch.ones(2)]
    known.made("custom", (x,), {}, both, True)
    assert known.apart(both) == []


def test_what_torch_writes_over_them_is_not() -> None:
    x, y = torch.ones(3), torch.ones(3)
    known = parts(y)
    known.made("copy_", (y[1:], x[1:]), {}, y[1:], False)
    assert known.apart([y]) == []
    known.made("copy_", (y, x), {}, y, False)
    assert known.apart([y]) == [0]
