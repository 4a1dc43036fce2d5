"""What a timed case costs at least: its work, traced from the reference, at this device's rates."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernelproof.errors import KernelproofError
from kernelproof.timeline import span
from kernelproof.types import Progress, Timing, Work

if TYPE_CHECKING:
    from kernelproof.contestants import Race


@span("floors of the device")
def prepare(device: str, quiet: Callable[[], None], progress: Progress) -> None:
    """Measure the floors of ``device`` where that was not done yet. To be called before anything
    of a candidate runs, which could disturb it for all times to come; ``quiet`` waits until nothing
    else does. A failure is told later."""
    from kernelproof import floors

    try:
        if floors.load(device) is None:
            quiet()
        floors.get(device, progress)
    except KernelproofError as error:
        _failed[device] = str(error)


_failed: dict[str, str] = {}


@span("work and limits")
def attached(timing: Timing, race: Race, sets: int) -> Timing:
    """``timing`` with the work of its case, the device's floors, and the share reached.

    Args:
        sets: how many sets of inputs the timed calls go round.
    """
    from kernelproof import floors
    from kernelproof.floors.limits import unknown_rates

    notes = list(timing.notes)
    work = _work(race, notes)
    found = floors.load(race.device)
    if found is None:
        why = _failed.get(race.device, "not measured")
        notes.append(f"floors of the device: {why}; `kernelproof floors` measures them")
    series = timing.candidate.device or timing.candidate.host
    update: dict[str, Any] = {"work": work, "floors": found}
    if work is not None:
        notes += work.notes
        if work.unknown:
            notes.append(f"no FLOPs known for {', '.join(work.unknown)}: not counted")
        update |= {"flops": work.flops or None, "bytes": work.bytes or None}
    if work is not None and found is not None and series is not None:
        if missing := unknown_rates(work, found):
            notes.append(f"no measured rate for {', '.join(missing)}: no bound from it")
        # On a CPU each call has inputs of its own that were just written: as near as caches go.
        going_round = work.bytes * (max(1, sets) if race.cuda else 1)
        update["limit"] = floors.limit(work, found, series, _empty(timing), going_round, race.cuda)
    return timing.model_copy(update={**update, "notes": tuple(dict.fromkeys(notes))})


def _empty(timing: Timing) -> float | None:
    """Seconds of the empty call by the clock that the candidate's time is told in."""
    floor = timing.floor
    series = None if floor is None else (floor.device or floor.host)
    if timing.candidate.device is None and floor is not None:
        series = floor.host
    return None if series is None else series.median


def _work(race: Race, notes: list[str]) -> Work | None:
    """The work of the timed case, the problem's own figures where it has them."""
    from kernelproof.check.reference import construct
    from kernelproof.check.values import to_device
    from kernelproof.seeding import seed_all
    from kernelproof.work import settled, trace

    reference, case = race.reference, race.case
    flops, nbytes = reference.count("FLOPS", case), reference.count("BYTES", case)
    try:
        args, kwargs = reference.init_args(case)
        factory, training = reference.module.Model, reference.problem.training
        model = construct(factory, args, kwargs, race.seed, race.device, training)
        inputs = to_device(reference.drawn(case, race.seed), race.device)
        seed_all(race.seed)
        found = trace(model, inputs)
    except Exception as error:
        # It ran before without being watched: the watching is at fault, and the times stand.
        last = f"{type(error).__name__}: {error}".splitlines()[0]
        notes.append(f"the reference could not be traced: {last}")
        if flops is None and nbytes is None:
            return None
        vector = {"fp32": flops} if flops else {}
        return Work(matrix={}, vector=vector, read=nbytes or 0.0, written=0.0,
                    declared=("flops", "bytes"))  # fmt: skip
    return settled(found, flops, nbytes)
