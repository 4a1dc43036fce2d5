"""Outputs that are put together again."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernelproof.check.matrix import _rebuilt
from kernelproof.check.values import flatten


class Pair(NamedTuple):
    value: torch.Tensor
    index: torch.Tensor


def test_outputs_keep_their_form_also_named_tuples() -> None:
    one, two, three = (torch.tensor(i) for i in range(3))
    nest = {"a": Pair(one, two), "b": [three]}
    again = _rebuilt(nest, iter([leaf + 10 for _, leaf in flatten(nest)]))
    assert type(again["a"]) is Pair
    assert [int(leaf) for _, leaf in flatten(again)] == [10, 11, 12]
