"""Copies that keep strides, and strides by which elements share a place."""

from __future__ import annotations

import pytest
import torch

from kernelproof.strides import copy_like, overlaps

BASE = torch.arange(60.0).reshape(3, 4, 5)
VIEWS = {
    "contiguous": BASE,
    "transposed": BASE.mT,
    "gaps": BASE[:, ::2, 1:4],
    "expanded": BASE[:, :1].expand(3, 7, 5),
    "expanded_scalar": torch.tensor(2.5).expand(2, 3),
    "empty": BASE[:, :0].mT,
    "no_axes": torch.tensor(1.5),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_copy_has_values_and_strides_and_memory_of_its_own(name: str) -> None:
    given = VIEWS[name]
    copy = copy_like(given, "cpu")
    assert torch.equal(copy, given) and copy.stride() == given.stride()
    assert not copy.numel() or copy.data_ptr() != given.data_ptr()


def test_what_is_expanded_stays_in_one_place() -> None:
    copy = copy_like(VIEWS["expanded"], "cpu")
    copy[0, 0, 0] = -1
    assert float(copy[0, 6, 0]) == -1 and float(BASE[0, 0, 0]) == 0


def test_elements_in_one_place_are_found() -> None:
    assert [name for name, view in VIEWS.items() if overlaps([view])] == [
        "expanded",
        "expanded_scalar",
    ]
    left, right = BASE[:1], BASE[1:]
    assert overlaps([left, right, BASE.mT]) == [[0, 2]]
    assert overlaps([BASE[:, :0], BASE[:, :0], torch.zeros(3).to_sparse()]) == []
