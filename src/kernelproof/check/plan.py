"""What a check runs, and what it runs it on."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Protocol

import torch

from kernelproof.types import Evidence, Level


class Subject(Protocol):
    """The candidate, wherever it runs."""

    def construct(
        self, args: list[Any], kwargs: dict[str, Any], seed: int, state: dict[str, torch.Tensor]
    ) -> str | None:
        """Make a ModelNew with these arguments and weights ready for `call`; returns how the
        weights matched, where that is known."""

    def call(self, inputs: list[Any], seed: int, poison: bool, repeats: int) -> Any:
        """Run it; one dict a run with ``output``, ``mutated``, ``overrun``, ``views_input``,
        ``reused`` and ``devices``."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to run.

    ``seeds``: for the first case; the others take the first ``other_seeds`` of them. ``cases``:
    names to run, all when empty. ``max_bytes``: cases with larger inputs are left out, and that is
    said. ``level``: "quick" runs the declared cases only, "default" adds families and layouts of
    the first case, "thorough" those of every case and other sizes. ``extra_seconds``: no new
    variant of a case after this time. ``large``: also the cases past 2^31 elements.
    """

    seeds: tuple[int, ...]
    device: str = "cpu"
    evidence: Evidence = "cpu"
    other_seeds: int = 2
    cases: tuple[str, ...] = ()
    max_bytes: int | None = None
    level: Level = "quick"
    extra_seconds: float = math.inf
    large: bool = False
