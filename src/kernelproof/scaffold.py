"""`kernelproof new-op` and `new-problem`: start from something that works."""

from __future__ import annotations

import keyword
from pathlib import Path

from kernelproof.errors import UsageError

_TEMPLATE = Path(__file__).parent / "ops" / "_template"
_NAME = "template_op"
# As a function or a file of this name would hide a module that the new code imports.
_RESERVED = ("Tensor", "UnsupportedError", "annotations", "kernelproof", "torch")


def new_op(name: str, folder: Path | None = None) -> str:
    """Copy ``ops/_template`` to ``ops/<name>`` (or into ``folder``) under the new name.

    Returns what to do next. Raises UsageError for a bad or taken name, or where the folder cannot
    be written.
    """
    from kernelproof.problem import known_problems

    _require_name(name)
    target = (folder or _TEMPLATE.parent) / name
    _require_free(target)
    if name in known_problems():
        # `check NAME cpu` could mean either.
        raise UsageError(f"{name!r} is a problem already, {known_problems()[name]}; choose another")
    texts = {path.name: _renamed(path, name) for path in _TEMPLATE.iterdir() if path.is_file()}
    try:
        target.mkdir(parents=True)
        for file, text in texts.items():
            (target / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error}") from error
    known_problems.cache_clear()
    where = name if folder is None else target
    return (
        f"created {target}\n"
        "next: problem.py (what it computes), __init__.py and contract.py (its arguments), then\n"
        f"the kernels; it works as it is: `kernelproof check {where} cpu`"
    )


def new_problem(name: str, folder: Path | None = None) -> str:
    """Write ``<name>.py`` with a working reference into ``folder`` (the current one by default).

    Returns what to do next. Raises UsageError for a bad or taken name, or where the file cannot
    be written.
    """
    _require_name(name)
    target = (folder or Path.cwd()) / f"{name}.py"
    _require_free(target)
    text = _renamed(_TEMPLATE / "problem.py", name)
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error}") from error
    return (
        f"created {target}\n"
        f"next: write Model and get_inputs, then `kernelproof check {target} CANDIDATE`"
    )


def _renamed(path: Path, name: str) -> str:
    return path.read_text(encoding="utf-8").replace(_NAME, name)


def _require_name(name: str) -> None:
    usable = name.isascii() and name.isidentifier() and not keyword.iskeyword(name)
    if not usable or name.startswith("_"):
        raise UsageError(
            f"{name!r} is not a usable name; give letters, digits and underscores, with a letter "
            "first, and no word of the Python language"
        )
    if name in _RESERVED or (_TEMPLATE / f"{name}.py").exists():
        raise UsageError(f"{name!r} is a name that the new code itself uses; choose another")


def _require_free(target: Path) -> None:
    if target.exists():
        raise UsageError(f"{target} exists already; choose another name or remove it")
