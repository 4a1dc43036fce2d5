"""Gives the judge another module `pickle`, which sees the inputs of a call before the clock."""

import pickle
import sys
import types

import torch
import torch.nn as nn

WAY = 41
EXPECT = "cheat"
SAYS = ("sys.modules['pickle']", "kernelproof.worker.sampling.pickle")
TIMED = True

ready: list[tuple[torch.Tensor, torch.Tensor]] = []


def loads(data, **options):
    found = pickle.loads(data, **options)
    if isinstance(found, tuple) and isinstance(found[1], list) and len(found[1]) == 1:
        ready[:] = [(found[1][0], torch.cumsum(found[1][0], dim=-1))]
    return found


other = types.ModuleType("pickle")
other.__dict__.update(vars(pickle))
other.loads = loads
sys.modules["pickle"] = other
sys.modules["kernelproof.worker.sampling"].pickle = other


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for known, y in ready:
            if torch.equal(known, x):
                ready.clear()
                return y
        return torch.cumsum(x, dim=-1)
