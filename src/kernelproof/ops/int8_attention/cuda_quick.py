"""Calls whose form has been seen: one look-up, then launches with everything but addresses ready.

The work of a call can be shorter than the host needs for checks and choices.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernelproof.cuda import launches_are_taken
from kernelproof.cuda_forms import Forms, undisturbed
from kernelproof.ops.int8_attention.contract import Form
from kernelproof.tensor_map import TensorMap

_Tensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
Result = Tensor | tuple[Tensor, Tensor]


class _Call(NamedTuple):
    """Its launches and what they write to."""

    sizes: torch.Size
    dtype: torch.dtype
    with_lse: bool
    scratch: int  # fp32 elements
    first: Callable[..., None]
    merge: Callable[..., None] | None  # of the parts in the scratch memory
    per_head: bool  # whether values have scales per head, which `merge` takes

    def run(self, tensors: _Tensors, places: tuple[Tensor, ...]) -> Result:
        like, v_scale = tensors[3], tensors[5]
        out = like.new_empty(self.sizes, dtype=self.dtype)
        writes, address = [out.data_ptr()], 0
        lse = scratch = None
        if self.with_lse:
            lse = like.new_empty(self.sizes[:3])
            writes.append(lse.data_ptr())
        ends = [t.data_ptr() for t in places]
        if self.scratch:
            scratch = like.new_empty(self.scratch)
            address = scratch.data_ptr()
            ends.insert(0, address)
        self.first(*[t.data_ptr() for t in tensors], *writes, *ends)
        if self.merge is not None:
            scales = (v_scale.data_ptr(),) if self.per_head else ()
            self.merge(address, *scales, *writes)
        return out if lse is None else (out, lse)


class _Prefill(NamedTuple):
    """A call of `attend_wgmma`: its launches, and what they need memory for."""

    sizes: torch.Size
    dtype: torch.dtype
    with_lse: bool
    scratch: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    # Each launch with its arguments that have addresses: the number of the tensor among those of
    # `run`, and what makes a tensor map of the address.
    launches: tuple[tuple[Callable[..., None], tuple[_Argument, ...]], ...]

    def run(self, tensors: _Tensors, places: tuple[Tensor, ...]) -> Result:
        like = tensors[3]
        out = like.new_empty(self.sizes, dtype=self.dtype)
        lse = like.new_empty(self.sizes[:3]) if self.with_lse else None
        scratch = [like.new_empty(sizes, dtype=dtype) for sizes, dtype in self.scratch]
        given = [*tensors, *places, *scratch, out]
        if lse is not None:
            given.append(lse)
        at = [t.data_ptr() for t in given]
        for launch, arguments in self.launches:
            launch(*[at[i] if encode is None else encode(at[i]) for i, encode in arguments])
        return out if lse is None else (out, lse)


_Argument = tuple[int, Callable[[int], bytes] | None]
# A call in the plain form without scratch memory, else its launches.
_Known = Callable[..., Tensor] | _Call | _Prefill
# By the low bits of the addresses of q, k and v, which choices depend on; None where other kernels
# make them.
_forms: Forms[dict[int, _Known | None]] = Forms()


def quick(
    q: Tensor, k: Tensor, v: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor,
    causal: bool, scale: float | None, options: tuple[Any, ...] = (),
    places: tuple[Tensor, ...] = (),
) -> Result | None:  # fmt: skip
    """The result of a call whose form is known; else None. Where `undisturbed` only.

    ``options``: what else distinguishes it, none in the plain form; ``places``: the tensors of
    `Form.places` that there are.
    """
    key = q.shape, k.shape, causal, scale, options
    seen = _forms.find(key, q, k, v, q_scale, k_scale, v_scale, *places)
    if seen is None:
        return None
    first, second, third = q.data_ptr(), k.data_ptr(), v.data_ptr()
    call = seen.get(((first | second) & 15) << 4 | third & 15)
    if call is None or launches_are_taken():
        return None
    if isinstance(call, (_Call, _Prefill)):
        return call.run((q, k, v, q_scale, k_scale, v_scale), places)
    return call(first, second, third, q_scale, k_scale, v_scale)


def _plain(first: Callable[..., None], like: Tensor, sizes: torch.Size) -> Callable[..., Tensor]:
    """A call that is one launch and writes the output only: in the least time."""
    form = like.new_empty(()).expand(sizes)
    empty_like: Callable[..., Tensor] = torch.empty_like
    if 1 in sizes:  # such an axis would keep the stride 0
        empty_like = functools.partial(empty_like, memory_format=torch.contiguous_format)

    def run(q: int, k: int, v: int, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor) -> Tensor:
        out = empty_like(form)
        first(q, k, v, q_scale.data_ptr(), k_scale.data_ptr(), v_scale.data_ptr(), out.data_ptr())
        return out

    return run


def keep(
    tensors: _Tensors, causal: bool, scale: float | None, form: Form, result: Result,
    options: tuple[Any, ...] = (), places: tuple[Tensor, ...] = (),
) -> None:  # fmt: skip
    """Remember how a call is made, after one with this result. Arguments as of `quick`."""
    if not undisturbed() or launches_are_taken() or torch.cuda.is_current_stream_capturing():
        return
    q, k, v = tensors[:3]
    key = q.shape, k.shape, causal, scale, options
    seen = _forms.find(key, *tensors, *places)
    odd = ((q.data_ptr() | k.data_ptr()) & 15) << 4 | v.data_ptr() & 15
    if seen is None:
        seen = {}
        _forms.keep(key, seen, *tensors, *places)
    if odd not in seen:
        factor = 1.0 / math.sqrt(max(q.shape[3], 1)) if scale is None else float(scale)
        call = _call(tensors, bool(causal), factor, form, result)
        if isinstance(call, _Call) and not (options or call.scratch):
            seen[odd] = _plain(call.first, tensors[3], call.sizes)
        else:
            seen[odd] = call


def _call(
    tensors: _Tensors, causal: bool, scale: float, form: Form, result: Result
) -> _Call | _Prefill | None:
    from kernelproof.ops.int8_attention import cuda, cuda_general, cuda_wgmma

    q, k, v_scale = tensors[0], tensors[1], tensors[5]
    out, lse = result if isinstance(result, tuple) else (result, None)
    known = all(t is None or t.is_contiguous() for t in form.places)
    if 0 in q.shape or 0 in k.shape or q.shape[0] > cuda.GRID_LIMIT or not known:
        return None
    many = cuda.processors(q.device.index)
    if not cuda_wgmma.why_not(tensors, form, many):
        return _prefill(tensors, causal, scale, form, out, lse, many)
    plan = cuda.dense_plan(tensors, causal, scale, form, many)
    extra, scratch = None, 0
    if plan is not None:
        if not all(s.is_contiguous() for s in tensors[3:]):
            return None  # their copies lie elsewhere in every call
        steps = [cuda.dense_step(tensors, out, lse, plan)]
    else:
        general = cuda_general.plan_of(tensors, form, many)
        if general.tiles == 0:
            return None
        scratch = cuda_general.scratch_floats(q.shape, general, form.out_dtype)
        extra = out.new_empty(scratch, dtype=torch.float32) if scratch else None
        steps = cuda_general.steps(tensors, causal, scale, form, out, lse, extra, general)
    launches = [step.kernel.bound(q.get_device(), step.args, step.how) for step in steps]
    if launches[0] is None:
        return None
    return _Call(
        q.shape, out.dtype, lse is not None, scratch, launches[0],
        launches[1] if len(launches) > 1 else None, v_scale.dim() == 1,
    )  # fmt: skip


def _prefill(
    tensors: _Tensors, causal: bool, scale: float, form: Form, out: Tensor, lse: Tensor | None,
    many: int,
) -> _Prefill | None:  # fmt: skip
    from kernelproof.ops.int8_attention import cuda_wgmma

    if not all(t.dim() == 3 or t.is_contiguous() for t in tensors[3:]):
        return None  # their copies lie elsewhere in every call
    # Arguments are told apart by what they are, so the same tensor given twice must be two.
    q, k, v, *scales = (t.detach() for t in tensors)
    named: dict[str, Any] = {
        n: t.detach() for n, t in form._asdict().items() if isinstance(t, Tensor)
    }
    scratch = cuda_wgmma.scratch_sizes(tensors, form)
    halves, work = (torch.empty(n, dtype=dtype, device=q.device) for n, dtype in scratch)
    form = form._replace(**named)
    given = [q, k, v, *scales, *(t for t in form.places if t is not None), halves, work, out]
    if lse is not None:
        given.append(lse)
    made = cuda_wgmma.steps(
        (q, k, v, *scales), causal, scale, form, out, lse, halves, work, many
    )  # fmt: skip
    launches = []
    for step in made:
        launch = step.kernel.bound(q.get_device(), step.args, step.how)
        if launch is None:
            return None
        arguments: list[_Argument] = []
        for arg in step.args:
            if isinstance(arg, Tensor):
                arguments.append((_number(given, arg), None))
            elif isinstance(arg, TensorMap):
                arguments.append((_number(given, arg.tensor), arg.encoder()))
        launches.append((launch, tuple(arguments)))
    return _Prefill(q.shape, out.dtype, lse is not None, scratch, tuple(launches))


def _number(given: list[Tensor], tensor: Tensor) -> int:
    return next(i for i, t in enumerate(given) if t is tensor)
