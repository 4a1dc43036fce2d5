"""Formats of suites: how a folder becomes a `Suite`. See docs/suites.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelproof.errors import UsageError
from kernelproof.suite.formats import flashinfer, folder, gpumode, kernelbench, kernelbenchcom
from kernelproof.suite.model import Suite

# In the order in which a layout is tried. A plain folder is what remains.
_FORMATS: dict[str, tuple[Callable[[Path], bool], Callable[..., Suite]]] = {
    kernelbench.NAME: (kernelbench.is_one, kernelbench.load),
    gpumode.NAME: (gpumode.is_one, gpumode.load),
    flashinfer.NAME: (flashinfer.is_one, flashinfer.load),
    kernelbenchcom.NAME: (kernelbenchcom.is_one, kernelbenchcom.load),
    folder.NAME: (folder.is_one, folder.load),
}
NAMES = tuple(_FORMATS)
# Where the candidates are called so, each problem is its own candidate: what a judge must pass.
ITSELF = "reference"


def load(
    path: str | Path,
    format: str | None = None,
    level: int | None = None,
    candidates: str | Path | None = None,
) -> Suite:
    """The suite at ``path``, the user's own checkout.

    Args:
        format: one of `NAMES`; None for the one whose layout it has.
        level: only this level, of KernelBench.
        candidates: where they are, as the format has it; "reference" for the references themselves.

    Raises:
        UsageError: there is no such format or folder, it has another layout, or there are no
            candidates where they were said to be.
    """
    where = Path(path).expanduser()
    if not where.exists():
        raise UsageError(f"no suite {str(path)!r}: give a folder in one of {', '.join(NAMES)}")
    name = format if format is not None else _format_of(where)
    if name not in _FORMATS:
        raise UsageError(f"no format {name!r}; there are {', '.join(NAMES)}")
    given: dict[str, Any] = {}
    if level is not None:
        if name != kernelbench.NAME:
            raise UsageError(f"--level {level}: the format {name} has no levels")
        given["level"] = level
    beside = None if candidates is None else Path(candidates).expanduser()
    if beside is not None and beside.name == ITSELF and not beside.exists():
        given["itself"], beside = True, None
    return _FORMATS[name][1](where, candidates=beside, **given)


def _format_of(path: Path) -> str:
    for name, (is_one, _) in _FORMATS.items():
        if is_one(path):
            return name
    raise UsageError(
        f"{path} has the layout of none of {', '.join(NAMES)}: give the folder that holds the "
        "levels, a task.yml, definitions, a problem.yaml or problems; or name it by --format"
    )
