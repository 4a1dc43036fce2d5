"""The design of mla_kv for at most 16 tokens in float32 on sm_90 (kernel_few.cu)."""

from __future__ import annotations

import torch

from kernelproof.ops.mla_kv.cuda_operands import Operands, packed_sizes
from kernelproof.ops.mla_kv.cuda_steps import (
    Device,
    Launch,
    Plan,
    ceil_div,
    operand_names,
    tile_counts,
)

_THREADS, _DOWN_COLUMNS, _UP_COLUMNS = 256, 64, 32  # of kernel_few.cu
_HEADER_WORDS = 16  # kHeaderWords of exchange.cuh
_TOKENS, _SHARED_LIMIT = 16, 200 * 1024
# Quads of weights of both products that a thread can hold.
_QUADS = 40


def few(n: Operands, device: Device) -> Plan | None:
    """mla_kv_few, or None where it does not fit."""
    if device.capability[0] != 9 or n.dtype != torch.float32 or not n.rank or not n.model:
        return None
    if n.tokens > _TOKENS or n.rank % _DOWN_COLUMNS or n.model % 4 or n.hidden.column != 1:
        return None
    weights = (n.down, *n.up)
    if not all(w.wide(4) and not w.along_depth and w.columns for w in weights):
        return None
    if any(not w.merged and w.width % 4 for w in n.up):
        return None
    groups = n.rank // _DOWN_COLUMNS
    splits = min(device.multiprocessors // groups, ceil_div(n.model, _THREADS // 16))
    if splits < 1:
        return None
    tokens = 1 << (n.tokens - 1).bit_length()
    down = ceil_div(ceil_div(n.model, splits), 16)
    up = ceil_div(n.rank, _THREADS // (_UP_COLUMNS // 4))
    rows = max(down * 16, up * (_THREADS // (_UP_COLUMNS // 4)))
    pitch = tokens if tokens < 4 else tokens + 4
    shared = 4 * (rows * pitch + _THREADS // 32 * tokens * _DOWN_COLUMNS)
    if down + up > _QUADS or shared > _SHARED_LIMIT:
        return None
    counts = tile_counts(n.tokens, n.sides(), (n.tokens, _UP_COLUMNS))
    sizes = packed_sizes(n.hidden, n.model, n.model, n.sides(), counts, n.size, n.k_pe)
    flag = str(n.norm).lower()
    name = f"mla_kv_few<{n.model}, {n.rank}, {splits}, {tokens}, {flag}>"
    args = (*operand_names(n), "exchange", sizes, n.down.row, float(n.epsilon))
    launch = Launch("kernel_few.cu", name, args, groups * splits, _THREADS, shared, True)
    words = _HEADER_WORDS + (splits + 1) * n.tokens * n.rank
    why = "few tokens: one launch, all weights asked for at its start"
    return Plan("few", (launch,), (), why, words)
