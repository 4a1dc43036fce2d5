"""How to judge a candidate: what a command's options become."""

from __future__ import annotations

import dataclasses
from typing import get_args

from kernelproof.bounds import MOST_SECONDS
from kernelproof.errors import UsageError
from kernelproof.types import Level


@dataclasses.dataclass(frozen=True)
class Options:
    """How to judge.

    ``device``: "cpu", "cuda", "cuda:1"; None chooses by the candidate's language and the machine.
    ``seeds``: random inputs for the first case (others get two). ``seed``: replays a run's seeds;
    None draws them secretly. ``cases``: names, all when empty. ``baselines``: names to time beside;
    None for all that are usual. ``vs``: other candidates to time beside; see `rivals.find`, for
    whose "best" ``store`` is asked. ``rounds``, ``seconds``: at most so many of the timing.
    ``sizes`` and ``shrink_to``: see `problem.load`; ``case_sizes``: other values for keywords of
    the case that is timed.
    ``level``: "quick" (one seed, declared cases), "default" (also families and layouts of the first
    case) or "thorough" (those of every case, twice the seeds, other sizes).
    ``build_timeout``, ``call_timeout``, ``compile_timeout``: seconds. ``memory``: bytes that the
    candidate and what it starts may hold; a share of what is available by default.
    ``large``: also the cases past 2^31 elements, whose calls may take ten minutes.
    ``training``: reference, candidate and baselines are in training mode; see `types.Problem`.
    ``sanitize``, ``ncu``: of a candidate that is timed on a GPU, also what compute-sanitizer finds
    and Nsight Compute counts; both run it outside of a worker's confinement.
    """

    device: str | None = None
    seeds: int = 5
    seed: int | None = None
    level: Level = "default"
    cases: tuple[str, ...] = ()
    max_bytes: int | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    case_sizes: tuple[tuple[str, int], ...] = ()
    shrink_to: int | None = None
    baselines: tuple[str, ...] | None = None
    build_timeout: float = 600.0
    call_timeout: float = 60.0
    compile_timeout: float = 120.0
    memory: int | None = None
    large: bool = False
    rounds: int = 160
    seconds: float = 10.0
    vs: tuple[str, ...] = ()
    store: str | None = None
    training: bool = False
    sanitize: bool = False
    ncu: bool = False

    def __post_init__(self) -> None:
        """Raises UsageError for what would look like a fault of the candidate."""
        least = {
            "seeds": 1, "rounds": 2, "seconds": 0.0, "max_bytes": 0, "shrink_to": 1,
            "build_timeout": 0.1, "call_timeout": 0.1, "compile_timeout": 0.1, "memory": 1,
        }  # fmt: skip
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and not value >= low:
                raise UsageError(f"{name}={value!r}: at least {low} is accepted")
        for name in ("seconds", "build_timeout", "call_timeout", "compile_timeout"):
            if not getattr(self, name) <= MOST_SECONDS:
                raise UsageError(f"{name}={getattr(self, name)!r}: at most {MOST_SECONDS:,.0f}")
        if self.level not in get_args(Level):
            raise UsageError(f"level={self.level!r}: there are {', '.join(get_args(Level))}")
