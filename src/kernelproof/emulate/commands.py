"""What `kernelproof race` does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelproof.emulate import spec
from kernelproof.emulate.api import Result, load
from kernelproof.emulate.frontend import ARCH
from kernelproof.errors import UsageError


def race(
    file: Path, launches: Sequence[str], seed: int | None = None, traffic: bool = False
) -> list[Result]:
    """Run the launches of ``file``; without any, those that its comments name. ``traffic``: with
    notes of bank conflicts and uncoalesced access.

    Raises:
        UsageError: no such file, or no launch.
        CompileError, UnsupportedError: as `emulate.load`.
    """
    if not file.is_file() or file.suffix == ".py":
        raise UsageError(
            f"{str(file)!r} is no .cu or .ptx file; of a candidate `kernelproof check PROBLEM "
            "CANDIDATE` emulates the kernels where there is no GPU"
        )
    specs = [spec.parse(text) for text in launches] or spec.find(file.read_text())
    if not specs:
        raise UsageError(
            f"{file.name} names no launch: add a comment such as `// launch: scale<<<8, 128>>>"
            "(f32[1000], out f32[1000], 1000)`, or give --launch"
        )
    return [_launched(file, one, seed, traffic) for one in specs]


def _launched(file: Path, one: spec.LaunchSpec, seed: int | None, traffic: bool) -> Result:
    kernel = load(file, one.kernel)
    try:
        return kernel.launch(
            one.grid, one.block, one.arguments(), shared=one.shared, seed=seed, traffic=traffic
        )
    except (TypeError, ValueError, OverflowError) as error:
        takes = ", ".join(kernel.parameters)
        raise UsageError(f"{one.text!r}: {error}; its parameters: {takes}") from None


def text(file: Path, results: Sequence[Result]) -> str:
    """For people: one block per launch."""
    lines = [f"{file.name}, emulated on PTX {ARCH.replace('compute', 'sm')}; not run on a GPU"]
    for result in results:
        found = f"{len(result.errors)} error(s), {len(result.notes)} note(s)"
        lines.append(f"\n{result.kernel}: {found}")
        for finding in result.findings:
            lines.append(f"  {finding}")
            lines += [f"      called at {place}" for place in finding.calls]
        lines += [f"  note: {n} bytes of {name} left unwritten" for name, n in
                  result.unwritten.items()]  # fmt: skip
        if result.output:
            lines.append("  printed:")
            lines += [f"    {line}" for line in result.output.splitlines()]
    return "\n".join(lines)


def as_json(file: Path, results: Sequence[Result]) -> dict[str, Any]:
    """For programs."""
    return {
        "file": str(file),
        "launches": [
            {
                "kernel": r.kernel,
                "findings": [dataclasses.asdict(f) for f in r.findings],
                "unwritten": r.unwritten,
                "output": r.output,
                "seconds": r.seconds,
            }
            for r in results
        ],
    }
