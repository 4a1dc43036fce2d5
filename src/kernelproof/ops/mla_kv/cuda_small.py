"""The design of mla_kv for weights that fit into the shared memory of a block (kernel_small.cu)."""

from __future__ import annotations

import torch

from kernelproof.ops.mla_kv.cuda_operands import C_TYPES, Operands, down_side, packed_sizes
from kernelproof.ops.mla_kv.cuda_steps import Device, Launch, Plan, ceil_div, operand_names

_THREADS = 512  # of kernel_small.cu
_SHARED_LIMIT, _OLDER_SHARED_LIMIT = 227 * 1024, 163 * 1024
_TOKENS = 4
# Multiply-adds of a block above which tensor cores win over one launch.
_WORK = 1 << 18


def small(n: Operands, device: Device, asked: bool = False) -> Plan | None:
    """mla_kv_small, or None where it does not fit.

    Args:
        asked: also for so much work that other designs are faster.
    """
    if n.dtype == torch.float64 or not n.rank or not n.model or device.capability < (8, 0):
        return None
    size, columns = n.size, n.columns
    work = n.rank * (n.model + columns)
    # Some tokens for each multiprocessor: at most so many blocks that all run at the same time.
    tokens = 1
    while tokens < _TOKENS and n.tokens > tokens * device.multiprocessors:
        tokens *= 2
    blocks = ceil_div(n.tokens, tokens)
    if not asked and (blocks > device.multiprocessors or tokens * work > _WORK):
        return None
    weights = (n.model * n.rank, *(n.rank * up.columns for up in n.up))
    shared = sum(ceil_div(count * size, 16) * 16 for count in weights)
    partial = max(
        max(1, _THREADS // n.rank) * n.rank, max(1, _THREADS // max(columns, 1)) * columns
    )
    shared += 4 * tokens * (n.model + n.rank + partial)
    limit = _SHARED_LIMIT if device.capability[0] == 9 else _OLDER_SHARED_LIMIT
    if shared > limit or not columns:
        return None
    sizes = packed_sizes(n.hidden, n.model, n.model, n.sides(), (blocks, 1, 1), size, n.k_pe)
    name = f"mla_kv_small<{C_TYPES[n.dtype]}, {tokens}>"
    args = (*operand_names(n), sizes, down_side(n).packed(), float(n.epsilon))
    launch = Launch("kernel_small.cu", name, args, blocks, _THREADS, shared)
    return Plan("small", (launch,), (), "all weights fit into the shared memory of one block")
