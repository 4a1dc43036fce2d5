"""Gigabytes between parent and worker: through memory that both can see, not through a socket.

A socket copies twice, 0.7 GB/s in all; a segment is written once and read once, in several threads.
It is an anonymous file (memfd) whose descriptor goes over the socket.

What a worker sends may be anything, and it may write to a segment at any time: the parent copies it
once, by `read`, which a file that shrinks cannot break, and judges the copy. It then says so, and
the worker takes the same memory for the next segment. What the parent sends the worker uses in
place.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kernelproof.timeline import span

# Below this a socket is as quick: 16 MB there and back take 5 ms.
LARGE_BYTES = 64 << 20
_CHUNK = 32 << 20
_THREADS = 4


class Segment:
    """A buffer that is written when it is sent, so that only one is in memory at a time.

    Args:
        size: bytes.
        fill: writes them into the tensor of bytes that it is given.
    """

    def __init__(self, size: int, fill: Callable[[Any], Any]) -> None:
        self.size = size
        self._fill = fill

    def __len__(self) -> int:
        return self.size

    @span("write gigabytes for a worker")
    def write(self, file: File) -> None:
        """Raises OSError where there can be no such file."""
        file.sized(self.size)
        self._fill(file.memory)

    def bytes(self) -> Any:
        """The same as a buffer of this process."""
        import torch

        own = bytearray(self.size)
        self._fill(torch.frombuffer(own, dtype=torch.uint8))
        return own


class File:
    """An anonymous file, for one segment after the other: new memory takes longer to be given than
    to be written. ``memory``: its bytes as a tensor. Use as a context manager."""

    def __init__(self) -> None:
        self.fd = -1
        self.size = -1
        self.memory: Any = None

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self.memory = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def sized(self, size: int) -> None:
        """Make it ``size`` bytes long; what was in it may be lost."""
        if size == self.size:
            return
        import torch

        self.__exit__()
        self.size = -1
        self.fd = os.memfd_create("kernelproof", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        self.memory = torch.frombuffer(mmap.mmap(self.fd, size), dtype=torch.uint8)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.size = size


def of_memory(raw: memoryview) -> Segment | memoryview:
    """A segment with what is in ``raw``, or ``raw`` where that is small."""
    if raw.nbytes < LARGE_BYTES:
        return raw

    def fill(target: Any) -> None:
        import torch

        target.copy_(torch.frombuffer(raw, dtype=torch.uint8))

    return Segment(raw.nbytes, fill)


def equal(one: Any, two: Any) -> bool:
    """Whether two flat tensors of bytes are the same, on the same device; part by part, since
    comparing takes memory."""
    if one.numel() != two.numel() or one.device != two.device:
        return False
    if one.data_ptr() == two.data_ptr():
        return True
    begins = range(0, one.numel(), _CHUNK)
    return all(bool(one[at : at + _CHUNK].equal(two[at : at + _CHUNK])) for at in begins)


@span("copy gigabytes of a worker")
def copied(fd: int, size: int) -> Any:
    """Memory of this process with the content of ``fd``.

    Raises:
        ValueError: it is no segment of ``size`` bytes.
    """
    try:
        # Only such files have seals: nothing else that a descriptor can be is read from.
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        if os.fstat(fd).st_size != size:
            raise ValueError(f"not a segment of {size} bytes")
        begins = range(0, size, _CHUNK)
        with ThreadPoolExecutor(_THREADS) as pool:
            own = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with contextlib.suppress(OSError, AttributeError):
                # Fewer faults.
                own.madvise(mmap.MADV_HUGEPAGE)
            with memoryview(own) as view:
                list(pool.map(lambda at: _read(fd, view[at : at + _CHUNK], at), begins))
    except OSError as error:
        raise ValueError(f"not a segment: {error}") from None
    return own


def _read(fd: int, into: memoryview, at: int) -> None:
    got = 0
    while got < len(into):
        count = os.preadv(fd, [into[got:]], at + got)
        if count == 0:
            raise ValueError("a segment has shrunk")
        got += count


def in_place(fd: int, size: int) -> mmap.mmap:
    """The content of ``fd``, which the parent has sent; what is written to it stays here."""
    return mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
