"""An operator of torch's own, registered anew, computes when the output is taken away."""

import torch
import torch.nn as nn

WAY = 41
EXPECT = "cheat"
SAYS = ("aten::detach",)
TIMED = True

pending: list[tuple[torch.Tensor, torch.Tensor]] = []
library = torch.library.Library("aten", "IMPL")


def late(tensor: torch.Tensor) -> torch.Tensor:
    if pending and pending[-1][1].data_ptr() == tensor.data_ptr():
        x, y = pending.pop()
        torch.cumsum(x, dim=-1, out=y)
    return torch.ops.aten.alias(tensor)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls < 40:
            return torch.cumsum(x, dim=-1)
        if self.calls == 40:
            library.impl("detach", late, "CPU")
        y = torch.empty_like(x)
        pending[:] = [(x, y)]
        return y
