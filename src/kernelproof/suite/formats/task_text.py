"""What is read from, and changed in, the text of a task of reference-kernels."""

from __future__ import annotations

import ast


def with_device(text: str, fixed: bool = False) -> str:
    """``text`` with the device of the run in the place of "cuda".

    Args:
        fixed: for modules that a submission imports, which must stand alone: the device is found
            when they are imported.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text  # its import says what is wrong with it
    lines = text.splitlines(keepends=True)
    spots = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in ("cuda", "cuda:0"):
            at = node.lineno, node.col_offset, node.end_col_offset or 0
            spots.append((*at, "kernelproof_device()"))
        if isinstance(node, ast.Attribute) and node.attr == "cuda" and _called(tree, node):
            line, end = node.end_lineno or 0, node.end_col_offset or 0
            spots.append((line, end - 4, end + 2, "to(kernelproof_device())"))
    for line, start, stop, new in sorted(spots, reverse=True):
        raw = lines[line - 1].encode()
        lines[line - 1] = (raw[:start] + new.encode() + raw[stop:]).decode()
    changed = "".join(lines)
    if fixed and spots:
        changed += (
            "\n\ndef kernelproof_device():\n    import torch\n\n"
            '    return "cuda" if torch.cuda.is_available() else "cpu"\n'
        )
    return changed


def buffers(text: str) -> tuple[str, ...]:
    """How `generate_input` makes the last members of its data that it leaves to be written:
    "empty" or "zeros" for each; () where it returns none."""
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
    body = next((f for f in functions if f.name == "generate_input"), None)
    if body is None:
        return ()
    returned = [n.value for n in ast.walk(body) if isinstance(n, ast.Return)]
    if len(returned) != 1 or not isinstance(returned[0], ast.Tuple):
        return ()
    found: list[str] = []
    for member in reversed(returned[0].elts):
        fill = _fill(member, body)
        if not fill or len(found) == len(returned[0].elts) - 1:
            break
        found.insert(0, fill)
    return tuple(found)


def _fill(member: ast.expr, body: ast.FunctionDef) -> str:
    """How a returned member is made, where nothing else is done to it; "" otherwise."""
    if isinstance(member, ast.Name):
        name = member.id
        uses = [n for n in ast.walk(body) if isinstance(n, ast.Name) and n.id == name]
        made = [n.value for n in ast.walk(body) if isinstance(n, ast.Assign)
                and any(isinstance(t, ast.Name) and t.id == name for t in n.targets)]  # fmt: skip
        # One assignment and the return: it has not been written to.
        if len(uses) != 2 or len(made) != 1:
            return ""
        member = made[0]
    made_by: ast.expr = member
    while isinstance(made_by, ast.Call) and isinstance(made_by.func, ast.Attribute):
        if made_by.func.attr not in ("contiguous", "cuda", "to"):
            kind = made_by.func.attr.removesuffix("_like").removeprefix("new_")
            return kind if kind in ("empty", "zeros") else ""
        made_by = made_by.func.value
    return ""


def _called(tree: ast.Module, attribute: ast.Attribute) -> bool:
    """Whether ``attribute`` is called without arguments, as in ``x.cuda()``."""
    return any(
        isinstance(n, ast.Call) and n.func is attribute and not n.args and not n.keywords
        for n in ast.walk(tree)
    )
