"""Choice of `attend_decode` (kernel_decode.cu): a few queries against a long int8 cache."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parent / "kernel_decode.cu"  # includes form.cuh, and that common.cuh

WARPS, STEP = 8, 16  # of a block; keys of a step: as in the source
_STAGES = {64: 12, 128: 3, 256: 3}  # of a warp's ring, by head dimension: those it is written for
MOST_ROWS = 64  # queries times the heads that share a key head
_STRIDE_LIMIT = 2**31  # of tokens
_WARP_STEPS = 2  # that a warp has at least, where keys are shared out
_MOST_SPLITS = 64  # `combine_parts` takes no more
_HEAD_SPLITS = 24  # more than these are needed: fewer key heads in a block


class Choice(NamedTuple):
    """An instance and its launch."""

    name: str
    grid: int
    block: int
    shared: int
    splits: int
    tiles: int


def choose(
    batch: int,
    rows: int,
    keys: int,
    kv_heads: int,
    dim: int,
    strict: bool,
    scaled: bool,
    paged: bool,
    multiprocessors: int,
) -> Choice | None:
    """The launch for ``rows`` rows of each key head and at most ``keys`` keys, or None where
    another kernel does it. ``scaled``: keys or values have scales per token or block."""
    if dim not in _STAGES or rows > MOST_ROWS:
        return None
    most_tiles = 2 if dim == 256 else 4
    tiles = next((n for n in (1, 2) if 8 * n >= rows), most_tiles)
    groups = batch * -(-rows // (8 * tiles))
    heads = next(n for n in (8, 4, 2, 1) if kv_heads % n == 0)
    while heads > 1 and groups * (kv_heads // heads) * _HEAD_SPLITS < multiprocessors:
        heads //= 2
    blocks = groups * (kv_heads // heads)
    most = min(keys // (STEP * _WARP_STEPS * WARPS // heads), _MOST_SPLITS)
    splits = fewest_splits(blocks, multiprocessors, most)
    # With 8 rows the lower half of the probabilities costs nothing: its instance was the faster.
    flags = ", ".join(str(flag).lower() for flag in (strict or tiles == 1, scaled, paged))
    ring = _STAGES[dim] * (2 * STEP * dim + 128)
    ends = 4 * 8 * tiles * (dim + 8)
    return Choice(
        f"attend_decode<{dim}, {tiles}, {flags}, {heads}>",
        blocks * splits,
        32 * WARPS,
        WARPS * max(ring, ends),
        splits,
        groups,
    )


def in_pairs(name: str) -> bool:
    """Whether it is an instance of `attend_decode` with probabilities as fp16 pairs."""
    return name.startswith("attend_decode") and name.split(", ")[2] == "true"


def fewest_splits(blocks: int, places: int, most: int) -> int:
    """Blocks that share the keys of one tile, where tiles alone do not fill the GPU some times: the
    smallest number up to ``most`` that leaves hardly more places empty than the best."""
    if blocks >= 4 * places or most < 2:
        return 1
    times = [-(-blocks * n // places) / n for n in range(1, most + 1)]
    return 1 + next(n for n, time in enumerate(times) if time <= 1.05 * min(times))


def takes(
    q_stride: tuple[int, ...],
    k_stride: tuple[int, ...],
    v_stride: tuple[int, ...],
    address: int,
) -> bool:
    """Whether all rows are aligned to 16 bytes. ``address``: the low bits of the three pointers."""
    odd = address
    for stride in (q_stride, k_stride, v_stride):
        odd |= stride[0] | stride[1] | stride[2]
    near = max(abs(k_stride[1]), abs(v_stride[1])) < _STRIDE_LIMIT
    return odd % 16 == 0 and near and q_stride[3] == k_stride[3] == v_stride[3] == 1
