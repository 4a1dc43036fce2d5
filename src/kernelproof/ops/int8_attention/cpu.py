"""CPU launcher, and the kernel as a kernelproof candidate."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelproof.build.c_library import c_library
from kernelproof.ops.int8_attention.contract import (
    OUT_DTYPES,
    PLAIN,
    Form,
    check,
    check_places,
)
from kernelproof.ops.int8_attention.model import ProblemModel

# struct Problem in kernel.cpp. One packed argument costs a fraction of 50 converted by ctypes.
_pack = struct.Struct("=12Q37qd").pack

# Instruction sets that the kernel is written for, as the compiler names them. "native" is this
# processor's own; the others are for tests and comparisons.
TARGETS = ("native", "x86-64-v4", "x86-64-v3", "x86-64")
_target = "native"


@contextlib.contextmanager
def compiled_for(target: str) -> Iterator[None]:
    """Inside, the kernel is the one compiled for ``target``, one of `TARGETS`."""
    global _target
    if target not in TARGETS:
        raise ValueError(f"target is {target!r}; it must be one of {TARGETS}")
    before, _target = _target, target
    try:
        yield
    finally:
        _target = before


@functools.cache
def _library(target: str) -> Any:
    # Contraction to fused multiply-add is GCC's default for C++, but not every compiler's.
    flags = ["-ffp-contract=fast"] + ([] if target == "native" else [f"-march={target}"])
    library = c_library([Path(__file__).parent / "kernel.cpp"], cflags=flags)
    library.kernelproof_int8_attention.argtypes = [ctypes.c_char_p]
    library.kernelproof_int8_attention.restype = ctypes.c_int
    library.kernelproof_int8_attention_target.restype = ctypes.c_char_p
    return library


@functools.cache
def _function(target: str) -> Any:
    return _library(target).kernelproof_int8_attention


def instructions() -> str:
    """What the kernel of this processor multiplies with."""
    name: bytes = _library(_target).kernelproof_int8_attention_target()
    return name.decode()


def explanation(tensors: tuple[Tensor, ...], form: Form) -> list[str]:
    """Lines for `explain`."""
    group = tensors[0].shape[2] // max(tensors[1].shape[2], 1)
    return [
        f"CPU kernel, {instructions()}, {torch.get_num_threads()} threads: tiles of up to 64 rows "
        f"({group} query heads of a key head together), blocks of 128 keys; a single tile's keys "
        "are split in ranges of 2,048 and merged in their order",
        "probabilities in fp32, so every accuracy is computed as strict",
    ]


def launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    causal: bool,
    scale: float,
) -> Tensor:
    """`int8_attention` on CPU tensors in its plain form; arguments and errors as there."""
    return launch_form(q, k, v, q_scale, k_scale, v_scale, causal, scale, PLAIN)[0]


def launch_form(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    causal: bool,
    scale: float,
    form: Form,
) -> tuple[Tensor, Tensor | None]:
    """`int8_attention` on CPU tensors: the output, and the lse where ``form`` asks for it.

    Raises MemoryError where the scratch memory (below 1 MB per thread up to D = 512) is refused.
    """
    check(q, k, v, q_scale, k_scale, v_scale, form)
    lse = None
    sequences, pages = q.shape[0], 0
    pointers: tuple[int, ...] = (0, 0, 0, 0, 0)
    if form is PLAIN:
        out = torch.empty_like(q, dtype=torch.float32, memory_format=torch.contiguous_format)
    else:
        check_places(q, k, form)
        out = torch.empty(q.shape, dtype=form.out_dtype)
        lse = torch.empty(q.shape[:3]) if form.with_lse else None
        # Named, because a copy must outlive the call that reads it.
        places = tuple(
            None if t is None else t.contiguous()
            for t in (form.cu_seqlens_q, form.cu_seqlens_k, form.kv_lens, form.block_table)
        )
        pointers = tuple(0 if t is None else t.data_ptr() for t in (lse, *places))
        if places[0] is not None:
            sequences = places[0].shape[0] - 1
        if places[3] is not None:
            pages = places[3].shape[1]
    if out.numel() == 0 and (lse is None or lse.numel() == 0):
        return out, lse
    if k.shape[0] == 0 or k.shape[1] == 0:
        return out.zero_(), None if lse is None else lse.fill_(-math.inf)
    packed = _pack(
        q.data_ptr(), k.data_ptr(), v.data_ptr(),
        q_scale.data_ptr(), k_scale.data_ptr(), v_scale.data_ptr(), out.data_ptr(), *pointers,
        *q.shape, k.shape[1], k.shape[2], *q.stride(), *k.stride(), *v.stride(),
        *_scale_strides(q_scale), *_scale_strides(k_scale), *_scale_strides(v_scale),
        *(form.block or (1, 1, 1)), k_scale.dim() == 3, v_scale.dim() == 3, sequences, pages,
        v.dtype == torch.float16, OUT_DTYPES.index(form.out_dtype), causal, scale,
    )  # fmt: skip
    if _function(_target)(packed):
        raise MemoryError(
            f"no scratch memory for int8_attention with a head dimension of {q.shape[3]}"
        )
    return out, lse


def _scale_strides(scale: Tensor) -> tuple[int, ...]:
    """Of batch, block and head; scales per head are the same in every batch element and block."""
    strides: tuple[int, ...] = scale.stride()
    return (0, 0, strides[0]) if len(strides) == 1 else strides


class ModelNew(ProblemModel):
    """The ``Model`` of problem.py and of problem_forms.py on the CPU kernels."""

    def forward(self, *tensors: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        result: Tensor | tuple[Tensor, Tensor] = self.run(launch_form, tensors)
        return result
