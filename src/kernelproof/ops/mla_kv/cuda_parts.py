"""The design of mla_kv for float32 on sm_90's tensor cores (kernel_parts.cu)."""

from __future__ import annotations

import torch

from kernelproof.ops.mla_kv.cuda_mma import Product, products
from kernelproof.ops.mla_kv.cuda_operands import Operands, packed_sizes
from kernelproof.ops.mla_kv.cuda_steps import (
    Device,
    Launch,
    Library,
    Plan,
    ceil_div,
    latent_launch,
    splits_of,
    tile_counts,
)

_TOKENS, _DEPTH, _STAGES, _PARTS, _THREADS = 128, 64, 2, 3, 512  # of kernel_parts.cu
# Steps of a share of the depth, at least.
_SHARE_STEPS = 2
# Fewer tiles of the second product leave too many multiprocessors idle; with fewer tokens most of a
# tile is empty.
_TILES, _FEWEST_TOKENS = 48, 256


def parts(
    n: Operands, device: Device, asked: bool = False, splits: int | None = None
) -> Plan | None:
    """Two launches of mla_kv_parts, with mla_kv_latent between them for split sums or the norm;
    None where it does not fit.

    Args:
        asked: also for so few tokens that it is slower than other designs.
        splits: of the sums of the first product, instead of those that are chosen.
    """
    if device.capability[0] != 9 or n.dtype != torch.float32 or n.accuracy != "strict":
        return None
    rows = n.hidden
    weights = (n.down, *n.up)
    if not (rows.one_stride and rows.wide(4) and n.rank and n.rank % 4 == 0 and n.model % 4 == 0):
        return None
    if not all(w.wide(4) and w.merged and w.columns % 4 == 0 for w in weights):
        return None
    if n.up[0].along_depth != n.up[1].along_depth or not n.model:
        return None
    if not all(side.out_aligned(4) for side in n.sides()):
        return None
    counts = tile_counts(n.tokens, n.sides(), (_TOKENS, 128))
    enough = n.tokens >= _FEWEST_TOKENS and counts[0] * (counts[1] + counts[2]) >= _TILES
    if not enough and not asked:
        return None
    down, up = products(n)
    columns = 64 if n.rank <= 64 else 128
    tiles = ceil_div(n.tokens, _TOKENS) * ceil_div(n.rank, columns)
    if splits is None:
        splits, depth = splits_of(tiles, n.model, device.multiprocessors, _DEPTH, _SHARE_STEPS)
    else:
        depth = ceil_div(ceil_div(n.model, splits), _DEPTH) * _DEPTH
        splits = ceil_div(n.model, depth)
    count = n.tokens * n.rank
    scratch = [("latent", count, n.dtype)]
    launches: list[Launch | Library]
    if splits > 1 or n.norm:
        down = down._replace(outs=("partial", "partial"))
        scratch.append(("partial", splits * count, n.dtype))
        launches = [
            _launch(n, device, down, columns, splits, depth, n.down.along_depth),
            latent_launch(n, splits, n.dtype),
        ]
    else:
        launches = [_launch(n, device, down, columns, 1, n.model, n.down.along_depth)]
    launches.append(_launch(n, device, up, 128, 1, n.rank, n.up[0].along_depth))
    why = "float32 in three parts of bfloat16 each: tensor cores, and the accuracy of float32"
    return Plan("parts", tuple(launches), tuple(scratch), why)


def _launch(
    n: Operands, device: Device, product: Product, columns: int, splits: int, depth: int,
    k_major: bool,
) -> Launch:  # fmt: skip
    counts = tile_counts(product.rows.number, product.sides, (_TOKENS, columns))
    sizes = packed_sizes(product.rows, product.depth, depth, product.sides, counts, 4, product.k_pe)
    k_pe = "k_pe" if product.k_pe is not None else None
    args = (product.source, *product.weights, *product.outs, k_pe, sizes)
    tiles = counts[0] * (counts[1] + counts[2]) * splits
    shared = _STAGES * _PARTS * _DEPTH * 2 * (_TOKENS + columns) + 1024
    name = f"mla_kv_parts<{columns}, {str(k_major).lower()}>"
    grid = min(tiles, device.multiprocessors)
    return Launch("kernel_parts.cu", name, args, grid, _THREADS, shared)
