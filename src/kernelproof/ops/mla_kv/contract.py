"""The operators of ``torch.library``: schemas, shapes for ``torch.compile``, dispatch by device,
and gradients.

Two operators instead of one with an optional output, which a schema cannot express:
``kernelproof::mla_kv`` gives one stacked tensor, ``kernelproof::mla_kv_split`` keys and values.
Each has a twin without gradients, ``..._forward``, since a registered gradient costs microseconds
of the host in every call, needed or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelproof.cuda_forms import Forms
from kernelproof.ops.mla_kv import backward
from kernelproof.ops.mla_kv.layout import (
    Sizes,
    check_choices,
    check_kinds,
    check_norm,
    check_shapes,
)

STACKED = "kernelproof::mla_kv"
SPLIT = "kernelproof::mla_kv_split"
FORWARD = "_forward"
_ARGUMENTS = (
    "(Tensor hidden, Tensor w_down, Tensor w_up_k, Tensor w_up_v, int kv_heads, "
    "Tensor? norm_weight=None, float norm_eps=1e-6, Tensor? k_pe=None, str accuracy='strict')"
)
_TAGS = (torch.Tag.pt2_compliant_tag,)

for _suffix in ("", FORWARD):
    torch.library.define(STACKED + _suffix, f"{_ARGUMENTS} -> Tensor", tags=_TAGS)
    torch.library.define(SPLIT + _suffix, f"{_ARGUMENTS} -> (Tensor, Tensor)", tags=_TAGS)


def run(
    device: str,
    layout: str,
    hidden: Tensor,
    w_down: Tensor,
    w_up_k: Tensor,
    w_up_v: Tensor,
    kv_heads: int,
    norm_weight: Tensor | None = None,
    norm_eps: float = 1e-6,
    k_pe: Tensor | None = None,
    accuracy: str = "strict",
) -> Any:
    """The kernel of ``device``, imported on first use: a machine without a compiler can still
    import the operator."""
    project: Any
    if device == "cuda":
        from kernelproof.ops.mla_kv.cuda import project_cuda as project

        # The launcher checks what it has not met yet; this it leaves to its caller.
        check_kinds(hidden, w_down, w_up_k, w_up_v, norm_weight, k_pe)
        if norm_weight is not None:
            check_norm(norm_weight, w_down)
            norm_weight = norm_weight.contiguous()  # its kernels read neighbours
    else:
        from kernelproof.ops.mla_kv.cpu import project_cpu as project
    return project(
        hidden, w_down, w_up_k, w_up_v, kv_heads=kv_heads, norm_weight=norm_weight,
        norm_eps=norm_eps, k_pe=k_pe, layout=layout, accuracy=accuracy,
    )  # fmt: skip


def _cpu(*arguments: Any) -> Any:
    return run("cpu", "stacked", *arguments)


def _cpu_split(*arguments: Any) -> Any:
    return run("cpu", "split", *arguments)


def _cuda(*arguments: Any) -> Any:
    return run("cuda", "stacked", *arguments)


def _cuda_split(*arguments: Any) -> Any:
    return run("cuda", "split", *arguments)


def _sizes(layout: str, arguments: tuple[Any, ...]) -> Sizes:
    """The sizes of an operator's ``arguments``, all checked as a kernel checks them."""
    hidden, w_down, w_up_k, w_up_v, kv_heads = arguments[:5]
    norm_weight, _, k_pe, accuracy = (*arguments[5:], *_DEFAULTS[len(arguments) - 5 :])
    check_choices(layout, accuracy)
    check_kinds(hidden, w_down, w_up_k, w_up_v, norm_weight, k_pe)
    return check_shapes(
        hidden, w_down, w_up_k, w_up_v,
        kv_heads=kv_heads, norm_weight=norm_weight, k_pe=k_pe, layout=layout,
    )  # fmt: skip


_DEFAULTS: tuple[Any, ...] = (None, 1e-6, None, "strict")


def _fake(*arguments: Any) -> Tensor:
    n, hidden = _sizes("stacked", arguments), arguments[0]
    out: Tensor = hidden.new_empty((*hidden.shape[:-1], 2, n.heads, n.v_dim))
    return out


def _fake_split(*arguments: Any) -> tuple[Tensor, Tensor]:
    n, hidden = _sizes("split", arguments), arguments[0]
    leading = hidden.shape[:-1]
    return (
        hidden.new_empty((*leading, n.heads, n.k_dim + n.rope_dim)),
        hidden.new_empty((*leading, n.heads, n.v_dim)),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    # The latent is not among them: forming it again costs less than the memory that it would hold.
    hidden, w_down, w_up_k, w_up_v, ctx.kv_heads, norm_weight, ctx.norm_eps, k_pe, accuracy = inputs
    ctx.accuracy = accuracy
    ctx.save_for_backward(hidden, w_down, w_up_k, w_up_v, norm_weight)
    ctx.rope_dim = 0 if k_pe is None else k_pe.shape[-1]


def _backward_split(ctx: Any, grad_k: Tensor | None, grad_v: Tensor | None) -> tuple[Any, ...]:
    hidden, w_down, w_up_k, w_up_v, norm_weight = ctx.saved_tensors
    # Arguments that have their default values at the end of the schema are not counted here.
    needed = (*ctx.needs_input_grad, *[False] * len(_DEFAULTS))
    wanted = [needed[i] for i in (0, 1, 2, 3, 5, 7)]
    found = backward.op(
        grad_k, grad_v, hidden, w_down, w_up_k, w_up_v,
        ctx.kv_heads, norm_weight, ctx.norm_eps, ctx.rope_dim, ctx.accuracy, wanted,
    )  # fmt: skip
    hidden, w_down, w_up_k, w_up_v, norm, k_pe = (
        grad if want else None for grad, want in zip(found, wanted, strict=True)
    )
    return hidden, w_down, w_up_k, w_up_v, None, norm, None, k_pe, None


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return _backward_split(ctx, *grad.unbind(-3))


for _suffix in ("", FORWARD):
    torch.library.impl(STACKED + _suffix, "cpu", _cpu)
    torch.library.impl(SPLIT + _suffix, "cpu", _cpu_split)
    torch.library.impl(STACKED + _suffix, "cuda", _cuda)
    torch.library.impl(SPLIT + _suffix, "cuda", _cuda_split)
    torch.library.register_fake(STACKED + _suffix, _fake)
    torch.library.register_fake(SPLIT + _suffix, _fake_split)
torch.library.register_autograd(STACKED, _backward, setup_context=_setup_context)
torch.library.register_autograd(SPLIT, _backward_split, setup_context=_setup_context)

PLAIN = {Tensor, torch.nn.Parameter, type(None)}
_profiled: Any = torch._C._autograd._profiler_enabled


def nobody_watches() -> bool:
    """Whether a call on `PLAIN` operands that needs no gradient may go to its kernel at once: no
    compiler, mode, transform, trace or profiler would miss the operator. The dispatcher takes as
    long on the host as the launch of a small kernel."""
    return (
        not torch.compiler.is_compiling()
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._len_torch_function_stack() == 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._get_tracing_state() is None
        and not _profiled()
    )


# Calls on CUDA that have been met (quick.py), by sizes of hidden and options, and the operands that
# there are: what makes such a call, and gives None where one does not start at a multiple of 16
# bytes.
FORMS: Forms[Callable[..., Any]] = Forms()


def nobody_counts() -> bool:
    """As `nobody_watches`, but for what changes the dispatch keys of operands."""
    return (
        torch._C._len_torch_function_stack() == 0
        and torch._C._get_tracing_state() is None
        and not _profiled()
    )


def remember(
    key: tuple[Any, ...], layout: str, hidden: Tensor, w_down: Tensor, w_up_k: Tensor,
    w_up_v: Tensor, kv_heads: int, norm_weight: Tensor | None, norm_eps: float,
    k_pe: Tensor | None, accuracy: str,
) -> None:  # fmt: skip
    """Keeps the form of a call that `run` has made on CUDA."""
    operands = {
        "hidden": hidden, "w_down": w_down, "w_up_k": w_up_k, "w_up_v": w_up_v,
        "norm_weight": norm_weight, "k_pe": k_pe,
    }  # fmt: skip
    options = {
        "kv_heads": kv_heads, "norm_eps": norm_eps, "layout": layout, "accuracy": accuracy
    }  # fmt: skip
    from kernelproof.ops.mla_kv import quick

    quick.remember(key, operands, options)


mla_kv_op: Any = torch.ops.kernelproof.mla_kv.default
mla_kv_split_op: Any = torch.ops.kernelproof.mla_kv_split.default
# By layout: with gradients, and without.
OPS: dict[str, tuple[Any, Any]] = {
    "stacked": (mla_kv_op, torch.ops.kernelproof.mla_kv_forward.default),
    "split": (mla_kv_split_op, torch.ops.kernelproof.mla_kv_split_forward.default),
}
