"""What PTX text consists of: functions, variables and instructions that keep their source lines.

What an instruction does is the business of `semantics`. The format is that of the PTX ISA
reference, chapters 4 and 5.
"""

from __future__ import annotations

import dataclasses
from typing import Any

WIDTHS = {
    "pred": 1, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "tf32": 4,
    "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Location:
    """A line of the source, and where its function was inlined, outermost last."""

    file: str
    line: int
    inlined: Location | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def chain(self) -> list[Location]:
        """This line, then the calls that led to it."""
        found, at = [self], self.inlined
        while at is not None:
            found.append(at)
            at = at.inlined
        return found


@dataclasses.dataclass(frozen=True)
class Address:
    """``[base + offset]``; ``base`` is a register, a name, or "" for an absolute address."""

    base: str
    offset: int


# A register, name or number; a vector in braces; an address in brackets; or, of a tensor map, a
# pair of an address and coordinates.
Operand = Any


@dataclasses.dataclass
class Instruction:
    """``op`` is the opcode split at its dots; ``guard`` the predicate register or ""."""

    op: tuple[str, ...]
    operands: list[Operand]
    guard: str = ""
    negated: bool = False
    location: Location | None = None
    line: int = 0  # of the PTX text

    @property
    def name(self) -> str:
        return ".".join(self.op)

    def where(self) -> str:
        return str(self.location) if self.location else f"PTX line {self.line}"


@dataclasses.dataclass(frozen=True)
class Variable:
    """A declared array of bytes in one state space; ``size`` 0 is the dynamic shared array."""

    name: str
    space: str
    align: int
    size: int
    data: bytes = b""
    names: tuple[tuple[int, str], ...] = ()  # offsets that hold addresses of other variables


@dataclasses.dataclass
class Function:
    """``params`` and ``results`` are (name, bytes); ``body`` holds labels and instructions."""

    name: str
    entry: bool
    params: list[tuple[str, int]]
    results: list[tuple[str, int]]
    registers: dict[str, str] = dataclasses.field(default_factory=dict)
    variables: list[Variable] = dataclasses.field(default_factory=list)
    tables: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    body: list[str | Instruction] = dataclasses.field(default_factory=list)
    defined: bool = True
    cluster: tuple[int, int, int] | None = None  # .reqnctapercluster


@dataclasses.dataclass
class Module:
    """One PTX file."""

    functions: dict[str, Function]
    variables: dict[str, Variable]
    target: str = ""

    def entries(self) -> list[str]:
        return [f.name for f in self.functions.values() if f.entry]
