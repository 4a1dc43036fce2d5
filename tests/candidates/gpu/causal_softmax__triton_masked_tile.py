"""An online softmax that begins at the last tile of keys: where the mask hides all of it, the
maximum is -inf and exp(-inf - -inf) is NaN."""

import torch
import torch.nn as nn
import triton
import triton.language as tl

EXPECT = "wrong"
SAYS = ("elements are NaN", "so they are computed")


@triton.jit
def softmax(scores, p, queries, keys, scale, tiles, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    end = row % queries + keys - queries + 1
    top = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    for step in range(0, tiles):
        at = (tiles - 1 - step) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(scores + row * keys + at, mask=at < end, other=0.0).to(tl.float32) * scale
        value = tl.where(at < end, value, float("-inf"))
        higher = tl.maximum(top, tl.max(value, axis=0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(value - higher), axis=0)
        top = higher
    for step in range(0, tiles):
        at = step * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(scores + row * keys + at, mask=at < end, other=0.0).to(tl.float32) * scale
        weight = tl.where(at < end, tl.exp(value - top) / total, 0.0)
        tl.store(p + row * keys + at, weight.to(p.dtype.element_ty), mask=at < keys)


class ModelNew(nn.Module):
    def __init__(self, scale: float = 1.25):
        super().__init__()
        self.scale = scale

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.contiguous()
        queries, keys = scores.shape[-2:]
        p = torch.empty_like(scores)
        tiles = triton.cdiv(keys, 32)
        softmax[(scores.numel() // keys,)](scores, p, queries, keys, self.scale, tiles, BLOCK=32)
        return p
