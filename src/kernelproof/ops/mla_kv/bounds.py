"""How far a result may be from the exact one: the promise behind each accuracy, per element.

The analysis is the usual one of inner products: a sum of n terms, in whatever order, is off by at
most about n u times the sum of the terms' magnitudes (Higham, Accuracy and Stability of Numerical
Algorithms, section 4.2), for the unit roundoff u of the sums; tensor cores cut where they could
round, which doubles u. To this come the roundings of the products' factors, of a latent that is
kept in 16 bits, and of the result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernelproof.ops.mla_kv.layout import check_choices, check_kinds, check_shapes

# Unit roundoffs. TF32 has 11 significant bits, and hardware may cut the others off.
_FLOAT32, _FLOAT64, _TF32 = 2.0**-24, 2.0**-53, 2.0**-10
# Operations beside the sum: 3xTF32 drops products of the low parts, at most 2^-22 of a term.
_EXTRA = 4
# Products of two small errors.
_SECOND_ORDER = 1.01


def error_bounds(
    hidden: Tensor,
    w_down: Tensor,
    w_up_k: Tensor,
    w_up_v: Tensor,
    *,
    kv_heads: int,
    norm_weight: Tensor | None = None,
    norm_eps: float = 1e-6,
    k_pe: Tensor | None = None,
    accuracy: str = "strict",
) -> tuple[Tensor, Tensor]:
    """Bounds on the absolute errors of keys ``(..., H, Dk + P)`` and values ``(..., H, Dv)``,
    float64, for operands as the operators take them (weights in torch's form) and as long as
    nothing overflows. float64 operands: a bound on the kernels' sums in float64.

    The bound holds for the worst case, roundings all to one side; an error is usually smaller by
    the square root of the number of terms.

    Raises:
        TypeError, ValueError: the operands do not fit together.
    """
    check_choices("split", accuracy)
    check_kinds(hidden, w_down, w_up_k, w_up_v, norm_weight, k_pe)
    sizes = check_shapes(
        hidden, w_down, w_up_k, w_up_v,
        kv_heads=kv_heads, norm_weight=norm_weight, k_pe=k_pe, layout="split",
    )  # fmt: skip
    dtype = hidden.dtype
    u = _FLOAT64 if dtype == torch.float64 else _FLOAT32
    factor = 2 * _TF32 if dtype == torch.float32 and accuracy == "tf32" else 0.0
    # A latent in 16 bits, where the products take it so.
    kept = torch.finfo(dtype).eps / 2 if dtype.itemsize == 2 else 0.0
    x, down = hidden.double(), w_down.double()
    latent, error = x @ down, (2 * (sizes.model + _EXTRA) * u + factor) * (x.abs() @ down.abs())
    error = error + kept * latent.abs()
    if norm_weight is not None:
        latent, error = _normed(latent, error, norm_weight.double(), norm_eps, u)
        error = error + kept * latent.abs()
    found = []
    for weight in (w_up_k, w_up_v):
        up = weight.flatten(1).double()
        bound = (2 * (sizes.rank + _EXTRA) * u + factor) * (latent.abs() @ up.abs())
        bound = _SECOND_ORDER * (bound + error @ up.abs())
        rounding = torch.finfo(dtype).eps / 2 * ((latent @ up).abs() + bound)
        smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        found.append((bound + rounding + smallest).unflatten(-1, (kv_heads, -1)))
    k, v = found
    if k_pe is not None:
        exact = k.new_zeros(*k.shape[:-1], sizes.rope_dim)
        k = torch.cat((k, exact), dim=-1)
    return k, v


def _normed(
    latent: Tensor, error: Tensor, weight: Tensor, eps: float, u: float
) -> tuple[Tensor, Tensor]:
    """The normed latents and their errors. The mean square's relative error is at most twice that
    of the latents as a vector, and the root halves it."""
    squares = latent.square().mean(dim=-1, keepdim=True)
    scale = torch.rsqrt(squares + eps)
    size = torch.linalg.vector_norm(latent, dim=-1, keepdim=True)
    spread = torch.linalg.vector_norm(error, dim=-1, keepdim=True)
    relative = torch.where(size > 0, spread / size, torch.zeros_like(size))
    relative = relative + (latent.shape[-1] + 2 * _EXTRA) * u
    normed = latent * scale * weight
    return normed, (error + latent.abs() * relative) * scale * weight.abs()
