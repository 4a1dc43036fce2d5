"""Calls of `attend` (kernel.cu) whose form has been seen: one look-up, one launch."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kernelproof.cuda import launches_are_taken
from kernelproof.cuda_forms import Forms, undisturbed
from kernelproof.cuda_launch import Bound


class _Seen(NamedTuple):
    """Calls of one form."""

    sizes: torch.Size
    # By the low bits of the addresses of q, k and v, which the choice depends on; None where it is
    # not one launch of `attend`.
    launches: dict[int, Bound | None]


_forms: Forms[_Seen] = Forms()


def quick(
    q: Tensor, k: Tensor, v: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor,
    causal: bool, scale: float | None,
) -> Tensor | None:  # fmt: skip
    """The output where `attend` has made one of this form in one launch; else None."""
    if not undisturbed() or launches_are_taken():
        return None
    seen = _forms.find((q.shape, k.shape, causal, scale), q, k, v, q_scale, k_scale, v_scale)
    if seen is None:
        return None
    first, second, third = q.data_ptr(), k.data_ptr(), v.data_ptr()
    launch = seen.launches.get((first | second | third) & 15)
    if launch is None:
        return None
    out = q_scale.new_empty(*seen.sizes)
    launch(
        first, second, third, q_scale.data_ptr(), k_scale.data_ptr(), v_scale.data_ptr(),
        out.data_ptr(),
    )  # fmt: skip
    return out


def keep(
    q: Tensor, k: Tensor, v: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor,
    causal: bool, scale: float | None,
) -> None:  # fmt: skip
    """Remember how a call in the plain form is made, after one that went well."""
    if not undisturbed() or launches_are_taken():
        return
    tensors = q, k, v, q_scale, k_scale, v_scale
    key = q.shape, k.shape, causal, scale
    seen = _forms.find(key, *tensors)
    odd = (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15
    if seen is None:
        seen = _Seen(q.shape, {})
        _forms.keep(key, seen, *tensors)
    if odd not in seen.launches:
        factor = 1.0 / math.sqrt(max(q.shape[3], 1)) if scale is None else float(scale)
        seen.launches[odd] = _bound(tensors, bool(causal), factor)


def _bound(tensors: tuple[Tensor, ...], causal: bool, scale: float) -> Bound | None:
    from kernelproof.ops.int8_attention import cuda, cuda_general, cuda_wgmma
    from kernelproof.ops.int8_attention.contract import PLAIN

    q, k, v, *scales = tensors
    per_head = all(s.dim() == 1 and s.is_contiguous() for s in scales)
    if q.numel() == 0 or k.numel() == 0 or v.dtype != torch.int8 or not per_head:
        return None
    index = q.get_device()
    many = cuda.processors(index)
    if q.shape[0] > cuda.GRID_LIMIT or not cuda_wgmma.why_not(tensors, PLAIN, many):
        return None
    plan = cuda.plan_of((q, k, v), causal, scale, many)
    if plan is None or plan.blocks:
        return None
    how = (
        plan.grid, plan.block, plan.shared, None, cuda_general.launches_overlap(index), False, True
    )  # fmt: skip
    # The output is a tensor as any other here.
    return plan.kernel.bound(index, (*tensors, scales[0], *plan.tail), how)
