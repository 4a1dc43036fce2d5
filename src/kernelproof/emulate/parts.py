"""Which tensors have numbers that an emulated kernel had a part in.

A candidate whose device is emulated runs on CPU tensors, on which torch computes as well: one that
launches an idle kernel and leaves the work to torch would seem to have had its kernels judged. So
the storages that kernels wrote to are known, and what torch makes of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

# What replaces all numbers of its first argument.
_REPLACES = ("copy_", "fill_", "zero_")


class Parts:
    """Storages by address; they are held, so that no other can come to be there."""

    def __init__(self) -> None:
        self._storages: dict[int, Any] = {}

    def clear(self) -> None:
        self._storages.clear()

    def wrote(self, addresses: Sequence[int], args: Sequence[Any]) -> None:
        """A launch with ``args`` wrote to storages at these addresses."""
        for tensor in _tensors(args):
            if tensor.untyped_storage().data_ptr() in addresses:
                self._add(tensor)

    def made(self, name: str, args: Any, kwargs: Any, out: Any, launched: bool) -> None:
        """A function of torch of this name gave ``out``; ``launched``: kernels ran in it."""
        given = [*_tensors(args), *_tensors(kwargs)]
        if launched or any(map(self.has, given)):
            for tensor in _tensors(out):
                self._add(tensor)
        if not given or not (name.endswith("_") or name == "__setitem__"):
            return
        into = given[0]
        if any(map(self.has, given[1:])):
            self._add(into)
        elif name in _REPLACES and _whole(into):
            self._storages.pop(into.untyped_storage().data_ptr(), None)

    def has(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._storages

    def apart(self, leaves: Sequence[torch.Tensor]) -> list[int]:
        """Indices of outputs that have numbers, and none of a kernel's."""
        plain = [type(leaf) is torch.Tensor and leaf.layout is torch.strided for leaf in leaves]
        return [
            number for number, leaf in enumerate(leaves)
            if plain[number] and leaf.numel() and not self.has(leaf)
        ]  # fmt: skip

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            self._storages[storage.data_ptr()] = storage


def _whole(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _tensors(value: Any) -> list[torch.Tensor]:
    return [
        leaf for leaf in tree_leaves(value)
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
    ]  # fmt: skip
