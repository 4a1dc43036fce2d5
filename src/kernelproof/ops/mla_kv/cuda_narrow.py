"""The design of mla_kv for many tokens and a small rank on sm_90 (kernel_narrow.cu)."""

from __future__ import annotations

import torch

from kernelproof.ops.mla_kv.cuda_hopper import tensor_map, weight_maps
from kernelproof.ops.mla_kv.cuda_operands import C_TYPES, Operands, packed_sizes
from kernelproof.ops.mla_kv.cuda_steps import Device, Launch, Map, Plan, ceil_div, tile_counts

_THREADS, _COLUMNS, _DEPTH = 384, 128, 64  # of kernel_narrow.cu
_STAGED_BYTES, _SHARED_LIMIT = 8 * 4096, 226 * 1024
_RANK = 128
# Elements of w_down, its columns padded to 64 or 128, that blocks may load again; a smaller rank
# than this keeps too few slices of the L2 cache busy. As measured on an H200, 1 to 4,096 tokens.
_FEW_ELEMENTS, _RANK_OF_FEW = 1 << 16, 32


def narrow(
    n: Operands,
    device: Device,
    asked: bool = False,
    tokens: int | None = None,
    cluster: int = 1,
) -> Plan | None:
    """mla_kv_narrow, or None where it does not fit.

    Args:
        asked: also for so few tokens that it is slower than other designs.
        tokens: of a block, 64 or 128, instead of those that are chosen.
        cluster: blocks that share the loads of weights, 1 or 2.
    """
    if device.capability[0] != 9 or n.dtype not in (torch.float16, torch.bfloat16):
        return None
    if not n.rank or n.rank % 8 or n.rank > _RANK or not n.model:
        return None
    maps = weight_maps(n, 64)
    if maps is None or not n.mapped or not all(side.out_aligned(n.size) for side in n.sides()):
        return None
    # With fewer tokens blocks repeat the first product, or multiprocessors are idle.
    enough = ceil_div(n.tokens, 128) >= device.multiprocessors
    if (
        not enough
        and not asked
        and (n.model * (64 if n.rank <= 64 else 128) > _FEW_ELEMENTS or n.rank < _RANK_OF_FEW)
    ):
        return None
    if tokens is None:
        tokens = 128 if enough else 64
    counts = tile_counts(n.tokens, n.sides(), (tokens, _COLUMNS))
    column_tiles = counts[1] + counts[2]
    # More chunks repeat the first product, which costs little while there are idle multiprocessors.
    pairs = ceil_div(counts[0], cluster)
    room = device.multiprocessors // cluster
    chunks = max(1, min(column_tiles, room // pairs))
    chunk_tiles = ceil_div(column_tiles, chunks)
    units = pairs * ceil_div(column_tiles, chunk_tiles)
    rank = 64 if n.rank <= 64 else 128
    stage_bytes = max((tokens + rank) * _DEPTH * 2, rank * _COLUMNS * 2)
    stages = (_SHARED_LIMIT - _STAGED_BYTES - 1024) // stage_bytes
    flags = f"{str(n.up[0].along_depth).lower()}, {str(n.down.along_depth).lower()}"
    name = f"mla_kv_narrow<{C_TYPES[n.dtype]}, {tokens}, {rank}, {stages}, {cluster}, {flags}>"
    sizes = packed_sizes(n.hidden, n.model, n.model, n.sides(), counts, n.size, n.k_pe)
    x_map = Map("hidden", (n.model, n.tokens), (n.hidden.inner_stride * n.size,), (64, 64))
    args = (
        x_map, tensor_map("w_down", n.down, n.size, 64), *maps[0],
        "norm_weight" if n.norm else None, "k_pe" if n.rope else None, "out0",
        "out0" if n.layout == "stacked" else "out1", sizes, n.rank, chunk_tiles, *maps[1],
        float(n.epsilon),
    )  # fmt: skip
    shared = stages * stage_bytes + _STAGED_BYTES + 1024
    grid = cluster * min(units, room)
    launch = Launch("kernel_narrow.cu", name, args, grid, _THREADS, shared, cluster=cluster)
    why = "a small rank: one launch, latents stay in registers between the products"
    return Plan("narrow", (launch,), (), why)
