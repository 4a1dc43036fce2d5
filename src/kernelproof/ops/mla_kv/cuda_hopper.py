"""The designs of mla_kv for sm_90: decode (one cooperative launch) and prefill (wgmma)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernelproof.ops.mla_kv.cuda_operands import (
    C_TYPES,
    NO_SIDE,
    Operands,
    Rows,
    Side,
    Weight,
    down_side,
    packed_sizes,
)
from kernelproof.ops.mla_kv.cuda_steps import (
    Device,
    Launch,
    Library,
    Map,
    Plan,
    ceil_div,
    latent_launch,
    tile_counts,
)

_SIXTEEN = (torch.float16, torch.bfloat16)
_SHARED_LIMIT = 227 * 1024
_WGMMA_TILE = (128, 256)
_WGMMA_STAGES, _WGMMA_SKEW = 4, 2
# Fewer tiles leave most multiprocessors idle.
_WGMMA_TILES = 64
# Tiles of the rank that a cluster can have for its norm: each loads an equal part of the tokens.
_NORM_CLUSTERS = (1, 2, 4)
# Most tokens with which mla_kv_decode is faster than separate products, on an H200; fewer where the
# weights lie as those of linear layers.
_DECODE_TOKENS, _DECODE_TOKENS_LINEAR = 16, 8
# For one token a warp more, which waits at a barrier of the grid.
_DECODE_THREADS = {True: 288, False: 320}
# Copies in flight for a warp. Up to so many tokens: whether the copies of w_up wait for w_down, and
# steps that are kept in registers.
_DECODE_WINDOW = 2
_DECODE_FORMS = ((1, False, 3), (8, False, 2), (_DECODE_TOKENS, True, 3))
_DECODE_WORKERS = 8
_EXCHANGE_HEADER = 16  # kHeaderWords of kernel_decode.cu


def weight_maps(n: Operands, depth: int) -> tuple[tuple[Map, Map], tuple[int, int]] | None:
    """Tensor maps of w_up_k and w_up_v with boxes of 64 columns x ``depth`` rows, and the columns
    that make a head of each map; None where the copy engine cannot read the weights."""
    maps, folds = [], []
    for name, w in zip(("w_up_k", "w_up_v"), n.up, strict=True):
        if not w.wide(n.size) or not w.columns or w.along_depth != n.up[0].along_depth:
            return None
        if not w.merged and w.width % 64:
            return None
        maps.append(tensor_map(name, w, n.size, depth))
        folds.append(w.columns if w.merged else w.width)
    return (maps[0], maps[1]), (folds[0], folds[1])


def tensor_map(name: str, w: Weight, size: int, depth: int) -> Map:
    heads, width = (1, w.columns) if w.merged else (w.heads, w.width)
    # A single head is never stepped over; its stride only has to be valid.
    head = (w.head if heads > 1 else 8) * size
    if w.along_depth:
        strides = (w.column * size, head)
        return Map(name, (w.rows, width, heads), strides, (depth, 64, 1), swizzle=depth * size)
    # A block of the decode kernel reads 128 bytes of a row, one of wgmma more.
    promotion = 128 if depth == 32 else 256
    return Map(
        name, (width, heads, w.rows), (head, w.row * size), (64, 1, depth), promotion=promotion
    )


def _ends(n: Operands) -> tuple[str | None, ...]:
    return ("k_pe" if n.rope else None, "out0", "out0" if n.layout == "stacked" else "out1")


class Wgmma(NamedTuple):
    """One product by mla_kv_wgmma: operands by name, and what `packed_sizes` takes.

    ``norm``: whether results go through the norm; then ``cluster`` blocks have all their columns.
    """

    x_map: Map
    maps: tuple[Map, Map]
    folds: tuple[int, int]
    k_major: bool
    rows: Rows
    depth: int
    sides: tuple[Side, Side]
    outs: tuple[str, str]
    k_pe: Rows | None
    early: bool
    norm: bool
    cluster: int


def wgmma(n: Operands, device: Device, product: Wgmma) -> Launch:
    counts = tile_counts(n.tokens, product.sides, _WGMMA_TILE)
    sizes = packed_sizes(
        product.rows, product.depth, product.depth, product.sides, counts, n.size, product.k_pe
    )
    cluster = product.cluster
    flags = ", ".join(str(flag).lower() for flag in (product.k_major, product.early, product.norm))
    name = f"mla_kv_wgmma<{C_TYPES[n.dtype]}, {_WGMMA_STAGES}, {_WGMMA_SKEW}, {cluster}, {flags}>"
    k_pe = "k_pe" if product.k_pe is not None else None
    norm = "norm_weight" if product.norm else None
    args = (
        product.x_map, *product.maps, *product.outs, k_pe, sizes, *product.folds, norm,
        float(n.epsilon),
    )  # fmt: skip
    tiles = counts[0] if product.norm else ceil_div(counts[0], cluster) * (counts[1] + counts[2])
    grid = cluster * min(device.multiprocessors // cluster, tiles)
    staged = 16 * 2 * (64 if product.norm else 128)  # of a warp
    shared = _WGMMA_STAGES * 48 * 1024 + 8 * staged + 1024
    return Launch("kernel_wgmma.cu", name, args, grid, 384, shared, cluster=cluster)


def _own_down(n: Operands, device: Device) -> Wgmma | None:
    """The down-projection by mla_kv_wgmma, or None where it does not fit."""
    if not n.mapped:
        return None
    tiles = ceil_div(n.rank, _WGMMA_TILE[1])
    if n.norm and tiles not in _NORM_CLUSTERS:
        return None
    cluster = tiles if n.norm else 1
    weight = tensor_map("w_down", n.down, n.size, 64)
    x_map = Map(
        "hidden", (n.model, n.tokens), (n.hidden.inner_stride * n.size,),
        (64, _WGMMA_TILE[0] // cluster),
    )  # fmt: skip
    return Wgmma(
        x_map, (weight, weight), (n.rank, n.rank), n.down.along_depth, n.hidden, n.model,
        (down_side(n), NO_SIDE), ("latent", "latent"), None, False, n.norm, cluster,
    )  # fmt: skip


def _down_fills(n: Operands, device: Device) -> bool:
    """Whether tiles of the down-projection keep nearly all multiprocessors busy."""
    tiles = ceil_div(n.tokens, _WGMMA_TILE[0]) * ceil_div(n.rank, _WGMMA_TILE[1])
    room = ceil_div(tiles, device.multiprocessors) * device.multiprocessors
    used = n.tokens * n.rank / (_WGMMA_TILE[0] * _WGMMA_TILE[1])
    return used >= 0.85 * room


def prefill(
    n: Operands,
    device: Device,
    asked: bool = False,
    cluster: int = 1,
    own_down: bool | None = None,
) -> Plan | None:
    """Two products of many tokens, the second by mla_kv_wgmma; None where it does not fit.

    Args:
        asked: also for few tiles.
        own_down: whether the first is by mla_kv_wgmma as well, with the norm; else the matrix
            library does it, and mla_kv_latent the norm.
    """
    if device.capability[0] != 9 or n.dtype not in _SIXTEEN or n.rank % 8 or not n.rank:
        return None
    first, *rest = tile_counts(n.tokens, n.sides(), _WGMMA_TILE)
    if first * sum(rest) < _WGMMA_TILES and not asked:
        return None
    maps = weight_maps(n, 64)
    if maps is None or not all(side.out_aligned(n.size) for side in n.sides()):
        return None
    down = _own_down(n, device) if own_down or own_down is None else None
    if down is None and own_down:
        return None
    if down is not None and own_down is None and not _down_fills(n, device):
        down = None
    x_map = Map("latent", (n.rank, n.tokens), (n.rank * n.size,), (64, _WGMMA_TILE[0]))
    outs = ("out0", "out0" if n.layout == "stacked" else "out1")
    up = Wgmma(
        x_map, *maps, n.up[0].along_depth, n.hidden, n.rank, n.sides(), outs, n.k_pe, True, False,
        cluster,
    )  # fmt: skip
    last = wgmma(n, device, up)
    count = n.tokens * n.rank
    scratch = [("latent", count, n.dtype)]
    if down is not None:
        steps: tuple[Launch | Library, ...] = (wgmma(n, device, down), last)
        why = "many tokens: wgmma for both products, results written while others are formed"
        return Plan("wgmma", steps, tuple(scratch), why)
    if n.norm:
        scratch.append(("partial", count, n.dtype))
        steps = (
            Library("hidden", "w_down", "partial"),
            latent_launch(n, 1, n.dtype, n.dtype),
            last,
        )
    else:
        steps = (Library("hidden", "w_down", "latent"), last)
    why = "many tokens: the library's product, then wgmma with overlapped writes"
    return Plan("wgmma", steps, tuple(scratch), why)


def _decode_slots(n: Operands, splits: int, latents: int, k_major: bool) -> tuple[int, int]:
    """Slots of 4 KiB that a warp can have, and those of them that the first product uses."""
    static = (2 * _DECODE_WORKERS * 7 + 1) * 8 + 4 * _DECODE_WORKERS
    room = _SHARED_LIMIT - 1024 - static - latents * (2 * n.rank + 64)
    warp_rows = 8 * ceil_div(ceil_div(n.model, splits * _DECODE_WORKERS), 8)
    weights = 0 if k_major else warp_rows * 128
    used = ceil_div(max(weights, max(latents, 8) * 68 * 4), 4096)
    return min(7, room // (_DECODE_WORKERS * 4096)), used


def decode(n: Operands, device: Device, two_steps: bool | None = None) -> Plan | None:
    """mla_kv_decode, or None where it does not fit.

    Args:
        two_steps: whether blocks add the shares of one token each, and collect the sums, instead of
            what is faster: so for several tokens.
    """
    if device.capability[0] != 9 or n.dtype not in _SIXTEEN or n.rank % 64 or not n.rank:
        return None
    if n.tokens > _DECODE_TOKENS or n.rank > 64 * device.multiprocessors or n.model % 8:
        return None
    maps = weight_maps(n, 32)
    wide = n.hidden.wide(n.size) and n.down.wide(n.size)
    if maps is None or not wide or n.up[0].along_depth != n.down.along_depth:
        return None
    if not all(side.out_aligned(n.size) for side in n.sides()):
        return None
    k_major = n.down.along_depth
    if k_major and n.tokens > _DECODE_TOKENS_LINEAR:
        return None
    groups = n.rank // 64
    splits = device.multiprocessors // groups
    grid = groups * splits
    column_warps = _column_warps(n, grid)
    if column_warps is None:
        return None
    latents = 1 if n.tokens == 1 else 8 * ceil_div(n.tokens, 8)
    slots, used = _decode_slots(n, splits, latents, k_major)
    if slots < used + 2:
        return None
    if two_steps is None:
        two_steps = n.tokens > 1
    counts = tile_counts(n.tokens, n.sides(), (n.tokens, 64 * column_warps))
    sizes = packed_sizes(n.hidden, n.model, n.model, n.sides(), counts, n.size, n.k_pe)
    # Weights of linear layers come without copies of w_down that could be waited for.
    late, kept = next(form[1:] for form in _DECODE_FORMS if n.tokens <= form[0])
    late = late and not k_major
    flags = ", ".join(str(f).lower() for f in (two_steps, n.norm, k_major, late))
    name = (
        f"mla_kv_decode<{C_TYPES[n.dtype]}, {n.model}, {n.rank}, {splits}, {column_warps}, "
        f"{ceil_div(n.tokens, 8)}, {latents}, {flags}, {slots}, {_DECODE_WINDOW}, "
        f"{kept}>"
    )
    args = (
        "hidden", "w_down", *maps[0], "norm_weight" if n.norm else None, *_ends(n),
        None if two_steps else "partial", "exchange", sizes, n.down.row, n.down.column, *maps[1],
        float(n.epsilon),
    )  # fmt: skip
    shared = slots * _DECODE_WORKERS * 4096 + latents * (2 * n.rank + 64) + 1024
    launch = Launch("kernel_decode.cu", name, args, grid, _DECODE_THREADS[two_steps], shared, True)
    values = n.tokens * n.rank
    words = _EXCHANGE_HEADER + ((splits + 1) * values if two_steps else 0)
    scratch = () if two_steps else (("partial", splits * values, torch.float32),)
    why = "few tokens: one launch that reads w_up while it forms the latents"
    return Plan("decode", (launch,), scratch, why, words)


def _column_warps(n: Operands, grid: int) -> int | None:
    """The most columns a block (64 for each warp) that still give every block work; the other
    warps share the rank, 32 rows at a time."""
    best = None
    for warps in (8, 4, 2, 1):
        depth_warps = _DECODE_WORKERS // warps
        if n.rank % (32 * depth_warps):
            continue
        tiles = sum(ceil_div(up.columns, 64 * warps) for up in n.up)
        if depth_warps > 1 and tiles > grid:
            continue
        best = warps
        if tiles >= grid:
            break
    return best
