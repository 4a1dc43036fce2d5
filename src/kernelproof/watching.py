"""What a GPU adds to an inspection: times of kernels, counters, findings of compute-sanitizer."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelproof.errors import CandidateError, UnsupportedError, UsageError
from kernelproof.inspect import assemble, watch
from kernelproof.inspect.devices import Device
from kernelproof.report import units
from kernelproof.subject import CandidateProcess
from kernelproof.types import Candidate, Finding, Inspection, KernelFacts, Launch

# Under a tool a kernel is some hundred times slower, and starting torch takes its time as well.
_TOOL_SECONDS = 300.0


def on_device(
    inspection: Inspection, device: Device, candidate: Candidate, payload: Any,
    hides: Sequence[str], sanitize: bool, ncu: bool,
) -> Inspection:  # fmt: skip
    """The inspection with what a run on this machine's GPU shows, if there is one and ``payload``
    (see `inspect.capture`) tells how to call the candidate.

    Raises:
        UnsupportedError: ``sanitize`` or ``ncu`` without a GPU or the tool.
        UsageError: the same without a problem to call the candidate with.
        CandidateCrash, CandidateTimeout: a tool does not end well.
    """
    import torch

    asked = "--sanitize" if sanitize else "--ncu" if ncu else ""
    if not torch.cuda.is_available():
        if asked:
            raise UnsupportedError(
                f"{asked} runs the candidate on an NVIDIA GPU, and torch sees none here; without "
                "one, `kernelproof check` emulates its kernels"
            )
        return inspection
    if payload is None:
        if asked:
            raise UsageError(f"{asked} calls the candidate: give --problem NAME")
        return inspection
    inspection = with_tools(inspection, candidate, payload, sanitize, ncu)
    try:
        return _timed(inspection, device, candidate, payload, hides)
    except CandidateError as error:
        # What it does wrong is for `check` to judge; the other figures stand.
        note = f"no times: the candidate failed on this GPU: {error.message}"
        return inspection.model_copy(update={"notes": (*inspection.notes, note)})


def with_tools(
    inspection: Inspection, candidate: Candidate, payload: Any, sanitize: bool, ncu: bool
) -> Inspection:
    """The inspection with what the tools that are asked for find or count in a call of the
    candidate on this machine's GPU; raises as `on_device`."""
    with tempfile.TemporaryDirectory() as folder:
        request = Path(folder) / "request"
        watch.write_request(request, candidate, payload)
        if sanitize:
            inspection = _sanitized(inspection, request)
        if ncu:
            inspection = _counted(inspection, request)
    return inspection


def _timed(
    inspection: Inspection, device: Device, candidate: Candidate, payload: Any,
    hides: Sequence[str],
) -> Inspection:  # fmt: skip
    from kernelproof.options import Options

    constructed, inputs, _ = payload
    with CandidateProcess(candidate, "cuda", Options(), hides) as subject:
        subject.construct(*constructed)
        ran = subject.kernel_times(inputs)
    return merged(inspection, device, ran)


def merged(inspection: Inspection, device: Device, ran: Sequence[dict[str, Any]]) -> Inspection:
    """The inspection with the times of the kernels that ran (see `worker.kernels`), and with their
    launches where these were not known. Others that ran are named in a note."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for one in ran:
        by_name.setdefault(assemble.plain_name(one["name"]), []).append(one)
    kernels, notes = [], list(inspection.notes)
    for kernel in inspection.kernels:
        mine = by_name.pop(assemble.demangled(kernel.symbol), None)
        kernels.append(_measured(kernel, device, mine) if mine else kernel)
    for name, others in by_name.items():
        seconds = sum(one["seconds"] * one["count"] for one in others)
        notes.append(f"also ran: {name}, {units.seconds(seconds)} of a call")
    return inspection.model_copy(update={"kernels": tuple(kernels), "notes": tuple(notes)})


def _measured(kernel: KernelFacts, device: Device, mine: list[dict[str, Any]]) -> KernelFacts:
    seconds = sum(one["seconds"] * one["count"] for one in mine)
    kernel = kernel.model_copy(update={"seconds": seconds})
    if kernel.launch is not None:
        return kernel
    shapes = [
        Launch(
            grid=one["grid"],
            block=one["block"],
            # The profiler counts static shared memory as well.
            shared=max(0, one["shared"] - kernel.shared_bytes),
            count=one["count"],
        )
        for one in mine
    ]
    launched = assemble.with_launch(kernel, device, assemble.chosen(shapes))
    return assemble.with_sentences(launched, device)


def _sanitized(inspection: Inspection, request: Path) -> Inspection:
    findings: list[Finding] = []
    outcomes = dict(inspection.tools)
    for tool in watch.SANITIZERS:
        found, outcomes[tool] = watch.sanitize(request, tool, _TOOL_SECONDS)
        findings += found
    update = {"findings": (*inspection.findings, *findings), "tools": outcomes}
    return inspection.model_copy(update=update)


def _counted(inspection: Inspection, request: Path) -> Inspection:
    counted = watch.count(request, _TOOL_SECONDS)
    kernels = [
        kernel.model_copy(update={"counters": counted.pop(kernel.symbol, {})})
        for kernel in inspection.kernels
    ]
    own = sum(bool(kernel.counters) for kernel in kernels)
    text = f"{units.many(own + len(counted), 'kernel')} counted, {own} of them the candidate's"
    update = {"kernels": tuple(kernels), "tools": {**inspection.tools, "ncu": text}}
    return inspection.model_copy(update=update)
