"""KernelBench: `level<N>/<id>_<Name>.py`, and runs of candidates
`level_<L>_problem_<P>_sample_<S>_kernel.py`.

The form is that of https://github.com/ScalingIntelligence/KernelBench (README and
src/kernelbench/dataset.py at 423217d); the problems themselves are files of kernelproof's form.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from kernelproof.errors import UsageError
from kernelproof.suite.formats import made
from kernelproof.suite.model import Item, Suite

NAME = "kernelbench"
# Level 4 downloads models; what people call the 250 are the others.
LEVELS = (1, 2, 3)
RESULTS = "eval_results.json"
_PROBLEM = re.compile(r"(\d+)_.*\.py")
_CANDIDATE = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py")
# Modules that KernelBench judges in training mode, where they do something else than in eval mode.
_BATCH_STATISTICS = re.compile(r"\bBatchNorm\dd\b|\bbatch_norm\b|\bSyncBatchNorm\b")


def is_one(path: Path) -> bool:
    """Whether ``path`` is a checkout, its folder with the levels, or a level."""
    return _root(path) is not None


def load(
    path: Path, level: int | None = None, candidates: Path | None = None, itself: bool = False
) -> Suite:
    """The problems of a checkout with the candidates of a run.

    Args:
        level: one of the levels; 1 to 3 when None, and the folder's own where ``path`` is a level.
        candidates: a folder of a run, such as ``runs/<run>``, or one with more folders below.
        itself: each problem is its own candidate: what a judge must pass.

    Raises:
        UsageError: no such level, or no candidate of the levels that are asked for.
    """
    root = _root(path)
    if root is None:
        raise UsageError(
            f"{path} is no KernelBench checkout: there is neither KernelBench/level1 nor level1"
        )
    if level is None and _level_of(path) is not None:
        level = _level_of(path)
    there = [
        n for n in ((level,) if level is not None else LEVELS) if (root / f"level{n}").is_dir()
    ]
    if not there:
        known = ", ".join(sorted(p.name.removeprefix("level") for p in root.glob("level*")))
        raise UsageError(f"{root} has no level {level}; it has {known}")
    given = _candidates(candidates) if candidates is not None else {}
    published = _published(candidates) if candidates is not None else {}
    items: list[Item] = []
    for number in there:
        for identity, problem in sorted(problems_in(root / f"level{number}").items()):
            samples = dict(given.get((number, identity), {}))
            if itself:
                samples = {0: made.itself(problem)}
            items += _items(number, identity, problem, samples, published)
    if candidates is not None and all(item.candidate is None for item in items):
        raise UsageError(
            f"{candidates} holds no candidate of level {', '.join(map(str, there))}: their names "
            "are level_<L>_problem_<P>_sample_<S>_kernel.py"
        )
    return Suite(f"KernelBench level {', '.join(map(str, there))}", NAME, items)


def problems_in(folder: Path) -> dict[int, Path]:
    """Id -> file of the problems of a level."""
    found = ((_PROBLEM.fullmatch(path.name), path) for path in folder.glob("*.py"))
    return {int(match[1]): path for match, path in found if match}


def trains(problem: Path) -> bool:
    """Whether ``problem`` is judged in training mode: KernelBench leaves every model in it, which
    matters where a layer then takes the statistics of the batch."""
    return bool(_BATCH_STATISTICS.search(problem.read_text(errors="replace")))


def place(name: str) -> tuple[int, int, int]:
    """Level, id and sample of an item by its name, such as "level1/23" or "level1/23/1"."""
    level, identity, *sample = name.split("/")
    return int(level.removeprefix("level")), int(identity), int(sample[0]) if sample else 0


def _items(
    level: int, identity: int, problem: Path, samples: dict[int, Path], published: dict[Any, Any]
) -> list[Item]:
    training = trains(problem)
    found = []
    listed: list[tuple[int, Path | None]] = [*sorted(samples.items())]
    for sample, candidate in listed or [(0, None)]:
        compat: dict[str, Any] = {"format": NAME}
        if (level, identity, sample) in published:
            compat["published"] = published[level, identity, sample]
        name = f"level{level}/{identity}" + (f"/{sample}" if sample else "")
        options: dict[str, Any] = {"compat": compat} | ({"training": True} if training else {})
        found.append(Item(problem, candidate, name, f"level{level}", sample, options))
    return found


def _root(path: Path) -> Path | None:
    """The folder that holds the levels."""
    places = (path, path / "KernelBench", *([path.parent] if _level_of(path) else []))
    for place in places:
        if any(problems_in(level) for level in place.glob("level[0-9]*") if level.is_dir()):
            return place
    return None


def _level_of(path: Path) -> int | None:
    match = re.fullmatch(r"level(\d+)", path.resolve().name)
    return int(match[1]) if match and path.is_dir() else None


def _candidates(folder: Path) -> dict[tuple[int, int], dict[int, Path]]:
    """(level, id) -> sample -> file."""
    if not folder.is_dir():
        raise UsageError(f"no run {str(folder)!r}: give the folder of a run, such as runs/<run>")
    found: dict[tuple[int, int], dict[int, Path]] = {}
    for path in sorted(folder.rglob("level_*_kernel.py")):
        match = _CANDIDATE.fullmatch(path.name)
        if match:
            level, identity, sample = map(int, match.groups())
            there = found.setdefault((level, identity), {})
            if sample in there:
                raise UsageError(f"{there[sample]} and {path} are the same sample: give one run")
            there[sample] = path
    return found


def _published(folder: Path) -> dict[tuple[int, int, int], dict[str, Any]]:
    """(level, id, sample) -> what KernelBench's own evaluation of this run has said. Its file does
    not name the level: that is the candidates' own."""
    path = folder / RESULTS
    if not path.is_file():
        return {}
    try:
        rows = json.loads(path.read_text())
        levels = {key[0] for key in _candidates(folder)}
        if len(levels) != 1:
            return {}
        (level,) = levels
        return {
            (level, int(identity), int(row.get("sample_id", 0))): row
            for identity, of_problem in rows.items()
            # One row for each sample; older versions wrote it without a list.
            for row in (of_problem if isinstance(of_problem, list) else [of_problem])
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise UsageError(f"{path} is not what KernelBench writes: {error}") from error
