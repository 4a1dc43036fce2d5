"""What holds a candidate back, from the inspection in its record."""

from __future__ import annotations

from collections.abc import Iterator

from kernelproof.report import units
from kernelproof.types import Inspection, KernelFacts


def head(kernel: KernelFacts) -> str:
    """One line about a kernel: ``mla_kv: 104 registers, occupancy 19 %, limited by registers``."""
    parts = [units.many(kernel.registers, "register")] if kernel.registers else []
    shared = kernel.shared_bytes + (kernel.launch.shared if kernel.launch is not None else 0)
    parts += [f"{units.size(shared)} of shared memory"] if shared else []
    spilled = (kernel.spill_stores or 0) + (kernel.spill_loads or 0)
    parts += [f"{units.size(spilled)} spilled"] if spilled else []
    if kernel.occupancy:
        by = f", limited by {kernel.limiter}" if kernel.limiter else ""
        parts.append(f"occupancy {units.share(kernel.occupancy)}{by}")
    return f"{units.one_line(kernel.name)}: {', '.join(parts)}" if parts else kernel.name


def watched(inspection: Inspection) -> list[str]:
    """What NVIDIA's tools found, and how each ended; counters of a kernel are its own."""
    told = [f"{name}: {outcome}" for name, outcome in inspection.tools.items()]
    for kernel in inspection.kernels:
        told += [f"{kernel.name}: {name} {value:g}" for name, value in kernel.counters.items()]
    return [units.one_line(text) for text in (*(f.words for f in inspection.findings), *told)]


def lines(inspection: Inspection | None) -> Iterator[str]:
    """A heading, the sentences about the call, then each kernel with its own; nothing for None."""
    if inspection is None:
        return
    yield "what holds it back"
    for text in inspection.sentences:
        yield from units.wrapped(f"- {units.one_line(text)}", "  ", hanging=2)
    for kernel in inspection.kernels:
        yield from units.wrapped(head(kernel), "  ", hanging=2)
        for text in kernel.sentences:
            yield from units.wrapped(f"- {units.one_line(text)}", "    ", hanging=2)
    if told := watched(inspection):
        yield "  NVIDIA's tools"
        for text in told:
            yield from units.wrapped(f"- {text}", "    ", hanging=2)
