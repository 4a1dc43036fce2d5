"""Which bytes of tensors that exist before a call are read and written in it, each once.

A storage that no traced operation made is external: an input, a weight, a table built at import.
Operations that make views move nothing; what takes a view touches the elements that it shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

_Mark = Callable[[torch.Tensor], Any]


class Storage:
    """The touched elements of one storage, as masks that are made when they are needed."""

    def __init__(self, tensor: torch.Tensor) -> None:
        # Held, so that its address is not given to another storage during the trace.
        self.held = tensor.untyped_storage()
        self.item = tensor.element_size()
        self.count = self.held.nbytes() // self.item
        self.all_read = self.all_written = False
        self._read: torch.Tensor | None = None
        self._written: torch.Tensor | None = None

    def read(self, view: torch.Tensor, mark: _Mark | None = None) -> None:
        """``view`` is read; with ``mark``, only what that sets in a mask of its shape."""
        if self.all_read or self.all_written:
            return
        mark = self._usable(mark, view)
        if mark is None and self._written is None and self._covers(view):
            self.all_read = True
            return
        self._read = self._mask(self._read)
        shown = self._shown(self._read, view)
        if self._written is None:
            _set(shown, mark)
            return
        # What the call itself has written before is no traffic of its own.
        fresh = torch.zeros_like(self._read)
        _set(self._shown(fresh, view), mark)
        self._read |= fresh & ~self._written

    def write(self, view: torch.Tensor, mark: _Mark | None = None) -> None:
        """As `read`, for what is written."""
        if self.all_written:
            return
        mark = self._usable(mark, view)
        if mark is None and self._covers(view):
            self.all_written = True
            return
        self._written = self._mask(self._written)
        _set(self._shown(self._written, view), mark)

    def bytes_read(self) -> int:
        return self._bytes(self.all_read, self._read)

    def bytes_written(self) -> int:
        return self._bytes(self.all_written, self._written)

    def _bytes(self, everything: bool, mask: torch.Tensor | None) -> int:
        if everything:
            return self.count * self.item
        return 0 if mask is None else int(mask.sum()) * self.item

    def _mask(self, mask: torch.Tensor | None) -> torch.Tensor:
        if mask is not None:
            return mask
        return torch.zeros(self.count, dtype=torch.bool, device=self.held.device)

    def _covers(self, view: torch.Tensor) -> bool:
        """Whether ``view`` shows every byte; a dense tensor has each element once."""
        return view.numel() * view.element_size() == self.held.nbytes() and _dense(view)

    def _usable(self, mark: _Mark | None, view: torch.Tensor) -> _Mark | None:
        """``mark``, unless the mask under ``view`` has another shape: then all of it counts."""
        same = view.element_size() == self.item and 0 not in view.stride()
        return mark if same else None

    def _shown(self, mask: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
        """The part of ``mask`` under ``view``. Axes of stride 0 keep their length only where the
        mask is read, so they are cut to one element."""
        if view.element_size() != self.item:
            return mask[slice(*self._extent(view))]
        pairs = zip(view.shape, view.stride(), strict=True)
        sizes = [1 if stride == 0 and size else size for size, stride in pairs]
        return mask.as_strided(sizes, view.stride(), view.storage_offset())

    def _extent(self, view: torch.Tensor) -> tuple[int, int]:
        """First and last element of the storage that a view of another dtype reaches into."""
        if not view.numel():
            return 0, 0
        pairs = zip(view.shape, view.stride(), strict=True)
        last = view.storage_offset() + sum((size - 1) * stride for size, stride in pairs)
        first = view.storage_offset() * view.element_size() // self.item
        return first, math.ceil((last + 1) * view.element_size() / self.item)


class Regions:
    """All external storages of a call."""

    def __init__(self) -> None:
        self.external: dict[int, Storage] = {}
        self._made: dict[int, Any] = {}

    def make(self, tensor: torch.Tensor) -> None:
        """An operation of the call made the storage of ``tensor``."""
        key = _key(tensor)
        if key not in self.external:
            self._made[key] = None

    def known(self, tensor: torch.Tensor) -> bool:
        return _key(tensor) in self._made

    def of(self, tensor: torch.Tensor) -> Storage | None:
        """The external storage of ``tensor``; None for one that the call made, or for none."""
        key = _key(tensor)
        if key in self._made or not tensor.untyped_storage().nbytes():
            return None
        if key not in self.external:
            self.external[key] = Storage(tensor)
        return self.external[key]

    def totals(self, outputs: list[torch.Tensor]) -> tuple[int, int]:
        """Bytes read and written: of the external storages, and of ``outputs`` in others."""
        read = sum(one.bytes_read() for one in self.external.values())
        written = sum(one.bytes_written() for one in self.external.values())
        made: dict[int, Storage] = {}
        for tensor in outputs:
            if self.known(tensor) and tensor.untyped_storage().nbytes():
                made.setdefault(_key(tensor), Storage(tensor)).write(tensor)
        return read, written + sum(one.bytes_written() for one in made.values())


def plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor has one strided storage, whose bytes can be counted."""
    return tensor.layout is torch.strided and type(tensor) in (torch.Tensor, torch.nn.Parameter)


def shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors lie in one storage."""
    return _key(a) == _key(b)


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one block, in any order of the axes."""
    expected = 1
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted(pair for pair in pairs if pair[1] != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _set(shown: torch.Tensor, mark: _Mark | None) -> None:
    if mark is None:
        shown.fill_(True)
    else:
        mark(shown)
