"""Large buffers through shared memory: what arrives is what was sent, and nothing else is read."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest
import torch

from kernelproof.worker import packing, segments, wire
from kernelproof.worker.packing import parts, whole


@pytest.fixture(autouse=True)
def small(monkeypatch) -> None:
    monkeypatch.setattr(segments, "LARGE_BYTES", 4096)
    monkeypatch.setattr(segments, "_CHUNK", 5000)
    monkeypatch.setattr(packing, "_BESIDE", 1024)


def crossed(header, buffers, trusting=False):
    """What arrives at the other end of a socket."""
    ours, theirs = wire.pair()
    sender = threading.Thread(target=wire.send, args=(theirs, header, buffers, not trusting))
    sender.start()
    try:
        return wire.receive(ours, 10.0, trusting)
    finally:
        sender.join()


def test_outputs_cross(monkeypatch) -> None:
    x, y = torch.randn(100, 301), torch.randn(64, 64, dtype=torch.float64).t()
    value = {"large": x, "turned": y, "small": x[0], "none": torch.empty(0, 3)}
    for there in (True, False):
        if not there:
            # As where a file may not be so large.
            monkeypatch.setattr(os, "memfd_create", lambda *_: (_ for _ in ()).throw(OSError(27)))
        buffers: list[wire.Buffer] = []
        described = wire.encode(value, buffers)
        assert sum(isinstance(b, segments.Segment) for b in buffers) == 2
        header, received = crossed({"answer": described}, buffers)
        back = wire.decode(header["answer"], received)
        assert all(torch.equal(back[name], value[name]) for name in value)
        assert back["large"].data_ptr() != x.data_ptr()


def test_inputs_cross_and_are_used_in_place() -> None:
    x = torch.randn(100, 301)
    sent = parts([x, x[1:, ::2], "word"])
    assert sum(isinstance(b, segments.Segment) for b in sent) == 2
    _, received = crossed({}, sent, trusting=True)
    first, view, word = whole(received)
    assert word == "word" and torch.equal(first, x) and torch.equal(view, x[1:, ::2])
    assert view.stride() == x[1:, ::2].stride()
    first.zero_()
    assert bool(x.abs().sum() > 0)


@pytest.mark.parametrize(("chunk", "piece"), [(32 << 20, 4 << 20), (20_000, 3000), (5000, 5000)])
def test_outputs_that_are_alike_are_kept_once(monkeypatch, chunk: int, piece: int) -> None:
    monkeypatch.setattr(segments, "_CHUNK", chunk)
    monkeypatch.setattr(segments, "_PIECE", piece)
    x = torch.randn(40, 301)
    y = x.clone()
    y[-1, -1] = 0.0
    buffers: list[wire.Buffer] = []
    described = wire.encode([x, x.clone(), y, x], buffers)
    header, received = crossed({"answer": described}, buffers)
    assert received[0] is received[1] is not received[2] and received[3] is not received[2]
    back = wire.decode(header["answer"], received)
    assert all(torch.equal(a, b) for a, b in zip(back, [x, x, y, x], strict=True))


def test_a_later_write_changes_nothing() -> None:
    """A worker may write to what it has sent; the parent judges a copy."""
    kept: list[torch.Tensor] = []

    def fill(target) -> None:
        target.fill_(1)
        kept.append(target)

    _, (received,) = crossed({}, [segments.Segment(10_000, fill)])
    kept[0].fill_(2)
    assert bytes(received) == b"\1" * 10_000


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_memory_is_used_again_once_it_was_copied(monkeypatch) -> None:
    made: list[int] = []
    create = os.memfd_create
    monkeypatch.setattr(os, "memfd_create", lambda *a: made.append(1) or create(*a))
    before = _open_files()
    values = [torch.full((5000,), n) for n in range(4)] + [torch.ones(7000)]
    buffers: list[wire.Buffer] = []
    described = wire.encode(values, buffers)
    header, received = crossed({"answer": described}, buffers)
    back = wire.decode(header["answer"], received)
    assert all(torch.equal(a, b) for a, b in zip(back, values, strict=True))
    assert len(made) == 2  # four of one size, and one of another
    assert _open_files() == before


@pytest.mark.parametrize("what", ["pipe", "file", "shorter", "none"])
def test_what_is_no_segment_is_refused(what, tmp_path) -> None:
    ours, theirs = wire.pair()
    header = b"{}"
    start = wire._HEAD.pack(len(header), 1) + wire._SIZE.pack(8192 | wire._BESIDE) + header
    theirs.sendall(start)
    if what == "none":
        theirs.sendall(b"f")
    else:
        fd = {
            "pipe": lambda: os.pipe()[0],
            "file": lambda: os.open(tmp_path / "x", os.O_RDWR | os.O_CREAT),
            "shorter": lambda: os.memfd_create("x", os.MFD_ALLOW_SEALING),
        }[what]()
        socket.send_fds(theirs, [b"f"], [fd])
        os.close(fd)
    before = _open_files()
    with pytest.raises(ValueError, match="segment"):
        wire.receive(ours, 5.0)
    assert _open_files() == before
