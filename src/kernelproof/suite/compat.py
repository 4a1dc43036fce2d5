"""What the harness that a suite comes from would say of the same runs.

Beside the proof, never in its place. The values were judged while they were there: by the tolerance
of KernelBench, or by the problem's own `COMPAT`. Here that becomes the harness's verdict, with what
else that harness does: how it makes weights, what it casts, what it does not look at.
"""

from __future__ import annotations

import functools
from typing import Any

from kernelproof.suite.formats import flashinfer, gpumode, kernelbench, kernelbenchcom
from kernelproof.suite.model import Item
from kernelproof.types import Harness, Record, Run

# Bytes of inputs with which a reference is tried for what a cast does to it.
_SMALL = 65_536
_NOTE = "compat, case "


def verdict(item: Item, record: Record) -> Harness:
    """The harness's verdict on the candidate of ``record``."""
    about = item.options.get("compat") or {}
    format = about.get("format", "")
    early = _early(record)
    if early is not None:
        return early
    declared = [run for run in record.verdict.runs if not run.variant.label]
    if format == kernelbench.NAME:
        return _kernelbench(item, record, declared)
    if format == kernelbenchcom.NAME:
        named = _forbidden(item, about.get("forbidden") or ())
        if named:
            return Harness(
                accepted=False, word="FAIL", reasons=(f"names {named}, which the problem forbids",)
            )
    return _by_values(record, declared, _WORDS.get(format, ("accepted", "refused")))


# (accepted, refused) as the harness writes it.
_WORDS = {
    gpumode.NAME: ("pass", "fail"), flashinfer.NAME: ("PASSED", "INCORRECT_NUMERICAL"),
    kernelbenchcom.NAME: ("PASS", "FAIL"),
}  # fmt: skip


def _early(record: Record) -> Harness | None:
    """Where the candidate did not get as far as values."""
    status, message = record.verdict.status, record.verdict.message.splitlines()[:1]
    if status == "unsupported":
        return Harness(accepted=None, word="not run", reasons=tuple(message))
    if record.build.status != "pass":
        return Harness(accepted=False, word="not compiled", reasons=tuple(message))
    if status in ("crash", "timeout") and not any(run.outputs for run in record.verdict.runs):
        return Harness(
            accepted=False,
            word="runtime error" if status == "crash" else "timeout",
            reasons=tuple(message),
        )
    return None


def _values_accepted(runs: list[Run]) -> bool:
    return bool(runs) and all(r.outputs and all(o.compat for o in r.outputs) for r in runs)


def _by_values(record: Record, runs: list[Run], words: tuple[str, str]) -> Harness:
    accepted = _values_accepted(runs)
    said = [n.removeprefix(_NOTE) for n in record.verdict.notes if n.startswith(_NOTE)]
    word = words[0] if accepted else words[1]
    # "INCORRECT_SHAPE: ..." and its like name the status themselves.
    for text in said:
        status = text.partition(": ")[2].partition(":")[0]
        word = status if status.isupper() and "_" in status else word
    return Harness(accepted=accepted, word=word, reasons=tuple(said[:3]))


def _kernelbench(item: Item, record: Record, runs: list[Run]) -> Harness:
    """src/kernelbench/eval.py at 423217d, at float32."""
    names = [output.name for run in runs for output in run.outputs]
    if any(name != "output" for name in names):
        text = "it compares one tensor, and the reference returns several or none"
        return Harness(accepted=False, word="runtime error", reasons=(text,))
    refused = cast_refused(item, record)
    if refused:
        return Harness(accepted=False, word="runtime error", reasons=(refused,))
    if record.build.alike is False:
        text = (
            "it copies no weights: the candidate's constructor draws others than the reference's "
            "under the same seed (the proof has given them to it)"
        )
        return Harness(accepted=False, word="incorrect", reasons=(text,))
    if dropped_out(item, record):
        text = (
            "the reference is in training mode and drops elements at random, also where the "
            "candidate does the same: whether both agree is luck (the proof is without dropout)"
        )
        return Harness(accepted=None, word="luck", reasons=(text,))
    if _values_accepted(runs):
        return Harness(accepted=True, word="correct", reasons=_unseen(record))
    return Harness(accepted=False, word="incorrect", reasons=(_worst(runs),))


def _unseen(record: Record) -> tuple[str, ...]:
    """What it does not look at, of what has decided the proof."""
    if record.verdict.status == "pass":
        return ()
    return ("within absolute and relative 1e-4 on the problem's own inputs, which is all it asks",)


def _worst(runs: list[Run]) -> str:
    found = [o for run in runs for o in run.outputs if not o.compat]
    if not found or found[0].figures is None:
        return "it raised, or returned something of another form"
    most = max((o.figures.max_abs for o in found if o.figures is not None), default=0.0)
    return f"errors of up to {most:.3g}, beyond absolute and relative 1e-4"


def cast_refused(item: Item, record: Record) -> str:
    """Why KernelBench's cast of all inputs to float32, indices and labels included, ends the
    reference; "" where it does not."""
    return _cast(str(item.problem), record.problem.digest)


@functools.lru_cache(maxsize=512)
def _cast(path: str, digest: str) -> str:
    import torch

    reference, inputs = _small(path)
    if reference is None:
        return ""
    whole = [x for x in inputs if isinstance(x, torch.Tensor) and not x.is_floating_point()]
    if not whole:
        return ""
    given = [x.float() if isinstance(x, torch.Tensor) else x for x in inputs]
    try:
        with torch.no_grad():
            reference(*given)
    except Exception as error:
        first = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        return f"it casts inputs of {whole[0].dtype} to float32, which ends the reference: {first}"
    return ""


def dropped_out(item: Item, record: Record) -> bool:
    """Whether the reference has dropout that is on in training mode."""
    return _dropout(str(item.problem), record.problem.digest)


@functools.lru_cache(maxsize=512)
def _dropout(path: str, digest: str) -> bool:
    from torch.nn.modules.dropout import _DropoutNd

    model, _ = _small(path)
    if model is None:
        return False
    return any(isinstance(m, _DropoutNd) and m.p > 0 for m in model.modules())


@functools.lru_cache(maxsize=4)
def _small(path: str) -> tuple[Any, list[Any]]:
    """The reference at small sizes, and inputs for it; (None, []) where it cannot be made so."""
    from kernelproof.problem import load

    try:
        reference = load(path, shrink_to=_SMALL)
        case = reference.problem.cases[0]
        args, kwargs = reference.init_args(case)
        return reference.module.Model(*args, **kwargs), reference.drawn(case, 0)
    except Exception:
        # It ran at full size, or there would be no record: only this question stays open.
        return None, []


def _forbidden(item: Item, names: tuple[str, ...] | list[str]) -> str:
    """The first of ``names`` that the candidate's text has; "" for none."""
    if item.candidate is None or not names:
        return ""
    folder = item.candidate if item.candidate.is_dir() else item.candidate.parent
    texts = [p.read_text(errors="replace") for p in sorted(folder.glob("solution.py"))]
    return next((n for n in names if any(n in text for text in texts)), "")
