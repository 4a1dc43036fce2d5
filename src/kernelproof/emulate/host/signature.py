"""A kernel's name as NVRTC takes it, out of what the C++ compiler calls the function."""

from __future__ import annotations

import re


def kernel_name(signature: str, templates: str) -> str:
    """The name expression of a kernel instance.

    Args:
        signature: GCC's `__PRETTY_FUNCTION__`, such as
            ``void scale(const T*, T*, int) [with T = float; int64_t = long int]``.
        templates: the template parameters, as ``"T, N"``; empty for none.
    """
    plain, _, given = signature.replace("{anonymous}::", "").partition(" [with ")
    name = _before_parameters(plain)
    if not given and not templates:
        return name
    values = {}
    for part in _split(given.rsplit("]", 1)[0], ";"):
        key, _, value = part.partition(" = ")
        values[key.split()[-1].lstrip(".")] = value.strip()
    wanted = [t for t in templates.split(", ") if t] or list(values)
    parts = []
    for key in wanted:
        value = values.get(key, "")
        parts += _split(value[1:-1], ",") if value.startswith("{") else [value]
    return f"{name}<{', '.join(p for p in parts if p)}>"


def _before_parameters(text: str) -> str:
    """The qualified name that stands before the last top-level parenthesis."""
    depth, at = 0, len(text) - 1
    while at >= 0:
        depth += (text[at] == ")") - (text[at] == "(")
        if depth == 0 and text[at] == "(":
            break
        at -= 1
    name = re.search(r"((?:[\w$]+::)*[\w$]+)\s*$", text[:at])
    return name[1] if name else text[:at]


def _split(text: str, mark: str) -> list[str]:
    out, depth, part = [], 0, ""
    for char in text:
        depth += (char in "<({[") - (char in ">)}]")
        if char == mark and depth == 0:
            out.append(part.strip())
            part = ""
        else:
            part += char
    return [*out, part.strip()] if part.strip() else out
