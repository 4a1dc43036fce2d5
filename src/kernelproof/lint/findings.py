"""From facts and cheats to findings: what to tell the problem's author, and what to change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kernelproof.lint.facts import Facts, InputFacts
from kernelproof.lint.result import Cheat, Finding, Level

_RANK: dict[Level, int] = {"error": 0, "warning": 1, "note": 2}
# Fewer elements than this may be of one sign by chance.
_ENOUGH = 16


def findings(facts: Facts, cheats: Sequence[Cheat], first: str) -> tuple[Finding, ...]:
    """All findings, the errors first.

    Args:
        first: name of the first case, the one that is timed.
    """
    accepted = [cheat for cheat in cheats if cheat.accepted and _told(cheat, first)]
    found = [
        *_reference(facts),
        *_outputs(facts, accepted),
        *_ignored(accepted, [c for c in cheats if c.kind in ("input", "parameter")]),
        *_halves_and_precisions(accepted),
        *_inputs(facts),
        *_compat(cheats),
        *_first_case(cheats, first),
    ]
    return tuple(sorted(found, key=lambda finding: _RANK[finding.level]))


def _told(cheat: Cheat, first: str) -> bool:
    """Whether passing means anything: a cheat that fits only one side case (offsets of empty bags)
    is seen nowhere that matters."""
    return first in cheat.cases or len(cheat.cases) > 1


def _reference(facts: Facts) -> Iterator[Finding]:
    if facts.random:
        yield Finding(
            level="error", code="random", subject="reference",
            message="the output changes with the seed of the random numbers while the inputs stay "
            f"(case {_some(facts.random)}): no kernel of its own can give the same",
            remedy="draw the random numbers in get_inputs and pass them to forward",
        )  # fmt: skip
    if facts.unsteady:
        yield Finding(
            level="error", code="unsteady", subject="reference",
            message="two runs on the same inputs under the same seed differ by more than the "
            f"proof allows (case {_some(facts.unsteady)})",
            remedy="remove state that outlives a call, and random numbers that torch does not draw",
        )  # fmt: skip
    for name in sorted(facts.changed):
        yield Finding(
            level="note", code="mutates-input", subject=name,
            message=f"the reference changes input {name}; what it leaves there is not judged, and "
            "candidates may change it too",
        )  # fmt: skip


def _outputs(facts: Facts, accepted: Sequence[Cheat]) -> Iterator[Finding]:
    for name, fact in facts.outputs.items():
        if fact.finite == 0:
            yield Finding(
                level="error", code="non-finite", subject=name,
                message=f"{name} has no finite element in any case: only NaN and infinities are "
                "compared",
                remedy="choose inputs in the function's domain, or of smaller magnitude",
            )  # fmt: skip
        elif fact.odd:
            shares = ", ".join(f"{share:.1%} in {case}" for case, share in fact.odd.items())
            yield Finding(
                level="warning", code="non-finite", subject=name,
                message=f"{name} has elements that are NaN or infinite ({shares})",
                remedy="if that is not meant, choose inputs in the function's domain",
            )  # fmt: skip
        passed = [c for c in accepted if c.subject == name and c.kind in ("output", "half")]
        words = _some([cheat.name for cheat in passed], 12)
        if fact.finite and fact.top == 0:
            yield Finding(
                level="error", code="zero-output", subject=name,
                message=f"{name} is zero in every case; a kernel passes that returns: {words}",
                remedy="choose inputs for which the function is not zero",
            )  # fmt: skip
        elif fact.constant and fact.several:
            yield Finding(
                level="error" if passed else "warning", code="constant-output", subject=name,
                message=f"all elements of {name} are equal in every case"
                + (f"; a kernel passes that returns: {words}" if passed else ""),
                remedy="is a reduced axis of size 1, or does everything saturate? Choose sizes and "
                "inputs for which elements differ",
            )  # fmt: skip
        elif passed:
            yield _forged(name, passed, facts.inputs)
        if 0 < fact.top < fact.atol:
            yield Finding(
                level="warning", code="small-output", subject=name,
                message=f"{name} is at most {fact.top:.1e}, below the compat tolerance of "
                f"{fact.atol:g}: zeros pass allclose",
                remedy="scale the inputs (or the weights) until outputs are near 1",
            )  # fmt: skip


def _forged(name: str, passed: Sequence[Cheat], inputs: dict[str, InputFacts]) -> Finding:
    words = _some([cheat.name for cheat in passed], 12)
    copies = [c for c in passed if c.name.startswith("copy of input ")]
    remedy = "choose inputs for which the answer is another one"
    if copies:
        source = copies[0].name.removeprefix("copy of input ")
        low = inputs[source].low
        remedy = (
            f"{source} has no negative values, where relu and abs are the identity: use torch.randn"
            if low >= 0
            else f"take {source} from a range in which the function changes it"
        )
    elif any(c.name == "output of another run" for c in passed):
        remedy = "draw the inputs inside get_inputs, so that each seed gives others"
    return Finding(
        level="error", code="identity" if copies else "forged-output", subject=name,
        message=f"a kernel passes whose {name} is: {words}", remedy=remedy,
    )  # fmt: skip


def _ignored(accepted: Sequence[Cheat], tried: Sequence[Cheat]) -> Iterator[Finding]:
    """Inputs and parameters that a kernel may take as something else."""
    for kind in ("input", "parameter"):
        for name in dict.fromkeys(c.subject for c in accepted if c.kind == kind):
            mine = [c for c in tried if c.kind == kind and c.subject == name]
            passed = [c for c in mine if c.accepted]
            instead = " or ".join(c.name.split(" taken as ")[1] for c in passed)
            message = f"a kernel that takes {kind} {name} as {instead} passes"
            remedy = f"give {name} random values: those that it has hide a kernel without it"
            code, level = f"{kind}-ignored", "error"
            if len(passed) == len(mine):
                message = f"{kind} {name} has no effect that the proof sees: {message}"
                remedy = f"use {name} in forward or remove it; if other inputs hide its effect, "
                remedy += "change those"
                code = f"{kind}-without-effect"
                # What follows may cancel a weight (a bias before a normalisation), and a kernel
                # without it is then the same function.
                level = "error" if kind == "input" else "warning"
            if kind == "parameter":
                remedy += " (in Model.__init__)"
            yield Finding(level=level, code=code, subject=name, message=message, remedy=remedy)  # type: ignore[arg-type]


def _halves_and_precisions(accepted: Sequence[Cheat]) -> Iterator[Finding]:
    for cheat in accepted:
        if cheat.kind == "half" and cheat.name.endswith("not read"):
            yield Finding(
                level="error", code="half-read", subject=cheat.subject,
                message=f"a kernel passes with the {cheat.name}",
                remedy=f"give all of {cheat.subject} a weight in the answer, or shorten it",
            )  # fmt: skip
    for output in dict.fromkeys(c.subject for c in accepted if c.kind == "precision"):
        names = [c.name.removeprefix("computed in ") for c in accepted
                 if c.kind == "precision" and c.subject == output]  # fmt: skip
        yield Finding(
            level="error", code="precision", subject=output,
            message=f"{output} computed in {', '.join(names)} passes",
            remedy="the conditioning of these inputs hides the precision: choose inputs without "
            "cancellation or overflow",
        )  # fmt: skip


def _inputs(facts: Facts) -> Iterator[Finding]:
    for name, fact in facts.inputs.items():
        if len(fact.scalars) == 1 and isinstance(fact.scalars[0], (bool, int, float)):
            yield Finding(
                level="warning", code="same-scalar", subject=name,
                message=f"{name} is {fact.scalars[0]!r} in every case: a kernel with that number "
                "built in passes",
                remedy=f"vary {name} in CASES",
            )  # fmt: skip
        if fact.elements >= 2 and fact.constant:
            yield Finding(
                level="warning", code="constant-input", subject=name,
                message=f"all elements of input {name} are equal in every case: which of them a "
                "kernel reads does not show",
                remedy=f"draw {name} with torch.randn",
            )  # fmt: skip
        elif fact.floating and fact.elements >= _ENOUGH and fact.low >= 0:
            yield Finding(
                level="warning", code="one-sided-input", subject=name,
                message=f"input {name} has no negative value in any case: relu and abs of it are "
                "the identity, and sums of it hide cancellation",
                remedy=f"draw {name} with torch.randn, or add a case with both signs",
            )  # fmt: skip
        if fact.floating and fact.elements and fact.repeats and not fact.constant:
            yield Finding(
                level="warning", code="same-input", subject=name,
                message=f"input {name} is the same for every seed",
                remedy=f"draw {name} inside get_inputs",
            )  # fmt: skip


def _compat(cheats: Iterable[Cheat]) -> Iterator[Finding]:
    """Cheats that only the proof tells apart; that is the tolerance's fault as well."""
    fooled = [c for c in cheats if c.compat_accepted and not c.accepted]
    for level, chosen in (
        ("warning", [c for c in fooled if c.kind != "precision"]),
        ("note", [c for c in fooled if c.kind == "precision"]),
    ):
        if chosen:
            names = [f"{c.name} ({c.subject})" if c.kind in ("output", "precision") else c.name
                     for c in chosen]  # fmt: skip
            yield Finding(
                level=level, code="compat-accepts", subject="compat",  # type: ignore[arg-type]
                message=f"the compat tolerance passes in every case: {_some(names, 6)}",
                remedy="scale the inputs so that the tolerance is small beside the outputs"
                if level == "warning" else "",
            )  # fmt: skip


def _first_case(cheats: Iterable[Cheat], first: str) -> Iterator[Finding]:
    fooled = [
        c for c in cheats
        if first in c.proof and not c.accepted and len(c.cases) > 1 and c.kind != "precision"
    ]  # fmt: skip
    if fooled:
        names = [f"{c.name} ({c.subject})" if c.kind == "output" else c.name for c in fooled]
        yield Finding(
            level="warning", code="first-case", subject=first,
            message=f"in {first}, the case that is timed, the proof passes: {_some(names, 6)}",
            remedy="only other cases tell these apart; better inputs for this one would as well",
        )  # fmt: skip


def _some(names: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
