"""Memory that outputs share: with inputs, with each other, with outputs of earlier calls."""

from __future__ import annotations

import contextlib
from typing import Any

from kernelproof.strides import overlaps
from kernelproof.worker.inputs import bytes_of

# Outputs of so many calls are held, and beyond the last one's only so many bytes.
_MOST_HELD = 8
_HELD_BYTES = 64 << 20


class Earlier:
    """Outputs of earlier calls.

    The latest are held, so that a buffer that is used again is seen and not merely freed memory.
    Of all there are weak references to their storages, which keep no memory: a storage that comes
    again has been kept by somebody, after any number of calls. Whoever makes new storages of old
    memory is seen by those that are held only.
    """

    def __init__(self) -> None:
        self._held: list[list[Any]] = []
        self._storages: set[Any] = set()

    def seen_in(self, leaves: list[Any]) -> list[list[int]]:
        """Index pairs of ``leaves``, the outputs of a call, and of those of an earlier call whose
        memory they share; from then on they count as earlier ones."""
        found = [pair for old in self._held for pair in shared(leaves, old)]
        storages = [_storage(leaf) for leaf in leaves]
        known = [i for i, one in enumerate(storages) if one is not None and one in self._storages]
        found += [[i, i] for i in known]
        self._storages.update(one for one in storages if one is not None)
        self._held = _latest([leaves, *self._held])
        return found


def _storage(leaf: Any) -> Any:
    """A weak reference; None where there is no memory, in which nothing is overwritten."""
    from torch.multiprocessing.reductions import StorageWeakRef

    with contextlib.suppress(RuntimeError, NotImplementedError):
        storage = leaf.untyped_storage()
        if storage.nbytes():
            return StorageWeakRef(storage)
    return None


def shared(left: list[Any], right: list[Any]) -> list[list[int]]:
    """Index pairs of tensors that share memory."""
    pairs = []
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            with contextlib.suppress(RuntimeError, NotImplementedError):
                storage = a.untyped_storage()
                if storage.nbytes() and storage.data_ptr() == b.untyped_storage().data_ptr():
                    pairs.append([i, j])
    return pairs


def _latest(outputs: list[list[Any]]) -> list[list[Any]]:
    """The latest of ``outputs``, newest first: the first, and others that are not large."""
    kept, held = outputs[:1], 0
    for leaves in outputs[1:_MOST_HELD]:
        held += bytes_of(leaves)
        if held > _HELD_BYTES:
            break
        kept.append(leaves)
    return kept


def overlapping(leaves: list[Any]) -> list[list[int]]:
    """As `strides.overlaps`, where that can be told."""
    with contextlib.suppress(RuntimeError, NotImplementedError):
        return overlaps(leaves)
    return []
