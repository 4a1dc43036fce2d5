"""Gradients of a small fp32 projection by two kernels (kernel_backward.cu)."""

from __future__ import annotations

import functools
import threading

import torch
from torch import Tensor

from kernelproof.ops.mla_kv import cuda
from kernelproof.ops.mla_kv.cuda_steps import ceil_div
from kernelproof.ops.mla_kv.layout import merged_dims

_THREADS = 384  # kThreads of kernel_backward.cu
_SHARED_LIMIT, _STATIC_SHARED_LIMIT = 227 * 1024, 48 * 1024
# Above, the sums over all tokens, which every block of the second kernel reads, take longer than
# matrix products.
_TOKENS_PER_PROCESSOR = 8
_BATCH = 12


def fits(
    grad_k: Tensor, grad_v: Tensor, hidden: Tensor, w_down: Tensor, w_up_k: Tensor, w_up_v: Tensor
) -> bool:
    """Whether `launch` can take the operands, and is faster than matrix products."""
    if hidden.dtype != torch.float32:
        return False
    model, rank = w_down.shape
    columns, tokens = w_up_k[0].numel(), hidden.numel() // max(model, 1)
    if not all(w.is_contiguous() for w in (w_down, w_up_k, w_up_v)):
        return False
    if w_up_v.shape != w_up_k.shape or 0 in (tokens, model, rank, columns):
        return False
    facts = cuda.device_facts(hidden.device.index or 0)
    if model % 4 or rank % 4 or columns % 16 or rank > 4 * _THREADS:
        return False
    if tokens > _TOKENS_PER_PROCESSOR * facts.multiprocessors or facts.capability < (8, 0):
        return False
    if _shared(model, rank, columns, _tokens_of_block(tokens, facts.multiprocessors)) is None:
        return False
    pitches = [_pitch(t, axes) for t, axes in ((grad_k, 2), (grad_v, 2), (hidden, 1))]
    return all(
        pitch is not None and pitch % 4 == 0 and t.data_ptr() % 16 == 0
        for t, pitch in zip((grad_k, grad_v, hidden), pitches, strict=True)
    ) and all(w.data_ptr() % 16 == 0 for w in (w_down, w_up_k, w_up_v))


def _pitch(tensor: Tensor, axes: int) -> int | None:
    """Elements from one token to the next, where its last ``axes`` lie contiguously and the others
    make one; else None."""
    shape, strides = tensor.shape, tensor.stride()
    step = 1
    for axis in range(tensor.dim() - 1, tensor.dim() - 1 - axes, -1):
        if shape[axis] != 1 and strides[axis] != step:
            return None
        step *= shape[axis]
    leading = tensor.dim() - axes
    merged = merged_dims(tuple(shape[:leading]), strides[:leading])
    if len(merged) > 1:
        return None
    return merged[0][1] if merged else step


def _tokens_of_block(tokens: int, multiprocessors: int) -> int:
    return min(8, ceil_div(tokens, multiprocessors))


@functools.cache
def _shared(model: int, rank: int, columns: int, tokens: int) -> int | None:
    """Bytes of `TokenShape` in kernel_backward.cu; None where a block cannot have as many."""
    groups = _THREADS // (rank // 4)
    partials = groups * (tokens * rank + 4)
    words = model * (rank + 4) + tokens * (model + 2 * columns + rank) + partials
    second = groups * (4 * rank + 4)
    if 4 * words > _SHARED_LIMIT or 4 * second > _STATIC_SHARED_LIMIT:
        return None
    return 4 * words


_bound = threading.local()


def bind(device: int) -> None:
    """Makes the device's context current in this thread: autograd's own has none before its first
    call of the CUDA runtime, and a launch through the driver makes none."""
    if getattr(_bound, "device", None) == device:
        return
    import cuda.bindings.driver as driver

    if not int(driver.cuCtxGetCurrent()[1]):
        context = driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(device)[1])[1]
        driver.cuCtxSetCurrent(context)
    _bound.device = device


def launch(
    grad_k: Tensor, grad_v: Tensor, hidden: Tensor, w_down: Tensor, w_up_k: Tensor, w_up_v: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients by hidden, w_down, w_up_k and w_up_v, of operands that `fits` accepts. The same
    input gives the same bits in every run. Autograd's threads call `bind` first."""
    model, rank = w_down.shape
    columns, tokens = w_up_k[0].numel(), hidden.numel() // model
    device = hidden.device.index or 0
    facts = cuda.device_facts(device)
    each = _tokens_of_block(tokens, facts.multiprocessors)
    shared = _shared(model, rank, columns, each)
    pitches = _pitch(grad_k, 2), _pitch(grad_v, 2), _pitch(hidden, 1)
    latents = hidden.new_empty((2, tokens, rank))
    by_hidden = hidden.new_empty(hidden.shape)
    by_down, by_up_k, by_up_v = (torch.empty_like(w) for w in (w_down, w_up_k, w_up_v))
    programmatic = facts.capability >= (9, 0)
    sizes = f"{model}, {rank}, {columns}"
    cuda.kernel(f"mla_kv_token_gradients<{sizes}, {each}>", "kernel_backward.cu")(
        grad_k, grad_v, hidden, w_down, w_up_k, w_up_v, latents[0], latents[1], by_hidden, tokens,
        *pitches, grid=ceil_div(tokens, each), block=_THREADS, shared=shared or 0,
        programmatic=programmatic,
    )  # fmt: skip
    cuda.kernel(f"mla_kv_weight_gradients<{sizes}, {_BATCH}>", "kernel_backward.cu")(
        grad_k, grad_v, hidden, latents[0], latents[1], by_down, by_up_k, by_up_v, tokens,
        *pitches, grid=ceil_div(model, 4) + columns // 2, block=_THREADS,
        programmatic=programmatic,
    )  # fmt: skip
    return by_hidden, by_down, by_up_k, by_up_v
