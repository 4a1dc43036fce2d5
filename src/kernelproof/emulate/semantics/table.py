"""The table itself, which the modules of this package fill."""

from __future__ import annotations

from collections.abc import Callable

from kernelproof.emulate.emitter import Emitter
from kernelproof.emulate.ptx import Instruction

Rule = Callable[[Emitter, Instruction], None]

TABLE: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a function under these opcodes (the part before the first dot)."""

    def enter(function: Rule) -> Rule:
        for name in names:
            TABLE[name] = function
        return function

    return enter


def emit(e: Emitter, i: Instruction) -> None:
    """Emit one instruction.

    Raises:
        UnsupportedError: with its name and line, where the table has no meaning for it.
    """
    e.instruction = i
    found = TABLE.get(i.op[0])
    if found is None:
        raise e.unsupported()
    e.guard = "None"
    if i.guard:
        e.guard = e.read(f"!{i.guard}" if i.negated else i.guard, "pred")
    found(e, i)
