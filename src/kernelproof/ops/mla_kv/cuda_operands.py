"""What the CUDA kernels are told of the operands: sizes, strides and alignment, no data."""

from __future__ import annotations

import struct
from typing import NamedTuple

import torch

from kernelproof.ops.mla_kv.layout import merged_dims

C_TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "__half",
    torch.bfloat16: "__nv_bfloat16",
}


class Rows(NamedTuple):
    """Tokens of a tensor, strides in elements. Token n starts at
    ``n // inner * outer_stride + n % inner * inner_stride``; ``column`` leads to its next value."""

    number: int
    inner: int
    outer_stride: int
    inner_stride: int
    column: int
    width: int
    aligned: bool  # the tensor starts at a multiple of 16 bytes

    @property
    def one_stride(self) -> bool:
        """Whether all tokens lie as far apart, as a tensor map wants them."""
        return self.number == self.inner or self.number == 1

    def wide(self, size: int) -> bool:
        """Whether every 16 bytes of a token can be one access; ``size``: bytes of an element.

        Not for a single token that ends within 16 bytes: the tensor may end there as well. A copy
        of fewer bytes reads no more, but compute-sanitizer takes it for an access of 16.
        """
        strides = (self.inner_stride if self.inner > 1 else 0, self.outer_stride)
        if self.number > self.inner or self.inner == 1:
            steady = all(stride * size % 16 == 0 for stride in strides)
        else:
            steady = self.inner_stride * size % 16 == 0
        whole = self.number > 1 or self.width * size % 16 == 0
        return self.aligned and self.column == 1 and steady and whole


class Weight(NamedTuple):
    """A weight (rows, heads, width), strides in elements."""

    row: int
    head: int
    column: int
    rows: int
    heads: int
    width: int
    aligned: bool

    @property
    def columns(self) -> int:
        return self.heads * self.width

    @property
    def merged(self) -> bool:
        """Whether the heads follow one another as columns of one matrix do."""
        return self.heads == 1 or self.head == self.width * self.column

    @property
    def along_depth(self) -> bool:
        """Whether it lies contiguously along its rows, as the weight of an nn.Linear does."""
        return self.row == 1 and self.column != 1

    def wide(self, size: int) -> bool:
        """Whether every 16 bytes along the contiguous axis can be one access; as `Rows.wide`."""
        piece = 16 // size
        lines, length = self.rows, self.columns
        if self.along_depth:
            lines, length = length, lines
        if not self.aligned or (lines == 1 and length % piece):
            return False
        if self.along_depth:
            return self.column % piece == 0 and (self.heads == 1 or self.head % piece == 0)
        heads = self.merged or (self.head % piece == 0 and self.width % piece == 0)
        return self.column == 1 and self.row % piece == 0 and heads


class Operands(NamedTuple):
    """One call."""

    dtype: torch.dtype
    accuracy: str  # "strict" or "tf32"
    layout: str  # "stacked" or "split"
    hidden: Rows
    down: Weight
    up: tuple[Weight, Weight]
    k_pe: Rows | None
    norm: bool
    epsilon: float

    @property
    def size(self) -> int:
        return self.dtype.itemsize

    @property
    def tokens(self) -> int:
        return self.hidden.number

    @property
    def model(self) -> int:
        return self.down.rows

    @property
    def rank(self) -> int:
        return self.down.columns

    @property
    def rope(self) -> int:
        return self.k_pe.width if self.k_pe is not None else 0

    @property
    def columns(self) -> int:
        """Of both weights together."""
        return self.up[0].columns + self.up[1].columns

    @property
    def mapped(self) -> bool:
        """Whether tensor maps can read the operands of the first product."""
        return self.hidden.one_stride and self.hidden.wide(self.size) and self.down.wide(self.size)

    def plain(self) -> bool:
        """Whether it is the two products alone, into one stacked tensor."""
        return self.layout == "stacked" and not self.norm and not self.rope

    def out_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Without the leading axes: one shape where stacked, else those of k and v."""
        k, v = self.up
        if self.layout == "stacked":
            return ((2, k.heads, v.width),)
        return (k.heads, k.width + self.rope), (v.heads, v.width)

    def sides(self) -> tuple[Side, Side]:
        """The up-projections, into the output or outputs."""
        k, v = self.up
        wide_k = k.width + self.rope
        if self.layout == "stacked":
            both = k.heads * wide_k + v.columns
            offset = k.heads * wide_k
        else:
            both, offset = 0, 0
        return (
            Side(*k[:3], both or k.heads * wide_k, wide_k, 0, k.width, k.columns),
            Side(*v[:3], both or v.columns, v.width, offset, v.width, v.columns),
        )


class Side(NamedTuple):
    """`Side` of common.cuh."""

    row: int
    head: int
    column: int
    out_token: int
    out_head: int
    out_offset: int
    width: int
    columns: int

    def packed(self) -> bytes:
        return struct.pack("<6q2i", *self)

    def out_aligned(self, size: int) -> bool:
        """Whether every 16 bytes of the result of a token can be one access."""
        piece = 16 // size
        starts = self.out_token % piece == 0 and self.out_offset % piece == 0
        if self.out_head == self.width or self.columns == self.width:
            return starts and self.columns % piece == 0
        return starts and self.width % piece == 0 and self.out_head % piece == 0


NO_SIDE = Side(0, 0, 0, 0, 0, 0, 1, 0)


def down_side(operands: Operands) -> Side:
    """The down-projection, into latents (tokens, R)."""
    down = operands.down
    rank = operands.rank
    return Side(down.row, 0, down.column, rank, rank, 0, max(rank, 1), rank)


def packed_sizes(
    rows: Rows,
    depth: int,
    split_depth: int,
    sides: tuple[Side, Side],
    tiles: tuple[int, int, int],
    out_size: int,
    k_pe: Rows | None = None,
) -> bytes:
    """`Sizes` of common.cuh.

    Args:
        tiles: of tokens, and of the columns of each side.
        out_size: bytes of an element of the result.
    """
    used = [side for side in sides if side.columns]
    aligned = all(side.out_aligned(out_size) for side in used)
    rope = k_pe or Rows(0, 1, 0, 0, 0, 0, False)
    piece = 16 // out_size
    k = sides[0]
    rope_aligned = (
        rope.wide(out_size)
        and rope.width % piece == 0
        and all(n % piece == 0 for n in (k.width, k.out_head, k.out_token, k.out_offset))
    )
    return struct.pack(
        "<7q", rows.number, max(rows.inner, 1), rows.outer_stride, rows.inner_stride, rows.column,
        depth, split_depth,
    ) + sides[0].packed() + sides[1].packed() + struct.pack(
        "<4q6i", max(rope.inner, 1), rope.outer_stride, rope.inner_stride, rope.column,
        rope.width, *tiles, aligned, rope_aligned,
    )  # fmt: skip


def rows_of(shape: tuple[int, ...], strides: tuple[int, ...], aligned: bool) -> Rows:
    """Rows (..., width) whose leading axes merge into two."""
    axes = merged_dims(shape[:-1], strides[:-1])
    axes = [(1, 0)] * (2 - len(axes)) + axes
    if len(axes) > 2:
        raise ValueError(f"mla_kv: the leading axes of {shape} with strides {strides} do not merge")
    (outer, outer_stride), (inner, inner_stride) = axes
    return Rows(outer * inner, inner, outer_stride, inner_stride, strides[-1], shape[-1], aligned)


def weight_of(
    shape: tuple[int, ...], strides: tuple[int, ...], heads: int, aligned: bool
) -> Weight:
    """A weight (R, H*D), or (R, H, D)."""
    if len(shape) == 3:
        return Weight(strides[0], strides[1], strides[2], shape[0], shape[1], shape[2], aligned)
    width = shape[1] // heads
    return Weight(strides[0], width * strides[1], strides[1], shape[0], heads, width, aligned)
