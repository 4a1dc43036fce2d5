"""The CPU kernel of mla_kv: instruction set, launch, and the module."""

from __future__ import annotations

import ctypes
import functools
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from kernelproof.build.c_library import c_library
from kernelproof.errors import UnsupportedError
from kernelproof.ops.mla_kv.layout import (
    Sizes,
    check_choices,
    check_kinds,
    check_shapes,
    merged_dims,
)
from kernelproof.ops.mla_kv.library import packed, project_library

# Flags that replace the build's own -march=native. Each set includes those before it.
INSTRUCTION_SETS: dict[str, tuple[str, ...]] = {
    "sse2": ("-march=x86-64", "-mtune=native"),
    "avx2": ("-march=x86-64", "-mtune=native", "-mavx2", "-mfma", "-mf16c"),
    "avx512": (
        "-march=x86-64", "-mtune=native", "-mavx2", "-mfma", "-mf16c",
        "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl",
    ),
}  # fmt: skip
_X86 = ("x86_64", "AMD64")
# Multiply-adds from which PyTorch's product wins where the CPU multiplies bfloat16 by itself, which
# kernel.cpp does not do. Processor time on one core of an EPYC (Zen 4): 3.1 times the kernel's at
# 4e5, 1.3 at 2e6, 0.8 at 9e6, 0.5 at 2e8.
_LIBRARY_WORK = 1 << 23
_OPERANDS = 6  # hidden, the three weights, norm_weight, k_pe


def instruction_sets() -> list[str]:
    """The instruction sets that this CPU runs, the best last: of "sse2", "avx2" and "avx512", or
    only "native" on another architecture than x86. It is PyTorch's own choice, which its
    environment variable ATEN_CPU_CAPABILITY limits."""
    if platform.machine() not in _X86:
        return ["native"]
    names = list(INSTRUCTION_SETS)
    best = torch.backends.cpu.get_cpu_capability().lower()
    return names[: names.index(best) + 1] if best in names else names[:1]


class Plan(NamedTuple):
    """How the kernel divides a problem: threads; whether they share each block of tokens and split
    its columns; tokens in a block; tokens and columns of the register tile; terms of one slice of a
    sum; columns of weights that are packed at once."""

    threads: int
    together: bool
    block: int
    tile_tokens: int
    tile_columns: int
    depth: int
    packed_columns: int


@functools.cache
def _library(instructions: str) -> ctypes.CDLL:
    flags = INSTRUCTION_SETS.get(instructions, ())
    return c_library([Path(__file__).with_name("kernel.cpp")], cflags=flags)


@functools.cache
def _functions(dtype: torch.dtype, instructions: str | None) -> tuple[Callable[..., int], Any]:
    """The kernel for ``dtype`` and its plan; the best instruction set for None."""
    known = instruction_sets()
    if instructions is not None and instructions not in known:
        raise UnsupportedError(
            f"mla_kv: the instruction set {instructions!r} is not among this CPU's, "
            f"{', '.join(map(repr, known))}"
        )
    library = _library(instructions or known[-1])
    name = "mla_kv_" + str(dtype).removeprefix("torch.")
    function, plan = getattr(library, name), getattr(library, name + "_plan")
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_double, ctypes.c_int64]
    function.restype = ctypes.c_int
    plan.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    plan.restype = None
    return function, plan


class _Call(NamedTuple):
    """What is worked out once for a layout: the array that kernel.cpp reads and its address, and
    shapes of the outputs. ``offset`` is where the values begin in a stacked output."""

    array: Any
    address: int
    shapes: tuple[tuple[int, ...], ...]
    offset: int
    sizes: Sizes
    tokens: int


@functools.lru_cache(maxsize=1024)
def _call(kv_heads: int, layout: str, *key: Any) -> _Call:
    """``key``: shape and strides of each operand in turn, None twice for one that is not given."""
    check_choices(layout, "strict")
    tensors = [
        None if key[2 * i] is None else torch.empty_strided(*key[2 * i : 2 * i + 2], device="meta")
        for i in range(_OPERANDS)
    ]
    hidden, w_down, w_up_k, w_up_v, norm_weight, k_pe = tensors
    assert hidden is not None and w_down is not None
    assert w_up_k is not None and w_up_v is not None
    sizes = check_shapes(
        hidden, w_down, w_up_k, w_up_v,
        kv_heads=kv_heads, norm_weight=norm_weight, k_pe=k_pe, layout=layout,
    )  # fmt: skip
    leading = tuple(hidden.shape[:-1])
    key_dim = sizes.k_dim + sizes.rope_dim
    width = kv_heads * sizes.v_dim
    if layout == "stacked":
        shapes: tuple[tuple[int, ...], ...] = ((*leading, 2, kv_heads, sizes.v_dim),)
        pitches = (2 * width, 2 * width)
    else:
        shapes = ((*leading, kv_heads, key_dim), (*leading, kv_heads, sizes.v_dim))
        pitches = (kv_heads * key_dim, width)
    tokens = 1
    for size in leading:
        tokens *= size
    numbers = [
        tokens, sizes.model, sizes.rank, hidden.stride(-1),
        *_weight(w_down, 1), *_weight(w_up_k, kv_heads), *_weight(w_up_v, kv_heads),
        pitches[0], key_dim, _columns(sizes.k_dim, key_dim, kv_heads),
        pitches[1], sizes.v_dim, kv_heads * sizes.v_dim,
        0 if norm_weight is None else norm_weight.stride(0),
        kv_heads, sizes.rope_dim, 0 if k_pe is None else k_pe.stride(-1),
        *_leading(hidden, 1), *(_leading(k_pe, 2) if k_pe is not None else (0,)),
    ]  # fmt: skip
    array = (ctypes.c_int64 * len(numbers))(*numbers)
    return _Call(array, ctypes.addressof(array), shapes, width, sizes, tokens)


def _columns(dim: int, pitch: int, heads: int) -> int:
    """Columns that lie together: those of one head, or all where heads follow without a gap."""
    return heads * dim if dim == pitch else max(dim, 1)


def _weight(weight: torch.Tensor, heads: int) -> tuple[int, int, int, int, int]:
    """Strides of the row, head and column, columns of a head (all where a head's columns follow on
    the last one's), and columns in all."""
    if weight.dim() == 2:
        row, column = weight.stride()
        return row, 0, column, max(weight.shape[1], 1), weight.shape[1]
    row, head, column = weight.stride()
    dim = weight.shape[2]
    if heads == 1 or head == dim * column:
        return row, 0, column, max(heads * dim, 1), heads * dim
    return row, head, column, max(dim, 1), heads * dim


def _leading(tensor: torch.Tensor, inner: int) -> tuple[int, ...]:
    """Number, sizes and strides of the fewest axes that address all but the last ``inner``."""
    axes = merged_dims(tensor.shape[:-inner], tensor.stride()[:-inner])
    return (len(axes), *(size for size, _ in axes), *(stride for _, stride in axes))


def _called(
    hidden: torch.Tensor,
    w_down: torch.Tensor,
    w_up_k: torch.Tensor,
    w_up_v: torch.Tensor,
    kv_heads: int,
    norm_weight: torch.Tensor | None,
    k_pe: torch.Tensor | None,
    layout: str,
) -> _Call:
    optional: list[Any] = []
    for tensor in (norm_weight, k_pe):
        optional += (None, None) if tensor is None else (tensor.shape, tensor.stride())
    return _call(
        kv_heads, layout, hidden.shape, hidden.stride(), w_down.shape, w_down.stride(),
        w_up_k.shape, w_up_k.stride(), w_up_v.shape, w_up_v.stride(), *optional,
    )  # fmt: skip


def project_cpu(
    hidden: torch.Tensor,
    w_down: torch.Tensor,
    w_up_k: torch.Tensor,
    w_up_v: torch.Tensor,
    *,
    kv_heads: int,
    norm_weight: torch.Tensor | None = None,
    norm_eps: float = 1e-6,
    k_pe: torch.Tensor | None = None,
    layout: str = "stacked",
    accuracy: str = "strict",
    instructions: str | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Keys and values on ``torch.get_num_threads()`` threads. Arguments and result as
    `kernelproof.ops.mla_kv.mla_kv` has them, weights in torch's form, all on the CPU and read where
    they are. Both accuracies compute the same: sums in float32, or float64 for float64. Large
    bfloat16 problems go to PyTorch's products on CPUs that have instructions for them.

    Args:
        instructions: one of `instruction_sets` instead of the best one; always the kernel.

    Raises:
        TypeError, ValueError: the operands do not fit together.
        MemoryError: the scratch memory cannot be had.
        CompileError, UnsupportedError: the kernel cannot be built here.
    """
    check_kinds(hidden, w_down, w_up_k, w_up_v, norm_weight, k_pe)
    check_choices(layout, accuracy)
    if not hidden.is_cpu:
        raise ValueError(f"mla_kv: this is the CPU kernel, the operands are on {hidden.device}")
    call = _called(hidden, w_down, w_up_k, w_up_v, kv_heads, norm_weight, k_pe, layout)
    if instructions is None and _by_library(call, hidden, w_up_k, w_up_v):
        return project_library(
            hidden, w_down, w_up_k, w_up_v, kv_heads=kv_heads, norm_weight=norm_weight,
            norm_eps=norm_eps, k_pe=k_pe, layout=layout,
        )  # fmt: skip
    outs = [torch.empty(shape, dtype=hidden.dtype, device="cpu") for shape in call.shapes]
    keys = outs[0].data_ptr()
    if layout == "stacked":
        values = keys + call.offset * hidden.itemsize
    else:
        values = outs[1].data_ptr()
    if outs[0].numel() or outs[-1].numel():
        pointers = (ctypes.c_void_p * 8)(
            hidden.data_ptr(), w_down.data_ptr(), w_up_k.data_ptr(), w_up_v.data_ptr(),
            None if norm_weight is None else norm_weight.data_ptr(),
            None if k_pe is None else k_pe.data_ptr(), keys, values,
        )  # fmt: skip
        kernel, _ = _functions(hidden.dtype, instructions)
        if kernel(pointers, call.address, norm_eps, torch.get_num_threads()) != 0:
            raise MemoryError(
                "mla_kv: no memory for its scratch space; free some, or pass fewer tokens"
            )
    return outs[0] if layout == "stacked" else (outs[0], outs[1])


@functools.cache
def _multiplies_bfloat16() -> bool:
    """Whether the CPU has instructions for products of bfloat16, and PyTorch uses them."""
    wide = torch.backends.mkldnn.is_available() and instruction_sets()[-1] == "avx512"
    return wide and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _by_library(
    call: _Call, hidden: torch.Tensor, w_up_k: torch.Tensor, w_up_v: torch.Tensor
) -> bool:
    """Whether PyTorch's products are faster, and take the operands without copies of them."""
    n = call.sizes
    work = call.tokens * n.rank * (n.model + n.heads * (n.k_dim + n.v_dim))
    return (
        hidden.dtype == torch.bfloat16
        and work >= _LIBRARY_WORK
        and _multiplies_bfloat16()
        and len(merged_dims(hidden.shape, hidden.stride())) <= 2
        and hidden.stride(-1) == 1
        and (
            (w_up_k.dim() == 2 and w_up_v.dim() == 2) or packed(w_up_k, w_up_v, n.heads) is not None
        )
    )


def explain_cpu(
    hidden: torch.Tensor,
    w_down: torch.Tensor,
    w_up_k: torch.Tensor,
    w_up_v: torch.Tensor,
    *,
    kv_heads: int,
    norm_weight: torch.Tensor | None = None,
    norm_eps: float = 1e-6,
    k_pe: torch.Tensor | None = None,
    layout: str = "stacked",
    accuracy: str = "strict",
) -> str:
    """What `project_cpu` does with these operands, and why. Compiles the kernel, runs nothing.

    Raises:
        TypeError, ValueError, CompileError, UnsupportedError: as `project_cpu`.
    """
    check_kinds(hidden, w_down, w_up_k, w_up_v, norm_weight, k_pe)
    check_choices(layout, accuracy)
    call = _called(hidden, w_down, w_up_k, w_up_v, kv_heads, norm_weight, k_pe, layout)
    n = call.sizes
    dtype = str(hidden.dtype).removeprefix("torch.")
    lines = [
        f"mla_kv on the CPU: {call.tokens} tokens, M = {n.model}, R = {n.rank}, H = {n.heads}, "
        f"{n.k_dim} + {n.v_dim} columns a head, {dtype}, layout {layout!r}"
    ]
    if _by_library(call, hidden, w_up_k, w_up_v):
        return "\n".join((*lines,
            "  PyTorch's matrix products: this CPU multiplies bfloat16 by itself, and PyTorch's "
            "library uses that",
            f"  (from {_LIBRARY_WORK:,} multiply-adds on); the latent is rounded to bfloat16",
        ))  # fmt: skip
    plan = plan_of(hidden.dtype, call)
    sums = "float64" if hidden.dtype == torch.float64 else "float32"
    sharing = (
        "the threads split the columns of each block of tokens: with few tokens a thread, reading "
        "the weights costs most, and each is read once"
        if plan.together
        else "each thread takes blocks of tokens through both products"
    )
    lines += [
        f"  kernel.cpp for {instruction_sets()[-1]}, the best of {', '.join(instruction_sets())} "
        "that this CPU and PyTorch use (limit: ATEN_CPU_CAPABILITY)",
        f"  {plan.threads} of {torch.get_num_threads()} threads; {sharing}",
        f"  blocks of {plan.block} tokens, register tiles of {plan.tile_tokens} x "
        f"{plan.tile_columns}, sums in slices of {plan.depth} terms, {sums} throughout",
    ]
    if accuracy == "tf32":
        lines.append("  accuracy 'tf32' permits less than this: CPUs gain nothing by it")
    return "\n".join(lines)


def plan_of(dtype: torch.dtype, call: _Call) -> Plan:
    """How the kernel divides a problem on ``torch.get_num_threads()`` threads."""
    found = (ctypes.c_int64 * len(Plan._fields))()
    _functions(dtype, None)[1](call.address, torch.get_num_threads(), ctypes.addressof(found))
    threads, together, *rest = found
    return Plan(threads, bool(together), *rest)


def mla_kv_cpu(
    hidden: torch.Tensor,
    w_down: torch.Tensor,
    w_up_k: torch.Tensor,
    w_up_v: torch.Tensor,
    kv_heads: int,
) -> torch.Tensor:
    """`project_cpu` without norm or rotary part, stacked: ``(..., 2, H, D)``."""
    out = project_cpu(hidden, w_down, w_up_k, w_up_v, kv_heads=kv_heads)
    assert isinstance(out, torch.Tensor)
    return out


class ModelNew(nn.Module):
    """`problem.Model` on the CPU kernel."""

    def __init__(self, kv_heads: int = 4) -> None:
        super().__init__()
        self.kv_heads = kv_heads

    def forward(
        self,
        hidden: torch.Tensor,
        w_down: torch.Tensor,
        w_up_k: torch.Tensor,
        w_up_v: torch.Tensor,
    ) -> torch.Tensor:
        operands = (hidden, w_down, w_up_k, w_up_v)
        if torch.is_grad_enabled() and any(t.requires_grad for t in operands):
            from kernelproof.ops.mla_kv.contract import mla_kv_op

            out: torch.Tensor = mla_kv_op(*operands, self.kv_heads)
            return out
        return mla_kv_cpu(*operands, self.kv_heads)
