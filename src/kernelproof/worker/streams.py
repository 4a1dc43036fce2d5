"""Streams of a GPU: a call on another one, to see whether a kernel runs on the one that torch asks
for; a stream for captures; and what a call may have set for the GPU beside its kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from kernelproof.worker.inputs import leaves_of

# How long the inputs are late: a kernel on another stream has begun by then.
_LATE_SECONDS = 10e-3
_LATE_SHARE = 2.0  # of what the call before took, with all that it launched
_LATEST_SECONDS = 2.0
CYCLES = 2e9  # of a second of a GPU's clock; with a slower one, waiting takes a little longer


def call_on_side_stream(module: Callable[..., Any], given: list[Any], seconds: float) -> Any:
    """``module(*given)`` where ``given``, CUDA tensors inside lists or dicts too, get their values
    late and on the stream of the call only.

    Until then they hold NaN (integers: zero), which a kernel that was launched on the default
    stream reads. ``seconds``: how long such a call takes. Returns after that stream has finished.
    """
    import torch

    tensors = [t for t in leaves_of(given) if t.is_cuda]
    values = [t.clone() for t in tensors]
    for t in tensors:
        if not _overlaps(t):
            t.fill_(torch.nan if t.is_floating_point() or t.is_complex() else 0)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = min(_LATEST_SECONDS, max(_LATE_SECONDS, _LATE_SHARE * seconds))
        torch.cuda._sleep(int(late * CYCLES))
        for t, value in zip(tensors, values, strict=True):
            if not _overlaps(t):
                t.copy_(value)
        output = module(*given)
    stream.synchronize()
    return output


def _overlaps(tensor: Any) -> bool:
    """Expanded tensors cannot be written."""
    return any(n > 1 and step == 0 for n, step in zip(tensor.shape, tensor.stride(), strict=True))


def blocking_stream(device: str) -> Any:
    """A stream that waits for the legacy default stream, which torch's own do not. While one like
    this is captured, a launch on the default stream is an error (CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    of the driver); else it would run at once, and be missing from the graph. Never destroyed."""
    import torch

    with torch.cuda.device(device):
        torch.cuda.current_stream().synchronize()  # the context is there, and current
        made = ctypes.c_void_p()
        error = ctypes.CDLL("libcuda.so.1").cuStreamCreate(ctypes.byref(made), 0)
        if error:
            raise RuntimeError(f"cuStreamCreate: error {error}")
        return torch.cuda.ExternalStream(made.value)


def reset_persisting_l2() -> None:
    """Give back what an access policy window keeps in L2 from one call to the next."""
    library = ctypes.CDLL("libcuda.so.1")
    library.cuCtxResetPersistingL2Cache()
