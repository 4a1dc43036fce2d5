"""What the assembler made of attend_wgmma: looked for in the text of the disassembler."""

from __future__ import annotations

import re

_LINE = re.compile(
    r"^\s*/\*(?P<at>[0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(?P<op>[A-Z][A-Zx0-9_.]*)\s*(?P<rest>[^;]*);"
)
_LABEL = re.compile(r"^(\.L_x?_?\w+):")
_NO_RESULT = ("ST", "BRA", "BAR", "SYNCS", "RED", "WARP", "UTMA", "EXIT", "BSSY", "BSYNC", "NOP")
_WORDS = {"64": 2, "128": 4}

Instruction = tuple[int, str, str]  # address, opcode, operands


def instructions(text: str) -> tuple[list[Instruction], list[tuple[int, int]]]:
    """Those of a kernel, and its loops as addresses of their first and last instruction."""
    labels: dict[str, int] = {}
    waiting: list[str] = []
    found: list[Instruction] = []
    for line in text.splitlines():
        if (label := _LABEL.match(line)) is not None:
            waiting.append(label[1])
        if (match := _LINE.match(line)) is not None:
            at = int(match["at"], 16)
            labels |= dict.fromkeys(waiting, at)
            waiting = []
            found.append((at, match["op"], match["rest"]))
    loops = []
    for at, op, rest in found:
        target = re.search(r"`\((\.L\w+)\)", rest) if op.startswith("BRA") else None
        if target is not None and labels.get(target[1], at) < at:
            loops.append((labels[target[1]], at))
    return found, loops


def main_loop(text: str) -> list[Instruction]:
    """The smallest loop with both products and a tile's exponentials, in the order of addresses."""
    found, loops = instructions(text)
    bodies = [[i for i in found if first <= i[0] <= last] for first, last in loops]
    both = [
        body for body in bodies
        if any(op.startswith("IGMMA") for _, op, _ in body)
        and any(op.startswith("HGMMA") for _, op, _ in body)
        and sum(op.startswith("MUFU.EX2") for _, op, _ in body) >= 16
    ]  # fmt: skip
    assert both, "no loop has both products and exponentials"
    return min(both, key=len)


def query_registers(loop: list[Instruction]) -> set[int]:
    """Registers of A of the int8 products; empty where A is in shared memory."""
    registers: set[int] = set()
    for _, op, rest in loop:
        if op.startswith("IGMMA") and (a := re.match(r"R\d+, R(\d+), gdesc", rest)) is not None:
            registers |= set(range(int(a[1]), int(a[1]) + 4))
    return registers


def overwritten(loop: list[Instruction]) -> list[str]:
    """Instructions of the loop, but loads of queries from shared memory, that write into registers
    from which the int8 products take the queries: what ptxas 13.0 was seen to do with
    probabilities, without a word. A value that comes back from where it was kept is no such write,
    nor is the address of such a load."""
    queries = query_registers(loop)
    wrong = []
    for number, (at, op, rest) in enumerate(loop):
        if op.startswith(("LDSM", "LDL", *_NO_RESULT)):
            continue
        result = re.match(r"R(\d+)(?:,|$)", rest)
        if result is None:
            continue
        words = next((_WORDS[part] for part in op.split(".")[1:] if part in _WORDS), 1)
        if op.startswith(("IMAD.WIDE", "IGMMA", "HGMMA")):
            size = re.search(r"GMMA\.64x(\d+)", op)
            words = int(size[1]) // 2 if size is not None else 2
        first = int(result[1])
        written = queries & set(range(first, first + words))
        if written and not _loaded_next(loop[number + 1 :], first):
            wrong.append(f"{at:#x}: {op} {rest}")
    return wrong


def _loaded_next(after: list[Instruction], register: int) -> bool:
    """Whether queries are loaded into the register before a product reads it."""
    for _, op, rest in after:
        if op.startswith("IGMMA"):
            return False
        result = re.match(r"R(\d+), \[", rest) if op.startswith("LDSM") else None
        if result is not None and 0 <= register - int(result[1]) < 4:
            return True
    return False


def exponentials_beside_the_product(loop: list[Instruction]) -> list[int]:
    """Exponentials between each wait for scores and the wait for the product with values."""
    counts: list[int] = []
    between = False
    for _, op, rest in loop:
        if op.startswith("WARPGROUP.DEPBAR"):
            between = rest.strip().endswith("0x1")
            counts += [0] * between
        elif between and op.startswith("MUFU.EX2"):
            counts[-1] += 1
    return counts


def longest_row_of_exponentials(loop: list[Instruction]) -> int:
    """How many exponentials follow one another with nothing between: while they do, nothing else of
    the warp runs."""
    longest = here = 0
    for _, op, _ in loop:
        here = here + 1 if op.startswith("MUFU.EX2") else 0
        longest = max(longest, here)
    return longest


def highest_register_of_loader(text: str) -> int:
    """Of what can be reached from where the loading warpgroup gives its registers away. ptxas 13.0
    was seen to store four registers from the last two that were left on: an illegal instruction."""
    labels: dict[str, int] = {}
    code: list[tuple[str, str, bool]] = []  # opcode, operands, whether under a predicate
    for line in text.splitlines():
        if (label := _LABEL.match(line)) is not None:
            labels[label[1]] = len(code)
        if (match := _LINE.match(line)) is not None:
            code.append((match["op"], match["rest"], "@" in line.split("*/")[1]))
    todo = [next(n for n, (op, _, _) in enumerate(code) if "DEALLOC" in op)]
    seen: set[int] = set()
    highest = 0
    while todo:
        at = todo.pop()
        while at < len(code) and at not in seen:
            seen.add(at)
            op, rest, predicated = code[at]
            words = next((_WORDS[part] for part in op.split(".")[1:] if part in _WORDS), 1)
            if not op.startswith(("LD", "ST")):
                words = 2 if op.startswith("IMAD.WIDE") else 1
            data = rest.split(",")[-1 if op.startswith("ST") else 0]
            for register in re.findall(r"\bR(\d+)\b", rest):
                wide = "[" not in data and re.search(rf"\bR{register}\b", data) is not None
                highest = max(highest, int(register) + (words - 1 if wide else 0))
            target = re.search(r"`\((\.L\w+)\)", rest)
            if target is not None and target[1] in labels:
                todo.append(labels[target[1]])
            if op.split(".")[0] in ("BRA", "EXIT", "RET") and not predicated and "DIV" not in op:
                break
            at += 1
    return highest
