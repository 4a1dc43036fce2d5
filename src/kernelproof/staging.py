"""Gigabytes between a GPU and ordinary memory, through two small buffers that the GPU can reach.

The driver moves ordinary memory with one thread of the host, page by page. Here the copy engine
works on one buffer while all threads work on the other.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Below this the driver's own way is taken: it needs no buffers.
_LARGE_BYTES = 256 << 20
_BUFFER_BYTES = 64 << 20

_lock = threading.Lock()
_buffers: list[torch.Tensor] = []


def copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """``target.copy_(source)``, done when it returns; in the order of the current stream."""
    import torch

    gpu = source.device if source.is_cuda else target.device
    if not _worth(target, source):
        target.copy_(source)
        return
    into, out_of = (x.reshape(-1).view(torch.uint8) for x in (target, source))
    with _lock, torch.cuda.device(gpu):
        if not _buffers:
            _buffers.extend(
                torch.empty(_BUFFER_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)
            )
        events = [torch.cuda.Event(), torch.cuda.Event()]
        move = _to_host if source.is_cuda else _to_gpu
        move(into, out_of, _buffers, events)


def _worth(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether both are one piece of memory, large, and one of them is on a GPU."""
    return (
        target.is_cuda != source.is_cuda
        and {target.device.type, source.device.type} == {"cuda", "cpu"}
        and target.dtype == source.dtype
        and target.shape == source.shape
        and target.is_contiguous()
        and source.is_contiguous()
        and not (source.is_conj() or source.is_neg())
        and large(source)
    )


def large(tensor: torch.Tensor) -> bool:
    """Whether it may be worth the buffers."""
    return tensor.numel() * tensor.element_size() >= _LARGE_BYTES


def _to_host(
    target: torch.Tensor, source: torch.Tensor, buffers: list[torch.Tensor], events: list[Any]
) -> None:
    """While one piece arrives, the one before it is written."""
    size, before = len(buffers[0]), None
    for number, at in enumerate(range(0, len(source), size)):
        piece = source[at : at + size]
        buffer, event = buffers[number % 2][: len(piece)], events[number % 2]
        buffer.copy_(piece, non_blocking=True)
        event.record()
        if before is not None:
            _written(target, *before)
        before = at, buffer, event
    if before is not None:
        _written(target, *before)


def _written(target: torch.Tensor, at: int, buffer: torch.Tensor, event: Any) -> None:
    event.synchronize()
    target[at : at + len(buffer)].copy_(buffer)


def _to_gpu(
    target: torch.Tensor, source: torch.Tensor, buffers: list[torch.Tensor], events: list[Any]
) -> None:
    """While one piece leaves, the next is read."""
    size = len(buffers[0])
    for number, at in enumerate(range(0, len(source), size)):
        piece = source[at : at + size]
        buffer, event = buffers[number % 2][: len(piece)], events[number % 2]
        if number > 1:
            event.synchronize()
        buffer.copy_(piece)
        target[at : at + size].copy_(buffer, non_blocking=True)
        event.record()
    for event in events:
        event.synchronize()
