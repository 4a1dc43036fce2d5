"""Gradients of the projection, made of matrix products.

With x the tokens, L = x W_down the latents, n = L s w the normed ones (s = 1/rms, w the norm's
weight; without a norm n = L), [K|V] = n [W_k|W_v]:

    dn = dK W_k^T + dV W_v^T        dW_k = n^T dK             dW_v = n^T dV
    dw = sum over tokens of dn L s  dL = s (dn w - L s^2 / R * sum over R of (dn w L))
    dx = dL W_down^T                dW_down = x^T dL
    dk_pe = sum over heads of the last columns of dK

L is formed again, which costs one product of the three of the forward pass. One opaque operator
holds it all, so that ``accuracy`` decides about TF32 when the products run, also where
``torch.compile`` made the graph.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_NAME = "kernelproof::mla_kv_backward"

torch.library.define(
    _NAME,
    "(Tensor? grad_k, Tensor? grad_v, Tensor hidden, Tensor w_down, Tensor w_up_k, Tensor w_up_v, "
    "int kv_heads, Tensor? norm_weight, float norm_eps, int rope_dim, str accuracy, "
    "bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


@torch.library.impl(_NAME, "default")
def _gradients(
    grad_k: Tensor | None,
    grad_v: Tensor | None,
    hidden: Tensor,
    w_down: Tensor,
    w_up_k: Tensor,
    w_up_v: Tensor,
    kv_heads: int,
    norm_weight: Tensor | None,
    norm_eps: float,
    rope_dim: int,
    accuracy: str,
    wanted: list[bool],
) -> tuple[Tensor, ...]:
    """By hidden, w_down, w_up_k, w_up_v, norm_weight and k_pe, each of its operand's shape and
    dtype and contiguous; of no elements where it is not wanted."""
    by_rope: Tensor | None = None
    if wanted[5] and grad_k is not None:
        by_rope = _shared_by_heads(grad_k, rope_dim)
    elif wanted[5]:
        by_rope = hidden.new_zeros((*hidden.shape[:-1], 1, rope_dim))
    found: list[Tensor | None] = [None] * 5
    small = _by_kernels(
        grad_k, grad_v, hidden, w_down, w_up_k, w_up_v, norm_weight, rope_dim, wanted
    )  # fmt: skip
    if small is not None:
        found[:4] = small
    elif any(wanted[:5]):
        found = _by_matrices(
            grad_k, grad_v, hidden, w_down, w_up_k, w_up_v, kv_heads, norm_weight, norm_eps,
            accuracy, wanted,
        )  # fmt: skip
    # An operator's outputs may not be one tensor.
    return tuple(hidden.new_empty(0) if t is None else t for t in (*found, by_rope))


def _by_kernels(
    grad_k: Tensor | None,
    grad_v: Tensor | None,
    hidden: Tensor,
    w_down: Tensor,
    w_up_k: Tensor,
    w_up_v: Tensor,
    norm_weight: Tensor | None,
    rope_dim: int,
    wanted: list[bool],
) -> tuple[Tensor, ...] | None:
    """By hidden, w_down, w_up_k and w_up_v in two launches; None where that is not for the call."""
    if not hidden.is_cuda or norm_weight is not None or rope_dim or not all(wanted[:4]):
        return None
    if grad_k is None or grad_v is None:
        return None
    from kernelproof.ops.mla_kv import cuda_backward

    operands = (grad_k, grad_v, hidden, w_down, w_up_k, w_up_v)
    if not cuda_backward.fits(*operands):
        return None
    cuda_backward.bind(hidden.device.index)
    return cuda_backward.launch(*operands)


def _by_matrices(
    grad_k: Tensor | None,
    grad_v: Tensor | None,
    hidden: Tensor,
    w_down: Tensor,
    w_up_k: Tensor,
    w_up_v: Tensor,
    kv_heads: int,
    norm_weight: Tensor | None,
    norm_eps: float,
    accuracy: str,
    wanted: list[bool],
) -> list[Tensor | None]:
    """By hidden, w_down, w_up_k, w_up_v and norm_weight; None where it is not wanted."""
    want_normed = wanted[0] or wanted[1] or wanted[4]
    tokens = hidden.reshape(math.prod(hidden.shape[:-1]), w_down.shape[0])
    with _precision_of(accuracy):
        latent = tokens @ w_down
        scale, normed = _normed(latent, norm_weight, norm_eps)
        by_latent, by_up_k, by_up_v = _through_up(
            normed, (w_up_k.flatten(1), w_up_v.flatten(1)), (grad_k, grad_v), kv_heads,
            want_normed, wanted[2:4],
        )  # fmt: skip
        by_norm: Tensor | None = None
        if norm_weight is not None and by_latent is not None:
            by_latent, by_norm = _through_norm(by_latent, latent, scale, norm_weight)
        by_hidden = by_latent @ w_down.t() if wanted[0] and by_latent is not None else None
        by_down = tokens.t() @ by_latent if wanted[1] and by_latent is not None else None
    return [
        None if by_hidden is None else by_hidden.view(hidden.shape),
        by_down,
        None if by_up_k is None else by_up_k.reshape(w_up_k.shape),
        None if by_up_v is None else by_up_v.reshape(w_up_v.shape),
        by_norm if wanted[4] else None,
    ]


def _shared_by_heads(grad_k: Tensor, rope_dim: int) -> Tensor:
    """The gradient of the part that every head's keys hold; summed in float32 at least."""
    part = grad_k[..., grad_k.shape[-1] - rope_dim :]
    total = None if part.dtype == torch.float64 else torch.float32
    return part.sum(dim=-2, keepdim=True, dtype=total).to(part.dtype)


def _normed(latent: Tensor, norm_weight: Tensor | None, norm_eps: float) -> tuple[Tensor, Tensor]:
    """1/rms in float32 or float64, ``(N, 1)``, and the normed latents in the dtype of ``latent``;
    ``latent`` itself where there is no norm."""
    if norm_weight is None:
        return latent, latent
    wide = _wide(latent)
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + norm_eps)
    return scale, (wide * scale * norm_weight).to(latent.dtype)


def _through_norm(
    by_normed: Tensor, latent: Tensor, scale: Tensor, norm_weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients by ``latent (N, R)`` and ``norm_weight (R,)``."""
    wide, upstream = _wide(latent), _wide(by_normed)
    by_weight = (upstream * wide * scale).sum(dim=0)
    inner = upstream * norm_weight
    common = (inner * wide).mean(dim=-1, keepdim=True) * scale.square()
    by_latent = scale * (inner - wide * common)
    return by_latent.to(latent.dtype), by_weight.to(norm_weight.dtype)


def _through_up(
    normed: Tensor,
    weights: tuple[Tensor, Tensor],
    grads: tuple[Tensor | None, Tensor | None],
    kv_heads: int,
    want_normed: bool,
    want_weights: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients by ``normed (N, R)`` and by the two ``weights (R, H*D)``; None where not wanted. An
    output that has no gradient adds nothing."""
    by_normed: Tensor | None = None
    by_weights: list[Tensor | None] = [None, None]
    for i, (weight, grad) in enumerate(zip(weights, grads, strict=True)):
        if grad is None:
            by_weights[i] = torch.zeros_like(weight) if want_weights[i] else None
            continue
        # Behind the columns of the weight lies the rotary part.
        part = grad[..., : weight.shape[1] // kv_heads]
        flat = part.reshape(normed.shape[0], weight.shape[1])
        if want_weights[i]:
            by_weights[i] = normed.t() @ flat
        if not want_normed:
            continue
        if by_normed is None:
            by_normed = flat @ weight.t()
        else:
            by_normed = torch.addmm(by_normed, flat, weight.t())
    if want_normed and by_normed is None:
        by_normed = torch.zeros_like(normed)
    return by_normed, by_weights[0], by_weights[1]


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


@contextlib.contextmanager
def _precision_of(accuracy: str) -> Iterator[None]:
    """float32 products in float32 for "strict" and in TF32 for "tf32", whatever the user permits.

    PyTorch keeps this setting twice, and a product fails where the two contradict each other: it is
    changed through the interface that the user chose.
    """
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # set for single backends
        before = None
    if before is not None:
        wanted = "high" if accuracy == "tf32" else "highest"
        if before == wanted:
            yield
            return
        torch.set_float32_matmul_precision(wanted)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
        return
    mkldnn: Any = torch.backends.mkldnn
    backends = (torch.backends.cuda.matmul, mkldnn.matmul)
    precisions = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "tf32" if accuracy == "tf32" else "ieee"
        yield
    finally:
        for backend, precision in zip(backends, precisions, strict=True):
            backend.fp32_precision = precision


def _fake(*arguments: Any) -> tuple[Tensor, ...]:
    _, _, hidden, w_down, w_up_k, w_up_v, _, norm_weight, _, rope_dim, _, wanted = arguments
    norm: tuple[int, ...] = () if norm_weight is None else norm_weight.shape
    shapes = (
        hidden.shape, w_down.shape, w_up_k.shape, w_up_v.shape, norm,
        (*hidden.shape[:-1], 1, rope_dim),
    )  # fmt: skip
    return tuple(
        hidden.new_empty(shape if want else (0,))
        for shape, want in zip(shapes, wanted, strict=True)
    )


def _no_second_derivative(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    raise RuntimeError(
        "mla_kv: its gradients cannot be differentiated again (create_graph=True was asked for); "
        "use impl='reference', which can"
    )


torch.library.register_fake(_NAME, _fake)
torch.library.register_autograd(_NAME, _no_second_derivative)

op: Any = torch.ops.kernelproof.mla_kv_backward.default
