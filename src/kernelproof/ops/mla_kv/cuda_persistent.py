"""The design of mla_kv for tens to hundreds of tokens on sm_90: both products in one cooperative
launch (kernel_persistent.cu)."""

from __future__ import annotations

import torch

from kernelproof.ops.mla_kv.cuda_hopper import tensor_map, weight_maps
from kernelproof.ops.mla_kv.cuda_operands import C_TYPES, Operands, packed_sizes
from kernelproof.ops.mla_kv.cuda_steps import Device, Launch, Map, Plan, ceil_div, tile_counts

_THREADS = 384  # kThreads of kernel_persistent.cu
_DEPTH = 64
_DOWN_TILE = (64, 128)
_DOWN_STAGE_BYTES = (64 + 128) * _DEPTH * 2
_STAGED_BYTES = 8 * 4096
_SHARED_LIMIT = 227 * 1024
# Tokens and columns of the tiles of keys and values.
TILES = ((64, 64), (64, 128), (64, 256), (128, 128), (128, 256))
# Of a multiprocessor of an H200, per clock: bytes from the L2 cache, and multiply-adds; and clocks
# from one tile to the next.
_FILL, _MULTIPLY, _BETWEEN = 58, 4096, 600


def choose_tile(
    tokens: int, columns: tuple[int, int], rank: int, device: Device
) -> tuple[int, int]:
    """The tile with which the slowest multiprocessor ends first."""

    def clocks(tile: tuple[int, int]) -> float:
        tiles = ceil_div(tokens, tile[0]) * sum(ceil_div(c, tile[1]) for c in columns)
        loads = sum(tile) * rank * 2 / _FILL
        products = tile[0] * tile[1] * rank / _MULTIPLY
        stores = 2 * tile[0] * tile[1] / (_FILL / 2)
        return ceil_div(tiles, device.multiprocessors) * (max(loads, products) + stores + _BETWEEN)

    return min(TILES, key=clocks)


def persistent(n: Operands, device: Device, tile: tuple[int, int] | None = None) -> Plan | None:
    """mla_kv_persistent, or None where it does not fit.

    Args:
        tile: one of `TILES` instead of the one that is chosen.
    """
    if device.capability[0] != 9 or n.dtype not in (torch.float16, torch.bfloat16):
        return None
    one_stride = n.hidden.number == n.hidden.inner or n.hidden.number == 1
    if not n.rank or n.rank % 8 or not one_stride or not n.hidden.wide(n.size):
        return None
    maps = weight_maps(n, 64)
    fits = n.down.wide(n.size) and all(side.out_aligned(n.size) for side in n.sides())
    if maps is None or not fits or n.tokens >= 2**31:
        return None
    down_tiles = ceil_div(n.tokens, _DOWN_TILE[0]) * ceil_div(n.rank, _DOWN_TILE[1])
    if down_tiles > device.multiprocessors:
        return None
    steps = ceil_div(n.model, _DEPTH)
    split_steps = ceil_div(steps, min(steps, device.multiprocessors // down_tiles))
    splits = ceil_div(steps, split_steps)
    first, second = (side.columns for side in n.sides())
    bm, bn = tile or choose_tile(n.tokens, (first, second), n.rank, device)
    room = _SHARED_LIMIT - _STAGED_BYTES - 1024 - 1024
    stages = min(8, room // ((bm + bn) * _DEPTH * 2))
    down_stages = min(8, room // _DOWN_STAGE_BYTES)
    ring = max(stages * (bm + bn) * _DEPTH * 2, down_stages * _DOWN_STAGE_BYTES)
    counts = tile_counts(n.tokens, n.sides(), (bm, bn))
    sizes = packed_sizes(n.hidden, n.model, n.model, n.sides(), counts, n.size, n.k_pe)
    flags = f"{str(n.up[0].along_depth).lower()}, {str(n.down.along_depth).lower()}"
    passes = ceil_div(n.rank, 128) if n.norm else 1
    name = (
        f"mla_kv_persistent<{C_TYPES[n.dtype]}, {bm}, {bn}, {stages}, {down_stages}, {flags}, "
        f"{passes}, {str(n.norm).lower()}>"
    )
    x_map = Map("hidden", (n.model, n.tokens), (n.hidden.inner_stride * n.size,), (64, 64))
    latent_map = Map("latent", (n.rank, n.tokens), (n.rank * n.size,), (64, 64))
    args = (
        x_map, tensor_map("w_down", n.down, n.size, 64), latent_map, *maps[0],
        "norm_weight" if n.norm else None, "k_pe" if n.rope else None, "out0",
        "out0" if n.layout == "stacked" else "out1", "partial", "latent", "barrier", sizes, n.rank,
        splits, split_steps, *maps[1], float(n.epsilon),
    )  # fmt: skip
    launch = Launch(
        "kernel_persistent.cu", name, args, device.multiprocessors, _THREADS,
        ring + _STAGED_BYTES + 1024, True,
    )  # fmt: skip
    scratch = (
        ("partial", splits * n.tokens * n.rank, torch.float32),
        ("latent", n.tokens * n.rank, n.dtype),
    )
    why = "tens to hundreds of tokens: one launch that reads w_up while latents are summed"
    return Plan("persistent", (launch,), scratch, why)
