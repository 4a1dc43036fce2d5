"""Which kernels of ``chunked.cu`` and ``wide.cu`` a problem gets, and how its steps are divided."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch

from kernelproof.ops.gated_recurrence.chunk_config import CHUNK, Config, Wide
from kernelproof.ops.gated_recurrence.config import KEY_GATE, VALUE_GATE

# Up to so many rows or columns, which do not fill half of what the kernels hold, the general kernel
# is the faster one.
_FEW_ROWS = 32
# Steps of the first of two segments over those of the other, whose end and y take as long together
# where both fit the GPU at once. More segments do not, and are best alike (measured on an H200).
_LEAD = 1.7


class Chunks(NamedTuple):
    """How a call goes: the kernel that gives y, the one before it where a sequence has more than
    one segment, and the segments."""

    config: Config
    ends: Config | None
    segments: int
    lead: int  # steps of the first segment, which waits for none
    length: int  # steps of each other one


def choose(
    gate: str,
    gate_bytes: int,
    gates: int,
    key_dim: int,
    value_dim: int,
    steps: int | None,
    element: torch.dtype = torch.bfloat16,
    precise: bool = False,
    heads: int = 1,
) -> Chunks | None:
    """The kernels for a problem, None where ``chunked.cu`` has none. ``steps`` is None where the
    host does not know the lengths of sequences. ``precise``: bfloat16 operands in two parts.

    Segments round differently from a sequence that is gone through at once, so that they depend
    on the sizes of one sequence alone, as everything that decides the rounding does.
    """
    unit = 16 // element.itemsize
    few = key_dim <= _FEW_ROWS or value_dim <= _FEW_ROWS
    if few or key_dim > 256 or key_dim % unit or value_dim % unit:
        return None
    tails = value_dim % 64 != 0 or key_dim not in (64, 128, 256)
    key_dim, value_dim = whole(key_dim, value_dim)
    if gates & KEY_GATE and key_dim == 256 and (gates & VALUE_GATE or steps is None):
        return None
    base = Config(element, gate, gate_bytes, gates, key_dim, 1, 4, 4, 2, precise=precise)
    base = replace(base, tails=tails)
    wide = _wide(base, value_dim, steps is None)
    old = _half if element == torch.bfloat16 else _finer
    base = old(base, value_dim) if wide is None else wide
    config = base.fitted()
    if steps is None:
        return Chunks(config, None, 1, 0, 0)
    blocks = heads * (value_dim // config.columns)
    segments, lead, length = divided(steps, _segment(steps, config, blocks), config.steps)
    ends = None
    if segments > 1:
        ends = replace(base, ends=True)
        if wide is not None and not wide.by_key:
            ends = replace(ends, preparers=4, ahead=2)
        if base.tiles == 2:  # what is shared out by columns otherwise is here by rows as well
            ends = replace(ends, states=8, halves=2, preparers=8)
        ends = ends.fitted()
    return Chunks(config, ends, segments, lead, length)


def _half(base: Config, value_dim: int) -> Config:
    """Of bfloat16: what was best on an H200."""
    if base.by_key and base.key_dim == 256:
        preparers = 2 if base.precise else 4  # slots are larger then
        return replace(base, states=8, ahead=1, halves=2, prepared=True, preparers=preparers)
    if base.by_key:
        if base.gates & VALUE_GATE:
            return replace(base, ahead=1)
        if base.key_dim == 128:
            return replace(base, tiles=2, ahead=1) if value_dim % 128 == 0 else base
        return base if base.precise else replace(base, preparers=8, ahead=1)
    if base.key_dim == 128:
        return replace(base, states=8 if value_dim % 128 == 0 else 4, ahead=1)
    return replace(base, ahead=1 if base.key_dim == 256 else 3)


# What was faster by wide.cu on an H200 (attempts.md). With gates of keys: from so many rows on.
WIDE_FROM = {torch.bfloat16: 256, torch.float32: 128}
# With a gate for all of the state, or none: chunks that are copied ahead, by rows. Of 256 rows two
# slots fit, and what is copied ahead takes the one in which the next chunk could be prepared.
WIDE_AHEAD = {64: 1, 128: 1, 256: 0}


def _wide(base: Config, value_dim: int, packed: bool) -> Wide | None:
    """What ``wide.cu`` does, if it is the faster one. Gates of keys are worked on before, by a
    launch that does not know where packed sequences begin."""
    made = Wide(**vars(base))
    wide_columns = value_dim % 128 == 0 and base.key_dim == 128
    if not base.gates & (KEY_GATE | VALUE_GATE):
        if base.element != torch.bfloat16 or base.precise:
            return None
        made = replace(made, ahead=WIDE_AHEAD[base.key_dim], states=8 if wide_columns else 4)
        return replace(made, preparers=8) if base.key_dim == 64 else made
    if base.gates & VALUE_GATE or packed or made.terms == 2:
        return None
    if base.key_dim < WIDE_FROM[base.element]:
        return None
    # A warp that copies has a slot to itself, and nothing to copy ahead.
    made = replace(made, prepared=True, precise=False, ahead=0)
    if base.key_dim == 256:
        return replace(made, states=8, halves=2) if made.terms > 1 else made
    return replace(made, states=8) if wide_columns else made


def _finer(base: Config, value_dim: int) -> Config:
    """Of float16 and float32, whose operands have several planes: more shared memory and registers.
    Where slots are few, warps that prepare have one each and copy nothing ahead."""
    base = replace(base, ahead=1, precise=False, prepared=base.by_key and base.key_dim == 256)
    if base.element == torch.float16:
        return replace(base, preparers=2) if base.key_dim == 256 else base
    if base.key_dim == 256:
        return replace(base, preparers=2) if base.by_key else replace(base, preparers=3, ahead=0)
    if base.key_dim == 64:
        return replace(base, ahead=0)
    base = replace(base, states=8 if value_dim % 128 == 0 else 4)
    if not base.gates & VALUE_GATE:
        return base
    return replace(base, preparers=2) if base.by_key else replace(base, ahead=0)


def whole(key_dim: int, value_dim: int) -> tuple[int, int]:
    """Rows and columns of a state as the kernels hold it."""
    return next(rows for rows in (64, 128, 256) if key_dim <= rows), -(-value_dim // 64) * 64


def _segment(steps: int, config: Config, blocks: int) -> int:
    """About how many steps a segment has where a sequence has so many blocks for its heads and
    their columns: a compromise between one sequence, which more segments would spread over more of
    the GPU, and so many that they fill it, for which they cost up to twice the time."""
    narrow, scalar = config.key_dim == 64, not config.gates & (KEY_GATE | VALUE_GATE)
    if steps > 8192:
        return 2048
    if steps > 2048:
        return max(512, steps // 8) if narrow and not scalar else 1024
    if steps > 768 and scalar:
        return steps if narrow else 1024
    if steps < 512 or (steps > 1024 and narrow):
        return steps
    # As many as half of the GPU takes at once, of no fewer steps than a launch is worth.
    return max(128 if steps <= 1024 else 256, -(-steps * blocks // 64))


def divided(steps: int, length: int, chunk: int = CHUNK) -> tuple[int, int, int]:
    """How many segments there are, about ``length`` steps long, and the steps of the first and of
    each other. The first one's blocks start while the others' ends are still being computed."""
    segments = max(1, -(-steps // length))
    if segments == 1:
        return 1, steps, steps
    other = steps / (segments - 1 + (_LEAD if segments == 2 else 1.0))
    chunks = int(other / chunk)
    if segments <= 16 and other / chunk - chunks >= 0.5:  # else the first is the longest by far
        chunks += 1
    if chunks * chunk * (segments - 1) >= steps:  # then there is nothing left for it
        chunks -= 1
    other = max(1, chunks) * chunk
    lead = -(-(steps - other * (segments - 1)) // chunk) * chunk
    return segments, lead, other
