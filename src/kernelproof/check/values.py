"""Values of a call: nests of tensors, and the tensors in them."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from kernelproof.strides import copy_like, moved


def flatten(value: Any, name: str = "output") -> list[tuple[str, Any]]:
    """The leaves of an output with names such as ``output[0]`` or ``output['mean']``."""
    if isinstance(value, (list, tuple)):
        return [x for i, item in enumerate(value) for x in flatten(item, f"{name}[{i}]")]
    if isinstance(value, dict):
        return [x for key, item in value.items() for x in flatten(item, f"{name}[{key!r}]")]
    return [(name, value)]


def to_device(value: Any, device: str) -> Any:
    """A deep copy of ``value`` with its tensors on ``device``; strides are kept."""

    def move(leaf: Any) -> Any:
        return copy_like(leaf, device) if isinstance(leaf, torch.Tensor) else leaf

    return tree_map(move, value)


def on(leaf: Any, device: str) -> Any:
    """``leaf`` on ``device`` if it is a tensor; itself where it is there already."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.device.type == torch.device(device).type:
        return leaf.to(device)
    return moved(leaf, device)


def identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether all elements are equal, NaN counting as equal to NaN."""
    if _place(a) == _place(b) is not None:
        return True  # outputs of repeated calls that are alike are kept once
    # The first needs no memory beside the tensors, and settles it where there is no NaN.
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def _place(x: torch.Tensor) -> Any:
    """What two views of the same memory have in common; None where there is none."""
    if x.layout is not torch.strided or not x.data_ptr():
        return None
    return x.device, x.data_ptr(), x.dtype, x.shape, x.stride(), x.is_conj(), x.is_neg()


def equal(a: Any, b: Any) -> bool:
    """Whether all tensors in both have equal elements, NaN counting as equal to NaN."""
    if isinstance(a, torch.Tensor):
        return identical(a, b)
    if isinstance(a, (list, tuple)):
        return all(equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return all(equal(a[key], b[key]) for key in a)
    return True


def floats(leaf: Any) -> bool:
    """Whether it is a tensor of floating numbers."""
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def nbytes(inputs: list[Any]) -> int:
    """Bytes of all tensors in ``inputs``."""
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    return sum(leaf.numel() * leaf.element_size() for leaf in tensors)


def has_storage(leaf: Any) -> bool:
    """Whether it is a tensor with elements."""
    return isinstance(leaf, torch.Tensor) and leaf.numel() > 0


def storage(tensor: torch.Tensor) -> int:
    """Address of the memory that ``tensor`` is a view of."""
    return tensor.untyped_storage().data_ptr()
