"""Counters for barriers of a whole grid.

A kernel's counter only grows, by its number of blocks at each barrier, so it is never reset. Two
kernels that may run at the same time need two counters, and so do grids of two sizes. Calls on one
stream follow one another and share one. A captured call has its own: its graph may be replayed on
any stream.
"""

from __future__ import annotations

import torch

_SLOTS, _SLOT_WORDS = 1 << 15, 16  # of 8 bytes: a cache line each
_pools: dict[int, torch.Tensor] = {}
_next: dict[int, int] = {}
_of_stream: dict[tuple[int, int, int], torch.Tensor] = {}


def slot(device: int, blocks: int) -> torch.Tensor | None:
    """A counter (int64) for a grid of ``blocks`` on the current stream of a CUDA device.

    None where a graph is being captured and no call has run before (the counters cannot be made
    inside), or where all are taken by captured calls.
    """
    stream = int(torch._C._cuda_getCurrentRawStream(device))
    capturing = torch.cuda.is_current_stream_capturing()
    if not capturing:
        known = _of_stream.get((device, stream, blocks))
        if known is not None:
            return known
    pool = _pools.get(device)
    if pool is None:
        if capturing:
            return None
        pool = _pools[device] = torch.zeros(
            _SLOTS * _SLOT_WORDS, dtype=torch.int64, device=torch.device("cuda", device)
        )
        torch.cuda.synchronize(device)  # before a kernel on another stream counts
        _next[device] = 0
    number = _next[device]
    if number == _SLOTS:
        return None
    _next[device] = number + 1
    made = pool[number * _SLOT_WORDS : (number + 1) * _SLOT_WORDS]
    if not capturing:
        _of_stream[device, stream, blocks] = made
    return made
