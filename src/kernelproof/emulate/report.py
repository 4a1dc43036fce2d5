"""What a launch showed: findings with source lines, each kind and place once, with a count."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from kernelproof.emulate.ptx import Instruction, Location

Severity = Literal["error", "note"]

KINDS: dict[str, Severity] = {
    "race": "error",
    "out of bounds": "error",
    "misaligned": "error",
    "uninitialised": "error",
    "copy in flight": "error",
    "wgmma in flight": "error",
    "missing wgmma.fence": "error",
    "missing proxy fence": "error",
    "ended block": "error",
    "register count": "error",
    "written through read-only path": "error",
    "absent lanes": "error",
    "divergent barrier": "error",
    "deadlock": "error",
    "assertion": "error",
    "launch refused": "error",
    "index overflow": "error",
    # Compilers load local arrays ahead and whole, also where the result is then not used. What is
    # used shows in the values: local memory starts as NaN.
    "uninitialised local": "note",
    "same value": "note",
    "early exit": "note",
    "bank conflict": "note",
    "uncoalesced": "note",
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One defect. ``line`` of ``file`` is where it shows; ``other`` the line of the earlier access
    of a race. ``count``: how often it was seen. ``calls``: lines through which an inlined function
    was reached, outermost last."""

    kind: str
    severity: Severity
    message: str
    kernel: str
    file: str
    line: int
    other_file: str = ""
    other_line: int = 0
    count: int = 1
    calls: tuple[str, ...] = ()

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        place = f"{Path(self.file).name}:{self.line}: " if self.file else ""
        return f"{place}{self.kind}: {self.message}{times}"

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class Report:
    """Collects findings of one launch."""

    def __init__(self, kernel: str, operations: list[Instruction]) -> None:
        self.kernel = kernel
        self.operations = operations
        self._found: dict[tuple[Any, ...], list[Any]] = {}
        self.output: list[str] = []  # of the device's printf

    def add(
        self, kind: str, operation: int, message: str, other: int = -1, subject: str = "",
        count: int = 1,
    ) -> None:  # fmt: skip
        """``other``: number of the instruction on the other side, -1 for none."""
        here, there = self._place(operation), self._place(other)
        key = (kind, subject, here and str(here), there and str(there))
        entry = self._found.get(key)
        if entry is None:
            self._found[key] = [kind, here, there, message, count]
        else:
            entry[4] += count

    def _place(self, operation: int) -> Location | None:
        return self.operations[operation].location if operation >= 0 else None

    def line(self, operation: int) -> str:
        """Such as ``reduce.cu:14``."""
        instruction = self.operations[operation]
        place = instruction.location
        return f"{Path(place.file).name}:{place.line}" if place else instruction.where()

    def opcode(self, operation: int) -> str:
        """Such as ``cp.async.bulk``: the instruction without its types and qualifiers."""
        op = self.operations[operation].op
        known = [p for p in op[:5] if p in ("async", "bulk", "tensor", "mma_async", "global")]
        return ".".join((op[0], *known)) if op[0] in ("cp", "wgmma") else op[0]

    def findings(self) -> tuple[Finding, ...]:
        made = []
        for kind, here, there, message, count in self._found.values():
            made.append(
                Finding(
                    kind,
                    KINDS[kind],
                    message,
                    self.kernel,
                    here.file if here else "",
                    here.line if here else 0,
                    there.file if there else "",
                    there.line if there else 0,
                    count,
                    tuple(str(at) for at in here.chain()[1:]) if here else (),
                )
            )
        return tuple(sorted(made, key=lambda f: (f.severity, f.file, f.line, f.kind)))
