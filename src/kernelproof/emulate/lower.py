"""From functions to basic blocks: calls inlined, guarded jumps straightened, parameters of calls
turned into registers."""

from __future__ import annotations

import dataclasses
from typing import Any

from kernelproof.emulate.ptx import (
    WIDTHS,
    Address,
    Function,
    Instruction,
    Location,
    Module,
    Variable,
)
from kernelproof.emulate.semantics.warp import COLLECTIVE, WARPGROUP
from kernelproof.errors import UnsupportedError

BUILTIN = ("vprintf", "__assertfail")
_ENDS = ("bra", "brx", "ret", "exit", "trap", "bar", "barrier")


@dataclasses.dataclass
class Block:
    """``code`` without its last jump or barrier, which is ``end`` (None: falls through)."""

    code: list[Instruction]
    end: Instruction | None = None
    targets: list[int] = dataclasses.field(default_factory=list)
    # Starts with an operation of 32 threads (a warp) or 128, where a part waits for the rest.
    waits: int = 0


@dataclasses.dataclass
class Flat:
    """One kernel without calls."""

    name: str
    blocks: list[Block]
    registers: dict[str, str]
    params: dict[str, int]
    variables: dict[str, Variable]
    tables: dict[str, list[str]]


def flatten(module: Module, name: str, split: bool) -> Flat:
    """``split``: operations of whole warps start a block of their own."""
    lowering = _Lowering(module, module.functions[name])
    return lowering.run(split)


class _Lowering:
    def __init__(self, module: Module, entry: Function) -> None:
        self.module = module
        self.entry = entry
        self.registers: dict[str, str] = {"%cc": "b32"}
        self.variables: dict[str, Variable] = {}
        self.tables: dict[str, list[str]] = {}
        self.body: list[str | Instruction] = []
        self.count = 0

    def run(self, split: bool) -> Flat:
        self._inline(self.entry, "", {}, [], None)
        params, offset = {}, 0
        for name, size in self.entry.params:
            # ISA 5.1.6: natural alignment; that of structures is 16 at most and given by layout.
            align = min(size & -size, 16) if size else 1
            offset = -(-offset // align) * align
            params[name] = offset
            offset += size
        blocks = _blocks(self.body, self.tables, split)
        return Flat(self.entry.name, blocks, self.registers, params, self.variables, self.tables)

    # ---- inlining

    def _inline(
        self, function: Function, suffix: str, params: dict[str, str], stack: list[str],
        called: Location | None,
    ) -> None:  # fmt: skip
        """Append the body with names made unique; ``params`` maps formal to actual parameters."""
        if function.name in stack:
            raise UnsupportedError(f"the recursive device function {function.name} is not emulated")
        stack = [*stack, function.name]
        renames = dict(params)
        for register, kind in function.registers.items():
            renames[register] = register + suffix
            self.registers[register + suffix] = kind
        for variable in function.variables:
            own = variable.name + (suffix if variable.space in ("local", "param") else "")
            renames[variable.name] = own
            if variable.space != "param":
                self.variables[own] = dataclasses.replace(variable, name=own)
        labels = [x for x in function.body if isinstance(x, str)]
        renames |= {label: label + suffix for label in labels}
        for table, targets in function.tables.items():
            renames[table] = table + suffix
            self.tables[table + suffix] = [renames[t] for t in targets]
        done = f"$return{suffix}"
        for item in function.body:
            if isinstance(item, str):
                self.body.append(renames[item])
                continue
            made = _renamed(item, renames, called)
            if made.op[0] == "call":
                self._call(made, stack)
            elif made.op[0] == "ret" and suffix:
                self.body.append(dataclasses.replace(made, op=("bra",), operands=[done]))
            else:
                self.body += self._parameters(made)
        if suffix:
            self.body.append(done)

    def _call(self, i: Instruction, stack: list[str]) -> None:
        results = i.operands[0] if isinstance(i.operands[0], list) else []
        rest = i.operands[1:] if results else i.operands
        name, actual = rest[0], rest[1] if len(rest) > 1 else []
        where = f"{i.where()}"
        if name in BUILTIN:
            operands = [*(f"{p}+0" for p in results), *(f"{p}+0" for p in actual)]
            operands = operands if results else ["_", *operands]
            for result in results:
                self.registers.setdefault(f"{result}+0", "b32")
            call = dataclasses.replace(i, op=(name,), operands=operands)
            self.body += self._guarded(call)
            if name == "__assertfail":
                self.body.append(dataclasses.replace(i, op=("exit",), operands=[]))
            return
        function = self.module.functions.get(name)
        if function is None or not function.defined:
            raise UnsupportedError(
                f"the call of {name} at {where} is not emulated: its code is not in this PTX"
            )
        self.count += 1
        suffix = f"#{self.count}"
        params = {formal: given for (formal, _), given in zip(function.params, actual, strict=True)}
        params |= {formal: g for (formal, _), g in zip(function.results, results, strict=True)}
        skip = f"$skip{suffix}"
        if i.guard:
            self.body.append(
                dataclasses.replace(i, op=("bra",), operands=[skip], negated=not i.negated)
            )
        self._inline(function, suffix, params, stack, i.location)
        if i.guard:
            self.body.append(skip)

    def _guarded(self, i: Instruction) -> list[str | Instruction]:
        return [i]

    def _parameters(self, i: Instruction) -> list[str | Instruction]:
        """Loads and stores of call parameters become moves between registers; those of the kernel
        stay."""
        if i.op[0] not in ("ld", "st") or not any(p.split("::")[0] == "param" for p in i.op):
            return [i]
        loads = i.op[0] == "ld"
        address, values = (i.operands[1], i.operands[0]) if loads else i.operands
        assert isinstance(address, Address)
        own = {name for name, _ in self.entry.params}
        if address.base in own or address.base in self.registers:
            return [i]
        parts = values if isinstance(values, tuple) else (values,)
        width = WIDTHS[i.op[-1]]
        made: list[str | Instruction] = []
        for n, part in enumerate(parts):
            register = f"{address.base}+{address.offset + n * width}"
            self.registers.setdefault(register, f"b{8 * width}")
            ends = [part, register] if loads else [register, part]
            made.append(dataclasses.replace(i, op=("mov", f"b{8 * width}"), operands=ends))
        return made


def _renamed(i: Instruction, names: dict[str, str], called: Location | None) -> Instruction:
    def rename(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(rename(y) for y in x)
        if isinstance(x, list):
            return [rename(y) for y in x]
        if isinstance(x, Address):
            return Address(names.get(x.base, x.base), x.offset)
        if isinstance(x, str) and x.startswith("!"):
            return "!" + names.get(x[1:], x[1:])
        return names.get(x, x)

    location = i.location
    if called is not None and location is not None:
        outermost = location.chain()[-1]
        location = _below(location, outermost, called)
    guard = names.get(i.guard, i.guard)
    return dataclasses.replace(
        i, operands=[rename(x) for x in i.operands], guard=guard, location=location
    )


def _below(location: Location, last: Location, called: Location) -> Location:
    if location is last:
        return Location(location.file, location.line, called)
    assert location.inlined is not None
    return Location(location.file, location.line, _below(location.inlined, last, called))


# ---- blocks


def is_barrier(i: Instruction) -> bool:
    """Whether threads wait there; an arrival at the cluster's barrier does not."""
    return i.op[0] in ("bar", "barrier") and i.op[1:3] != ("cluster", "arrive")


def _blocks(
    body: list[str | Instruction], tables: dict[str, list[str]], split: bool
) -> list[Block]:
    blocks: list[Block] = [Block([])]
    labels: dict[str, int] = {}
    open_ = True  # the last block can take more

    def start() -> Block:
        nonlocal open_
        if not open_ or blocks[-1].code or blocks[-1].waits:
            blocks.append(Block([]))
        open_ = True
        return blocks[-1]

    for item in body:
        if isinstance(item, str):
            start()
            labels[item] = len(blocks) - 1
            continue
        if not open_:
            start()
        name = item.op[0]
        if name in _ENDS and (is_barrier(item) or name not in ("bar", "barrier")):
            warp_barrier = is_barrier(item) and "warp" in item.op
            if is_barrier(item) and item.guard:
                # The guard becomes a jump around the barrier.
                around = f"$around{len(blocks)}"
                blocks[-1].end = dataclasses.replace(
                    item, op=("bra",), operands=[around], negated=not item.negated
                )
                blocks.append(Block([]))
                item = dataclasses.replace(item, guard="", negated=False)
                labels[around] = len(blocks)
            elif warp_barrier:
                start()
            if warp_barrier:
                blocks[-1].waits = 32
            blocks[-1].end = item
            open_ = False
            continue
        if name in WARPGROUP and blocks[-1].waits < 128:
            start().waits = 128
        elif split and name in COLLECTIVE:
            start().waits = 32
        blocks[-1].code.append(item)
        if split and name in COLLECTIVE:
            open_ = False
    blocks.append(Block([]))
    for n, block in enumerate(blocks):
        block.targets = _targets(block, n, labels, tables)
    return blocks


def _targets(
    block: Block, n: int, labels: dict[str, int], tables: dict[str, list[str]]
) -> list[int]:
    """Blocks that may follow; for a branch the one taken comes first."""
    end = block.end
    if end is None or is_barrier(end):
        return [n + 1]
    if end.op[0] == "bra":
        return [labels[end.operands[0]]] + ([n + 1] if end.guard else [])
    if end.op[0] == "brx":
        return [labels[target] for target in tables[end.operands[1]]]
    return [n + 1] if end.guard else []
