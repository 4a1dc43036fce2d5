"""PTX text into the parts that `ptx` names. Only the structure is read here: directives,
declarations, labels, instructions with their operands."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernelproof.emulate.ptx import (
    WIDTHS,
    Address,
    Function,
    Instruction,
    Location,
    Module,
    Operand,
    Variable,
)
from kernelproof.errors import CompileError

_TOKEN = re.compile(r'"[^"]*"|::|[{};:\n]|[^{};:"\n]+')
_LOC = re.compile(
    r"\.loc\s+(\d+)\s+(\d+)\s+\d+(?:\s*,\s*function_name\s+\S+,\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?"
)
_VARIABLE = re.compile(
    r"((?:\.\w+\s+(?:\d+\s+)?)*?)\.(global|const|shared|local)\s+(?:\.attribute\([^)]*\)\s*)?"
    r"(?:\.align\s+(\d+)\s+)?(?:\.v([24])\s+)?\.(\w+)\s+([\w$%]+)((?:\s*\[[^\]]*\])*)\s*"
    r"(?:=\s*(.*))?$",
    re.DOTALL,
)
_PARAM = re.compile(
    r"\.(?:param|reg)\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+(?:\.ptr\s*(?:\.\w+\s+)*?(?:\.align\s+\d+\s+)?)?"
    r"([\w$%]+)\s*(?:\[(\d+)\])?"
)


def parse(text: str) -> Module:
    """Read PTX. Raises CompileError on text that is not PTX."""
    if ".version" not in text:
        raise CompileError("this is not PTX: it has no .version directive")
    return _Parser(text).module


class _Parser:
    def __init__(self, text: str) -> None:
        text = re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", _newlines, text, flags=re.DOTALL))
        self.files = dict(re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', text, re.MULTILINE))
        self.module = Module({}, {})
        self.function: Function | None = None
        self.location: Location | None = None
        self.inlines: dict[tuple[int, int, int], Location] = {}
        self.scopes: list[dict[str, str]] = []
        self.scope_starts: list[int] = []  # where in the body each inner scope began
        self.scope_count = 0
        self.line = 1
        self._run(text)

    def _run(self, text: str) -> None:
        buffer, start, skip = "", 1, 0
        for token in _TOKEN.findall(text):
            if token == "\n":
                if skip == 0 and self._directive(buffer.strip()):
                    buffer = ""
                self.line += 1
                buffer += " " if buffer else ""
                continue
            if skip:
                skip += (token == "{") - (token == "}")
                buffer = "" if not skip else buffer
                continue
            if not buffer.strip():
                buffer, start = "", self.line
            if token == "{":
                head = buffer.strip()
                if not head:
                    self._open_scope()
                elif head.startswith(".section"):
                    skip, buffer = 1, ""
                elif re.search(r"\.(entry|func)\b", head) and self.function is None:
                    self._begin(head)
                    buffer = ""
                else:
                    buffer += token
            elif token == "}" and not buffer.strip():
                self._close_scope()
            elif token == ";":
                self._statement(buffer.strip(), start)
                buffer = ""
            elif token == ":" and re.fullmatch(r"[\w$%]+", buffer.strip()):
                self._label(buffer.strip())
                buffer = ""
            else:
                buffer += token

    def _directive(self, line: str) -> bool:
        """Lines that end without a semicolon."""
        if line.startswith(".loc"):
            found = _LOC.match(line)
            if found:
                self.location = self._location(found)
            return True
        if line.startswith(".target"):
            self.module.target = line.split()[1].rstrip(",")
        return line.startswith((".file", ".version", ".target", ".address_size"))

    def _location(self, found: re.Match[str]) -> Location | None:
        file, line = int(found[1]), int(found[2])
        if line == 0:
            return self.location
        inlined = None
        if found[3] is not None:
            at = (int(found[3]), int(found[4]), int(found[5]))
            inlined = self.inlines.get(at) or Location(self.files.get(found[3], "?"), at[1])
        made = Location(self.files.get(found[1], "?"), line, inlined)
        column = int(found[0].split()[3].rstrip(","))
        self.inlines[(file, line, column)] = made
        return made

    # ---- scopes and functions

    def _begin(self, head: str) -> None:
        self.function = _signature(head)
        self.module.functions[self.function.name] = self.function
        self.scopes = [{}]
        self.location = None
        self.inlines = {}

    def _open_scope(self) -> None:
        self.scope_count += 1
        self.scopes.append({})
        if self.function is not None:
            self.scope_starts.append(len(self.function.body))

    def _close_scope(self) -> None:
        if not self.scopes:
            raise CompileError(f"PTX line {self.line}: a brace closes nothing")
        self.scopes.pop()
        if not self.scopes:
            self.function = None
            self.scope_starts.clear()
        elif self.function is not None:
            _own_labels(self.function.body, self.scope_starts.pop(), self.scope_count)

    def _label(self, name: str) -> None:
        assert self.function is not None
        self.function.body.append(self._named(name))

    def _named(self, name: str) -> str:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return name

    # ---- statements

    def _statement(self, text: str, line: int) -> None:
        if not text:
            return
        if self.function is None:
            if re.search(r"\.func\b", text):
                declared = _signature(text)
                declared.defined = False
                self.module.functions.setdefault(declared.name, declared)
            elif not text.startswith((".pragma", ".alias", ".weak .func")):
                for variable in _variables(text):
                    self.module.variables[variable.name] = variable
            return
        if text.startswith((".branchtargets", ".calltargets", ".callprototype")):
            label = self.function.body.pop()  # the table's name, read as a label
            assert isinstance(label, str)
            self.function.tables[label] = [x.strip() for x in text.split(None, 1)[1].split(",")]
        elif text.startswith("."):
            self._declaration(text)
        else:
            self.function.body.append(self._instruction(text, line))

    def _declaration(self, text: str) -> None:
        assert self.function is not None
        if text.startswith(".reg"):
            found = re.match(r"\.reg\s*(?:\.v\d\s+)?\.(\w+)\s*(.*)", text, re.DOTALL)
            assert found is not None
            for name in found[2].split(","):
                self._registers(name.strip(), found[1])
        elif text.startswith(".param"):
            for name, size in _params(text):
                unique = f"{name}@{self.scope_count}"
                self.scopes[-1][name] = unique
                self.function.variables.append(Variable(unique, "param", 8, size))
        elif re.match(r"\.(shared|local|global|const|extern|visible)\b", text):
            for variable in _variables(text):
                self.function.variables.append(variable)
        elif not text.startswith((".pragma", ".maxn", ".reqn", ".minn")):
            raise CompileError(f"PTX line {self.line}: unknown directive {text[:60]!r}")

    def _registers(self, name: str, kind: str) -> None:
        assert self.function is not None
        many = re.fullmatch(r"([\w$%]+)<(\d+)>", name)
        names = [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]
        for one in names:
            unique = one if len(self.scopes) == 1 else f"{one}@{self.scope_count}"
            if unique != one:
                self.scopes[-1][one] = unique
            self.function.registers[unique] = kind

    def _instruction(self, text: str, line: int) -> Instruction:
        guard, negated = "", False
        found = re.match(r"@(!?)\s*([%\w$]+)\s+(.*)", text, re.DOTALL)
        if found:
            guard, negated, text = self._named(found[2]), bool(found[1]), found[3]
        opcode, _, rest = text.partition(" ") if " " in text else text.partition("\t")
        if "\t" in opcode:
            opcode, _, more = opcode.partition("\t")
            rest = f"{more} {rest}"
        operands = [self._operand(part) for part in _split(rest)]
        op = tuple(opcode.strip().split("."))
        return Instruction(op, operands, guard, negated, self.location, line)

    def _operand(self, text: str) -> Operand:
        text = text.strip()
        if text.startswith("{"):
            return tuple(self._operand(part) for part in _split(text[1:-1]))
        if text.startswith("("):
            return [self._operand(part) for part in _split(text[1:-1])]
        if text.startswith("["):
            first, *more = _split(text[1:-1])
            address = self._address(first.strip())
            return (address, self._operand(more[0])) if more else address
        if "|" in text:
            return tuple(self._named(part.strip()) for part in text.split("|"))
        if text.startswith("!"):
            return "!" + self._named(text[1:].strip())
        return self._named(text)

    def _address(self, text: str) -> Address:
        found = re.fullmatch(r"([%\w$]+?)\s*(?:([+-])\s*(-?\w+))?", text)
        if not found:
            raise CompileError(f"PTX line {self.line}: cannot read the address [{text}]")
        offset = int(found[3], 0) if found[3] else 0
        offset = -offset if found[2] == "-" else offset
        if re.fullmatch(r"\d+", found[1]):
            return Address("", int(found[1]) + offset)
        return Address(self._named(found[1]), offset)


def _own_labels(body: list[str | Instruction], start: int, scope: int) -> None:
    """Labels of a scope that ends are its own: inline PTX brings the same ones again and again."""
    inside = body[start:]
    names = {label: f"{label}@{scope}" for label in inside if isinstance(label, str)}
    if not names:
        return
    for n, item in enumerate(inside):
        if isinstance(item, str):
            inside[n] = names[item]
        elif item.op[0] == "bra" and item.operands[0] in names:
            item.operands[0] = names[item.operands[0]]
    body[start:] = inside


def _newlines(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def _split(text: str) -> Iterator[str]:
    """Parts between commas that are outside of brackets."""
    depth, part = 0, ""
    for char in text:
        depth += char in "{[("
        depth -= char in ")]}"
        if char == "," and depth == 0:
            yield part
            part = ""
        else:
            part += char
    if part.strip():
        yield part


def _params(text: str) -> list[tuple[str, int]]:
    found = []
    for kind, name, count in _PARAM.findall(text):
        found.append((name, WIDTHS[kind] * (int(count) if count else 1)))
    return found


def _signature(head: str) -> Function:
    entry = re.search(r"\.entry\s+([\w$%]+)\s*(?:\((.*?)\))?", head, re.DOTALL)
    if entry:
        cluster = re.search(r"\.reqnctapercluster\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?", head)
        found = [int(n or 1) for n in cluster.groups()] if cluster else []
        sizes = (found[0], found[1], found[2]) if found else None
        return Function(entry[1], True, _params(entry[2] or ""), [], cluster=sizes)
    func = re.search(
        r"\.func\s*(?:\.\w+\s+)*(?:\((.*?)\))?\s*([\w$%]+)\s*(?:\((.*?)\))?", head, re.DOTALL
    )
    if not func:
        raise CompileError(f"cannot read the PTX function {head[:80]!r}")
    return Function(func[2], False, _params(func[3] or ""), _params(func[1] or ""))


def _variables(text: str) -> list[Variable]:
    found = _VARIABLE.match(text.strip())
    if not found:
        raise CompileError(f"cannot read the PTX declaration {text[:80]!r}")
    _, space, align, vector, kind, name, dims, value = found.groups()
    width = WIDTHS[kind]
    count = int(vector) if vector else 1
    for dim in re.findall(r"\[([^\]]*)\]", dims):
        count *= int(dim) if dim.strip() else 0
    data, names = _initialiser(value or "", kind, width)
    size = max(count * width, len(data)) if count else len(data)
    return [Variable(name, space, int(align or width), size, data, names)]


def _initialiser(text: str, kind: str, width: int) -> tuple[bytes, tuple[tuple[int, str], ...]]:
    import struct

    data, names = b"", []
    for part in re.findall(r"[^{},\s]+", text):
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", part):
            data += struct.pack("<I", int(part[2:], 16))
        elif re.fullmatch(r"0[dD][0-9a-fA-F]{16}", part):
            data += struct.pack("<Q", int(part[2:], 16))
        elif re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", part):
            data += (int(part.rstrip("U"), 0) % (1 << 8 * width)).to_bytes(width, "little")
        elif re.match(r"generic\(|[\w$]", part):
            names.append((len(data), re.sub(r"generic\((.*)\)", r"\1", part)))
            data += bytes(width)
        else:
            raise CompileError(f"cannot read the PTX value {part!r} of type {kind}")
    return data, tuple(names)
