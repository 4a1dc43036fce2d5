"""An inspection for people: one block per kernel, its figures, then what to make of them."""

from __future__ import annotations

from collections.abc import Iterator

from kernelproof.report import units
from kernelproof.types import Inspection, KernelFacts, Launch

_SHOWN = 12  # classes of instructions


def render(inspection: Inspection) -> str:
    """Kernels with their sentences, sentences about the call, findings of tools, notes."""
    case = f", case {inspection.case}" if inspection.case else ""
    head = f"on {inspection.gpu} ({inspection.arch}, {inspection.multiprocessors} multiprocessors)"
    ran = inspection.tools or any(k.seconds is not None for k in inspection.kernels)
    blocks = [[head + case + ("" if ran else "; nothing was run on a GPU")]]
    blocks += [list(_kernel(k)) for k in inspection.kernels]
    blocks.append([line for text in inspection.sentences for line in _sentence(text, "")])
    found = [units.one_line(finding.words) for finding in inspection.findings]
    blocks.append([line for text in found for line in units.wrapped(text, hanging=2)])
    tools = [f"{name}: {outcome}" for name, outcome in inspection.tools.items()]
    blocks.append([line for text in tools for line in units.wrapped(text, hanging=2)])
    notes = [f"note: {units.one_line(note)}" for note in inspection.notes]
    blocks.append([line for note in notes for line in units.wrapped(note, hanging=6)])
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _kernel(k: KernelFacts) -> Iterator[str]:
    by = f"  ({k.compiler})" if k.compiler else ""
    yield f"{units.one_line(k.name)}{by}"
    rows = [("launch", _launch(k.launch)), ("resources", _resources(k))]
    rows += [("occupancy", _occupancy(k)), ("instructions", _instructions(k))]
    if k.seconds is not None:
        rows.append(("time", f"{units.seconds(k.seconds)} of a call, by the profiler"))
    rows += [("counter", f"{name} {value:g}") for name, value in k.counters.items()]
    for name, value in rows:
        if value:
            yield from units.wrapped(f"  {name:<13}{value}", hanging=15)
    for text in k.sentences:
        yield from _sentence(text, "  ")


def _sentence(text: str, indent: str) -> Iterator[str]:
    yield from units.wrapped(f"- {units.one_line(text)}", indent, hanging=2)


def _launch(launch: Launch | None) -> str:
    if launch is None:
        return ""
    parts = [f"grid {units.shape(launch.grid)}, block {units.shape(launch.block)}"]
    if launch.shared:
        parts.append(f"{units.size(launch.shared)} of dynamic shared memory")
    if launch.cluster:
        parts.append(f"clusters of {units.shape(launch.cluster)}")
    if launch.dtypes:
        parts.append(" ".join(launch.dtypes))
    if launch.count > 1:
        parts.append(f"{units.count(launch.count)} times")
    return ", ".join(parts)


def _resources(k: KernelFacts) -> str:
    if k.spill_stores is None or k.spill_loads is None:
        spills = f"spills {k.spills_from}"
    else:
        spills = f"spills {k.spill_stores} B stored, {k.spill_loads} B loaded"
    parts = [
        f"{k.registers} registers", spills, f"{units.size(k.shared_bytes)} of static shared memory",
        f"{k.stack_bytes} B of stack", units.many(k.barriers, "barrier"),
        f"{units.size(k.constant_bytes)} of constants", f"{units.size(k.code_bytes)} of code",
    ]  # fmt: skip
    if k.max_threads is not None:
        parts.append(f"at most {k.max_threads} threads per block")
    return ", ".join(parts)


def _occupancy(k: KernelFacts) -> str:
    if k.occupancy is None:
        return ""
    most = ", ".join(f"{name} {count}" for name, count in k.limits.items())
    at = "" if k.launch is not None else f" at the declared {k.threads} threads"
    return (
        f"{units.share(k.occupancy)}{at}: {k.warps_per_multiprocessor} warps, "
        f"{units.many(k.blocks_per_multiprocessor or 0, 'block')} per multiprocessor, limited by "
        f"{k.limiter} (blocks by {most})"
    )


def _instructions(k: KernelFacts) -> str:
    mix = k.instructions
    if mix is None:
        return k.instructions_from
    ranked = sorted(mix.counts.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{name} {count}" for name, count in ranked[:_SHOWN])
    inside = f", {mix.in_loops['total']} in {units.many(mix.loops, 'loop')}" if mix.loops else ""
    return f"{units.count(mix.total)}{inside}: {shown}"
