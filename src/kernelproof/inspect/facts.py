"""What rules look at: a kernel or a whole call, its GPU, and what was measured, if anything."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

from kernelproof.inspect.devices import Device
from kernelproof.types import KernelFacts


@dataclasses.dataclass(frozen=True)
class Measured:
    """Of one call of the whole candidate, as far as known; None is not known.

    ``seconds``: device time. ``launch_floor``: seconds of an empty launch. ``bytes``: the least
    that must move between memory and chip; ``flops``: operations of the reference, of which
    ``matrix_flops`` in products of matrices. ``bandwidth`` (bytes/s) and ``rate`` (FLOP/s): what
    this GPU reaches, the rate for the precision that the problem computes in.
    """

    seconds: float | None = None
    launch_floor: float | None = None
    bytes: float | None = None
    flops: float | None = None
    matrix_flops: float | None = None
    bandwidth: float | None = None
    rate: float | None = None

    @property
    def memory_seconds(self) -> float | None:
        """Least time to move ``bytes``."""
        return _quotient(self.bytes, self.bandwidth)

    @property
    def arithmetic_seconds(self) -> float | None:
        """Least time to compute ``flops``."""
        return _quotient(self.flops, self.rate)

    @property
    def floor(self) -> float | None:
        """The larger of the two: no kernel can take less."""
        known = [t for t in (self.memory_seconds, self.arithmetic_seconds) if t is not None]
        return max(known) if known else None


@dataclasses.dataclass(frozen=True)
class Rule:
    """``when`` and ``needs`` in words, for the documents; ``sentence`` takes `Facts` or `Call` and
    gives a sentence, or "" where it has nothing to say."""

    name: str
    when: str
    needs: str
    sentence: Callable[[Any], str]


def said(rules: Iterable[Rule], facts: Facts | Call) -> tuple[str, ...]:
    """The sentences of the rules that have something to say."""
    sentences = (rule.sentence(facts) for rule in rules)
    return tuple(text for text in sentences if text)


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a candidate: its kernels and what was measured of it."""

    kernels: tuple[KernelFacts, ...]
    device: Device
    measured: Measured = Measured()

    @property
    def launches(self) -> int:
        """Of all kernels; 0 where none is known."""
        return sum(k.launch.count for k in self.kernels if k.launch is not None)


@dataclasses.dataclass(frozen=True)
class Facts:
    """One kernel on ``device``."""

    kernel: KernelFacts
    device: Device

    @property
    def threads(self) -> int:
        """Of a block; 0 without a launch."""
        return math.prod(self.kernel.launch.block) if self.kernel.launch else 0

    @property
    def blocks(self) -> int:
        """Of the grid; 0 without a launch."""
        return math.prod(self.kernel.launch.grid) if self.kernel.launch else 0

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Of the tensors that the kernel was given; empty where not known."""
        return self.kernel.launch.dtypes if self.kernel.launch else ()

    def count(self, *names: str, loops: bool = False) -> int:
        """Instructions whose class is one of ``names``, whatever their width."""
        mix = self.kernel.instructions
        if mix is None:
            return 0
        counts = mix.in_loops if loops else mix.counts
        return sum(n for key, n in counts.items() if key.split(".")[0] in names)

    def widths(self, *names: str) -> dict[int, int]:
        """Bits -> number of instructions: those in loops where there are any, else all."""
        mix = self.kernel.instructions
        found: dict[int, int] = {}
        if mix is None:
            return found
        for counts in (mix.in_loops, mix.counts):
            for key, n in counts.items():
                name, _, bits = key.partition(".")
                if name in names and bits:
                    found[int(bits)] = found.get(int(bits), 0) + n
            if found:
                break
        return found


def _quotient(amount: float | None, rate: float | None) -> float | None:
    return amount / rate if amount is not None and rate else None
