"""Run a function once and count what it computes and what it must move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernelproof.types import Work
from kernelproof.work import formulas
from kernelproof.work.regions import Regions, plain, shares

# Figures of a problem and of the trace that differ by more are spoken of.
_AGREE = 0.05
# Dtypes below fp32 whose values matrix units take as they are.
_NARROW = ("fp16", "bf16", "fp8", "int8", "uint8")
# In-place operators that do not read what they write.
_OVERWRITES = frozenset(
    ("copy", "fill", "zero", "normal", "uniform", "random", "bernoulli", "exponential")
)


def trace(function: Callable[..., Any], inputs: Sequence[Any]) -> Work:
    """FLOPs and minimal bytes of ``function(*inputs)``, which runs once, without gradients.

    Inputs that it changes are changed. Whatever it raises goes through.
    """
    counter = _Counter()
    result = _watched(counter, function, inputs)
    outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    notes = []
    if not all(plain(tensor) for tensor in outputs):
        notes.append("an output is no plain tensor; its bytes are not counted")
    read, written = counter.regions.totals([t for t in outputs if plain(t)])
    dtypes = {formulas.dtype_name(x.dtype) for x in tree_leaves(inputs) if _is_tensor(x)}
    return Work(
        matrix=counter.matrix,
        vector=counter.vector,
        read=read,
        written=written,
        narrow=tuple(sorted(dtypes & set(_NARROW))),
        unknown=tuple(sorted(counter.unknown)),
        notes=tuple(notes),
    )


def multiplies(function: Callable[..., Any], inputs: Sequence[Any], dtype: str) -> bool:
    """Whether ``function(*inputs)`` multiplies matrices of ``dtype``, such as "fp32", or convolves
    with them. It runs until the first such product; as of `trace` otherwise."""
    try:
        _watched(_First(dtype), function, inputs)
    except _Seen:
        return True
    return False


def _watched(counter: _Counter, function: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    # The fused path of torch's transformer layers is one operator, which hides what it computes.
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), _Attention(counter), counter:
            return function(*inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def settled(work: Work, flops: float | None, nbytes: float | None) -> Work:
    """``work`` with the problem's own figures, where it declares them: those are in force, and a
    difference of more than 5 % is noted. Many problems leave out all but the matrix products; such
    a figure agrees where the products do."""
    notes, declared = list(work.notes), []
    products = sum(work.matrix.values())
    if flops is not None:
        declared.append("flops")
        if _differ(flops, work.flops) and _differ(flops, products):
            notes.append(f"FLOPS of the problem is {flops:.4g}, traced are {work.flops:.4g}")
        if flops and work.flops and not (products and not _differ(flops, products)):
            scale = flops / work.flops
            work = work.model_copy(
                update={
                    "matrix": {name: value * scale for name, value in work.matrix.items()},
                    "vector": {name: value * scale for name, value in work.vector.items()},
                }
            )
    if nbytes is not None:
        declared.append("bytes")
        if _differ(nbytes, work.bytes):
            notes.append(f"BYTES of the problem is {nbytes:.4g}, traced are {work.bytes:.4g}")
        scale = nbytes / work.bytes if work.bytes else 1.0
        work = work.model_copy(update={"read": work.read * scale, "written": work.written * scale})
    return work.model_copy(update={"declared": tuple(declared), "notes": tuple(notes)})


def _differ(a: float, b: float) -> bool:
    return not abs(a - b) <= _AGREE * max(abs(a), abs(b))


class _Counter(TorchDispatchMode):
    """Sees every operator below autograd, composite ones in their parts."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.matrix: dict[str, float] = {}
        self.vector: dict[str, float] = {}
        self.unknown: set[str] = set()
        self.regions = Regions()
        self.paused = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # As in `check.oracle`: True, the default, imports torch._dynamo, which takes two seconds.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if _is_tensor(leaf)]
        writes = _written(func, args, kwargs)
        # Before the call, while inputs still hold what indices are made of.
        if not _is_view(func, given):
            self._touch(func, args, given, writes)
        result = func(*args, **kwargs)
        made = [leaf for leaf in tree_leaves(result) if _is_tensor(leaf) and plain(leaf)]
        held = [tensor for tensor in given if plain(tensor)]
        for tensor in made:
            # `lift_fresh` hands out a constant that the call itself has just built.
            if formulas.name_of(func) == "lift_fresh" or not any(
                shares(tensor, other) for other in held
            ):
                self.regions.make(tensor)
        if not self.paused:
            self.add(formulas.count(func, args, kwargs, result), func, args, kwargs, result)
        return result

    def add(self, found: Any, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if found is None:
            if not _is_view(func, [t for t in tree_leaves((args, kwargs)) if _is_tensor(t)]):
                self.unknown.add(formulas.name_of(func))
            return
        products, other = found
        if products or other:
            name = formulas.operand_dtype(args, kwargs, result)
            for kind, amount in ((self.matrix, products), (self.vector, other)):
                if amount:
                    kind[name] = kind.get(name, 0.0) + amount

    def _touch(self, func: Any, args: Any, given: list[Any], writes: list[Any]) -> None:
        name = formulas.name_of(func)
        source, mark = _gathered(name, args)
        target, into = _scattered(name, args)
        for tensor in given:
            if not plain(tensor) or any(tensor is one for one in writes):
                continue
            if (storage := self.regions.of(tensor)) is not None:
                storage.read(tensor, mark if tensor is source else None)
        for tensor in writes:
            if not plain(tensor) or (storage := self.regions.of(tensor)) is None:
                continue
            own = into if tensor is target else None
            if name not in _OVERWRITES and own is None and tensor is args[0]:
                storage.read(tensor)
            storage.write(tensor, own)


class _Seen(BaseException):
    """Ends a run; not one of the errors that a reference may catch."""


class _First(_Counter):
    """Ends the run at the first product of matrices of ``dtype``."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.dtype = dtype

    def add(self, found: Any, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        super().add(found, func, args, kwargs, result)
        if self.dtype in self.matrix:
            raise _Seen


class _Attention(TorchFunctionMode):
    """Counts attention where it is called: below, what a causal mask leaves out is not told."""

    def __init__(self, counter: _Counter) -> None:
        super().__init__()
        self.counter = counter

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not torch.nn.functional.scaled_dot_product_attention or self.counter.paused:
            return func(*args, **kwargs)
        self.counter.paused = True
        try:
            result = func(*args, **kwargs)
        finally:
            self.counter.paused = False
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        operands = given["query"], given["key"], given["value"]
        found = formulas.attention(*operands, bool(given.get("is_causal", False)))
        self.counter.add(found, func, operands, {}, result)
        return result


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The tensors that a call changes, by the operator's schema."""
    found: list[Any] = []
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[number] if number < len(args) else kwargs.get(argument.name)
        found += [leaf for leaf in tree_leaves(value) if _is_tensor(leaf)]
    return found


def _is_view(func: Any, given: list[Any]) -> bool:
    """Whether an operator only shows its argument under another shape."""
    if formulas.name_of(func) in ("_unsafe_view", "lift_fresh"):
        return True
    if torch.Tag.inplace_view in func.tags:
        return True
    infos = [argument.alias_info for argument in func._schema.arguments]
    if any(info is not None and info.is_write for info in infos):
        return False
    returned = [one.alias_info for one in func._schema.returns]
    return bool(returned) and all(info is not None for info in returned) and bool(given)


def _gathered(name: str, args: Any) -> tuple[Any, Any]:
    """(source, mark) of an operator that reads only what its indices name."""
    if name in ("index", "_unsafe_index"):
        return args[0], lambda mask: mask.__setitem__(_indices(args[1]), True)
    if name in ("index_select",):
        return args[0], lambda mask: mask.index_fill_(args[1], args[2].to(torch.int64), True)
    if name in ("embedding", "_embedding_bag", "_embedding_bag_forward_only"):
        rows = args[1].reshape(-1).to(torch.int64)
        return args[0], lambda mask: mask.index_fill_(0, rows, True)
    if name == "gather":
        return args[0], lambda mask: mask.scatter_(args[1], args[2], True)
    if name == "take":
        return args[0], lambda mask: mask.put_(args[1], torch.ones_like(args[1], dtype=torch.bool))
    return None, None


def _scattered(name: str, args: Any) -> tuple[Any, Any]:
    """(target, mark) of an in-place operator that writes only where its indices name."""
    if name in ("index_put", "_index_put_impl"):
        return args[0], lambda mask: mask.__setitem__(_indices(args[1]), True)
    if name in ("index_copy", "index_fill", "index_add"):
        return args[0], lambda mask: mask.index_fill_(args[1], args[2].to(torch.int64), True)
    if name in ("scatter", "scatter_add", "scatter_reduce"):
        return args[0], lambda mask: mask.scatter_(args[1], args[2], True)
    return None, None


def _indices(given: Any) -> tuple[Any, ...]:
    return tuple(slice(None) if index is None else index for index in given)
