"""What the head of a function and the name before a launch say."""

from __future__ import annotations

from kernelproof.emulate.host.tokens import Token, closing, closing_angle


def callee_at(code: list[Token], n: int) -> int:
    """The index at which the name before `<<<` begins; -1 where there is none."""
    at = n - 1
    while at >= 0 and code[at].kind == "space":
        at -= 1
    if at >= 0 and code[at].text in (">", ">>>"):
        depth = 0
        while at >= 0:
            if code[at].kind == "mark":
                depth += code[at].text.count(">") * (set(code[at].text) == {">"})
                depth -= code[at].text.count("<") * (set(code[at].text) == {"<"})
            if depth == 0:
                break
            at -= 1
        at -= 1
    while at >= 0 and code[at].kind == "space":
        at -= 1
    found = -1
    while at >= 0 and (code[at].kind == "word" or code[at].text == "::"):
        if code[at].kind == "word" and code[at].text in ("return", "else", "do"):
            break
        if found >= 0 and code[at].kind == "word" and code[found].kind == "word":
            break
        found = at
        at -= 1
    return found


def launch_end(code: list[Token], at: int) -> tuple[int, int]:
    """Where `>>>`, or `>> >` as nvcc also takes it, begins and what comes behind it."""
    depth = 0
    for n in range(at, len(code)):
        text = code[n].text if code[n].kind == "mark" else ""
        if text == ">>>" and depth == 0:
            return n, n + 1
        if text == ">" and depth == 0:
            rest = [k for k in range(n, len(code)) if code[k].kind != "space"][:3]
            if [code[k].text for k in rest] == [">", ">", ">"]:
                return n, rest[-1] + 1
        depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
    return len(code) - 1, len(code)


def parameters_at(head: list[Token]) -> int:
    """The index of the parenthesis that opens a function's parameters."""
    n = 0
    while n < len(head):
        if head[n].text == "(":
            last = closing_of(head, n)
            previous = head[n - 1].text if n else ""
            # __launch_bounds__(256) and its like stand before the name.
            if not previous.startswith("__") or previous == "__global__":
                return n
            n = last
        elif head[n].text == "<":
            n = closing_angle(head, n, len(head))
        n += 1
    return -1


def closing_of(head: list[Token], at: int) -> int:
    return closing(head, at, len(head))


def parameters(part: list[Token]) -> list[list[Token]]:
    """Parameters of a list, at its top-level commas."""
    out: list[list[Token]] = [[]]
    n = 0
    while n < len(part):
        text = part[n].text
        last = n
        if text in ("(", "[", "{"):
            last = closing(part, n, len(part))
        elif text == "<":
            last = closing_angle(part, n, len(part))
        if text == ",":
            out.append([])
        else:
            out[-1] += part[n : last + 1]
        n = last + 1
    return [p for p in out if p and [t.text for t in p] != ["void"]]


_FUNDAMENTAL = (
    "int", "float", "double", "char", "bool", "long", "short", "unsigned", "signed", "const",
    "__restrict__", "volatile", "auto", "half", "size_t", "int64_t", "int32_t",
)  # fmt: skip


def name_of(part: list[Token]) -> tuple[str, int]:
    """(name, where one would be inserted); the name is empty where there is none."""
    end = next((n for n, t in enumerate(part) if t.text in ("=", "[")), len(part))
    last = part[end - 1]
    words = [t for t in part[:end] if t.kind == "word" and t.text not in ("const", "volatile")]
    named = last.kind == "word" and last.text not in _FUNDAMENTAL and len(words) > 1
    if named and end > 1 and part[end - 2].text == "::":
        named = False
    return (last.text if named else ""), last.end


def template_names(head: list[Token]) -> list[str]:
    if not head or head[0].text != "template" or head[1].text != "<":
        return []
    names = []
    for part in parameters(head[2 : closing_angle(head, 1, len(head))]):
        end = next((n for n, t in enumerate(part) if t.text == "="), len(part))
        words = [t.text for t in part[:end] if t.kind == "word"]
        names.append(words[-1] if words else "")
    return names
