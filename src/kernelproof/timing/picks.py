"""Outputs of timed calls, picked by the parent after the clock has stopped, to be checked."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from kernelproof.timing.fresh import Drawn

# No more outputs and bytes are held than these; which ones is left to chance.
_MOST = 40
_MOST_BYTES = 256 << 20
# Larger outputs are picked in every fourth round.
_LARGE_BYTES = 16 << 20


@dataclasses.dataclass(frozen=True)
class Pick:
    """``output`` of a call that was timed in round ``number``, on inputs drawn under ``seed``;
    ``again``: others may have run on the same memory before it."""

    seed: int
    clock: str
    number: int
    output: Any
    again: bool


class Picks:
    """Collects from the samples of one contestant.

    Args:
        size: bytes of an output.
    """

    def __init__(self, size: Callable[[Any], int]) -> None:
        self.held: list[Pick] = []
        self._size = size
        self._draw = random.SystemRandom()
        self._seen = 0
        self._bytes = 0

    def take(
        self, clock: str, calls: int, number: int, sets: list[Drawn], kept: int,
        collect: Callable[[int], Any],
    ) -> None:  # fmt: skip
        """Pick one of the ``kept`` outputs, those of the last of ``calls`` calls, which went round
        ``sets`` in order; ``collect`` fetches an output by its number."""
        if kept < 1 or (self._bytes > _LARGE_BYTES and self._draw.randrange(4)):
            return
        chosen = self._draw.randrange(kept)
        output = collect(chosen)
        self._bytes = self._size(output)
        drawn = sets[(calls - kept + chosen) % len(sets)]
        again = clock in ("device", "warm") or calls > len(sets)
        self._keep(Pick(drawn.seed, clock, number, output, again))

    def _keep(self, pick: Pick) -> None:
        self._seen += 1
        most = max(4, min(_MOST, _MOST_BYTES // max(1, self._bytes)))
        if len(self.held) < most:
            self.held.append(pick)
        elif (place := self._draw.randrange(self._seen)) < most:
            self.held[place] = pick
