"""Machine and problem as plain text."""

from __future__ import annotations

from collections.abc import Iterator

from kernelproof.report import units
from kernelproof.report.speed import floors_text
from kernelproof.types import GpuFacts, MachineFacts, ProblemFacts

_CASES = 40


def machine(facts: MachineFacts) -> str:
    """What it is, its limits, compilers, precision, and what it can do."""
    lines = units.wrapped(
        f"machine  {', '.join(units.environment_facts(facts.environment))}", "", 9
    )
    if facts.gpu is not None:
        lines += list(_gpu(facts.gpu))
    rows = [f"{name:<17}  {units.one_line(value)}" for name, value in facts.tools.items()]
    rows += [f"{name:<17}  {value}" for name, value in facts.tf32.items()]
    lines += [line for row in rows for line in units.wrapped(row, "  ", hanging=19)]
    lines += [line for note in facts.notes for line in units.wrapped(f"note  {note}", hanging=6)]
    text = "\n".join(lines)
    return text if facts.floors is None else f"{text}\n\n{floors_text(facts.floors)}"


def problem(facts: ProblemFacts) -> str:
    """What is to be computed, in which cases, how it is judged, beside what; then the source."""
    lines = [f"{facts.name} ({units.one_line(facts.path)}), digest {facts.digest[:12]}"]
    lines += [f"construct  {units.one_line(facts.constructor)}"]
    lines += [f"returns    {', '.join(facts.outputs)}"]
    text = f"proof: error at most {facts.limit:g} times its budget, which follows from the "
    text += f"reference's own error in this precision; compat: {facts.tolerance}"
    lines += units.wrapped(f"judged     {text}", hanging=11)
    time = units.seconds_interval(*facts.reference_time)
    lines.append(f"reference  {time} on {facts.device}, a quick look: median [quartiles]")
    if facts.work is not None:
        moved = units.decimal_size(facts.work.bytes)
        lines.append(f"work       {units.flops(facts.work.flops)}, at least {moved} moved")
    lines.append(f"beside     {', '.join(facts.baselines)}")
    rows = [["case", "inputs of forward", "bytes"]]
    for one in facts.cases[:_CASES]:
        given = units.one_line(", ".join(one.inputs))
        rows.append([one.case.name, given, units.size(one.bytes)])
    lines += ["", *units.table(rows, "<<>", units.WIDTH, {1: 20})]
    if len(facts.cases) > _CASES:
        lines.append(f"and {len(facts.cases) - _CASES} more cases")
    return "\n".join([*lines, "", "source", facts.source.rstrip()])


def _gpu(gpu: GpuFacts) -> Iterator[str]:
    yield f"GPU  {gpu.name} ({gpu.target}), {units.size(gpu.memory)}, L2 {units.size(gpu.l2)}"
    yield (
        f"  {gpu.multiprocessors} multiprocessors of {gpu.threads_multiprocessor} threads, "
        f"{gpu.registers_multiprocessor} registers, {gpu.blocks_multiprocessor} blocks, "
        f"{units.size(gpu.shared_multiprocessor)} of shared memory"
    )
    yield (
        f"  a block: {gpu.threads_block} threads, {units.size(gpu.shared_default)} of shared "
        f"memory, {units.size(gpu.shared_block)} opted in"
    )
