"""What only a look beyond one output shows: repeats, earlier runs, and the size of the inputs."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from kernelproof.check.explain.region import describe
from kernelproof.check.explain.values import distance
from kernelproof.check.values import flatten
from kernelproof.errors import CandidateError
from kernelproof.types import Run

_CLOSE = 1e-2  # relative rms distance below which two outputs are the same
_KEPT = 4  # earlier runs that are compared with
_KEPT_BYTES = 256 << 20  # memory for them
_LARGER = 8.0  # times larger than all inputs that passed: worth a remark


@dataclasses.dataclass(frozen=True)
class _Past:
    name: str
    truths: list[Any]
    largest: float


class History:
    """The runs of a candidate so far, for the words on the one that fails.

    Args:
        always_filled: new memory holds NaN in every call, as in the emulator: that a NaN comes
            again does not tell where it is from.
    """

    def __init__(self, always_filled: bool = False) -> None:
        self.always_filled = always_filled
        self.last: Any = None  # the output of the latest call
        self._past: list[_Past] = []
        self._first: _Past | None = None

    def explained(
        self, run: Run, inputs: Any, truths: Sequence[Any], outputs: list[list[Any]],
        again: Callable[[], Any],
    ) -> Run:  # fmt: skip
        """``run`` with what this view adds to its message, if its values are wrong; kept for later
        comparison if it passed.

        Args:
            truths: the expected leaves.
            outputs: leaves of each call on these inputs: the first in memory filled with NaN, the
                others, if any, in ordinary memory.
            again: makes two further calls in ordinary memory; asked where there were not two.
        """
        if run.status == "pass":
            self._keep(f"case {run.case}, seed {run.seed}", inputs, truths)
        if all(output.passed for output in run.outputs):
            return run
        if len(outputs) < 3:
            with contextlib.suppress(CandidateError):
                more = [flatten(result["output"]) for result in again()]
                outputs = [*outputs, *([leaf for _, leaf in leaves] for leaves in more)]
        words = self._words(inputs, _on_cpu(truths), outputs)
        return run.model_copy(update={"message": f"{run.message}. {words}"}) if words else run

    def _keep(self, name: str, inputs: Any, truths: Sequence[Any]) -> None:
        kept = _on_cpu(truths) if _size(truths) <= _KEPT_BYTES else []
        past = _Past(name, kept, _largest(inputs))
        self._first = self._first or past
        self._past = [*self._past, past][-_KEPT:]

    def _words(self, inputs: Any, truths: Sequence[Any], outputs: list[list[Any]]) -> str:
        # What is never written differs from call to call as well: that is no race.
        first = "" if self.always_filled else _filled(outputs, truths)
        first = first or _repeats(outputs, truths)
        found = [first, self._stale(outputs, truths)]
        if not any(found) or "so they are computed" in first:
            found.append(self._large(inputs))
        return ". ".join(text for text in found if text)

    def _stale(self, outputs: Sequence[Sequence[Any]], truths: Sequence[Any]) -> str:
        earlier = [*([self._first] if self._first else []), *reversed(self._past)]
        for past in earlier:
            for got, truth, old in zip(outputs[0], truths, past.truths, strict=False):
                if not _alike(got, truth, old) or distance(old, truth) < _CLOSE:
                    continue
                wide = torch.nan_to_num(got.to(old))
                own = (wide - truth).abs() > _CLOSE * truth.abs()
                if not bool(own.any()) or not distance(wide[own], old[own]) < _CLOSE:
                    continue
                where = describe(own)
                place = f" {where.where}".removesuffix(",") if where else ""
                return (
                    f"What is wrong is the right answer of an earlier call ({past.name}){place}: "
                    "look for a result, a state or a buffer that is kept between calls"
                )
        return ""

    def _large(self, inputs: Any) -> str:
        seen = [past.largest for past in (self._first, *self._past) if past]
        largest = _largest(inputs)
        if not seen or not max(seen) > 0 or not largest >= _LARGER * max(seen):
            return ""
        return (
            f"It fails only for large values: the largest input is {largest:.4g}, where it passed "
            f"at most {max(seen):.4g}: look for overflow, cancellation or a missing maximum"
        )


def fingerprint(leaves: Sequence[tuple[str, Any]]) -> str:
    """A hash of the bits of all tensors among the named ``leaves``; "" where there is none."""
    tensors = [t.detach().cpu().contiguous() for _, t in leaves if isinstance(t, torch.Tensor)]
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()))
    return digest.hexdigest()[:32] if tensors else ""


def _on_cpu(leaves: Sequence[Any]) -> list[Any]:
    """As the candidate's outputs come."""
    return [x.cpu() if isinstance(x, torch.Tensor) else x for x in leaves]


def _repeats(outputs: Sequence[Sequence[Any]], truths: Sequence[Any]) -> str:
    """Whether two calls in ordinary memory differ by as much as they are wrong."""
    if len(outputs) < 3:
        return ""
    for one, two, truth in zip(outputs[1], outputs[2], truths, strict=False):
        if not _alike(one, truth, two):
            continue
        a, b = torch.nan_to_num(one.to(torch.float64)), torch.nan_to_num(two.to(torch.float64))
        apart = (a - b).abs()
        if not float(apart.max()) > 0.1 * float((a - truth).abs().max()):
            continue
        differ = apart > 0.1 * apart.max()
        where = describe(differ)
        place = f", {where.where}" if where else ""
        return (
            f"Two calls on the same inputs differ in {int((apart > 0).sum())} of {apart.numel()} "
            f"elements{place.removesuffix(',')}: a race (a missing barrier, two blocks that write "
            "one element, atomics), or memory that is read before it is written"
        )
    return ""


def _filled(outputs: Sequence[Sequence[Any]], truths: Sequence[Any]) -> str:
    """Whether NaN come from the filled memory or are computed."""
    if len(outputs) < 2:
        return ""
    for filled, plain, truth in zip(outputs[0], outputs[1], truths, strict=False):
        if not _alike(filled, truth, plain) or not bool(filled.isnan().any()):
            continue
        nan = filled.isnan() & ~truth.isnan()
        if not bool(nan.any()):
            continue
        if bool(plain[nan].isnan().all()):
            return (
                "They are NaN in ordinary memory too, so they are computed: look for 0 / 0, "
                "inf - inf, a root or logarithm below zero"
            )
        return (
            "In ordinary memory these elements are not NaN: they, or what they are computed from, "
            "were never written"
        )
    return ""


def _alike(got: Any, truth: Any, other: Any) -> bool:
    """Whether all three are tensors of one shape, not empty, that can be compared."""
    found = (got, truth, other)
    return all(
        isinstance(t, torch.Tensor) and t.shape == got.shape and not t.is_complex() for t in found
    ) and bool(got.numel()) and got.is_floating_point()  # fmt: skip


def _largest(inputs: Any) -> float:
    tensors = [t for t in tree_leaves(inputs) if isinstance(t, torch.Tensor) and t.numel()]
    # Eight bits have no maximum in torch.
    wide = [t.float() if t.dtype.itemsize == 1 else t for t in tensors if t.is_floating_point()]
    # Not of `abs`, which would be another copy of gigabytes.
    sizes = [max(-float(low), float(high)) for low, high in map(torch.aminmax, wide)]
    return max((size for size in sizes if size < float("inf")), default=0.0)


def _size(leaves: Sequence[Any]) -> int:
    tensors = [t for t in leaves if isinstance(t, torch.Tensor)]
    return sum(t.numel() * t.element_size() for t in tensors)
