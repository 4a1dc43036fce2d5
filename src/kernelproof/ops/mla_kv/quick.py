"""Calls on CUDA of a form that has been met, in less host time.

The first call of a form (`kernelproof.cuda_forms`) goes through `contract.run`, which checks and
chooses. What it found holds for every call whose operands are alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelproof.cuda import launches_are_taken
from kernelproof.ops.mla_kv import contract, cuda, tuning
from kernelproof.ops.mla_kv.cuda_steps import Launch, Map

_NAMES = ("hidden", "w_down", "w_up_k", "w_up_v", "norm_weight", "k_pe")


def remember(key: tuple[Any, ...], operands: dict[str, Tensor | None], options: Any) -> None:
    """Keeps the form of a call that `cuda.project_cuda` has made, if it can be."""
    names = tuple(name for name in _NAMES if operands[name] is not None)
    given = tuple(t for t in operands.values() if t is not None)
    if tuning.on or launches_are_taken() or any(t.data_ptr() % 16 for t in given):
        return
    if contract.FORMS.find(key, *given) is not None:  # but this call could not be made that way
        return
    run = cuda.runner(operands, options, names)
    if run is not None:
        contract.FORMS.keep(key, run, *given)


def single(
    launch: Launch,
    names: tuple[str, ...],
    shapes: list[tuple[int, ...]],
    dtype: torch.dtype,
    stacked: bool,
    device: int,
) -> Callable[..., Any] | None:
    """What makes a call that is one launch without scratch and tensor maps; None where it is not
    possible. ``names``: of the operands that are given, in turn."""
    if any(isinstance(arg, Map) for arg in launch.args):
        return None
    places = {name: i for i, name in enumerate((*names, "out0", "out1"))}
    if any(isinstance(arg, str) and arg not in places for arg in launch.args):
        return None
    example = torch.empty(0, device=torch.device("cuda", device))
    args = [example if isinstance(arg, str) else arg for arg in launch.args]
    facts = cuda.device_facts(device)
    bound = cuda.kernel(launch.name, launch.source).bound(device, args, cuda.how_of(launch, facts))
    if bound is None:
        return None
    order = [places[arg] for arg in launch.args if isinstance(arg, str)]

    def run(*given: Tensor) -> Any:
        addresses = [t.data_ptr() for t in given]
        if functools.reduce(int.__or__, addresses) & 15:
            return None
        hidden = given[0]
        outs = [hidden.new_empty(shape) for shape in shapes]
        addresses += [outs[0].data_ptr(), outs[-1].data_ptr()]
        bound(*[addresses[i] for i in order])
        return outs[0] if stacked else (outs[0], outs[1])

    if len(names) != 4 or not stacked or order != [0, 1, 2, 3, 4]:
        return run
    # Of an output of one element, in less time than `new_empty` takes to read the sizes.
    like = torch.empty(1, dtype=dtype, device=example.device).expand(shapes[0])
    if not torch.empty_like(like).is_contiguous():
        return run
    empty_like = torch.empty_like

    def four(hidden: Tensor, w_down: Tensor, w_up_k: Tensor, w_up_v: Tensor) -> Any:
        x, d, k, v = hidden.data_ptr(), w_down.data_ptr(), w_up_k.data_ptr(), w_up_v.data_ptr()
        if (x | d | k | v) & 15:
            return None
        out = empty_like(like)
        bound(x, d, k, v, out.data_ptr())
        return out

    return four
