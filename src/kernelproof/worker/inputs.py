"""A worker's own copy of the inputs: same values, same strides, and bands of sentinels around.

Each tensor is laid inside a larger buffer. What lies before it, behind it and in the gaps between
its rows is filled with NaN (integers: their largest value). A kernel that reads there shows it in
its output; a kernel that writes there is seen by comparing the buffer with a copy of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kernelproof import staging
from kernelproof.strides import copy_like
from kernelproof.worker import nests

# Width of each band. A multiple of every alignment that kernels ask for, so that the address of a
# tensor is as aligned as it was.
_BAND_BYTES = 4096
# Alignment that a tensor's offset in its storage is kept to: 64 bytes, that of torch's allocators.
_ALIGNED = 64
# Inputs from so many bytes on, up to this share of a GPU's memory, are copied there once for
# several calls.
_LARGE_BYTES = 64 << 20
_SHARE = 16


class Placed:
    """Inputs inside sentinel bands, for one call.

    ``given`` are the tensors to call with; `mutated` and `overrun` say what the call did to them
    and around them.
    """

    def __init__(self, inputs: Any, device: str) -> None:
        # Per tensor: index of the argument, buffer, its copy, and the tensor's shape in the buffer.
        self._kept: list[tuple[int, Any, Any, tuple[Any, ...]]] = []
        # The tensors themselves, and what is to be seen of each from outside.
        self._seen: list[tuple[int, Any, tuple[Any, ...]]] = []
        self._index = 0
        self.given = []
        self._plain = [mapped(value, _itself) for value in inputs]
        for self._index, value in enumerate(inputs):
            self.given.append(mapped(value, lambda t: self._place(t, device)))

    def mutated(self) -> list[int]:
        """Indices of the arguments whose values the call changed; NaN equals NaN."""
        changed = set()
        for index, buffer, copy, where in self._kept:
            if not _same_bits(buffer.as_strided(*where), copy.as_strided(*where)):
                changed.add(index)
        # `data` or `set_` puts other memory behind a tensor, and leaves what was there as it was.
        changed |= {index for index, given, seen in self._seen if _outside(given) != seen}
        for index, (kept, given) in enumerate(zip(self._plain, self.given, strict=True)):
            if not _same_structure(kept, given):
                changed.add(index)
        return sorted(changed)

    def overrun(self) -> list[list[Any]]:
        """``[argument, words]`` for every tensor around which the call wrote."""
        found = []
        for index, buffer, copy, where in self._kept:
            # What lies inside is `mutated`'s affair: take it out of the comparison.
            _dense(copy, where).copy_(_dense(buffer, where))
            if not _same_bits(buffer, copy):
                found.append([index, _words(buffer, copy, where)])
        return found

    def _place(self, tensor: Any, device: str) -> Any:
        import torch

        if tensor.layout is not torch.strided or type(tensor) is not torch.Tensor:
            return tensor.to(device, copy=True)
        size, stride = tuple(tensor.shape), tuple(tensor.stride())
        extent = _extent(size, stride)
        item = tensor.element_size()
        band = _BAND_BYTES // item
        lead = band + (tensor.storage_offset() * item % _ALIGNED) // item
        where = (size, stride, lead)
        buffer = torch.empty(lead + extent + band, dtype=tensor.dtype, device=device)
        buffer.fill_(_sentinel(tensor.dtype))
        staging.copy(_dense(buffer, where), without_repeats(tensor))
        self._kept.append((self._index, buffer, buffer.clone(), where))
        view = buffer.as_strided(*where)
        view = view.requires_grad_() if tensor.requires_grad else view
        self._seen.append((self._index, view, _outside(view)))
        return view


def nearer(inputs: Any, device: str, calls: int) -> Any:
    """``inputs`` on the device, from which each of several calls gets its copy, where they are
    large and there is room: over the bus they take longer than the calls."""
    if device == "cpu" or calls < 2:
        return inputs
    import torch

    size = bytes_of(inputs)
    total = torch.cuda.get_device_properties(device).total_memory
    if not _LARGE_BYTES <= size <= total // _SHARE:
        return inputs

    def moved(tensor: Any) -> Any:
        # A copy would begin where its memory does.
        kept = tensor.storage_offset() or tensor.requires_grad
        return tensor if kept else copy_like(tensor, device)

    return mapped(inputs, moved)


def _outside(tensor: Any) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.is_conj(), tensor.is_neg()


def _sentinel(dtype: Any) -> Any:
    import torch

    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return True if dtype == torch.bool else torch.iinfo(dtype).max


def _extent(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements from the first to the last that a tensor touches."""
    if 0 in size:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))


def _dense(buffer: Any, where: tuple[Any, ...]) -> Any:
    """The tensor's place in ``buffer``, each address once: expanded axes have length one."""
    size, stride, offset = where
    once = tuple(min(n, 1) if s == 0 else n for n, s in zip(size, stride, strict=True))
    return buffer.as_strided(once, stride, offset)


def without_repeats(tensor: Any) -> Any:
    for axis, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def _words(buffer: Any, copy: Any, where: tuple[Any, ...]) -> str:
    size, stride, lead = where
    position = int((bits(buffer) != bits(copy)).flatten().to(buffer.device).int().argmax())
    # Bits of wide dtypes come in pairs.
    position //= bits(buffer).numel() // buffer.numel()
    end = lead + _extent(size, stride)
    if position < lead:
        # The first difference is the farthest one here; it says that something is before.
        return f"{lead - position} element(s) before its start"
    if position >= end:
        return f"{position - end + 1} element(s) past its end"
    return "in the gaps between its rows"


def bits(tensor: Any) -> Any:
    """The same memory as integers, so that NaN can be compared."""
    import torch

    if tensor.dtype == torch.bool:
        return tensor.view(torch.uint8)
    if tensor.is_complex():
        return bits(torch.view_as_real(tensor))
    if not tensor.is_floating_point():
        return tensor
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(whole[tensor.element_size()])


def _same_bits(a: Any, b: Any) -> bool:
    import torch

    return bool(torch.equal(bits(a), bits(b)))


def _same_structure(a: Any, b: Any) -> bool:
    """Whether two arguments hold the same things; values of tensors are compared elsewhere."""
    import torch

    if isinstance(a, torch.Tensor):
        # A call may give a tensor another shape in place, as `resize_` and `t_` do.
        return isinstance(b, torch.Tensor) and (a.shape, a.stride()) == (b.shape, b.stride())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(_same_structure(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same_structure(a[key], b[key]) for key in a)
    return a is b or bool(a == b) or (a != a and b != b)


def _itself(tensor: Any) -> Any:
    return tensor


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """``value`` with ``change`` applied to its tensors, in new lists and dicts. What a candidate
    returns is for `nests.rebuilt`."""
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        items = [mapped(item, change) for item in value]
        # A named tuple takes its items one by one.
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    return value


def leaves_of(value: Any) -> Iterator[Any]:
    """The tensors in ``value``, in the order in which `mapped` meets them."""
    import torch

    if nests.is_a(value, torch.Tensor):
        yield value
    elif nests.is_a(value, list, tuple):
        for item in nests.items(value):
            yield from leaves_of(item)
    elif nests.is_a(value, dict):
        for _, item in nests.pairs(value):
            yield from leaves_of(item)


def bytes_of(value: Any) -> int:
    """Of the tensors in ``value``."""
    return sum(tensor.numel() * tensor.element_size() for tensor in leaves_of(value))


def form_of(tensor: Any) -> tuple[Any, ...]:
    """What must be alike for one tensor's values to go into the memory of another."""
    return tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.requires_grad
