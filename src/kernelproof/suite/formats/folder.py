"""A plain folder of problems, and one of candidates."""

from __future__ import annotations

from pathlib import Path

from kernelproof import batch
from kernelproof.errors import UsageError
from kernelproof.suite.formats import made
from kernelproof.suite.model import Item, Suite

NAME = "folder"


def is_one(path: Path) -> bool:
    """Whether there is a problem in ``path``."""
    return path.is_dir() and bool(_problems(path))


def load(path: Path, candidates: Path | None = None, itself: bool = False) -> Suite:
    """Problems are the Python files with a class Model in ``path`` and its folders with a
    `problem.py`. The candidates of the problem NAME are in the folder NAME of ``candidates``, or
    modules and folders there whose names begin with "NAME__". With ``itself`` each problem is its
    own candidate.

    Raises:
        UsageError: there is no such folder, no problem in it, or no candidate of any.
    """
    problems = _problems(path)
    if not problems:
        raise UsageError(f"{path} holds no problem: no .py file with `class Model` and get_inputs")
    if itself:
        return Suite(
            path.resolve().name, NAME, [Item(p, made.itself(p), n) for n, p in problems.items()]
        )
    if candidates is None or not candidates.is_dir():
        raise UsageError(
            f"a plain folder of problems needs a folder of candidates, not {candidates}: "
            "kernelproof suite run PROBLEMS CANDIDATES"
        )
    items = []
    for name, problem in problems.items():
        found = _candidates(name, candidates)
        if not found:
            items.append(Item(problem, None, name))
        for sample, candidate in enumerate(found):
            short = candidate.stem if candidate.is_file() else candidate.name
            title = f"{name}/{short.removeprefix(f'{name}__')}"
            items.append(Item(problem, candidate, title, sample=sample))
    if all(item.candidate is None for item in items):
        raise UsageError(
            f"{candidates} holds no candidate of {', '.join(problems)}: a folder of the problem's "
            "name, or files and folders PROBLEM__NAME"
        )
    return Suite(path.resolve().name, NAME, items)


def _problems(path: Path) -> dict[str, Path]:
    if not path.is_dir():
        raise UsageError(f"no suite {str(path)!r}: give a folder of problems")
    found = {}
    for one in sorted(path.iterdir()):
        if one.name.startswith((".", "_")):
            continue
        if one.is_dir() and (one / "problem.py").is_file():
            found[one.name] = one
        elif one.suffix == ".py" and "def get_inputs" in one.read_text(errors="replace"):
            found[one.stem] = one
    return found


def _candidates(name: str, folder: Path) -> list[Path]:
    found = sorted(p for p in folder.glob(f"{name}__*") if p.is_dir() or p.suffix == ".py")
    own = folder / name
    if own.is_dir():
        inside = batch.candidates_in(own)
        found += inside[0] if inside is not None else [own]
    return found
