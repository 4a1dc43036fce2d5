"""One kernel ready to run: a Python function per basic block."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np

from kernelproof.emulate import eights, numeric, wgmma_flow
from kernelproof.emulate.emitter import DTYPES, Emitter
from kernelproof.emulate.lower import Block, Flat, flatten, is_barrier
from kernelproof.emulate.memory.access import Access
from kernelproof.emulate.memory.layout import GLOBAL_BASE, RED_ZONE, Region, place
from kernelproof.emulate.overflow import index_products
from kernelproof.emulate.ptx import Instruction, Module, Variable
from kernelproof.emulate.semantics import emit
from kernelproof.emulate.semantics.arithmetic import watch_product
from kernelproof.emulate.semantics.wgmma import watch_registers


@dataclasses.dataclass
class Program:
    """``blocks[n](machine, registers, active)`` returns the next block, an array of next blocks,
    or (condition, block if true, block if false); None when a barrier took over. The number of
    blocks is the exit."""

    name: str
    module: Module
    blocks: list[Any]
    waits: list[int]
    source: str
    env: dict[str, Any]
    operations: list[Instruction]
    register_types: list[str]
    register_names: list[str]
    params: list[tuple[int, int]]  # offset, bytes
    param_bytes: int
    shared: list[Region]
    shared_bytes: int
    dynamic_at: int  # offset of the dynamic shared array, -1 for none
    dynamic_name: str
    local: list[Region]
    local_bytes: int
    module_bytes: int  # module variables, at the start of global memory
    module_regions: list[Region]
    module_variables: list[Variable]
    units: dict[str, int]  # narrowest access per space
    block_operations: list[int]  # one instruction of each block, for messages; -1 for none
    parameters_at: int  # where in global memory the parameters lie too; -1: they do not
    cluster: tuple[int, int, int] | None  # blocks, where the kernel declares it
    asynchronous: bool  # shared memory is used by the async proxy too

    @property
    def static_shared(self) -> int:
        """Bytes of shared memory that the kernel declares with a size."""
        return sum(region.size for region in self.shared)

    @property
    def accesses(self) -> list[Access]:
        return [x for x in self.env.values() if isinstance(x, Access)]


def build(module: Module, name: str, split: bool = False) -> Program:
    """Prepare the entry ``name``.

    Raises:
        UnsupportedError: an instruction has no meaning here; names it and its line.
    """
    return _Builder(module, flatten(module, name, split)).program()


class _Builder:
    def __init__(self, module: Module, flat: Flat) -> None:
        self.module = module
        self.flat = flat
        self.operations: list[Instruction] = []
        self.first_operations: list[int] = []
        numbers = wgmma_flow.numbered(flat.blocks)
        self.suspects = wgmma_flow.checks(flat.blocks, numbers)
        self.env: dict[str, Any] = {
            "np": np, "N": numeric, "E": eights, "wgmma_numbers": numbers,
            "read_registers": _read(flat),
        }  # fmt: skip
        self.addresses: dict[str, int] = dict(flat.params)
        self.products = index_products(flat.blocks)
        self._place()

    def _place(self) -> None:
        variables = {**self.module.variables, **self.flat.variables}
        used = _names(self.flat) | set(self.flat.variables)
        by_space: dict[str, list[Variable]] = {"shared": [], "local": [], "global": []}
        dynamic: list[Variable] = []
        for variable in variables.values():
            space = "global" if variable.space == "const" else variable.space
            if space == "shared" and variable.name not in used:
                continue
            if space == "shared" and variable.size == 0:
                dynamic.append(variable)
            else:
                by_space[space].append(variable)
        self.shared, shared_end = self._regions(by_space["shared"], complete=False)
        self.local, self.local_bytes = self._regions(by_space["local"], complete=False)
        align = max([RED_ZONE, *(v.align for v in dynamic)])
        self.dynamic_at = -(-shared_end // align) * align if dynamic else -1
        self.dynamic_name = _plain(dynamic[0].name) if dynamic else ""
        for variable in dynamic:
            self.addresses[variable.name] = self.dynamic_at
        self.shared_bytes = self.dynamic_at if dynamic else shared_end
        self.global_variables = by_space["global"]
        self.globals, self.module_bytes = self._regions(
            by_space["global"], complete=True, base=GLOBAL_BASE
        )
        self._place_parameters()

    def _place_parameters(self) -> None:
        """A copy of the parameters in global memory, where the kernel takes their address."""
        code = (i for block in self.flat.blocks for i in block.code)
        self.parameters_at = -1
        if any(i.op[0] == "cvta" and "param" in i.op for i in code):
            self.parameters_at = -(-self.module_bytes // 512) * 512 + 512
        self.env["parameters_at"] = GLOBAL_BASE + max(self.parameters_at, 0)

    def _regions(
        self, variables: list[Variable], complete: bool, base: int = 0
    ) -> tuple[list[Region], int]:
        sizes = [(v.name, v.size, max(v.align, 16)) for v in variables]
        first = RED_ZONE if base else 0
        offsets, end = place(sizes, first)
        regions = []
        for variable, offset in zip(variables, offsets, strict=True):
            self.addresses[variable.name] = base + offset
            regions.append(
                Region(
                    _plain(variable.name), offset, offset + variable.size, complete,
                    constant=variable.space == "const",
                )
            )  # fmt: skip
        return regions, end if variables else first

    # ---- code

    def program(self) -> Program:
        bodies = [self._body(block, n) for n, block in enumerate(self.flat.blocks)]
        live = _live([(e.exposed, e.written, b.targets) for (e, _), b in
                      zip(bodies, self.flat.blocks, strict=True)])  # fmt: skip
        # A special register is read only; all others are numbered as they are seen.
        names = sorted({r for (e, _) in bodies for r in (*e.exposed, *e.written)})
        number = {name: i for i, name in enumerate(names)}
        parts = []
        for n, (emitter, ending) in enumerate(bodies):
            # A barrier's result is written where the barrier ends.
            parts.append(self._function(n, emitter, ending, live[n], number))
        source = "\n".join(parts)
        exec(compile(source, f"<{self.flat.name}>", "exec"), self.env)
        blocks = [self.env[f"block{n}"] for n in range(len(bodies))]
        kinds = bodies[0][0] if bodies else None
        assert kinds is not None
        return Program(
            self.flat.name, self.module, blocks, [b.waits for b in self.flat.blocks], source,
            self.env, self.operations, [DTYPES[kinds.kind(name)] for name in names], names,
            *self._parameters(), self.shared, self.shared_bytes, self.dynamic_at,
            self.dynamic_name, self.local, self.local_bytes, self.module_bytes, self.globals,
            self.global_variables,
            self._units(), self.first_operations, self.parameters_at,
            self.module.functions[self.flat.name].cluster, any(map(_asynchronous, self.operations)),
        )  # fmt: skip

    def _parameters(self) -> tuple[list[tuple[int, int]], int]:
        sizes = dict(self.module.functions[self.flat.name].params)
        params = [(offset, sizes[name]) for name, offset in self.flat.params.items()]
        return params, max((o + s for o, s in params), default=0)

    def _units(self) -> dict[str, int]:
        units = {"global": 16, "shared": 16, "local": 16}
        for m in self.env.values():
            if not isinstance(m, Access):
                continue
            size = np.dtype(m.dtype).itemsize if m.dtype != "u1" or m.count == 1 else m.count
            spaces = tuple(units) if m.space == "generic" else (m.space,)
            for space in spaces:
                space = "global" if space == "const" else space
                if space in units:
                    units[space] = min(units[space], size)
        return units

    def _body(self, block: Block, n: int) -> tuple[Emitter, str]:
        e = Emitter(self.flat.registers, self.addresses.get, self.env, self.operations)
        instructions = [*block.code, *([block.end] if block.end else [])]
        if instructions:
            e.instruction = instructions[0]
        self.first_operations.append(e.operation() if instructions else -1)
        for instruction in block.code:
            if id(instruction) in self.products:
                watch_product(e, instruction)
            if id(instruction) in self.suspects:
                watch_registers(e, instruction, self.suspects[id(instruction)])
            emit(e, instruction)
        e.guard = "None"
        end = block.end
        if end is None:
            return e, f"return {n + 1}"
        e.instruction = end
        condition = ""
        if end.guard:
            condition = e.read(f"!{end.guard}" if end.negated else end.guard, "pred")
        last = len(self.flat.blocks)
        if is_barrier(end):
            return e, self._barrier(e, end, n + 1)
        if end.op[0] == "bra":
            taken = block.targets[0]
            return e, f"return ({condition}, {taken}, {n + 1})" if condition else f"return {taken}"
        if end.op[0] == "brx":
            table = e.share("T", np.array(block.targets))
            index = e.read(end.operands[0], "u32")
            return e, f"return {table}[A.spread({index}).astype('i8')]"
        return e, f"return ({condition}, {last}, {n + 1})" if condition else f"return {last}"

    def _barrier(self, e: Emitter, i: Instruction, after: int) -> str:
        operation = e.operation()
        if "warp" in i.op:
            return f"return S.warp_barrier({operation}, {e.read(i.operands[0], 'u32')}, A, {after})"
        if "cluster" in i.op:
            acquires = "relaxed" not in i.op
            return f"return S.cluster_wait({operation}, {acquires}, A, {after})"
        kind = next(k for k in ("sync", "arrive", "red") if k in i.op)
        operands, target, how, value = list(i.operands), "None", "None", "None"
        if kind == "red":
            how = next(h for h in ("and", "or", "popc") if h in i.op)
            target = repr(operands.pop(0))
            value = e.read(operands.pop(), "pred")
            e.written.add(target.strip("'"))
            e.values.pop(target.strip("'"), None)
        identity = e.read(operands[0], "u32") if operands else "np.uint32(0)"
        count = e.read(operands[1], "u32") if len(operands) > 1 else "None"
        return (
            f"return S.barrier({operation}, '{kind}', {identity}, {count}, A, {after}, "
            f"({target}, '{how}', {value}))"
        )

    def _function(
        self, n: int, e: Emitter, ending: str, live: set[str], number: dict[str, int]
    ) -> str:
        lines = [f"def block{n}(S, R, A):", " I = A.index"]
        reads = [(local, number[name]) for name, local in e.exposed.items()]
        if reads:
            lines.append(" if I is None:")
            lines += [f"  {local} = R[{k}]" for local, k in reads]
            lines.append(" else:")
            lines += [f"  {local} = R[{k}]" for local, k in reads]
            lines += [f"  if {local}.ndim: {local} = {local}[I]" for local, k in reads]
        lines += [" " + line for line in e.lines]
        before = len(e.lines)
        out = [(number[r], e.exit_value(r)) for r in sorted(e.written & live) if r in e.values]
        lines += [" " + line for line in e.lines[before:]]
        if out:
            lines.append(" if I is None:")
            lines += [f"  R[{k}] = {local}" for k, local in out]
            lines.append(" else:")
            lines += [f"  S.put(R, {k}, {local}, I)" for k, local in out]
        lines.append(" " + ending)
        return "\n".join(lines)


def _names(flat: Flat) -> set[str]:
    """Every name that the code mentions."""
    return {x for b in flat.blocks for i in b.code for x in wgmma_flow.names(i.operands)}


def _read(flat: Flat) -> set[str]:
    """Registers that some instruction reads."""
    every = (i for b in flat.blocks for i in (*b.code, *([b.end] if b.end else [])))
    return set().union(*(wgmma_flow.registers(i)[0] for i in every))


def _asynchronous(i: Instruction) -> bool:
    return i.op[:2] == ("wgmma", "mma_async") or (i.op[0] == "cp" and "bulk" in i.op)


def _live(blocks: list[tuple[dict[str, str], set[str], list[int]]]) -> list[set[str]]:
    """Registers that are read after each block, by the usual backward iteration."""
    after: list[set[str]] = [set() for _ in blocks]
    before: list[set[str]] = [set(exposed) for exposed, _, _ in blocks]
    changed = True
    while changed:
        changed = False
        for n in range(len(blocks) - 1, -1, -1):
            exposed, written, targets = blocks[n]
            out = (
                set().union(*(before[t] for t in targets if t < len(blocks))) if targets else set()
            )
            if out != after[n]:
                after[n] = out
                new = set(exposed) | (out - written)
                if new != before[n]:
                    before[n] = new
                    changed = True
    return after


def _plain(name: str) -> str:
    """The source's name of a variable, out of the mangled one (Itanium C++ ABI, 5.1): the last
    of its length-prefixed parts."""
    if not name.startswith("_Z"):
        return name
    text, at, found = re.sub(r"L[a-z]n?\d+E", "", name), 0, name
    while at < len(text):
        digits = re.match(r"\d+", text[at:])
        if digits is None:
            at += 1
            continue
        at += len(digits[0])
        part = text[at : at + int(digits[0])]
        found = part if part.isidentifier() else found
        at += len(part)
    return found
