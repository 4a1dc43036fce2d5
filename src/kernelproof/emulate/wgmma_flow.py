"""Where registers of a wgmma may be touched while it is under way, found before the code runs.

A wgmma is asynchronous in its registers too: accumulators and fragments of A belong to it until the
warpgroup has waited for its group, and a wgmma.fence stands between other accesses to them and the
wgmma (ISA 9.7.15.2, 9.7.15.7.1). Of these, writes are asked about: a read has taken its value when
the wgmma is issued, and compilers let one register be a zero of the accumulator and another's
operand. Paths are joined, so what is found here is a suspicion, and
the machine looks whether it is so when it comes there. Moves between registers are followed: the
compiler makes copies of accumulators where the machine code has none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kernelproof.emulate.ptx import Address, Instruction

if TYPE_CHECKING:
    from kernelproof.emulate.lower import Block

_NO_RESULT = (
    "st", "red", "bar", "barrier", "bra", "brx", "ret", "exit", "trap", "membar", "fence", "cp",
    "prefetch", "prefetchu", "setmaxnreg", "wgmma", "stmatrix", "nanosleep", "griddepcontrol",
    "pragma", "discard", "applypriority", "mbarrier", "vprintf", "__assertfail",
)  # fmt: skip
# Bytes of an element of A and B.
BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1, "u8": 1, "e4m3": 1, "e5m2": 1}
_MOST = 9  # groups after which no wait_group keeps one

Flight = dict[str, dict[int, int]]


@dataclasses.dataclass(frozen=True)
class Product:
    """What the opcode says. ``number`` tells the wgmma instructions of a program apart."""

    operation: int
    number: int
    n: int
    types: tuple[str, str, str]  # d, a, b
    negate: bool
    a_transposed: bool
    b_transposed: bool

    @property
    def k(self) -> int:
        return 32 // BYTES[self.types[1]]


@dataclasses.dataclass
class State:
    """``results``, ``fragments``: registers in use, each with wgmma numbers and how many groups
    have been committed since (0: not yet committed). ``touched``: writes since the last fence,
    by register. ``begun``: a fence has been on every path."""

    results: Flight = dataclasses.field(default_factory=dict)
    fragments: Flight = dataclasses.field(default_factory=dict)
    touched: dict[str, set[int]] = dataclasses.field(default_factory=dict)
    begun: bool = False

    def copy(self) -> State:
        return State(
            {r: dict(v) for r, v in self.results.items()},
            {r: dict(v) for r, v in self.fragments.items()},
            {r: set(v) for r, v in self.touched.items()}, self.begun,
        )  # fmt: skip

    def join(self, other: State) -> bool:
        """Take in another path's state; whether anything changed."""
        changed = False
        for mine, theirs in ((self.results, other.results), (self.fragments, other.fragments)):
            for register, users in theirs.items():
                own = mine.setdefault(register, {})
                for number, groups in users.items():
                    if groups < own.get(number, _MOST + 1):
                        own[number], changed = groups, True
        for register, accesses in other.touched.items():
            known = self.touched.setdefault(register, set())
            changed |= not accesses <= known
            known |= accesses
        if self.begun and not other.begun:
            self.begun, changed = False, True
        return changed


@dataclasses.dataclass
class Checks:
    """For one instruction. ``used``: (wgmma numbers, words); ``touches``: the number under which
    its access is kept; ``unfenced``: numbers of accesses to ask about; ``first``: perhaps the first
    wgmma, with no fence before."""

    used: list[tuple[tuple[int, ...], str]] = dataclasses.field(default_factory=list)
    touches: int = -1
    unfenced: tuple[int, ...] = ()
    first: bool = False


def numbered(blocks: list[Block]) -> dict[int, int]:
    """The number of each wgmma.mma_async, by the instruction's identity."""
    found = [i for b in blocks for i in b.code if i.op[:2] == ("wgmma", "mma_async")]
    return {id(i): n for n, i in enumerate(found)}


def checks(blocks: list[Block], numbers: dict[int, int]) -> dict[int, Checks]:
    """What to look at where, by the instruction's identity."""
    if not numbers:
        return {}
    flow = _Flow(blocks, numbers)
    flow.run()
    return flow.found


class _Flow:
    def __init__(self, blocks: list[Block], numbers: dict[int, int]) -> None:
        self.blocks = blocks
        self.numbers = numbers
        self.order = {id(i): n for n, i in enumerate(i for b in blocks for i in b.code)}
        self.by_order = [i for b in blocks for i in b.code]
        self.found: dict[int, Checks] = {}
        self.interesting = self._interesting()

    def _interesting(self) -> set[str]:
        """Registers of wgmma, and those that moves connect with them."""
        out: set[str] = set()
        for i in self.by_order:
            if id(i) in self.numbers:
                results, fragments = _matrices(i)
                out |= {*results, *fragments}
        moves = [i for i in self.by_order if _moved(i)]
        grows = True
        while grows:
            before = len(out)
            for i in moves:
                if out & set(i.operands):
                    out |= set(i.operands)
            grows = len(out) > before
        return out

    def run(self) -> None:
        states: list[State | None] = [State(), *[None] * len(self.blocks)]
        work = [0]
        while work:
            n = work.pop()
            if n >= len(self.blocks):
                continue
            state = states[n]
            assert state is not None
            after = state.copy()
            for i in self._instructions(n):
                self._step(after, i, None)
            for target in self.blocks[n].targets:
                known = states[target]
                if known is None:
                    states[target] = after.copy()
                    work.append(target)
                elif known.join(after):
                    work.append(target)
        for n in range(len(self.blocks)):
            state = states[n]
            if state is not None:
                for i in self._instructions(n):
                    self._step(state, i, self.found)

    def _instructions(self, n: int) -> list[Instruction]:
        return self.blocks[n].code

    # ---- one instruction

    def _step(self, s: State, i: Instruction, found: dict[int, Checks] | None) -> None:
        if i.op[0] == "wgmma":
            self._wgmma(s, i, found)
            return
        moved = _moved(i)
        reads, writes = registers(i)
        reads &= self.interesting
        writes &= self.interesting
        if moved:
            to, source = i.operands
            if to in self.interesting:
                self._move(s, i, to, source, found)
            return
        for register in reads:
            self._use(i, s.results.get(register), "reads an accumulator", found)
        for register in writes:
            self._use(i, s.results.get(register), "overwrites an accumulator", found)
            self._use(i, s.fragments.get(register), "overwrites a fragment of A", found)
            if not i.guard:
                s.results.pop(register, None)
                s.fragments.pop(register, None)
                s.touched[register] = set()
            s.touched.setdefault(register, set()).add(self.order[id(i)])

    def _move(
        self, s: State, i: Instruction, to: str, source: Any, found: dict[int, Checks] | None
    ) -> None:
        users = s.results.get(source, {}) if isinstance(source, str) else {}
        if not users:
            self._use(i, s.results.get(to), "overwrites an accumulator", found)
        if to != source:
            self._use(i, s.fragments.get(to), "overwrites a fragment of A", found)
        touched = s.touched.get(source, set()) if isinstance(source, str) else set()
        if i.guard:
            s.results[to] = {**s.results.get(to, {}), **users}
            s.touched[to] = s.touched.get(to, set()) | touched
            return
        s.fragments.pop(to, None)
        s.results[to], s.touched[to] = dict(users), set(touched)

    def _use(self, i: Instruction, users: dict[int, int] | None, how: str, found: Any) -> None:
        if users and found is not None:
            made = found.setdefault(id(i), Checks())
            entry = (tuple(sorted(users)), how)
            if entry not in made.used:
                made.used.append(entry)

    def _wgmma(self, s: State, i: Instruction, found: dict[int, Checks] | None) -> None:
        what = i.op[1]
        if what == "fence":
            s.touched.clear()
            s.begun = True
        elif what == "commit_group":
            for flight in (s.results, s.fragments):
                for users in flight.values():
                    for number in users:
                        users[number] = min(users[number] + 1, _MOST)
        elif what == "wait_group":
            keep = int(i.operands[0], 0)
            for flight in (s.results, s.fragments):
                for register, users in list(flight.items()):
                    left = {n: c for n, c in users.items() if c == 0 or c <= keep}
                    flight[register] = left
                    if not left:
                        del flight[register]
        else:
            self._product(s, i, found)

    def _product(self, s: State, i: Instruction, found: dict[int, Checks] | None) -> None:
        results, fragments = _matrices(i)
        number = self.numbers[id(i)]
        for register in fragments:
            self._use(i, s.results.get(register), "takes as A an accumulator", found)
        for register in results:
            self._use(i, s.fragments.get(register), "overwrites a fragment of A", found)
        touched = set().union(*(s.touched.get(r, set()) for r in (*results, *fragments)))
        if found is not None and (touched or not s.begun):
            made = found.setdefault(id(i), Checks())
            made.unfenced = tuple(sorted(touched))
            made.first = not s.begun
            for access in touched:
                found.setdefault(id(self.by_order[access]), Checks()).touches = access
        for register in results:
            s.results[register] = {number: 0}
        for register in fragments:
            s.fragments.setdefault(register, {})[number] = 0


def _matrices(i: Instruction) -> tuple[list[str], list[str]]:
    """Registers of the accumulator, and of A where it is in registers."""
    a = i.operands[1]
    return list(i.operands[0]), list(a) if isinstance(a, tuple) else []


def _moved(i: Instruction) -> bool:
    return i.op[0] == "mov" and all(isinstance(x, str) for x in i.operands)


def registers(i: Instruction) -> tuple[set[str], set[str]]:
    """Names that an instruction reads, and those that it writes."""
    reads: set[str] = set()
    writes: set[str] = set()
    operands = list(i.operands)
    stores = i.op[0] == "wmma" and i.op[1] == "store"
    if i.op[0] not in _NO_RESULT and not stores and operands:
        first = operands.pop(0)
        (reads if isinstance(first, Address) else writes).update(names(first))
    for x in operands:
        reads.update(names(x))
    if i.guard:
        reads.add(i.guard)
    return reads, writes


def names(x: Any) -> Iterator[str]:
    """Registers and variables that an operand, or a list of them, names."""
    if isinstance(x, (tuple, list)):
        for y in x:
            yield from names(y)
    elif isinstance(x, Address):
        yield x.base
    elif isinstance(x, str):
        yield x.removeprefix("!")
