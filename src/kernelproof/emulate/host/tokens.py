"""CUDA C++ text as tokens and as the items of its namespaces and classes.

Not a C++ parser: it knows brackets, literals, comments and directives, and from those where a
definition begins and ends and whether it has a body. Macros are not expanded.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""(?P<space>\s+|//(?:\\\n|[^\n])*|/\*.*?\*/)
    |(?P<string>(?:u8|[LuU])?R"(?P<delim>[^()\s\\]{0,16})\(.*?\)(?P=delim)"|(?:u8|[LuU])?"(?:\\.|[^"\\\n])*")
    |(?P<char>'(?:\\.|[^'\\\n])+')
    |(?P<number>\.?\d(?:'?[\w.]|(?<=[eEpP])[+-])*)
    |(?P<word>[A-Za-z_$][\w$]*)
    |(?P<mark><<[ \t]*<|>>>|::|->|[-+*/%&|^!=<>]=|.)""",
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE = re.compile(r"[ \t]*#(?:\\\n|/\*.*?\*/|[^\n])*", re.DOTALL)
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_TYPES = ("struct", "class", "union", "enum")


@dataclasses.dataclass(frozen=True)
class Token:
    """``kind``: space, string, char, number, word, mark or directive."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def tokens(text: str) -> list[Token]:
    """All tokens, in order; together they are the text."""
    out: list[Token] = []
    at, line_start = 0, True
    while at < len(text):
        directive = _DIRECTIVE.match(text, at) if line_start else None
        if directive:
            found, kind = directive[0], "directive"
        else:
            match = _TOKEN.match(text, at)
            assert match is not None
            found = match[0]
            kind = next(
                k for k in ("space", "string", "char", "number", "word", "mark") if match[k]
            )
            # `>>>` closes three template lists as often as a launch: the reader of launches asks
            # for it where it belongs.
        out.append(Token(kind, found, at))
        at += len(found)
        blank = kind == "space" and not found.startswith("/")
        line_start = (blank and "\n" in found) or (blank and line_start) or (
            kind == "space" and found.startswith("/*") and line_start
        ) or kind == "directive"  # fmt: skip
    return out


def opens_launch(token: Token) -> bool:
    """`<<<`, which nvcc also takes with a space in it."""
    return token.kind == "mark" and token.text[:2] == "<<" and len(token.text) > 2


@dataclasses.dataclass
class Item:
    """One definition or declaration. ``kind``: function, type, namespace, statement (that ends
    with a semicolon) or directive. ``head``: tokens before the body, without spaces. ``body``:
    indices of its braces in the list of tokens."""

    kind: str
    start: int
    end: int
    head: list[Token]
    body: tuple[int, int] | None = None

    def has(self, *words: str) -> bool:
        return any(t.kind == "word" and t.text in words for t in self.head)


def closing(code: list[Token], at: int, stop: int) -> int:
    """The index of the bracket that closes the one at ``at``; ``stop`` - 1 where none does."""
    depth = 0
    for n in range(at, stop):
        if code[n].kind == "mark":
            depth += (code[n].text in "([{") - (code[n].text in ")]}")
            if depth == 0:
                return n
    return stop - 1


def closing_angle(code: list[Token], at: int, stop: int) -> int:
    """The index of the `>` that closes the `<` at ``at``."""
    depth, n = 0, at
    while n < stop:
        mark = code[n].text if code[n].kind == "mark" else ""
        if mark in ("(", "[", "{"):
            n = closing(code, n, stop)
        elif mark == "<":
            depth += 1
        elif mark in (">", ">>>", ">="):
            depth -= mark.count(">")
            if depth <= 0:
                return n
        elif mark == ";":
            break
        n += 1
    return at


def items(code: list[Token], first: int, stop: int) -> Iterator[Item]:
    """The items of ``code[first:stop]``, the inside of a namespace or class. Namespaces are given
    as items, their contents are not."""
    n = first
    while n < stop:
        token = code[n]
        if token.kind == "space":
            n += 1
        elif token.kind == "directive":
            yield Item("directive", token.start, token.end, [token])
            n += 1
        else:
            item, n = _item(code, n, stop)
            yield item


def _item(code: list[Token], first: int, stop: int) -> tuple[Item, int]:
    head: list[Token] = []
    n, start, assigned, initialisers = first, code[first].start, False, False
    body: tuple[int, int] | None = None
    while n < stop:
        token = code[n]
        mark = token.text if token.kind == "mark" else ""
        if token.kind in ("space", "directive"):
            n += 1
            continue
        if mark == ";":
            kind = "type" if body is not None else "statement"
            return Item(kind, start, token.end, head, body), n + 1
        if token.text in ("public", "private", "protected") and not head:
            after = _significant(code, n + 1, stop)
            if after < stop and code[after].text == ":":
                return Item("statement", start, code[after].end, [token]), after + 1
        if token.text == "template" and not head:
            angle = _significant(code, n + 1, stop)
            if angle < stop and code[angle].text == "<":
                last = closing_angle(code, angle, stop)
                head += [t for t in code[n : last + 1] if t.kind != "space"]
                n = last + 1
                continue
        if mark == "{":
            last = closing(code, n, stop)
            kind = _kind_of(head, assigned)
            if kind == "function" and initialisers and _is_initialiser(code, head, last, stop):
                n = last + 1
                continue
            if kind in ("function", "namespace"):
                return Item(kind, start, code[last].end, head, (n, last)), last + 1
            body = (n, last) if kind == "type" else body
            n = last + 1
            continue
        if mark in ("(", "["):
            last = closing(code, n, stop)
            head += [t for t in code[n : last + 1] if t.kind != "space"]
            n = last + 1
            continue
        assigned |= mark == "=" and not (head and head[-1].text == "operator")
        initialisers |= mark == ":" and bool(head) and head[-1].text == ")"
        head.append(token)
        n += 1
    return Item("statement", start, code[stop - 1].end, head, body), stop


def _is_initialiser(code: list[Token], head: list[Token], last: int, stop: int) -> bool:
    """Whether braces that end at ``last`` initialise a member: another one or the body follows."""
    after = _significant(code, last + 1, stop)
    named = bool(head) and (head[-1].kind == "word" or head[-1].text == ">")
    return named and after < stop and code[after].text in (",", "{")


def _significant(code: list[Token], n: int, stop: int) -> int:
    while n < stop and code[n].kind == "space":
        n += 1
    return n


def without_template(head: list[Token]) -> list[Token]:
    """The head behind its `template <...>` lists."""
    while head and head[0].text == "template" and len(head) > 1 and head[1].text == "<":
        head = head[closing_angle(head, 1, len(head)) + 1 :]
    return head


def _kind_of(head: list[Token], assigned: bool) -> str:
    plain = without_template(head)
    words = [t.text for t in plain]
    if words and (words[0] == "namespace" or words[:2] == ["inline", "namespace"]):
        return "namespace"
    if len(words) == 2 and words[0] == "extern":
        return "namespace"  # extern "C" { ... }
    if assigned:
        return "variable"
    for word in words:
        if word in _TYPES:
            return "type"
        if word == "(":
            return "function"
    return "variable"
