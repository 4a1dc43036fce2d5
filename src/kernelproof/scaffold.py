"""`kernelproof new-op` and `new-problem`: start from something that works."""

from __future__ import annotations

import keyword
import shutil
from pathlib import Path

from kernelproof.errors import UsageError

_TEMPLATE = Path(__file__).parent / "ops" / "_template"
_NAME = "template_op"


def new_op(name: str, folder: Path | None = None) -> str:
    """Copy ``ops/_template`` to ``ops/<name>`` (or into ``folder``) under the new name.

    Returns what to do next. Raises UsageError for a bad or taken name.
    """
    _require_name(name)
    target = (folder or _TEMPLATE.parent) / name
    if target.exists():
        raise UsageError(f"{target} exists already; choose another name or remove it")
    shutil.copytree(_TEMPLATE, target, ignore=shutil.ignore_patterns("__pycache__"))
    for path in target.rglob("*"):
        if path.is_file():
            path.write_text(path.read_text().replace(_NAME, name))
    return (
        f"created {target}\n"
        f"next: write problem.py, then the kernels, then `kernelproof check {name} cpu`"
    )


def new_problem(name: str, folder: Path | None = None) -> str:
    """Write ``<name>.py`` with a working reference into ``folder`` (the current one by default).

    Returns what to do next. Raises UsageError for a bad or taken name.
    """
    _require_name(name)
    target = (folder or Path.cwd()) / f"{name}.py"
    if target.exists():
        raise UsageError(f"{target} exists already; choose another name or remove it")
    target.write_text((_TEMPLATE / "problem.py").read_text().replace(_NAME, name))
    return (
        f"created {target}\n"
        f"next: write Model and get_inputs, then `kernelproof check {target.name} CANDIDATE`"
    )


def _require_name(name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise UsageError(f"{name!r} is not a usable name: letters, digits and underscores")
