"""A script in plain PyTorch that shows what a candidate does wrong, without kernelproof.

It holds the problem's source, the calls that were made, and `standalone`; it needs the candidate's
files and PyTorch. It exits with 1 where the candidate is wrong and 0 once it is right.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelproof import resize
from kernelproof.types import Call, Candidate, Case, OutputVerdict, Problem, Verdict

_MARK = "# ---- copied from here ----\n"
# Calls that a check makes on its first inputs, and on the first of every other case.
_FIRST_CALLS, _CASE_CALLS = 3, 2


def script(
    problem: Problem, source: str, candidate: Candidate, verdict: Verdict, seeds: tuple[int, ...]
) -> str:
    """The text of the script; "" for a candidate that passed or never got as far as a call.

    Args:
        source: text of the problem's file.
        candidate: its ``path`` is what the script opens by default.
        seeds: those of the check; the first is that of the constructor.
    """
    if verdict.failing is None:
        return ""
    sizes = {**problem.sizes, **verdict.failing.variant.sizes}
    if sizes:
        source = ast.unparse(resize.with_sizes(source, sizes))
    body = (Path(__file__).parent / "standalone.py").read_text().split(_MARK, 1)[1]
    facts = "\n".join(f"{key} = {text}" for key, text in _facts(
        problem, candidate, verdict, seeds
    ).items())  # fmt: skip
    return "\n".join((
        _head(problem, candidate, verdict),
        f"# ---- the problem {problem.name} ----\n",
        source.strip() + "\n",
        "\n# ---- what was run ----\n\nimport torch\n",
        facts,
        f"\n{body}",
        '\nif __name__ == "__main__":',
        "    raise SystemExit(repro_main(globals(), globals(), sys.argv[1:]))\n",
    ))  # fmt: skip


def _head(problem: Problem, candidate: Candidate, verdict: Verdict) -> str:
    smaller = "   --smallest: the smallest case that fails\n#" if verdict.smallest else ""
    said = verdict.message.replace("\n", "\n#   ")
    return (
        f"# Shows what {candidate.name} does wrong on {problem.name}. Plain PyTorch:\n#\n"
        f"#   python THIS_FILE [--smallest] [CANDIDATE.py]\n#\n#{smaller}"
        "   exit code 1: still wrong, 0: right\n#\n"
        f"# Status {verdict.status}: {said}\n"
    )


def _facts(
    problem: Problem, candidate: Candidate, verdict: Verdict, seeds: tuple[int, ...]
) -> dict[str, str]:
    assert verdict.failing is not None
    cases = {case.name: case for case in problem.cases}
    made = _calls(verdict)
    calls = [
        f"    ({call.name!r}, {_literal(cases[call.case].sizes)}, {call.seed}, "
        f"{_times(made, number)}, {_variant(call)!r}),"
        for number, call in enumerate(made)
    ]
    sources = _sources(verdict)
    failed = _failed_output(verdict)
    return {
        "REPRO_CANDIDATE": repr(candidate.path),
        "REPRO_DEVICE": repr(verdict.device),
        "REPRO_CONSTRUCT_SEED": str(seeds[0]),
        "REPRO_TRAINING": str(problem.training),
        "# (case, sizes, seed, calls, (family, version, layout)); the last one fails\n"
        "REPRO_CALLS": "[\n"
        + "\n".join(calls) + "\n]",
        "REPRO_SOURCES": "{"
        + ", ".join(f"{name!r}: r'''{text}'''" for name, text in sources.items()) + "}",
        "REPRO_SMALLEST": _smallest(verdict.smallest),
        "REPRO_LIMIT": repr(verdict.limit),
        "# The worst element: its value then, and in float64\nREPRO_OUTPUT": repr(
            failed.name if failed else ""
        ),
        "REPRO_WORST": repr(failed.worst_index if failed else ()),
        "REPRO_GOT": _literal(failed.worst_got if failed else 0.0),
        "REPRO_EXPECTED": _literal(failed.worst_expected if failed else 0.0),
        "# Hash of the output, where its values were wrong\nREPRO_FINGERPRINT": repr(
            verdict.fingerprint if _by_values(verdict) else ""
        ),
    }  # fmt: skip


def _calls(verdict: Verdict) -> list[Call]:
    """The calls that were made, the failing one last. Where that has other constants than the
    problem's file, the script has them throughout, and it stands alone."""
    assert verdict.failing is not None
    if verdict.failing.variant.sizes:
        return [verdict.failing]
    made: list[Call] = list(verdict.runs)
    last = verdict.failing
    if not made or (made[-1].name, made[-1].seed) != (last.name, last.seed):
        made.append(last)
    return made


def _times(made: list[Call], number: int) -> int:
    """How often a check makes call ``number``."""
    known = {call.case for call in made[:number]}
    if any(_variant(made[number])) or made[number].case in known:
        return 1
    return _CASE_CALLS if number else _FIRST_CALLS


def _variant(call: Call) -> tuple[str, int, str]:
    return call.variant.family, call.variant.version, call.variant.layout


def _sources(verdict: Verdict) -> dict[str, str]:
    """Name -> text of the modules that make the variants, where any call has one."""
    if not any(any(_variant(call)) for call in _calls(verdict)):
        return {}
    check = Path(__file__).parent / "check"
    # The script has no package to import from: what they import is put in its place.
    imported = "from kernelproof.check.matrices import of_a_kind\n"
    shared = (check / "matrices.py").read_text().partition("import torch\n")[2]
    return {
        name: (check / f"{name}.py").read_text().replace(imported, shared)
        for name in ("families", "layouts")
    }


def _failed_output(verdict: Verdict) -> OutputVerdict | None:
    """The first output of the failing run that is wrong by its values."""
    outputs = verdict.runs[-1].outputs if verdict.runs else ()
    return next((o for o in outputs if not o.passed and (o.figures or o.wrong)), None)


def _by_values(verdict: Verdict) -> bool:
    """Whether the values themselves were wrong, by size or by structure; then a right candidate
    cannot have the same."""
    structure = any(c.name == "error structure" and c.outcome == "fail" for c in verdict.checks)
    return structure or _failed_output(verdict) is not None


def _smallest(case: Case | None) -> str:
    return "None" if case is None else _literal(case.sizes)


def _literal(value: Any) -> str:
    """Python source of a value that a case may hold."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k!r}: {_literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(_literal, value))
        if isinstance(value, list):
            return f"[{inside}]"
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    return repr(value)
