"""mla_kv on CUDA: launches what `cuda_plan` chooses, and the module."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelproof.cuda import Kernel
from kernelproof.ops.mla_kv.cuda_operands import Operands, rows_of, weight_of
from kernelproof.ops.mla_kv.cuda_plan import Device, Launch, Plan, plan
from kernelproof.ops.mla_kv.layout import as_two_axes, check_kinds, check_shapes

_LAYOUTS = ("stacked", "split")
_ACCURACIES = ("strict", "tf32")


@functools.cache
def kernel(name: str, source: str = "kernel.cu") -> Kernel:
    """The instance ``name`` of a source file of this folder."""
    return Kernel(Path(__file__).with_name(source), name)


@functools.cache
def device_facts(index: int) -> Device:
    facts = torch.cuda.get_device_properties(index)
    return Device(facts.multi_processor_count, (facts.major, facts.minor))


def _aligned(tensor: torch.Tensor) -> bool:
    return tensor.is_meta or tensor.data_ptr() % 16 == 0


def operands_of(
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
) -> Operands:
    """What the choice of kernels depends on. Arguments and errors as `project_cuda`."""
    tensors = [hidden, w_down, w_up_k, w_up_v]
    tensors += [t for t in (norm_weight, k_pe) if t is not None]
    shapes: list[tuple[int, ...]] = []
    for tensor in tensors:
        shapes += (tuple(tensor.shape), tuple(tensor.stride()))
    return _operands(
        hidden.dtype, kv_heads, norm_weight is not None, norm_eps, k_pe is not None, layout,
        accuracy, tuple(map(_aligned, tensors)), *shapes,
    )  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _operands(
    dtype: torch.dtype, kv_heads: int, norm: bool, norm_eps: float, rope: bool, layout: str,
    accuracy: str, aligned: tuple[bool, ...], *key: tuple[int, ...],
) -> Operands:  # fmt: skip
    """``key``: shape and stride of each operand in turn, so that a layout is worked out once."""
    if layout not in _LAYOUTS:
        raise ValueError(f"mla_kv: layout is {layout!r}; accepted are {', '.join(_LAYOUTS)}")
    if accuracy not in _ACCURACIES:
        raise ValueError(f"mla_kv: accuracy is {accuracy!r}; accepted are {', '.join(_ACCURACIES)}")
    up = [weight_of(key[i], key[i + 1], kv_heads, aligned[i // 2]) for i in (4, 6)]
    down = weight_of(key[2], key[3], 1, aligned[1])
    k_pe = None
    if rope:
        shape, strides = key[-2], key[-1]
        k_pe = rows_of(shape[:-2] + shape[-1:], strides[:-2] + strides[-1:], aligned[-1])
        if shape[:-2] != key[0][:-1] or shape[-2] != 1:
            raise ValueError(
                f"mla_kv: k_pe has shape {shape}; with hidden {key[0]} it must be "
                f"{(*key[0][:-1], 1)} and the size of the rotary part"
            )
        if k_pe.width == 0:
            k_pe = None
    k_width = up[0].width + (k_pe.width if k_pe is not None else 0)
    if layout == "stacked" and k_width != up[1].width:
        raise ValueError(
            f"mla_kv: keys of {k_width} values a head and values of {up[1].width} cannot be "
            "stacked; use layout='split'"
        )
    fits = down.rows == key[0][-1] and all(w.rows == down.columns for w in up)
    if not fits or up[0].heads != up[1].heads:
        raise ValueError(
            f"mla_kv: hidden {key[0]}, w_down {key[2]}, w_up_k {key[4]} and w_up_v {key[6]} do not "
            "fit together: they must be (..., M), (M, R), (R, H*Dk) and (R, H*Dv)"
        )
    if max(down.rows, down.columns, *(w.columns for w in up)) >= 2**31:
        raise ValueError("mla_kv: M, R and the columns of a weight must be below 2^31")
    hidden = rows_of(key[0], key[1], aligned[0])
    return Operands(
        dtype, accuracy, layout, hidden, down, (up[0], up[1]), k_pe, norm, float(norm_eps)
    )


def project_cuda(
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
    design: str | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Keys and values on one CUDA device. Launches on the current stream and does not wait.

    The operands have one dtype; the same input gives the same bits in every run.

    Args:
        hidden: ``(..., M)``, any strides.
        w_down: ``(M, R)``; the weight of an nn.Linear is given as ``weight.t()``.
        w_up_k, w_up_v: ``(R, H*Dk)`` and ``(R, H*Dv)``, or ``(R, H, Dk)`` and ``(R, H, Dv)``, any
            strides: a packed weight is given as views of it.
        norm_weight: ``(R,)``: the latent goes through an RMS norm, with statistics in fp32 (fp64
            for fp64) and ``norm_eps`` under the root.
        k_pe: ``(..., 1, Drope)``, which follows the keys of every head.
        layout: "stacked" gives ``(..., 2, H, D)`` where Dk + Drope = Dv = D; "split" gives
            ``(..., H, Dk + Drope)`` and ``(..., H, Dv)``.
        accuracy: of fp32: "strict" keeps fp32's, "tf32" may round factors to 11 bits.
        design: a name of `cuda_plan.DESIGNS` instead of the best one that fits.

    Raises:
        TypeError, ValueError: the operands do not fit together, or as `cuda_plan.plan`.
        CompileError, UnsupportedError: a kernel cannot be built here.
    """
    if not hidden.is_cuda:
        raise ValueError(f"mla_kv: this is the CUDA kernel, the operands are on {hidden.device}")
    hidden = as_two_axes(hidden)
    if k_pe is not None:
        k_pe = as_two_axes(k_pe.squeeze(-2)).unsqueeze(-2)
    operands = operands_of(
        hidden, w_down, w_up_k, w_up_v, kv_heads=kv_heads, norm_weight=norm_weight,
        norm_eps=norm_eps, k_pe=k_pe, layout=layout, accuracy=accuracy,
    )  # fmt: skip
    outs = [hidden.new_empty((*hidden.shape[:-1], *shape)) for shape in operands.out_shapes()]
    if any(out.numel() for out in outs):
        index = hidden.device.index or 0
        chosen = plan(operands, device_facts(index), design)
        tensors = {
            "hidden": hidden, "w_down": w_down, "w_up_k": w_up_k, "w_up_v": w_up_v,
            "norm_weight": norm_weight, "k_pe": k_pe, "out0": outs[0], "out1": outs[-1],
        }  # fmt: skip
        run(chosen, tensors, hidden.device, device_facts(index).capability >= (9, 0))
    return outs[0] if layout == "stacked" else (outs[0], outs[1])


def run(chosen: Plan, tensors: dict[str, Any], device: torch.device, programmatic: bool) -> None:
    """Launch; ``tensors`` by the names of `Launch`, scratch excepted."""
    for name, count, dtype in chosen.scratch:
        tensors[name] = torch.empty(count, dtype=dtype, device=device)
    for launch in chosen.launches:
        kernel(launch.name, launch.source)(
            *[tensors[arg] if type(arg) is str else arg for arg in launch.args],
            grid=launch.grid,
            block=launch.block,
            shared=launch.shared,
            programmatic=programmatic,
        )


def explain_cuda(
    hidden: torch.Tensor,
    w_down: torch.Tensor,
    w_up_k: torch.Tensor,
    w_up_v: torch.Tensor,
    *,
    device: Device | None = None,
    **options: Any,
) -> str:
    """The design that `project_cuda` takes for these arguments, why, and its launches.

    The operands may be on the meta device; ``device`` is that of the operands, or an H200.
    """
    hidden = as_two_axes(hidden)
    operands = operands_of(hidden, w_down, w_up_k, w_up_v, **options)
    if 0 in (operands.tokens, operands.columns):
        return "nothing to do: no tokens or no columns"
    if device is None:
        device = device_facts(hidden.device.index or 0) if hidden.is_cuda else Device()
    chosen = plan(operands, device)
    lines = [f"{chosen.design}: {chosen.why}"]
    lines += [f"  {_described(launch)}" for launch in chosen.launches]
    return "\n".join(lines)


def _described(launch: Launch) -> str:
    return f"{launch.name}, {launch.grid} blocks of {launch.block} threads"


def mla_kv_cuda(
    hidden: torch.Tensor,
    w_down: torch.Tensor,
    w_up_k: torch.Tensor,
    w_up_v: torch.Tensor,
    kv_heads: int,
    design: str | None = None,
) -> torch.Tensor:
    """Keys and values ``(..., 2, H, D)``. Arguments as `kernelproof.ops.mla_kv.mla_kv`, all on
    one CUDA device; ``design`` and errors as `project_cuda`."""
    check_kinds(hidden, w_down, w_up_k, w_up_v)
    check_shapes(hidden, w_down, w_up_k, w_up_v, kv_heads=kv_heads)
    out = project_cuda(hidden, w_down, w_up_k, w_up_v, kv_heads=kv_heads, design=design)
    assert isinstance(out, torch.Tensor)
    return out


class ModelNew(nn.Module):
    """`problem.Model` on the CUDA kernels."""

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
        return mla_kv_cuda(hidden, w_down, w_up_k, w_up_v, self.kv_heads)
