"""Python source for one basic block: registers become local variables, instructions numpy calls.

A block's function takes the machine, its registers and the set of active threads. It reads the
registers that it needs, once, and writes back those that live on. Values are arrays over the
active threads, or numpy scalars where all threads of the launch hold the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from kernelproof.emulate.ptx import WIDTHS, Address, Instruction
from kernelproof.errors import UnsupportedError

DTYPES = {
    "pred": "?", "b8": "u1", "u8": "u1", "s8": "i1", "b16": "u2", "u16": "u2", "s16": "i2",
    "f16": "f2", "bf16": "u2", "b32": "u4", "u32": "u4", "s32": "i4", "f32": "f4", "f16x2": "u4",
    "bf16x2": "u4", "tf32": "f4", "b64": "u8", "u64": "u8", "s64": "i8", "f64": "f8",
}  # fmt: skip

_SPECIAL = re.compile(
    r"%(tid|ntid|ctaid|nctaid|cluster_ctaid|cluster_nctaid|clusterid|nclusterid)(\.[xyz])?|"
    r"%(cluster_ctarank|cluster_nctarank)|%(laneid|warpid|nwarpid|smid|nsmid|gridid|"
    r"lanemask_(eq|le|lt|ge|gt)|dynamic_smem_size|total_smem_size)"
)
_CLOCKS = ("%clock", "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo")
_INTEGER = re.compile(r"-?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?")


class Emitter:
    """Collects the lines of one block.

    ``registers``: kind of each register. ``address_of``: the address of a variable, or None.
    ``env``: the namespace that all blocks share; constants and operations are put there.
    """

    def __init__(
        self,
        registers: dict[str, str],
        address_of: Callable[[str], int | None],
        env: dict[str, Any],
        operations: list[Instruction],
    ) -> None:
        self.registers = registers
        self.address_of = address_of
        self.env = env
        self.operations = operations
        self.lines: list[str] = []
        self.exposed: dict[str, str] = {}
        self.values: dict[str, dict[str, str]] = {}
        self.written: set[str] = set()
        self.guard = "None"
        self.instruction: Instruction | None = None
        self._count = 0

    # ---- names and lines

    def line(self, text: str) -> None:
        self.lines.append(text)

    def fresh(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def let(self, expression: str) -> str:
        """A new variable with this value."""
        name = self.fresh()
        self.lines.append(f"{name} = {expression}")
        return name

    def share(self, prefix: str, value: Any) -> str:
        """A name for an object in the namespace."""
        name = f"{prefix}{len(self.env)}"
        self.env[name] = value
        return name

    def constant(self, value: int | float, dtype: str) -> str:
        kind = np.dtype(dtype)
        if kind.kind in "iu":
            wrapped = int(value) % (1 << 8 * kind.itemsize)
            made: Any = np.dtype(f"u{kind.itemsize}").type(wrapped).view(kind)
        else:
            made = kind.type(value)
        key = f"c_{dtype.replace('?', 'b')}_{made.tobytes().hex()}"
        self.env[key] = made
        return key

    def operation(self) -> int:
        """The number under which the present instruction is reported."""
        assert self.instruction is not None
        if not self.operations or self.operations[-1] is not self.instruction:
            self.operations.append(self.instruction)
        return len(self.operations) - 1

    def unsupported(self, why: str = "") -> UnsupportedError:
        assert self.instruction is not None
        text = f"the instruction `{self.instruction.name}`"
        return UnsupportedError(
            f"{text} at {self.instruction.where()} is not emulated{': ' if why else ''}{why}"
        )

    # ---- operands

    def read(self, operand: Any, ty: str) -> str:
        """The name of the operand's value as numpy type of the PTX type ``ty``."""
        dtype = DTYPES[ty]
        if not isinstance(operand, str):
            raise self.unsupported(f"operand {operand!r}")
        if operand.startswith("!"):
            return self.let(f"~{self.read(operand[1:], ty)}")
        if operand in self.registers or _SPECIAL.fullmatch(operand):
            return self._register(operand, dtype)
        return self._literal(operand, dtype)

    def _register(self, name: str, dtype: str) -> str:
        views = self.values.get(name)
        if views is None:
            own = DTYPES[self.kind(name)]
            local = self.fresh()
            self.exposed[name] = local
            views = self.values[name] = {own: local}
        if dtype in views:
            return views[dtype]
        have, source = next(iter(views.items()))
        size, wanted = np.dtype(have).itemsize, np.dtype(dtype).itemsize
        if have == "?" or dtype == "?":
            views[dtype] = self.let(f"{source}.astype('{dtype}')")
        elif size == wanted:
            views[dtype] = self.let(f"{source}.view('{dtype}')")
        else:
            bits = f"{source}.view('u{size}').astype('u{wanted}')"
            views[dtype] = self.let(bits if dtype[0] == "u" else f"{bits}.view('{dtype}')")
        return views[dtype]

    def kind(self, name: str) -> str:
        return self.registers.get(name, "u32")

    def _literal(self, text: str, dtype: str) -> str:
        if _INTEGER.fullmatch(text):
            value = int(text.rstrip("U"), 0)
            if np.dtype(dtype).kind == "f":
                return self.constant(float(value), dtype)
            return self.constant(value, dtype)
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
            made: Any = np.uint32(int(text[2:], 16)).view(np.float32)
            return self._float(made, dtype)
        if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", text):
            return self._float(np.uint64(int(text[2:], 16)).view(np.float64), dtype)
        if re.fullmatch(r"-?\d+\.\d*([eE][-+]?\d+)?", text):
            return self.constant(float(text), dtype)
        if text == "WARP_SZ":
            return self.constant(32, dtype)
        if text in ("%pm0", *_CLOCKS):
            return self.let(f"S.clock('{dtype}')")
        address = self.address_of(text)
        if address is not None:
            return self.constant(address, dtype)
        raise self.unsupported(f"operand {text!r}")

    def _float(self, value: Any, dtype: str) -> str:
        if np.dtype(dtype).kind != "f":
            value = value.view(f"u{value.dtype.itemsize}").astype(f"u{np.dtype(dtype).itemsize}")
        key = f"c_{dtype}_{value.tobytes().hex()}"
        self.env[key] = value.astype(dtype)
        return key

    def address(self, operand: Address) -> str:
        """The address as int64."""
        if operand.base in self.registers:
            wide = WIDTHS[self.registers[operand.base]] == 8
            base = self.read(operand.base, "s64" if wide else "u32")
            base = base if wide else self.let(f"{base}.astype('i8')")
            return self.let(f"{base} + {operand.offset}") if operand.offset else base
        start = 0 if operand.base == "" else self.address_of(operand.base)
        if start is None:
            raise self.unsupported(f"address {operand.base!r}")
        return self.constant(start + operand.offset, "i8")

    # ---- results

    def write(self, operand: Any, expression: str, ty: str) -> None:
        """Assign; ``expression`` has numpy's type of ``ty``. Under a guard the other threads keep
        their value."""
        if operand == "_":
            self.line(expression)
            return
        dtype = DTYPES[ty]
        if operand not in self.registers:
            raise self.unsupported(f"destination {operand!r}")
        size = 1 if dtype == "?" else np.dtype(dtype).itemsize
        wanted = WIDTHS[self.registers[operand]]
        if size != wanted:
            # Narrow results are extended to the register by their type's sign.
            dtype = dtype[0].replace("f", "u") + str(wanted)
            expression = f"({expression}).astype('{dtype}')"
        if self.guard != "None":
            old = self._register(operand, dtype)
            expression = f"np.where({self.guard}, {expression}, {old})"
        self.values[operand] = {dtype: self.let(expression)}
        self.written.add(operand)

    def exit_value(self, name: str) -> str:
        """The value of a register at the block's end, in its own type."""
        return self._register(name, DTYPES[self.kind(name)])

    def result(self, expressions: str, operands: tuple[Any, ...] | list[Any], ty: str) -> None:
        """Assign the parts of a tuple."""
        names = [self.fresh() for _ in operands]
        self.line(f"{', '.join(names)}{',' if len(names) == 1 else ''} = {expressions}")
        for operand, name in zip(operands, names, strict=True):
            if operand != "_":
                self.write(operand, name, ty)
