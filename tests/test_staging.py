"""Gigabytes between a GPU and ordinary memory in pieces."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelproof import staging, strides
from kernelproof.check.values import identical


class Event:
    """Of a device that does everything at once."""

    def __init__(self) -> None:
        self.recorded = 0

    def record(self) -> None:
        self.recorded += 1

    def synchronize(self) -> None: ...


@pytest.mark.parametrize("way", [staging._to_host, staging._to_gpu])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 1000])
def test_every_byte_arrives_once(way: Any, length: int) -> None:
    source = torch.randint(0, 256, (length,), dtype=torch.uint8)
    target = torch.zeros_like(source)
    buffers = [torch.full((64,), 255, dtype=torch.uint8) for _ in range(2)]
    events = [Event(), Event()]
    way(target, source, buffers, events)
    assert torch.equal(target, source)
    assert sum(e.recorded for e in events) == -(-length // 64)


def test_what_is_small_or_scattered_goes_the_usual_way() -> None:
    x, y = torch.randn(4, 6).t(), torch.zeros(6, 4)
    assert not staging._worth(y, x)
    staging.copy(y, x)
    assert torch.equal(x, y)
    moved = strides.moved(x, "cpu")
    assert torch.equal(moved, x) and moved.data_ptr() != x.data_ptr()


def test_the_same_memory_is_identical_whatever_is_in_it() -> None:
    x = torch.tensor([1.0, float("nan"), 2.0, 1.0])
    assert identical(x, x.view(4)) and identical(x, x.clone())
    assert not identical(x[:2], x[2:]) and not identical(x[::3], x[:2])
    z = torch.tensor([1 + 1j])
    assert identical(z, z.clone()) and not identical(z, z.conj())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_there_and_back(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(staging, "_LARGE_BYTES", 1000)
    monkeypatch.setattr(staging, "_buffers", [])
    monkeypatch.setattr(staging, "_BUFFER_BYTES", 1 << 20)
    x = torch.randint(0, 2, (3_000_001,)).to(dtype)
    on_gpu = strides.copy_like(x, "cuda")
    assert len(staging._buffers) == 2 and torch.equal(on_gpu.cpu(), x)
    back = torch.zeros_like(x)
    staging.copy(back, on_gpu)
    assert torch.equal(back, x)
    # Behind what the current stream has yet to do.
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        on_gpu.logical_not_() if dtype == torch.bool else on_gpu.add_(1)
        staging.copy(back, on_gpu)
    assert torch.equal(back, ~x if dtype == torch.bool else x + 1)
