"""Latent key/value projection of multi-head latent attention: keys and values in one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

import torch
from torch import Tensor

from kernelproof.ops.mla_kv import contract
from kernelproof.ops.mla_kv.bounds import error_bounds
from kernelproof.ops.mla_kv.layout import check_choices

__all__ = ["MLAProjection", "error_bounds", "explain", "mla_kv"]

_IMPLS = (None, "cpu", "cuda", "reference")
_DEVICES = ("cpu", "cuda", "meta")
_FORMS = ("in_out", "out_in")
_Impl = Literal["cpu", "cuda", "reference"] | None
_Form = Literal["in_out", "out_in"]
_Accuracy = Literal["strict", "tf32"]


@overload
def mla_kv(
    hidden: Tensor,
    w_down: Tensor,
    w_up_k: Tensor,
    w_up_v: Tensor | None = ...,
    *,
    kv_heads: int,
    k_dim: int | None = ...,
    weights: _Form = ...,
    norm_weight: Tensor | None = ...,
    norm_eps: float = ...,
    k_pe: Tensor | None = ...,
    layout: Literal["stacked"] = ...,
    accuracy: _Accuracy = ...,
    impl: _Impl = ...,
) -> Tensor: ...
@overload
def mla_kv(
    hidden: Tensor,
    w_down: Tensor,
    w_up_k: Tensor,
    w_up_v: Tensor | None = ...,
    *,
    kv_heads: int,
    k_dim: int | None = ...,
    weights: _Form = ...,
    norm_weight: Tensor | None = ...,
    norm_eps: float = ...,
    k_pe: Tensor | None = ...,
    layout: Literal["split"],
    accuracy: _Accuracy = ...,
    impl: _Impl = ...,
) -> tuple[Tensor, Tensor]: ...
def mla_kv(
    hidden: Tensor,
    w_down: Tensor,
    w_up_k: Tensor,
    w_up_v: Tensor | None = None,
    *,
    kv_heads: int,
    k_dim: int | None = None,
    weights: str = "in_out",
    norm_weight: Tensor | None = None,
    norm_eps: float = 1e-6,
    k_pe: Tensor | None = None,
    layout: str = "stacked",
    accuracy: str = "strict",
    impl: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Keys and values from a low-rank latent of each token.

        latent = hidden @ w_down                             (..., R)
        latent = latent / sqrt(mean(latent^2) + norm_eps) * norm_weight     where one is given
        k = latent @ w_up_k, and k_pe behind every head's columns where it is given
        v = latent @ w_up_v

    This is the joint key/value compression of multi-head latent attention (DeepSeek-V2,
    arXiv:2405.04434, equations 9 to 11; k_pe, the rotary part that the heads share, is in 14 to
    18), written straight into the result.

    Args:
        hidden: ``(..., M)``, such as ``(B, S, M)``.
        w_down: ``(M, R)``.
        w_up_k, w_up_v: ``(R, H*Dk)`` and ``(R, H*Dv)``, heads one after another, or
            ``(R, H, Dk)`` and ``(R, H, Dv)``.
        kv_heads: H.
        k_dim: Dk. With it and without ``w_up_v``, ``w_up_k`` is the packed weight
            ``(R, H * (Dk + Dv))``: for each head its keys, then its values, as in DeepSeek's
            ``kv_b_proj``.
        weights: ``"in_out"`` for the shapes above; ``"out_in"`` where all weights are the other
            way round, as in ``nn.Linear``: ``(R, M)``, ``(H*Dk, R)``. Neither copies.
        norm_weight: ``(R,)``, the factors of an RMSNorm between the projections.
        norm_eps: added to the mean square.
        k_pe: ``(..., 1, P)``, appended to every head's keys as it is.
        layout: ``"stacked"`` or ``"split"``, see below.
        accuracy: "strict" or "tf32" (float32 products on tensor cores may round their operands to
            TF32); README.md gives the bound of each. 16-bit and float64 operands have one.
        impl: None runs the kernel of the operands' device. ``"cpu"`` and ``"cuda"`` insist on
            one; ``"reference"`` is the formula in PyTorch, on any device.

    All operands have one dtype (float32, float64, float16 or bfloat16) and one device; any strides
    and sizes, 0 included. Sums are formed in float32 (float64 for float64). Differentiable in every
    operand, once (``impl="reference"``: any number of times); the backward pass forms the latent
    again.

    Returns:
        "stacked": ``(..., 2, H, D)``, keys at index 0 of the axis of size 2, values at index 1;
        Dk + P = Dv = D. "split": k ``(..., H, Dk + P)`` and v ``(..., H, Dv)``. Contiguous.

    Raises:
        TypeError: the dtypes differ or are not supported.
        ValueError: shapes or devices do not fit together, a choice is unknown, or ``impl`` does not
            fit the device.
        CompileError, UnsupportedError: the kernel cannot be built here.
    """
    key: tuple[Any, ...] | None = None
    if (
        impl is None
        and w_up_v is not None
        and k_dim is None
        and weights == "in_out"
        and hidden.is_cuda
        and not torch.compiler.is_compiling()
    ):
        key = (
            hidden.shape, kv_heads, norm_eps, layout, accuracy, norm_weight is None, k_pe is None
        )  # fmt: skip
        if contract.nobody_counts():
            given: tuple[Tensor, ...] = (hidden, w_down, w_up_k, w_up_v)
            if norm_weight is not None or k_pe is not None:
                given += tuple(t for t in (norm_weight, k_pe) if t is not None)
            known = contract.FORMS.find(key, *given)
            done: Tensor | tuple[Tensor, Tensor] | None = known(*given) if known else None
            if done is not None:
                return done
    if weights != "in_out" or w_up_v is None or k_dim is not None:
        w_down, w_up_k, w_up_v = _in_torch_form(w_down, w_up_k, w_up_v, kv_heads, k_dim, weights)
    if impl is not None or hidden.device.type not in _DEVICES or layout not in contract.OPS:
        _check_choices(hidden, layout, impl)
    if impl == "reference":
        from kernelproof.ops.mla_kv.reference import project_reference

        return project_reference(
            hidden, w_down, w_up_k, w_up_v, kv_heads=kv_heads, norm_weight=norm_weight,
            norm_eps=norm_eps, k_pe=k_pe, layout=layout, accuracy=accuracy,
        )  # fmt: skip
    arguments = (
        hidden, w_down, w_up_k, w_up_v, kv_heads, norm_weight, norm_eps, k_pe, accuracy
    )  # fmt: skip
    with_gradients, without = contract.OPS[layout]
    device = hidden.device.type
    result: Tensor | tuple[Tensor, Tensor]
    if torch.is_grad_enabled() and (
        hidden.requires_grad
        or w_down.requires_grad
        or w_up_k.requires_grad
        or w_up_v.requires_grad
        or (norm_weight is not None and norm_weight.requires_grad)
        or (k_pe is not None and k_pe.requires_grad)
    ):
        result = with_gradients(*arguments)
    elif (
        device != "meta"
        and contract.nobody_watches()
        and {*map(type, (hidden, w_down, w_up_k, w_up_v, norm_weight, k_pe))} <= contract.PLAIN
    ):
        result = contract.run(device, layout, *arguments)
        if key is not None:
            contract.remember(key, layout, *arguments)
    else:
        result = without(*arguments)
    return result


def explain(
    hidden: Tensor,
    w_down: Tensor,
    w_up_k: Tensor,
    w_up_v: Tensor | None = None,
    *,
    kv_heads: int,
    k_dim: int | None = None,
    weights: str = "in_out",
    norm_weight: Tensor | None = None,
    norm_eps: float = 1e-6,
    k_pe: Tensor | None = None,
    layout: str = "stacked",
    accuracy: str = "strict",
    impl: str | None = None,
) -> str:
    """What `mla_kv` would do with these arguments on this machine, and why, in a few lines. Raises
    what it would raise."""
    w_down, w_up_k, w_up_v = _in_torch_form(w_down, w_up_k, w_up_v, kv_heads, k_dim, weights)
    _check_choices(hidden, layout, impl)
    told: Callable[..., str]
    if impl == "reference":
        from kernelproof.ops.mla_kv.reference import explain_reference as told
    elif hidden.device.type == "cpu":
        from kernelproof.ops.mla_kv.cpu import explain_cpu as told
    elif hidden.device.type == "cuda":
        from kernelproof.ops.mla_kv.cuda import explain_cuda as told
    else:
        raise ValueError(f"mla_kv: hidden is on {hidden.device}; explain needs a CPU or a GPU")
    return told(
        hidden, w_down, w_up_k, w_up_v, kv_heads=kv_heads, norm_weight=norm_weight,
        norm_eps=norm_eps, k_pe=k_pe, layout=layout, accuracy=accuracy,
    )  # fmt: skip


def _in_torch_form(
    w_down: Tensor,
    w_up_k: Tensor,
    w_up_v: Tensor | None,
    kv_heads: int,
    k_dim: int | None,
    weights: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The three weights as ``(M, R)`` and ``(R, H*D)``, or ``(R, H, D)`` where they are packed:
    views."""
    if weights not in _FORMS:
        raise ValueError(
            f"mla_kv: weights is {weights!r}; accepted are {', '.join(map(repr, _FORMS))}"
        )
    if (w_up_v is None) == (k_dim is None):
        raise ValueError(
            "mla_kv: give w_up_v; or, where w_up_k is packed with keys and values of each head, "
            "k_dim, the columns of its keys" + ("" if w_up_v is None else ": not both")
        )
    if weights == "out_in":
        w_down = _turned("w_down", w_down)
        w_up_k = _turned("w_up_k", w_up_k)
        w_up_v = None if w_up_v is None else _turned("w_up_v", w_up_v)
    if w_up_v is not None:
        return w_down, w_up_k, w_up_v
    assert k_dim is not None
    if w_up_k.dim() == 2 and kv_heads >= 1 and w_up_k.shape[1] % kv_heads == 0:
        w_up_k = w_up_k.unflatten(1, (kv_heads, w_up_k.shape[1] // kv_heads))
    if w_up_k.dim() != 3 or w_up_k.shape[1] != kv_heads:
        raise ValueError(
            f"mla_kv: the packed weight has shape {tuple(w_up_k.shape)} in torch's form and "
            f"kv_heads is {kv_heads}; it must be (R, H * (Dk + Dv)), or (R, H, Dk + Dv)"
        )
    if not 0 <= k_dim <= w_up_k.shape[2]:
        raise ValueError(
            f"mla_kv: k_dim is {k_dim}; each head of the packed weight has {w_up_k.shape[2]} "
            "columns, of keys and values"
        )
    return w_down, w_up_k[..., :k_dim], w_up_k[..., k_dim:]


def _turned(name: str, weight: Tensor) -> Tensor:
    """A weight ``(out, in)`` as ``(in, out)``, ``(H, D, R)`` as ``(R, H, D)``."""
    if weight.dim() not in (2, 3):
        raise ValueError(f"mla_kv: {name} has shape {tuple(weight.shape)}; it must be a matrix")
    return weight.movedim(-1, 0)


def _check_choices(hidden: Tensor, layout: str, impl: str | None) -> None:
    """Raises ValueError for an unknown choice, and for a device without that kernel."""
    check_choices(layout)
    if impl not in _IMPLS:
        raise ValueError(
            f"mla_kv: impl is {impl!r}; accepted are {', '.join(map(repr, _IMPLS))}"
            + (" (there is no Triton kernel of it)" if impl == "triton" else "")
        )
    device = hidden.device.type
    if impl != "reference" and (device not in _DEVICES or (impl is not None and device != impl)):
        raise ValueError(
            f"mla_kv: no kernel for hidden on {hidden.device} with impl={impl!r}; move the "
            "operands to a CPU or CUDA device, or use impl='reference'"
        )


# Behind `mla_kv`, which the module calls.
from kernelproof.ops.mla_kv.module import MLAProjection  # noqa: E402
