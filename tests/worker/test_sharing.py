"""Outputs that come again, in memory that somebody has kept."""

from __future__ import annotations

import torch

from kernelproof.worker.sharing import Earlier


def test_a_buffer_that_comes_again_is_seen_after_any_number_of_calls() -> None:
    buffers = [torch.ones(7) for _ in range(40)]
    earlier = Earlier()
    for buffer in buffers:
        assert earlier.seen_in([buffer]) == []
    assert earlier.seen_in([torch.ones(3), buffers[0]]) == [[1, 1]]
    assert earlier.seen_in([buffers[1].view(7, 1)[2:]]) == [[0, 0]]


def test_new_outputs_are_new_also_where_freed_memory_is_used_again() -> None:
    earlier = Earlier()
    for _ in range(200):
        both = torch.ones(7, 4)
        # Two of one call may share a storage.
        assert earlier.seen_in([both[:, :2], both[:, 2:]]) == []
    assert earlier.seen_in([torch.empty(0), torch.empty(0)]) == []
    assert earlier.seen_in([torch.empty(0), torch.empty(0)]) == []


def test_the_latest_are_held() -> None:
    """Whose memory is seen whatever storage is made of it."""
    memory = bytearray(64)
    earlier = Earlier()
    assert earlier.seen_in([torch.frombuffer(memory, dtype=torch.uint8)]) == []
    assert earlier.seen_in([torch.frombuffer(memory, dtype=torch.uint8)]) == [[0, 0]]
