"""Inputs for the timing: new ones in every round, the same for all contestants."""

from __future__ import annotations

import dataclasses
import functools
import pickle
import random
import time
from collections.abc import Callable
from typing import Any

# New inputs of one round have at most so many bytes, and take at most so long to draw.
_ROUND_BYTES = 16 << 20
_ROUND_SECONDS = 0.05
_MOST_SETS = 50
# On a GPU a reading averages over many calls, which go round so many sets of inputs.
_MOST_SLOTS = 8
# Clocks on a GPU whose calls must not have seen their contents under another one: the host's (whose
# inputs the graph, which no cache in Python can reach, shares), single calls, and cold ones.
_PARTS = 3
# Larger inputs are renewed in every eighth round only on a GPU, where sending them takes longer
# than the calls; `clocks` tells whether contents that were seen before are quicker.
_SELDOM = 8


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Inputs and the seed under which they were drawn."""

    seed: int
    inputs: list[Any]
    pack: Callable[[Any], bytes] = dataclasses.field(
        default=pickle.dumps, repr=False, compare=False
    )

    @functools.cached_property
    def packed(self) -> bytes:
        """Both, as they are sent: the same for all contestants."""
        return self.pack((self.seed, self.inputs))


class Fresh:
    """Draws the inputs of each round.

    Args:
        draw: inputs for a seed.
        size: bytes of some inputs.
        seed: of the seeds; a candidate has seen none of those that come of it.
        cuda: whether the contestants run on a GPU.
        pack: a seed and inputs as they are sent to a worker, which unpickles them.
    """

    def __init__(
        self, draw: Callable[[int], list[Any]], size: Callable[[list[Any]], int], seed: int,
        cuda: bool, pack: Callable[[Any], bytes] = pickle.dumps,
    ) -> None:  # fmt: skip
        self._draw = draw
        self._pack = pack
        self._random = random.Random(f"timed {seed}")
        self.cuda = cuda
        self.one()
        started = time.perf_counter()
        first = self.one()
        seconds = max(time.perf_counter() - started, 1e-6)
        self.bytes = max(1, size(first.inputs))
        self._parts = _PARTS if cuda else 1
        by_size = _ROUND_BYTES // self.bytes // self._parts
        by_time = int(_ROUND_SECONDS / seconds) // self._parts
        # Two at least where they are not huge, so that each round has calls at other addresses.
        least = 1 if self.bytes > 4 * _ROUND_BYTES else 2
        self.most = max(least, min(by_size, by_time, _MOST_SLOTS if cuda else _MOST_SETS))
        self._round = -1
        self._sets = [first]

    def one(self) -> Drawn:
        """Inputs that have not been there before."""
        seed = self._random.getrandbits(31)
        return Drawn(seed, self._draw(seed), self._pack)

    def sets(self, number: int, calls: int, part: int = 0) -> list[Drawn]:
        """Those of round ``number`` for ``calls`` calls: one for each, as far as there may be.

        Args:
            part: other parts have other inputs, unless they are so large that they are renewed
                seldom.
        """
        large = self.cuda and self.bytes * self.most * self._parts > 2 * _ROUND_BYTES
        if number != self._round and not (large and number % _SELDOM):
            self._sets = []
        self._round = number
        count, first = min(calls, self.most), 0 if large else part * self.most
        while len(self._sets) < first + count:
            self._sets.append(self.one())
        return self._sets[first : first + count]
