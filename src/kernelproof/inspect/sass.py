"""Which instructions a kernel is made of, from the text of NVIDIA's disassembler.

A class is named by what the instruction is called, with the width in bits where it moves memory:

    LDG.128         loads of global memory, 128 bits a thread (LD: through generic addresses)
    LDGSTS.128      copies from global to shared memory (cp.async)
    UBLKCP, UTMALDG bulk copies (TMA)
    HMMA, HGMMA ... tensor cores, by the instruction's name
    BAR, MBARRIER   waits of a block: named barriers, and barriers in shared memory

An instruction is in a loop where a branch goes back from it, or from behind it, to it or before it.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from kernelproof.inspect import tools
from kernelproof.types import InstructionMix

TENSOR = re.compile(r"(H|I|D|B|Q|O)M?MA$|(H|I|Q|B)GMMA$|UTC\w*MMA$")
_WIDE = ("LDG", "LD", "STG", "ST", "LDL", "STL", "LDS", "STS", "LDGSTS")
_NARROW = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "F16": 16, "BF16": 16}
_PLAIN = {
    "LDSM", "STSM", "UBLKCP", "UBLKPF", "FFMA", "FFMA2", "FADD", "FMUL", "DFMA", "DADD", "DMUL",
    "DSETP", "HFMA2", "HADD2", "HMUL2", "MUFU", "IMAD", "IDP", "SHFL", "ATOM", "ATOMG", "ATOMS",
    "RED", "REDG", "BAR", "MATCH", "VOTE", "REDUX", "WARPSYNC", "MEMBAR", "F2F", "F2FP", "LDTM",
}  # fmt: skip
_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)(.*)$")
_LABEL = re.compile(r"^(\.L_x?_?\w+):")
_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+)")


def disassemble(cubin: bytes) -> str:
    """The disassembler's text of a cubin.

    Raises:
        UnsupportedError: there is no disassembler; says how to get one.
        RuntimeError: it does not know the file.
    """
    found = tools.require("nvdisasm", "the instruction mix")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = tools.run([found, "-c", str(path)])
    if done.returncode:
        raise RuntimeError(f"{tools.version(found)}: {done.stderr.strip() or 'failed'}")
    return done.stdout


def mixes(text: str) -> dict[str, InstructionMix]:
    """The mix of each kernel of a disassembly, by its symbol.

    Raises RuntimeError for a text in which a kernel has no instructions: another format.
    """
    found = {name: _mix(lines) for name, lines in _sections(text)}
    if not found or not all(mix.total for mix in found.values()):
        raise RuntimeError("the disassembler's text has no instructions in the form known here")
    return found


def kind(opcode: str) -> str:
    """The class of an instruction such as "LDG.E.128.CONSTANT", "" for one that is not counted."""
    name, *modifiers = opcode.split(".")
    if name in _WIDE:
        bits = next((_NARROW[m] for m in modifiers if m in _NARROW), 32)
        return f"{name}.{next((int(m) for m in modifiers if m in ('64', '128', '256')), bits)}"
    if TENSOR.fullmatch(name) or name in _PLAIN:
        return name
    if name.startswith("UTMA"):
        return name
    return "MBARRIER" if name == "SYNCS" else ""


def is_tensor(name: str) -> bool:
    """Whether a class is of instructions for the tensor cores."""
    return TENSOR.fullmatch(name) is not None


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    name, lines = "", list[str]()
    for line in text.splitlines():
        found = _SECTION.match(line)
        if found is not None or line.lstrip().startswith((".section ", ".section\t")):
            if name:
                yield name, lines
            name, lines = found[1].strip('"') if found is not None else "", []
        elif name:
            lines.append(line)
    if name:
        yield name, lines


def _mix(lines: list[str]) -> InstructionMix:
    labels: dict[str, int] = {}
    waiting: list[str] = []
    found: list[tuple[int, str, str]] = []
    for line in lines:
        label = _LABEL.match(line)
        if label is not None:
            waiting.append(label[1])
        instruction = _LINE.match(line)
        if instruction is not None and instruction[2] != "NOP":
            at = int(instruction[1], 16)
            labels |= dict.fromkeys(waiting, at)
            waiting = []
            found.append((at, instruction[2], instruction[3]))
    loops = []
    for at, opcode, rest in found:
        target = re.search(r"`\((\.L\w+)\)", rest) if opcode.startswith("BRA") else None
        start = labels.get(target[1], at) if target is not None else at
        # The branch to itself that ends every kernel is no loop.
        if start < at:
            loops.append((start, at))
    inside = [any(a <= at <= b for a, b in loops) for at, _, _ in found]
    kinds = [kind(opcode) for _, opcode, _ in found]
    counts = Counter(k for k in kinds if k)
    within = Counter(k for k, looped in zip(kinds, inside, strict=True) if k and looped)
    return InstructionMix(
        total=len(found), counts=dict(sorted(counts.items())), loops=len(set(loops)),
        in_loops={"total": sum(inside), **dict(sorted(within.items()))},
    )  # fmt: skip
