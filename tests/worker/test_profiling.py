"""Where a call spends its time."""

from __future__ import annotations

import time

import torch

from kernelproof.worker.profiling import profiled


def test_operators_that_compute_are_counted() -> None:
    x = torch.randn(600, 600)
    told = profiled(lambda a: torch.softmax(a @ a, dim=-1), [x], "cpu")
    assert told["names"][0] in ("aten::mm", "aten::_softmax")
    assert told["library"] > 0.3 * told["seconds"]


def test_work_outside_of_torch_and_plumbing_are_not() -> None:
    def own(a):
        time.sleep(0.02)
        return torch.empty_like(a).copy_(a.t().contiguous()).view(-1)

    told = profiled(own, [torch.randn(50, 50)], "cpu")
    assert told["names"] == [] and told["library"] == 0 and told["seconds"] >= 0.02
