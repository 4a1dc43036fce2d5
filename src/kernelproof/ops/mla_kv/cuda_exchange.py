"""Words through which the blocks of one launch exchange values (kernel_decode.cu).

The first word counts the calls that have used the buffer; every other word is written in every call
of its user, with the number of the call; kernels that count arrivals leave a multiple of their own
number of blocks. So each kernel in each grid has its own. Two launches that may run at the same
time need two buffers. Calls on one stream follow one another and share one for each user. Captured
calls share one with those that are captured on the same stream into the same graph, which may be
replayed on any stream, but not while it runs.
"""

from __future__ import annotations

import torch

# Words of 8 bytes for captured calls, of each device: 32 MiB, 30 graphs with the largest size of
# DeepSeek-V3, 16 tokens of rank 512.
_CAPTURED_WORDS = 1 << 22
_LINE = 16  # words of a cache line
_pools: dict[int, torch.Tensor] = {}
_used: dict[int, int] = {}
_made: dict[tuple[int, int, int, str, int], torch.Tensor] = {}


def buffer(device: int, words: int, user: str) -> torch.Tensor | None:
    """A buffer of ``words`` (int64) for a launch on the current stream of a CUDA device.

    ``user``: the kernel and its grid. None where a graph is being captured and no call has run
    before (memory that is zero cannot be made inside), or where captured calls have taken all there
    is for them.
    """
    stream = int(torch._C._cuda_getCurrentRawStream(device))
    capture = _capture(stream) if torch.cuda.is_current_stream_capturing() else 0
    key = device, stream, words, user, capture
    known = _made.get(key)
    if known is not None:
        return known
    if capture:
        start = _used.get(device, _CAPTURED_WORDS)
        if start + words > _CAPTURED_WORDS:
            return None
        _used[device] = start + -(-words // _LINE) * _LINE
        made = _pools[device][start : start + words]
    else:
        place = torch.device("cuda", device)
        if device not in _pools:
            _pools[device] = torch.zeros(_CAPTURED_WORDS, dtype=torch.int64, device=place)
            torch.cuda.synchronize(device)  # before a graph uses it on another stream
            _used[device] = 0
        made = torch.zeros(words, dtype=torch.int64, device=place)
    _made[key] = made
    return made


def _capture(stream: int) -> int:
    """The number of the graph that is being captured, which no other has."""
    import cuda.bindings.driver as driver

    status, _, number, *_ = driver.cuStreamGetCaptureInfo(driver.CUstream(stream))
    if int(status):
        raise RuntimeError(f"cuStreamGetCaptureInfo failed ({status!r})")
    return int(number)
