"""Attention on int8 queries, keys and values with float scales.

from kernelproof.ops.int8_attention import int8_attention, quantize_int8

(q8, q_scale), (k8, k_scale), (v8, v_scale) = (quantize_int8(x) for x in (q, k, v))
out = int8_attention(q8, k8, v8, q_scale, k_scale, v_scale)
"""

from __future__ import annotations

import math
from typing import Any, Literal, overload

import torch
from torch import Tensor

from kernelproof.cuda_forms import undisturbed
from kernelproof.errors import UnsupportedError
from kernelproof.ops.int8_attention import contract, cuda_quick
from kernelproof.ops.int8_attention.contract import PLAIN, Form
from kernelproof.ops.int8_attention.quantize import (
    Int8Attention,
    quantize_int8,
    scaled_dot_product_int8,
)

__all__ = [
    "Int8Attention",
    "explain",
    "int8_attention",
    "quantize_int8",
    "scaled_dot_product_int8",
]

_More = tuple[()] | tuple[tuple[Any, ...], tuple[Tensor, ...]]
_IMPLS = ("cpu", "cuda", "reference")
_TIERS = ("strict", "high", "fast")


@overload
def int8_attention(
    q: Tensor, k: Tensor, v: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor, *,
    causal: bool = ..., scale: float | None = ..., accuracy: str = ...,
    out_dtype: torch.dtype = ..., block: int | tuple[int, int, int] | None = ...,
    cu_seqlens_q: Tensor | None = ..., cu_seqlens_k: Tensor | None = ...,
    kv_lens: Tensor | None = ..., block_table: Tensor | None = ...,
    return_lse: Literal[False] = ..., impl: str | None = ...,
) -> Tensor: ...  # fmt: skip
@overload
def int8_attention(
    q: Tensor, k: Tensor, v: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor, *,
    causal: bool = ..., scale: float | None = ..., accuracy: str = ...,
    out_dtype: torch.dtype = ..., block: int | tuple[int, int, int] | None = ...,
    cu_seqlens_q: Tensor | None = ..., cu_seqlens_k: Tensor | None = ...,
    kv_lens: Tensor | None = ..., block_table: Tensor | None = ...,
    return_lse: Literal[True], impl: str | None = ...,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def int8_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
    accuracy: str = "strict",
    out_dtype: torch.dtype = torch.float32,
    block: int | tuple[int, int, int] | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    kv_lens: Tensor | None = None,
    block_table: Tensor | None = None,
    return_lse: bool = False,
    impl: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """``softmax(scale * q k^T) v`` of int8 tensors, each dequantised by its scales.

    Args:
        q: (B, Sq, Hq, D) int8.
        k: (B, Skv, Hkv, D) int8; Hq is a multiple of Hkv, and query head h reads key head
            ``h // (Hq // Hkv)``.
        v: as k, int8 or float16 (a float16 v is multiplied with v_scale just the same).
        q_scale, k_scale, v_scale: float32, of any sign, 0 included. Each by itself is (H,), one
            for each head; (B, S, H), one for each token; or, with ``block``,
            (B, ceil(S / block), H), one for each ``block`` tokens.
        causal: query t sees keys 0 .. t + Skv - Sq (the last query sees all keys). A query that
            sees no key gives zeros.
        scale: factor on the scores; ``1 / sqrt(D)`` by default.
        accuracy: "strict" keeps the relative rms error against float64 within 1e-6, "high" within
            3e-4 (probabilities in fp16); "fast" is another name for "high" at present. On the CPU
            all three are computed as "strict".
        out_dtype: float32, bfloat16 or float16.
        block: tokens that share a scale: one number, or three for q, k and v. It concerns scales of
            three axes only; None means that those are per token.
        cu_seqlens_q, cu_seqlens_k: (N + 1,) int32. q is then (1, Tq, Hq, D), k and v are
            (1, Tk, Hkv, D), and sequence n has the queries ``cu_seqlens_q[n] ..
            cu_seqlens_q[n + 1] - 1`` and likewise its keys. ``causal`` counts within a sequence.
        kv_lens: (B,) int32: only the first ``kv_lens[b]`` keys exist, and Skv above is that number.
        block_table: (B, M) int32. k and v are then a cache (pages, page, Hkv, D), and token s of
            sequence b is slot ``s % page`` of page ``block_table[b, s // page]``. Needs
            ``kv_lens``. Scales per token or block have the cache's axes: (pages, page, Hkv).
        return_lse: also return the natural logarithms of the sums of exponentials of the scaled
            scores, (B, Sq, Hq) float32; -inf for a query that sees no key.
        impl: ``None`` (by the device of the inputs), ``"cpu"``, ``"cuda"``, or ``"reference"``
            (eager PyTorch, slow, differentiable in the scales and in a float16 v).

    Strides are free, nothing is copied for them (an innermost stride of 1 is the fast case). No
    input is modified. On a GPU nothing waits for the device, so the values in ``cu_seqlens_q``,
    ``cu_seqlens_k``, ``kv_lens`` and ``block_table`` are trusted there; on the CPU they are
    checked.

    Returns:
        (B, Sq, Hq, D) in ``out_dtype``, contiguous; with ``return_lse`` the pair of it and the lse.

    Raises:
        TypeError: wrong dtypes.
        ValueError: shapes, devices or options do not fit together, ``impl`` or ``accuracy`` is
            unknown or does not fit the device, ``scale`` is not finite, D is above 65,535 (where
            int32 could overflow), or, on the CPU, an offset, length or page is out of range.
        RuntimeError: a tensor requires a gradient and the implementation is a kernel.
        UnsupportedError: no C++ compiler, no NVRTC, or ``impl="triton"``, which does not exist.
    """
    quickly = undisturbed() and q.is_cuda and (impl is None or impl == "cuda")
    given_scale = scale
    more: _More = ()
    if quickly:
        plain = (
            accuracy == "strict" and out_dtype is torch.float32 and block is None
            and cu_seqlens_q is None and cu_seqlens_k is None and kv_lens is None
            and block_table is None and not return_lse
        )  # fmt: skip
        if plain:
            done = cuda_quick.quick(q, k, v, q_scale, k_scale, v_scale, causal, scale)
        else:
            more = _beyond_plain(
                accuracy, out_dtype, block, return_lse, cu_seqlens_q, cu_seqlens_k, kv_lens,
                block_table,
            )  # fmt: skip
            done = cuda_quick.quick(q, k, v, q_scale, k_scale, v_scale, causal, scale, *more)
        if done is not None:
            return done
    tensors, scale, form = _arguments(
        q, k, v, q_scale, k_scale, v_scale, causal, scale, accuracy, out_dtype, block,
        cu_seqlens_q, cu_seqlens_k, kv_lens, block_table, return_lse, impl,
    )  # fmt: skip
    if impl == "reference":
        return _reference(tensors, causal, scale, form, accuracy)
    if torch.is_grad_enabled() and (
        q_scale.requires_grad or k_scale.requires_grad or v_scale.requires_grad or v.requires_grad
    ):
        raise RuntimeError(
            "the kernels of int8_attention have no gradient, and a tensor requires one: detach it, "
            'call under torch.no_grad(), or use impl="reference". Gradients through the rounding '
            'of float tensors: scaled_dot_product_int8(..., backward="straight_through")'
        )
    if form is PLAIN:
        out: Tensor = torch.ops.kernelproof.int8_attention.default(*tensors, causal, scale)
        if quickly:
            cuda_quick.keep(tensors, causal, given_scale, form, out, *more)
        return out
    # What is as in the plain form is left out, since the dispatcher takes its time for each.
    options = {n: x for n, x in form._asdict().items() if x is not getattr(PLAIN, n)}
    if options.pop("with_lse", False):
        both: tuple[Tensor, Tensor] = torch.ops.kernelproof.int8_attention_lse.default(
            *tensors, causal, scale, **options
        )
        if quickly:
            cuda_quick.keep(tensors, causal, given_scale, form, both, *more)
        return both
    out = torch.ops.kernelproof.int8_attention.default(*tensors, causal, scale, **options)
    if quickly:
        cuda_quick.keep(tensors, causal, given_scale, form, out, *more)
    return out


def _beyond_plain(
    accuracy: str, out_dtype: torch.dtype, block: int | tuple[int, int, int] | None,
    return_lse: bool, *places: Tensor | None,
) -> _More:  # fmt: skip
    """What a call asks for beyond the plain form, as a key, and the tensors of that."""
    sizes = block if block is None or isinstance(block, int) else tuple(block)
    kinds = tuple([x is None for x in places])
    given = tuple([x for x in places if x is not None])
    return (accuracy, out_dtype, sizes, return_lse, kinds), given


_Tensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _arguments(
    q: Tensor, k: Tensor, v: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor,
    causal: bool, scale: float | None, accuracy: str, out_dtype: torch.dtype,
    block: int | tuple[int, int, int] | None, cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None, kv_lens: Tensor | None, block_table: Tensor | None,
    return_lse: bool, impl: str | None,
) -> tuple[_Tensors, float, Form]:  # fmt: skip
    """The six tensors, the scale and the form; errors that no tensor's values are needed for."""
    if impl == "triton":
        raise UnsupportedError(
            "int8_attention has no Triton kernel; impl may be None, 'cpu', 'cuda' or 'reference'"
        )
    if impl is not None and impl not in _IMPLS:
        raise ValueError(f"impl is {impl!r}; it may be None, 'cpu', 'cuda' or 'reference'")
    if accuracy not in _TIERS:
        raise ValueError(f"accuracy is {accuracy!r}; it may be 'strict', 'high' or 'fast'")
    if scale is None:
        scale = 1.0 / math.sqrt(max(q.shape[-1], 1))
    elif not math.isfinite(scale):
        raise ValueError(f"scale is {scale}; it must be a finite number, or None for 1/sqrt(D)")
    kind = q.device.type
    if impl not in (None, "reference", kind):
        raise ValueError(
            f"impl={impl!r} needs tensors on a {impl} device, and q is on {q.device}; move the "
            "tensors, or leave impl out to go by their device"
        )
    if impl is None and kind not in ("cpu", "cuda", "meta"):
        raise ValueError(
            f"there are kernels for cpu and cuda, and q is on {q.device}; move the tensors, or use "
            'impl="reference"'
        )
    blocks = (block, block, block) if isinstance(block, int) else tuple(block or ())
    plain = (
        accuracy == "strict" and out_dtype == torch.float32 and not blocks and not return_lse
        and cu_seqlens_q is None and cu_seqlens_k is None and kv_lens is None
        and block_table is None
    )  # fmt: skip
    form = PLAIN
    if not plain:
        form = Form(
            accuracy == "strict", out_dtype, blocks, cu_seqlens_q, cu_seqlens_k, kv_lens,
            block_table, return_lse,
        )  # fmt: skip
    return (q, k, v, q_scale, k_scale, v_scale), scale, form


def _reference(
    tensors: _Tensors, causal: bool, scale: float, form: Form, accuracy: str
) -> Tensor | tuple[Tensor, Tensor]:
    from kernelproof.ops.int8_attention.reference import attend

    contract.check(*tensors, form, limit_dim=False)
    contract.check_places(tensors[0], tensors[1], form)
    out, lse = attend(*tensors, causal, scale, form)
    out = out.to(form.out_dtype)
    return (out, lse) if form.with_lse else out


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
    accuracy: str = "strict",
    out_dtype: torch.dtype = torch.float32,
    block: int | tuple[int, int, int] | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    kv_lens: Tensor | None = None,
    block_table: Tensor | None = None,
    return_lse: bool = False,
    impl: str | None = None,
) -> str:
    """What `int8_attention` would do with the same arguments: the kernel, its launch, and why.

    Nothing is computed. Errors as of `int8_attention`.
    """
    tensors, scale, form = _arguments(
        q, k, v, q_scale, k_scale, v_scale, causal, scale, accuracy, out_dtype, block,
        cu_seqlens_q, cu_seqlens_k, kv_lens, block_table, return_lse, impl,
    )  # fmt: skip
    contract.check(*tensors, form, limit_dim=impl != "reference")
    lines = [f"int8_attention of q {tuple(q.shape)} and k {tuple(k.shape)}, accuracy {accuracy}"]
    if impl == "reference":
        lines.append("reference: eager PyTorch, all scores at once, probabilities not rounded")
    elif q.device.type == "cuda":
        from kernelproof.ops.int8_attention import cuda

        lines += cuda.explanation(tensors, causal, scale, form)
    else:
        from kernelproof.ops.int8_attention import cpu

        lines += cpu.explanation(tensors, form)
    return "\n".join(lines)
