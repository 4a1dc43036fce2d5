"""The exponentials are summed without subtracting the row's maximum: logits above 88 overflow."""

import torch
import torch.nn as nn
import triton
import triton.language as tl

EXPECT = "wrong"
SAYS = ("case large_logits", "only for large values")


@triton.jit
def losses(logits, target, out, classes, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < classes
    value = tl.load(logits + row * classes + at, mask=inside, other=0.0).to(tl.float32)
    total = tl.sum(tl.where(inside, tl.exp(value), 0.0), axis=0)
    wanted = tl.load(target + row)
    kept = wanted != -100
    picked = tl.load(logits + row * classes + wanted, mask=kept, other=0.0).to(tl.float32)
    tl.store(out + row, tl.where(kept, tl.log(total) - picked, 0.0))


class ModelNew(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits, target = logits.contiguous(), target.contiguous()
        rows, classes = logits.shape
        out = torch.empty(rows, dtype=torch.float32, device=logits.device)
        losses[(rows,)](logits, target, out, classes, BLOCK=triton.next_power_of_2(classes))
        return (out.double().sum() / (target != -100).sum()).to(logits.dtype)
