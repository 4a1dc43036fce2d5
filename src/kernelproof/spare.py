"""Memory of a GPU that this process keeps for later, given back to the others that use the GPU.

Judge and candidate are two processes on one GPU. torch keeps what it has freed; where a problem
takes a large part of the memory, one would starve the other.
"""

from __future__ import annotations

# Whether other problems are judged on the same GPU: memory that is missing now may be there later,
# when this one has the GPU to itself.
crowded = False

# The last two: where the machine's own memory ends, its kernel kills the candidate's process; and
# what a candidate may hold is a share of what others have left.
_SIGNS = (
    "out of memory", "OutOfMemoryError", "CUBLAS_STATUS_ALLOC_FAILED", "was killed by signal 9",
    "GB are allowed",
)  # fmt: skip
_WORTH_BYTES = 1 << 30  # less is kept: to give it back waits for the GPU


def spare_memory(device: str) -> None:
    """Give back what is kept on ``device`` and not in use, if it is much."""
    if not device.startswith("cuda"):
        return
    import torch

    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if kept > _WORTH_BYTES:
        with torch.cuda.device(device):
            torch.cuda.empty_cache()


def starved(text: str) -> bool:
    """Whether a message tells of memory that was missing."""
    return any(sign in text for sign in _SIGNS)
