"""The ladder: the obvious designs of a problem, each a candidate with the status that it must get.

``candidates/<problem>/<nn>_<name>/`` holds a rung: `candidate.py` with the constants ``EXPECT``
(its status over all cases), ``SAYS`` (words that the message must have) and, for a design that is
right at some sizes only, ``HOLDS`` (cases that it passes by themselves). ``ON_A_GPU`` is its status
there, where all cases are run, if the few that are emulated do not show it. A folder without
`candidate.py` stands for the shipped operator, which is the last rung.
"""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

from kernelproof.errors import UsageError
from kernelproof.types import LadderResults, Progress, Record, Status, silent

# Without a GPU a rung is emulated, which takes long at the founding sizes: these cases cover edges,
# strides and lengths beyond what the fixed designs take.
SMALL = {
    "mla_kv": (
        "one_token", "no_tokens", "odd", "rank_one", "huge_values", "zero_rows", "row_strided",
    ),
    "gated_recurrence": (
        "one_of_each", "no_steps", "one_step", "below_one_tile", "two_steps",
    ),
    "int8_attention": (
        "one_of_each", "no_batch", "no_keys", "decode", "two_of_five", "head_dim_72", "zero_rows",
        "offset_keys", "signed_scales",
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Rung:
    """``candidate``: what `pipeline.judge` takes. The rest as in the module's docstring."""

    problem: str
    name: str
    folder: Path
    candidate: str
    expect: Status = "pass"
    says: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    on_a_gpu: Status | None = None

    @property
    def emulated(self) -> bool:
        """Whether a machine without a GPU emulates it."""
        return self.candidate == "cuda" or (self.folder / "kernel.cu").is_file()

    @property
    def small(self) -> tuple[str, ...]:
        """Cases for a machine without a GPU."""
        return (() if self.emulated else ("founding",)) + SMALL[self.problem]


def folder() -> Path:
    """Where the rungs lie. Raises UsageError where they do not."""
    package = Path(__file__).parent
    # In a wheel inside the package, in a checkout beside `src`.
    for place in (package / "candidates", package.parents[1] / "candidates"):
        if place.is_dir():
            return place
    raise UsageError(f"no candidates/ in {package} or {package.parents[1]}: the ladder is missing")


def problems() -> list[str]:
    """Problems that have a ladder."""
    return sorted(path.name for path in folder().iterdir() if path.is_dir())


def rungs(problem: str) -> list[Rung]:
    """The rungs of a problem, the shipped operator last.

    Raises:
        UsageError: there is no ladder for ``problem``.
    """
    if problem not in problems():
        raise UsageError(f"no ladder for {problem!r}; there are {', '.join(problems())}")
    return [_rung(path) for path in sorted((folder() / problem).iterdir()) if path.is_dir()]


def _rung(path: Path) -> Rung:
    source = path / "candidate.py"
    problem = path.parent.name
    if not source.is_file():
        return Rung(problem, path.name, path, "cuda")
    found = {}
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("EXPECT", "SAYS", "HOLDS", "ON_A_GPU"):
                found[name] = ast.literal_eval(node.value)
    return Rung(
        problem, path.name, path, str(path),
        found["EXPECT"], found.get("SAYS", ()), found.get("HOLDS", ()), found.get("ON_A_GPU"),
    )  # fmt: skip


def climb(
    problem: str, device: str | None = None, progress: Progress = silent
) -> list[tuple[Rung, Record]]:
    """Judge every rung, one seed of each case. On a GPU those that pass are timed beside eager on
    the first case; without one the cases are those of `Rung.small`.

    Args:
        device: "cpu" or "cuda"; None takes what the machine has.

    Raises:
        UsageError: there is no ladder for ``problem``, or no such device.
    """
    import torch

    from kernelproof.pipeline import Options, judge

    todo = rungs(problem)
    gpu = device != "cpu" and torch.cuda.is_available()
    found = []
    for number, rung in enumerate(todo):
        progress(rung.name, number, len(todo))
        options = Options(
            device=device, level="quick", cases=() if gpu else rung.small, baselines=("eager",),
            rounds=8, seconds=2.0,
        )  # fmt: skip
        found.append((rung, judge(problem, rung.candidate, timed=gpu, options=options)))
    return found


def unexpected(rung: Rung, record: Record) -> str:
    """How a record differs from what its rung must get; "" where it does not."""
    verdict = record.verdict
    wanted = rung.expect
    if rung.on_a_gpu is not None and verdict.evidence == "device":
        wanted = rung.on_a_gpu
    if record.status != wanted:
        return f"{rung.name} is {record.status}, not {wanted}: {verdict.message}"
    said = f"{verdict.message} {verdict.looks_like}"
    missing = [words for words in rung.says if words not in said]
    return f"{rung.name}: the message lacks {missing}: {said}" if missing else ""


def read_results(path: Path) -> LadderResults:
    """What benchmarks/ladder.py wrote. Raises UsageError where ``path`` holds no such thing."""
    import json

    from pydantic import ValidationError

    try:
        return LadderResults.model_validate(json.loads(path.read_text()))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        text = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            text = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise UsageError(
            f"{path} holds no results of a ladder: {text}; benchmarks/ladder.py writes them"
        ) from error


def learnt(problem: str) -> str:
    """The paragraph on what a ladder tells, with the places of its figures left open (see
    `report.ladder_words`); "" where there is none."""
    if problem not in problems():
        return ""
    path = folder() / problem / "LEARNT.md"
    return path.read_text() if path.is_file() else ""
