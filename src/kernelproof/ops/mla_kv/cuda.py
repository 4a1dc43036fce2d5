"""mla_kv on CUDA: launches what `cuda_plan` chooses, and the module."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelproof.cuda import Kernel
from kernelproof.ops.mla_kv import cublaslt, cuda_exchange, cuda_library, tuning
from kernelproof.ops.mla_kv.cuda_operands import Operands, rows_of, weight_of
from kernelproof.ops.mla_kv.cuda_plan import plan
from kernelproof.ops.mla_kv.cuda_steps import H200, Device, Launch, Library, Map, Plan
from kernelproof.ops.mla_kv.layout import as_two_axes, check_kinds, check_shapes
from kernelproof.tensor_map import TensorMap

_LAYOUTS = ("stacked", "split")
_ACCURACIES = ("strict", "tf32")


@functools.cache
def kernel(name: str, source: str = "kernel.cu") -> Kernel:
    """The instance ``name`` of a source file of this folder."""
    return Kernel(Path(__file__).with_name(source), name)


@functools.cache
def device_facts(index: int) -> Device:
    facts = torch.cuda.get_device_properties(index)
    capability = (facts.major, facts.minor)
    return Device(facts.multi_processor_count, capability, cublaslt.available())


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
    options = (kv_heads, norm_weight is not None, norm_eps, k_pe is not None, layout, accuracy)
    return _operands(
        hidden.dtype, *options, *_key(hidden, w_down, w_up_k, w_up_v, norm_weight, k_pe)
    )


def _operands(
    dtype: torch.dtype, kv_heads: int, norm: bool, norm_eps: float, rope: bool, layout: str,
    accuracy: str, aligned: tuple[bool, ...], *key: tuple[int, ...],
) -> Operands:  # fmt: skip
    """``key``: shape and stride of each operand in turn."""
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
    key = _key(hidden, w_down, w_up_k, w_up_v, norm_weight, k_pe)
    options = (kv_heads, norm_weight is not None, norm_eps, k_pe is not None, layout, accuracy)
    if tuning.on and design is None:
        found = _tuned(
            hidden, w_down, w_up_k, w_up_v, norm_weight, k_pe, (hidden.dtype, *options, *key)
        )
        design = found.design if found is not None else None
    call = _prepared(hidden.device.index, design, hidden.dtype, *options, *key)
    outs = [hidden.new_empty(shape) for shape in call.out_shapes]
    if call.steps:
        tensors: dict[str, torch.Tensor | None] = {
            "hidden": hidden, "w_down": w_down, "w_up_k": w_up_k, "w_up_v": w_up_v,
            "norm_weight": norm_weight, "k_pe": k_pe, "out0": outs[0], "out1": outs[-1],
        }  # fmt: skip
        if not call.run(tensors, hidden):
            call = _prepared(hidden.device.index, "mma", hidden.dtype, *options, *key)
            call.run(tensors, hidden)
    return outs[0] if layout == "stacked" else (outs[0], outs[1])


def runner(
    operands: dict[str, torch.Tensor | None], options: dict[str, Any], names: tuple[str, ...]
) -> Callable[..., Any] | None:
    """What makes a call like this one again, given the operands ``names`` in turn; it returns None
    where that cannot be, as this function does."""
    from kernelproof.ops.mla_kv import quick

    hidden, norm, k_pe = (operands[name] for name in ("hidden", "norm_weight", "k_pe"))
    assert hidden is not None
    if as_two_axes(hidden) is not hidden or (norm is not None and not norm.is_contiguous()):
        return None
    if k_pe is not None and as_two_axes(k_pe.squeeze(-2)).data_ptr() != k_pe.data_ptr():
        return None
    device, stacked = hidden.device.index, options["layout"] == "stacked"
    call = _prepared(
        device, None, hidden.dtype, options["kv_heads"], norm is not None, options["norm_eps"],
        k_pe is not None, options["layout"], options["accuracy"], *_key(*operands.values()),
    )  # fmt: skip
    shapes = call.out_shapes
    if not call.steps:
        return None
    if len(call.steps) == 1 and not call.scratch and not call.exchange:
        launch = call.launches[0]
        if isinstance(launch, Launch):
            made = quick.single(launch, names, shapes, hidden.dtype, stacked, device)
            if made is not None:
                return made

    def run(*given: torch.Tensor) -> Any:
        if functools.reduce(int.__or__, [t.data_ptr() for t in given]) & 15:
            return None
        first = given[0]
        outs = [first.new_empty(shape) for shape in shapes]
        tensors: dict[str, torch.Tensor | None] = dict(zip(names, given, strict=True))
        tensors["out0"], tensors["out1"] = outs[0], outs[-1]
        if not call.run(tensors, first):
            return None
        return outs[0] if stacked else (outs[0], outs[1])

    return run


def _tuned(
    hidden: torch.Tensor,
    w_down: torch.Tensor,
    w_up_k: torch.Tensor,
    w_up_v: torch.Tensor,
    norm_weight: torch.Tensor | None,
    k_pe: torch.Tensor | None,
    form: tuple[Any, ...],
) -> tuning.Choice | None:
    """What `tuning.choice` says of a call whose form is ``form``."""
    operands = _operands(*form)
    if 0 in (operands.tokens, operands.columns):
        return None
    _, kv_heads, _, norm_eps, _, layout, accuracy, *_ = form

    def run(design: str) -> Any:
        return project_cuda(
            hidden, w_down, w_up_k, w_up_v, kv_heads=kv_heads, norm_weight=norm_weight,
            norm_eps=norm_eps, k_pe=k_pe, layout=layout, accuracy=accuracy, design=design,
        )  # fmt: skip

    return tuning.choice(hidden.device.index, form, run, operands)


def _key(*tensors: torch.Tensor | None) -> tuple[Any, ...]:
    """Alignments, then shape and stride of each tensor that there is: all that a plan sees."""
    given = [t for t in tensors if t is not None]
    key: list[Any] = [tuple([t.is_meta or t.data_ptr() % 16 == 0 for t in given])]
    for t in given:
        key.append(t.shape)
        key.append(t.stride())
    return tuple(key)


class Prepared:
    """A call whose kernels are chosen: ``steps`` take the tensors by name."""

    def __init__(
        self, chosen: Plan, operands: Operands, out_shapes: list[tuple[int, ...]], facts: Device,
        device: int,
    ) -> None:  # fmt: skip
        self.out_shapes = out_shapes
        self.device = device
        self.launches = chosen.launches
        self.scratch = chosen.scratch
        self.exchange = chosen.exchange
        self.user = "; ".join(step.described() for step in chosen.launches)  # of its buffer
        self.steps: list[Callable[[dict[str, Any]], None]] = [
            cuda_library.product(step, operands, device)
            if isinstance(step, Library)
            else _launcher(step, device, facts)
            for step in chosen.launches
        ]

    def run(self, tensors: dict[str, torch.Tensor | None], like: torch.Tensor) -> bool:
        """All steps, on ``like``'s device; whether there was a buffer for blocks to exchange
        values through, where one is needed."""
        if self.exchange:
            tensors["exchange"] = cuda_exchange.buffer(self.device, self.exchange, self.user)
            if tensors["exchange"] is None:
                return False
        for name, count, dtype in self.scratch:
            tensors[name] = torch.empty(count, dtype=dtype, device=like.device)
        for step in self.steps:
            step(tensors)
        return True


@functools.lru_cache(maxsize=4096)
def _prepared(device: int, design: str | None, *known: Any) -> Prepared:
    operands = _operands(*known)
    facts = device_facts(device)
    leading = known[8][:-1]
    shapes = [(*leading, *shape) for shape in operands.out_shapes()]
    empty = operands.tokens == 0 or not any(math.prod(shape) for shape in operands.out_shapes())
    chosen = Plan("none", ()) if empty else plan(operands, facts, design)
    return Prepared(chosen, operands, shapes, facts, device)


def how_of(launch: Launch, facts: Device) -> tuple[Any, ...]:
    """As `kernelproof.cuda.Kernel.again` takes it."""
    cluster = launch.cluster if launch.cluster > 1 else None
    programmatic = facts.capability >= (9, 0)
    return (
        launch.grid, launch.block, launch.shared, cluster, programmatic, launch.cooperative, True
    )  # fmt: skip


def _launcher(launch: Launch, device: int, facts: Device) -> Callable[[dict[str, Any]], None]:
    compiled = kernel(launch.name, launch.source)
    fixed: list[Any] = [None if isinstance(arg, (str, Map)) else arg for arg in launch.args]
    named = [(i, arg) for i, arg in enumerate(launch.args) if isinstance(arg, str)]
    maps = [(i, arg) for i, arg in enumerate(launch.args) if isinstance(arg, Map)]
    how = how_of(launch, facts)

    def run(tensors: dict[str, Any]) -> None:
        args = fixed.copy()
        for i, name in named:
            args[i] = tensors[name]
        for i, made in maps:
            args[i] = TensorMap(tensors[made.name], *made[1:])
        compiled.again(device, args, how)

    return run


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
        device = device_facts(hidden.device.index or 0) if hidden.is_cuda else H200
    tuned = None
    if tuning.on and hidden.is_cuda:
        form = (
            hidden.dtype, options["kv_heads"], options.get("norm_weight") is not None,
            options.get("norm_eps", 1e-6), options.get("k_pe") is not None,
            options.get("layout", "stacked"), options.get("accuracy", "strict"),
            *_key(hidden, w_down, w_up_k, w_up_v, options.get("norm_weight"), options.get("k_pe")),
        )  # fmt: skip
        tuned = tuning.known(hidden.device.index, form)
    chosen = plan(operands, device, None if tuned is None else tuned.design)
    lines = [f"{chosen.design}: {chosen.why if tuned is None else tuning.described(tuned)}"]
    lines += [f"  {step.described()}" for step in chosen.launches]
    return "\n".join(lines)


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
