"""What a compiler said, as errors with their place in the candidate's own sources."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from kernelproof.types import Diagnostic

# g++ and clang: "a.cpp:22:5: error: ..."; Python: "a.py:3: ..."
_COLON = re.compile(r"^(?P<file>[^\s:(][^:(]*):(?P<line>\d+):(?:(?P<column>\d+):)? *(?P<text>.*)$")
# nvcc and NVRTC: "a.cu(4): error: ..."
_PAREN = re.compile(r"^(?P<file>[^\s(][^(]*)\((?P<line>\d+)\): *(?P<text>.*)$")
_ERROR = re.compile(r"^(?:catastrophic |fatal )?error(?: #[\w-]+)?: *(?P<said>.*)$")
_AROUND = 2
_MOST = 8


def errors(message: str, detail: str, files: Mapping[str, str]) -> tuple[Diagnostic, ...]:
    """The errors in a compiler's lines, each once, in their order; at most eight.

    Args:
        message, detail: of a `CompileError`.
        files: the candidate's sources, relative name -> text. An error in a text that stands inside
            one of them, as a kernel in a Python string, is found there by its line.
    """
    lines = detail.splitlines()
    found: list[Diagnostic] = []
    for number, line in enumerate(lines):
        match = _COLON.match(line) or _PAREN.match(line)
        said = _ERROR.match(match["text"]) if match else None
        if match and said:
            column = int(match.groupdict().get("column") or 0)
            quoted = lines[number + 1] if number + 1 < len(lines) else ""
            where = match["file"], int(match["line"]), column
            found.append(_placed(where, said["said"], quoted, files))
    if not found and (match := _COLON.match(message)) and match["file"] in files:
        where = match["file"], int(match["line"]), 0
        found.append(_placed(where, match["text"], detail, files))
    return tuple(dict.fromkeys(found))[:_MOST]


def _placed(
    where: tuple[str, int, int], said: str, quoted: str, files: Mapping[str, str]
) -> Diagnostic:
    file, line, column = where
    name = PurePosixPath(file).name
    known = next((n for n in files if n == file or file.endswith(f"/{n}")), None)
    known = known or next((n for n in files if PurePosixPath(n).name == name), None)
    if known is None and (inside := _inside(quoted, files)) is not None:
        known, line = inside
        said = f"{said} (line {where[1]} of the text that is compiled as {name})"
    if known is None:
        shown = [f"> {quoted.strip()}"] if quoted.strip() else []
        return Diagnostic(file=name, line=line, column=column, message=said, context=tuple(shown))
    context = _context(files[known].splitlines(), line)
    return Diagnostic(file=known, line=line, column=column, message=said, context=context)


def _inside(quoted: str, files: Mapping[str, str]) -> tuple[str, int] | None:
    """The one place where the line stands that the compiler quotes."""
    wanted = quoted.strip()
    if not wanted:
        return None
    places = [
        (name, number)
        for name, text in files.items()
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() == wanted
    ]
    return places[0] if len(places) == 1 else None


def _context(lines: Sequence[str], line: int) -> tuple[str, ...]:
    first, last = max(1, line - _AROUND), min(len(lines), line + _AROUND)
    return tuple(
        f"{'>' if number == line else ' '} {number:4d} | {lines[number - 1].rstrip()}"
        for number in range(first, last + 1)
    )
