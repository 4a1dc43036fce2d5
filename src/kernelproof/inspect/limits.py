"""Plain sentences about a whole call: launches, memory and arithmetic against its time.

Rules as in `sentences`; they look at `Call`, and most need a time that was measured.
"""

from __future__ import annotations

from kernelproof.inspect import sass
from kernelproof.inspect.facts import Call, Rule
from kernelproof.report import units

# What measurements may be off: see floors.limits.
_CERTAIN = 0.8
_LAUNCH_SHARE = 0.5
_NEAR_FLOOR = 0.6
_MATRIX_SHARE = 0.5
_MULTIPLY_ADDS = ("FFMA", "FFMA2", "HFMA2", "IDP", "IMAD")


def _suspicious(c: Call) -> str:
    floor, seconds = c.measured.floor, c.measured.seconds
    if floor is None or seconds is None or seconds >= _CERTAIN * floor:
        return ""
    return (
        f"suspicious: {units.seconds(seconds)} is below the {units.seconds(floor)} that this GPU "
        "needs for the problem's bytes and FLOPs; the kernel leaves out work, or the counts or "
        "clocks are wrong"
    )


def _launch_bound(c: Call) -> str:
    seconds, floor = c.measured.seconds, c.measured.launch_floor
    if seconds is None or floor is None or not floor > _LAUNCH_SHARE * seconds:
        return ""
    many = c.launches > 1
    what = f"{c.launches} launches" if many else "one launch"
    advice = (
        "fuse the kernels, or capture them in a CUDA graph" if many else
        "fusing further cannot help, fewer instructions on the critical path can"
    )  # fmt: skip
    return (
        f"launch-bound: {units.seconds(floor)} of {units.seconds(seconds)} is what an empty launch "
        f"takes, and the call makes {what}; {advice}"
    )


def _share(c: Call, needed: float | None) -> float:
    """Share of the call's time that it needs at least, where that is its floor and near; else 0."""
    seconds = c.measured.seconds
    if seconds is None or needed is None or needed != c.measured.floor:
        return 0.0
    return needed / seconds if _NEAR_FLOOR * seconds <= needed <= seconds else 0.0


def _memory_bound(c: Call) -> str:
    share = _share(c, c.measured.memory_seconds)
    if not share:
        return ""
    return (
        f"memory-bound: it moves the least bytes possible at {units.share(share)} of "
        "this GPU's bandwidth; only moving fewer bytes (narrower types, fusing with neighbours) "
        "can help"
    )


def _compute_bound(c: Call) -> str:
    share = _share(c, c.measured.arithmetic_seconds)
    if not share:
        return ""
    return (
        f"compute-bound: it computes at {units.share(share)} of this GPU's rate in its "
        "precision; only fewer operations or a lower precision can help"
    )


def _far_from_floor(c: Call) -> str:
    seconds, floor = c.measured.seconds, c.measured.floor
    if seconds is None or floor is None or floor > _NEAR_FLOOR * seconds or _launch_bound(c):
        return ""
    return (
        f"far from both limits: {units.seconds(seconds)} is {units.ratio(seconds / floor)} the "
        f"{units.seconds(floor)} that memory or arithmetic needs; it waits (latency, barriers, "
        "idle multiprocessors) or does more than it must"
    )


def _no_tensor_cores(c: Call) -> str:
    flops, matrix = c.measured.flops, c.measured.matrix_flops
    mixes = [k.instructions for k in c.kernels if k.instructions is not None]
    if (
        len(mixes) < len(c.kernels)
        or not mixes
        or not flops
        or matrix is None
        or not matrix > _MATRIX_SHARE * flops
    ):
        return ""
    if any(sass.is_tensor(name) for mix in mixes for name in mix.counts):
        return ""
    plain = sum(mix.counts.get(name, 0) for mix in mixes for name in _MULTIPLY_ADDS)
    return (
        f"no tensor cores: {units.share(matrix / flops)} of the FLOPs are products of matrices, "
        f"and there are {plain} plain multiply-adds and no mma; use mma or wgmma if the precision "
        "allows (in fp32 they round their operands to TF32)"
    )


RULES = (
    Rule("below the floor", "the measured time is less than bytes or FLOPs allow", "timing, work",
         _suspicious),
    Rule("launch-bound", "an empty launch takes more than half of the time", "timing",
         _launch_bound),
    Rule("memory-bound", "at least 60 % of the time is needed to move the least bytes",
         "timing, work", _memory_bound),
    Rule("compute-bound", "at least 60 % of the time is needed for the FLOPs", "timing, work",
         _compute_bound),
    Rule("far from the floor", "less than 60 % of the time is needed for bytes or FLOPs, and it is "
         "not launch-bound", "timing, work", _far_from_floor),
    Rule("no tensor cores", "more than half of the FLOPs are products of matrices, and no "
         "instruction of any kernel is for the tensor cores", "instructions, work",
         _no_tensor_cores),
)  # fmt: skip
