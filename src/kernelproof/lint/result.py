"""What a lint hands back: findings, and the cheats that were tried."""

from __future__ import annotations

from typing import Literal

from kernelproof.types import Frozen, Real

Level = Literal["error", "warning", "note"]
Kind = Literal["output", "half", "input", "parameter", "precision"]


class Finding(Frozen):
    """Something about a problem that lets wrong kernels through or that a reader should know.

    ``subject`` names the input, parameter, output or cheat; ``remedy`` says what to change, empty
    where nothing has to. An ``error`` means that the proof would pass a kernel that is not the
    function, or that no kernel can be judged.
    """

    level: Level
    code: str
    subject: str
    message: str
    remedy: str = ""


class Cheat(Frozen):
    """One cheat over all cases in which it can be tried.

    ``subject`` is the output it forges or the input or parameter it ignores. ``proof`` and
    ``compat`` list the cases in which that verdict lets it pass under every seed, ``identical``
    those in which its output equals the reference's bit by bit. ``ratio`` is its largest proof
    ratio: how clearly it was told apart where that was clearest; infinite where it has none.
    """

    name: str
    kind: Kind
    subject: str
    cases: tuple[str, ...]
    proof: tuple[str, ...]
    compat: tuple[str, ...]
    identical: tuple[str, ...]
    ratio: Real

    @property
    def accepted(self) -> bool:
        """Whether a kernel that does this passes the proof: a check runs every case."""
        return self.proof == self.cases

    @property
    def compat_accepted(self) -> bool:
        """Whether it passes the compat tolerance in every case."""
        return self.compat == self.cases


class Report(Frozen):
    """The lint of one problem; ``seeds`` are those of the inputs, ``limit`` that of the proof
    ratio, ``skipped`` says which cases were left out and why."""

    problem: str
    path: str
    cases: tuple[str, ...]
    seeds: tuple[int, ...]
    limit: float
    findings: tuple[Finding, ...]
    cheats: tuple[Cheat, ...]
    skipped: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether there is no finding of level ``error``."""
        return not any(finding.level == "error" for finding in self.findings)
