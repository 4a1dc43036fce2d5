"""The cheats: what a kernel could return, or leave out, instead of computing the function.

All are made from the reference, in this process. A forged output stands alone: a kernel may cheat
in one output and compute the others. What leaves out an input, a weight or half of a sum changes
all outputs together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kernelproof.check.values import flatten
from kernelproof.lint.result import Kind
from kernelproof.lint.scene import Leaves, Scene

# Explicit and implicit mantissa bits of what a lower precision keeps.
_BITS = {"tf32": 11, "fp16": 11, "bf16": 8}
_OWN_BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
# PyTorch's own counter in batch normalisation; it matters in training only.
_COUNTER = "num_batches_tracked"


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A cheat in one scene; ``got`` maps indices of output leaves to what it would return."""

    name: str
    kind: Kind
    subject: str
    got: dict[int, Any]


Wanted = Callable[[str, str], bool]


def attempts(scene: Scene, first: Scene | None, wanted: Wanted) -> Iterator[Attempt]:
    """Every cheat that can be tried in ``scene``.

    Args:
        first: the scene of the first case, where that is another one.
        wanted: whether the cheat of this name and subject is worth its work.
    """
    for index, (name, leaf) in enumerate(scene.outputs):
        if isinstance(leaf, torch.Tensor) and leaf.numel():
            for words, got in _forged(scene, index, leaf):
                if wanted(words, name):
                    yield Attempt(words, "output", name, {index: got})
            for words, got in _half_written(leaf):
                if wanted(words, name):
                    yield Attempt(words, "half", name, {index: got})
    for change in (*_half_read(scene), *_without_inputs(scene, first), *_without_weights(scene)):
        if wanted(change.name, change.subject):
            yield from _whole(scene, change)
    yield from _lower_precision(scene, wanted)


def _forged(scene: Scene, index: int, value: torch.Tensor) -> Iterator[tuple[str, Any]]:
    """Outputs that need no work on these inputs. Constants come from another draw: a kernel cannot
    know the answer that it is asked for."""
    yield "zeros", torch.zeros_like(value)
    yield "ones", torch.ones_like(value)
    draw = torch.Generator().manual_seed(scene.seed)
    other = scene.other_outputs[index][1] if index < len(scene.other_outputs) else None
    if isinstance(other, torch.Tensor) and other.dtype == value.dtype and other.numel():
        yield "constant (mean of another run)", torch.full_like(value, _middle(other))
        yield "noise of the same scale", _noise(other, value, draw)
        if other.shape == value.shape:
            yield "output of another run", other
    for name, leaf in zip(scene.names, scene.inputs, strict=True):
        if (
            isinstance(leaf, torch.Tensor)
            and leaf.shape == value.shape
            and leaf.dtype == value.dtype
        ):
            yield f"copy of input {name}", leaf.clone()


def _middle(x: torch.Tensor) -> Any:
    if not x.is_floating_point() and not x.is_complex():
        return x.flatten().to(torch.int64).mode().values.item()
    x = x.float() if x.dtype.itemsize == 1 else x  # eight bits are not computed in
    finite = x[torch.isfinite(x)]
    wide = finite.to(torch.complex128 if x.is_complex() else torch.float64)
    return wide.mean().item() if finite.numel() else 0.0


def _noise(like: torch.Tensor, value: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """Numbers with the mean and spread, or for integers the range, of ``like``."""
    if not like.is_floating_point() and not like.is_complex():
        low, high = int(like.min()), int(like.max())
        return torch.randint(low, high + 1, value.shape, generator=draw).to(value.dtype)
    wide = torch.complex128 if like.is_complex() else torch.float64
    like = like.float() if like.dtype.itemsize == 1 else like
    finite = like[torch.isfinite(like)].to(wide)
    spread = finite.std(correction=0) if finite.numel() else torch.zeros((), dtype=torch.float64)
    noise: torch.Tensor = torch.randn(value.shape, generator=draw, dtype=wide) * spread
    noise += _middle(like)
    return noise.to(value.dtype)


def _half_written(value: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The second half of the batch or of the last axis not computed."""
    axes = {"last axis": value.dim() - 1, "batch": 0}
    if value.dim() == 1:
        del axes["batch"]
    for words, axis in axes.items():
        if value.dim() == 0 or value.shape[axis] < 2:
            continue
        half = value.shape[axis] // 2
        start = value.shape[axis] - half
        empty, copied = value.clone(), value.clone()
        empty.narrow(axis, start, half).zero_()
        copied.narrow(axis, start, half).copy_(value.narrow(axis, 0, half))
        yield f"second half of the {words} zero", empty
        yield f"second half of the {words} a copy of the first", copied


@dataclasses.dataclass(frozen=True)
class _Change:
    """The reference with input leaf ``index`` or, where that is None, the weight ``subject`` taken
    as ``value``."""

    name: str
    kind: Kind
    subject: str
    index: int | None
    value: Any


def _whole(scene: Scene, change: _Change) -> Iterator[Attempt]:
    """What the reference gives with ``change``; nothing where it refuses that, as it may refuse
    indices that no longer fit."""
    try:
        if change.index is None:
            with scene.weight(change.subject, change.value):
                outputs = scene.run()
        else:
            given = list(scene.inputs)
            given[change.index] = change.value
            outputs = scene.run(given)
    except Exception:
        return
    if _comparable(outputs, scene.outputs):
        got = {i: leaf for i, (_, leaf) in enumerate(outputs)}
        yield Attempt(change.name, change.kind, change.subject, got)


def _comparable(outputs: Leaves, wanted: Leaves) -> bool:
    """Whether the form is right, and there is anything to compare."""
    if [name for name, _ in outputs] != [name for name, _ in wanted]:
        return False
    return any(not isinstance(leaf, torch.Tensor) or leaf.numel() for _, leaf in wanted)


def _half_read(scene: Scene) -> Iterator[_Change]:
    for index, (name, leaf) in enumerate(zip(scene.names, scene.inputs, strict=True)):
        if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.numel() and leaf.shape[-1] > 1:
            half = leaf.clone()
            half[..., leaf.shape[-1] - leaf.shape[-1] // 2 :] = 0
            words = f"second half of the last axis of {name} not read"
            yield _Change(words, "half", name, index, half)


def _without_inputs(scene: Scene, first: Scene | None) -> Iterator[_Change]:
    for index, (name, leaf) in enumerate(zip(scene.names, scene.inputs, strict=True)):
        instead: dict[str, Any] = {}
        if isinstance(leaf, torch.Tensor) and leaf.numel():
            instead = {"zeros": torch.zeros_like(leaf)}
            # An index of one may be out of range, and says no more than zero does.
            if leaf.dtype == torch.bool or leaf.is_floating_point():
                instead["ones"] = torch.ones_like(leaf)
            other = scene.other_inputs[index] if index < len(scene.other_inputs) else None
            if _differs(leaf, other):
                instead["another draw"] = other
        elif isinstance(leaf, (bool, int, float)) and first is not None:
            known = first.inputs[index] if index < len(first.inputs) else leaf
            if known != leaf:
                instead = {"the first case's": known}
        for words, value in instead.items():
            yield _Change(f"input {name} taken as {words}", "input", name, index, value)


def _without_weights(scene: Scene) -> Iterator[_Change]:
    for name, tensor in scene.state.items():
        if tensor.numel() == 0 or name.split(".")[-1] == _COUNTER:
            continue
        instead = {"zeros": torch.zeros_like(tensor), "ones": torch.ones_like(tensor)}
        if _differs(tensor, scene.other_state.get(name)):
            instead["another initialisation"] = scene.other_state[name]
        elif tensor.is_floating_point():
            # Each construction gives the same. Not constant and positive: what follows may undo a
            # constant, and some buffers are variances.
            draw = torch.Generator().manual_seed(scene.seed)
            instead["noise"] = (0.5 + torch.rand(tensor.shape, generator=draw)).to(tensor.dtype)
        for words, value in instead.items():
            yield _Change(f"parameter {name} taken as {words}", "parameter", name, None, value)


def _differs(a: torch.Tensor, b: Any) -> bool:
    return isinstance(b, torch.Tensor) and a.shape == b.shape and not bool(torch.equal(a, b))


def _lower_precision(scene: Scene, wanted: Wanted) -> Iterator[Attempt]:
    """The reference with operands in tf32, bf16 or fp16, where that is clearly less than the case
    has: the proof's limit is wider than the three bits from fp16 to bf16."""
    leaves = [*scene.inputs, *scene.state.values(), *(leaf for _, leaf in scene.outputs)]
    own = min(
        (_OWN_BITS[t.dtype] for t in leaves if getattr(t, "dtype", None) in _OWN_BITS), default=0
    )
    given = scene.spec_inputs(scene.inputs)
    for name in [name for name, bits in _BITS.items() if 2.0 ** (own - bits) > scene.limit]:
        words = f"computed in {name}"
        judged = [
            (index, output, value)
            for index, (output, value) in enumerate(scene.outputs)
            if isinstance(value, torch.Tensor) and value.numel() and wanted(words, output)
        ]
        rounded = flatten(scene.model.in_precision(given, scene.seed, name)) if judged else []
        for index, output, value in judged:
            got = rounded[index][1].to(value.dtype)
            # Where rounding changes nothing (no matrix product, exact operands) it is no cheat.
            if not identical(got, scene.expected[index][1].truth.to(value.dtype)):
                yield Attempt(words, "precision", output, {index: got})


def identical(a: Any, b: Any) -> bool:
    """Whether two output leaves are equal bit by bit, NaN being equal to NaN."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return bool(a == b)
    if a.shape != b.shape:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())
