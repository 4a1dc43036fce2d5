"""kernelbench.com: folders with `reference.py`, `shapes.py` and `problem.yaml`, and solutions whose
class is called Model as well.

The form is that of https://github.com/Infatoshi/kernelbench.com (benchmarks/hard at c7d9221). Each
entry of SHAPES sets module-level names of the reference, and is a case here. The stress cases of
its checks are not repeated: the proof has value families of its own.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from kernelproof.errors import UsageError
from kernelproof.importing import import_file
from kernelproof.suite.formats import made
from kernelproof.suite.model import Item, Suite

NAME = "kernelbench.com"

_TAIL = """

# ---- of shapes.py and problem.yaml ----
CASES = {cases}
TOLERANCE = {tolerance}
_made_inputs, _made_arguments = get_inputs, get_init_inputs
{counts}

def get_inputs(**sizes):
    globals().update(sizes)
    return _made_inputs()


def get_init_inputs(**sizes):
    globals().update(sizes)
    return _made_arguments()
"""

_CANDIDATE = '''"""A solution of kernelbench.com as ModelNew."""

{mark}from pathlib import Path

from kernelproof.importing import import_file

# By path: a module of that name may lie elsewhere as well.
_solution = import_file(Path(__file__).parent / "solution.py", "solution")


class ModelNew(_solution.Model):
    pass
'''


def is_one(path: Path) -> bool:
    """Whether ``path`` is a problem, or a folder of them."""
    return bool(_problems(path))


def load(path: Path, candidates: Path | None = None, itself: bool = False) -> Suite:
    """The problems below ``path`` with solutions.

    Args:
        candidates: a folder of solutions: ``<problem>/*.py`` or ``<problem>__<name>.py``; each
            problem's own `solution.py` when None.
        itself: the solution of each problem is its reference.

    Raises:
        UsageError: no problem there, one that does not read, or no solution of any.
    """
    folders = _problems(path)
    if not folders:
        raise UsageError(f"{path} holds no folder with reference.py and problem.yaml")
    items: list[Item] = []
    for folder in folders:
        name = folder.resolve().name
        problem, forbidden = _problem(folder, name)
        compat = {"compat": {"format": NAME, "forbidden": forbidden}}
        given = _solutions(folder, name, candidates)
        if itself:
            given = {"reference": (folder / "reference.py").read_text()}
        for sample, (title, text) in enumerate(given.items()):
            full = name if len(given) == 1 else f"{name}/{title}"
            items.append(Item(problem, _candidate(name, title, text), full, "", sample, compat))
        if not given:
            items.append(Item(problem, None, name, "", 0, compat))
    if candidates is not None and all(item.candidate is None for item in items):
        names = ", ".join(folder.resolve().name for folder in folders)
        raise UsageError(
            f"{candidates} holds no solution of {names}: name them <problem>/<name>.py"
        )
    return Suite(path.resolve().name, NAME, items)


def _problems(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    found = (p.parent for p in path.rglob("problem.yaml"))
    return sorted(p for p in found if (p / "reference.py").is_file())


def _problem(folder: Path, name: str) -> tuple[Path, list[str]]:
    """The problem, and what its solutions may not name."""
    about = made.yaml_of(folder / "problem.yaml")
    if about.get("world_size"):
        why = "a problem over several GPUs (world_size); one GPU is judged at a time"
        return made.unsupported(NAME, name, why), []
    shapes = _shapes(folder)
    text = (folder / "reference.py").read_text().rstrip()
    text += _TAIL.format(
        cases=made.literal({_words(s): s for s in shapes}),
        tolerance=made.literal(_tolerance(about)), counts=_counts(about, shapes),
    )  # fmt: skip
    return made.problem(NAME, name, text), [str(x) for x in about.get("forbidden") or []]


def _shapes(folder: Path) -> list[dict[str, Any]]:
    path = folder / "shapes.py"
    if not path.is_file():
        return []
    shapes = getattr(import_file(path, "shapes"), "SHAPES", None)
    if not isinstance(shapes, list) or not all(isinstance(s, dict) for s in shapes):
        raise UsageError(f"{path} has no list SHAPES of dicts")
    return shapes


def _tolerance(about: dict[str, Any]) -> dict[str, float]:
    """Absolute and relative, which are one number there. Where dtypes have several, the widest:
    it says what the harness would take at most."""
    given = [float(x) for x in (about.get("tolerance") or {}).values()]
    return {"atol": max(given), "rtol": max(given)} if given else {}


def _words(shape: dict[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in shape.items())


def _counts(about: dict[str, Any], shapes: list[dict[str, Any]]) -> str:
    """FLOPS and BYTES from the formulas over the names of a shape."""
    lines = ""
    for ours, theirs in (("FLOPS", "flops_formula"), ("BYTES", "bytes_formula")):
        if shapes and about.get(theirs):
            lines += f"\n\ndef {ours}({', '.join(shapes[0])}):\n    return {about[theirs]}\n"
    return lines


def _solutions(folder: Path, name: str, candidates: Path | None) -> dict[str, str]:
    """Name -> text."""
    if candidates is None:
        own = folder / "solution.py"
        return {"solution": own.read_text()} if own.is_file() else {}
    if not candidates.is_dir():
        raise UsageError(f"no solutions {str(candidates)!r}: give a folder of them")
    found = {p.stem: p.read_text() for p in sorted((candidates / name).glob("*.py"))}
    for path in sorted(candidates.glob(f"{name}__*.py")):
        found[path.stem.removeprefix(f"{name}__")] = path.read_text()
    return found


def _candidate(name: str, title: str, text: str) -> Path:
    mark = "import triton\n" if re.search(r"^\s*(import|from)\s+triton\b", text, re.M) else ""
    files = {
        "candidate.py": _CANDIDATE.format(mark=mark), "solution.py": text,
    }  # fmt: skip
    return made.folder(NAME, f"{name}-{title}", files)
