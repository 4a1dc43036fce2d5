"""Sums of table rows, in bags of any length (integer inputs).

    y[b] = sum_{i = offsets[b]}^{offsets[b+1] - 1} table[indices[i]]

``offsets`` (B,) is sorted and starts at 0; the last bag ends with ``indices``. An empty bag sums to
zero.

Traps for kernel writers:

- Empty bags: their row has to be written (zeros), not left as it was.
- The last bag has no following offset.
- Bags are of very different length; one warp per bag leaves most of the GPU idle.
- ``indices`` and ``offsets`` are int64. They must not be cast to the run's floating dtype: above
  2^24 (fp32) or 2^8 (bf16) neighbours fall together.
- The same row may occur twice in a bag and counts twice.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(
        self, table: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor
    ) -> torch.Tensor:
        return F.embedding_bag(indices, table, offsets, mode="sum")


def get_inputs(entries=1000, dim=40, bags=60, mean_length=7, dtype=torch.float32):
    table = torch.randn(entries, dim).to(dtype)
    # Squares of uniform numbers: many short bags, some empty, a few long ones.
    lengths = (torch.rand(bags).square() * 3 * mean_length).long()
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
    indices = torch.randint(entries, (int(offsets[-1]),))
    return [table, indices, offsets[:-1].clone()]


CASES = {
    "default": {},
    "one_bag": {"entries": 10, "dim": 33, "bags": 1, "mean_length": 20},
    "all_empty": {"entries": 10, "dim": 8, "bags": 5, "mean_length": 0},
    "one_entry": {"entries": 1, "dim": 1, "bags": 17},
    "odd": {"entries": 77, "dim": 65, "bags": 31},
    "long_bags": {"entries": 5000, "dim": 64, "bags": 40, "mean_length": 500},
    "many_entries": {"entries": 70_000, "dim": 16, "bags": 500},
}


def _index_add(table, indices, offsets):
    ends = torch.cat((offsets[1:], offsets.new_tensor([indices.numel()])))
    bag = torch.repeat_interleave(torch.arange(offsets.numel()).to(offsets), ends - offsets)
    return table.new_zeros(offsets.numel(), table.shape[1]).index_add_(0, bag, table[indices])


BASELINES = {"index_add": _index_add}


def FLOPS(entries=1000, dim=40, bags=60, mean_length=7, dtype=torch.float32):
    return bags * mean_length * dim


def BYTES(entries=1000, dim=40, bags=60, mean_length=7, dtype=torch.float32):
    # The mean: bag lengths are random. A row counts once per use.
    lookups = bags * mean_length
    return (lookups + bags) * dim * dtype.itemsize + (lookups + bags) * 8
