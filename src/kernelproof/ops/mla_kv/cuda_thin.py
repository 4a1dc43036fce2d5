"""The design of mla_kv for a small rank, all weights in shared memory (kernel_thin.cu)."""

from __future__ import annotations

import torch

from kernelproof.ops.mla_kv.cuda_operands import C_TYPES, Operands, packed_sizes
from kernelproof.ops.mla_kv.cuda_steps import (
    Device,
    Launch,
    Plan,
    ceil_div,
    operand_names,
    tile_counts,
)

_TOKENS, _WARPS, _COLUMNS, _THREADS = 16, 8, 128, 256  # of kernel_thin.cu
_SHARED_LIMIT, _RANK = 227 * 1024, 64
# Groups of 32 values of a token that a warp can hold.
_GROUPS = 12
# Where it is the fastest on an H200: this rank, and blocks for half of the multiprocessors at least
# and for all at most.
_FASTEST_RANK = 8


def thin(n: Operands, device: Device, asked: bool = False) -> Plan | None:
    """mla_kv_thin, or None where it does not fit.

    Args:
        asked: also where other designs are faster.
    """
    if device.capability[0] != 9 or n.dtype not in (torch.float16, torch.bfloat16):
        return None
    if not n.rank or n.rank % 8 or n.rank > _RANK or not n.model or n.model % 8:
        return None
    if not all(w.wide(2) and not w.along_depth and w.columns for w in (n.down, *n.up)):
        return None
    if not n.hidden.wide(2) or not all(side.out_aligned(2) for side in n.sides()):
        return None
    each = ceil_div(ceil_div(n.model, 32), _WARPS)
    blocks = ceil_div(n.tokens, _TOKENS)
    fastest = n.rank <= _FASTEST_RANK and (
        device.multiprocessors <= 2 * blocks <= 2 * device.multiprocessors
    )
    if each > _GROUPS or not (fastest or asked):
        return None
    counts = tile_counts(n.tokens, n.sides(), (_TOKENS, _COLUMNS))
    down = each * _WARPS * 4 * (16 * n.rank + 32)
    up = n.rank * 2 * ((counts[1] + counts[2]) * _COLUMNS + 16)
    shared = down + up + _WARPS * _TOKENS * n.rank * 4 + _TOKENS * (2 * n.rank + 16)
    shared += _WARPS * _TOKENS * _COLUMNS * 2
    if shared > _SHARED_LIMIT:
        return None
    sizes = packed_sizes(n.hidden, n.model, n.model, n.sides(), counts, n.size, n.k_pe)
    name = f"mla_kv_thin<{C_TYPES[n.dtype]}, {n.model}, {n.rank}, {str(n.norm).lower()}>"
    args = (*operand_names(n), sizes, n.down.row, float(n.epsilon))
    launch = Launch("kernel_thin.cu", name, args, blocks, _THREADS, shared)
    return Plan("thin", (launch,), (), "a small rank: one launch, all weights in shared memory")
