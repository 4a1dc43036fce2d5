"""The steps that a call of mla_kv on CUDA consists of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kernelproof.ops.mla_kv.cuda_operands import C_TYPES, Operands, Rows, Side

# kLatentThreads and kRegisterPasses of kernel_mma.cu.
_LATENT_THREADS, _LATENT_REGISTER_PASSES = 128, 8
_LATENT_SHARED_TOKENS = 256


class Map(NamedTuple):
    """A tensor map of a named tensor; the rest as `kernelproof.tensor_map.TensorMap`."""

    name: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 128
    promotion: int = 256


class Launch(NamedTuple):
    """One launch of ``name`` in the file ``source``. A string among ``args`` names a tensor: an
    operand (hidden, w_down, w_up_k, w_up_v, norm_weight, k_pe), an output (out0, out1), scratch or
    the "exchange" buffer of a cooperative launch; all else but a `Map` is passed as it is."""

    source: str
    name: str
    args: tuple[str | int | float | bytes | Map | None, ...]
    grid: int
    block: int
    shared: int = 0
    cooperative: bool = False
    cluster: int = 1

    def described(self) -> str:
        return f"{self.name}, {self.grid} blocks of {self.block} threads"


class Library(NamedTuple):
    """A product by the matrix library: ``tokens`` ("hidden" or "latent") @ ``weight``, all by name,
    into ``out``; with ``part`` into the keys (0) or values (1) of a stacked output. ``both``: with
    w_up_k and w_up_v, into keys and values, which is one product of two batches where the library
    can step from one weight to the other."""

    tokens: str
    weight: str
    out: str
    part: int | None = None
    both: bool = False

    def described(self) -> str:
        weight = "w_up_k and w_up_v" if self.both else self.weight
        return f"matrix library: {self.tokens} @ {weight}"


class Plan(NamedTuple):
    """How to run one call. ``scratch``: tensors to allocate, as name, elements and dtype; ``why``:
    the reason for the design, in words; ``exchange``: words of a `cuda_exchange.buffer`."""

    design: str
    launches: tuple[Launch | Library, ...]
    scratch: tuple[tuple[str, int, torch.dtype], ...] = ()
    why: str = ""
    exchange: int = 0


class Device(NamedTuple):
    """What the choice depends on. ``cublaslt``: whether that library can be called by itself."""

    multiprocessors: int = 132
    capability: tuple[int, int] = (9, 0)
    cublaslt: bool = True


H200 = Device()


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def tile_counts(tokens: int, sides: Sequence[Side], tile: Sequence[int]) -> tuple[int, int, int]:
    """Tiles of tokens, and of the columns of each side; ``tile``: tokens, columns, ..."""
    first, second = (ceil_div(side.columns, tile[1]) for side in sides)
    return ceil_div(tokens, tile[0]), first, second


def latent_launch(
    n: Operands, splits: int, latent: torch.dtype, partial: torch.dtype | None = None
) -> Launch:
    """mla_kv_latent: "partial", of the type in which sums are formed unless told, to "latent"."""
    total = "double" if n.dtype == torch.float64 else "float"
    given = total if partial is None else C_TYPES[partial]
    most = 8 if partial is not None and partial.itemsize == 2 else 4
    width = next(w for w in (8, 4, 2, 1) if n.rank % w == 0 and w <= most)
    if total == "double":
        width = 1
    batch = 1 if splits == 1 else 8 if total == "double" else 16
    # Few tokens leave most multiprocessors idle: more warps share one then.
    warps = 4 if n.tokens <= _LATENT_SHARED_TOKENS else 1
    passes = ceil_div(n.rank, 32 * width * warps)
    name = (
        f"mla_kv_latent<{given}, {C_TYPES[n.dtype]}, {C_TYPES[latent]}, {total}, {width}, "
        f"{passes}, {warps}, {batch}>"
    )
    norm = "norm_weight" if n.norm else None
    args = ("partial", norm, "latent", n.tokens, n.rank, splits, float(n.epsilon))
    tokens = _LATENT_THREADS // (32 * warps)
    shared = tokens * n.rank * (8 if total == "double" else 4)
    if passes <= _LATENT_REGISTER_PASSES:
        shared = 0
    return Launch("kernel_mma.cu", name, args, ceil_div(n.tokens, tokens), _LATENT_THREADS, shared)


def latent_rows(n: Operands) -> Rows:
    return Rows(n.tokens, n.tokens, 0, n.rank, 1, n.rank, True)


def splits_of(blocks: int, depth: int, wanted: int, step: int, least: int) -> tuple[int, int]:
    """Number of splits of a sum and their depth, so that ``blocks`` become about ``wanted`` blocks.

    Each split keeps at least ``least`` steps of ``step`` terms, which hide the latency of loads; a
    sum of less than four times that is not worth the launch that adds the parts.
    """
    splits = min(wanted // max(blocks, 1), depth // (least * step))
    if depth < 4 * least * step or splits < 2:
        return 1, max(depth, 1)
    split_depth = ceil_div(ceil_div(depth, splits), step) * step
    return ceil_div(depth, split_depth), split_depth


def operand_names(n: Operands) -> tuple[str | None, ...]:
    outs = ("out0", "out0" if n.layout == "stacked" else "out1")
    norm = "norm_weight" if n.norm else None
    return ("hidden", "w_down", "w_up_k", "w_up_v", norm, "k_pe" if n.rope else None, *outs)
