"""Who takes part in a timing: the race, and everyone in it but the candidate."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelproof.ahead import Ahead
from kernelproof.baselines import EAGER, Baseline
from kernelproof.resize import tensor_bytes
from kernelproof.rivals import Rival, TimedRival
from kernelproof.subject import CandidateProcess
from kernelproof.timed_worker import Timed, TimedModule
from kernelproof.timeline import span
from kernelproof.timing import Entrant, Fresh, Picks
from kernelproof.types import Case
from kernelproof.worker import packing

if TYPE_CHECKING:
    from kernelproof.options import Options
    from kernelproof.problem import Reference

_FLOOR = Path(__file__).parent / "timing" / "floor.py"


@dataclasses.dataclass(frozen=True)
class Race:
    """What is timed: one case of a problem, on one device, with the weights of one seed; and what
    it is timed beside."""

    reference: Reference
    case: Case
    device: str
    seed: int
    baselines: Sequence[Baseline]
    rivals: Sequence[Rival]
    options: Options

    @property
    def cuda(self) -> bool:
        return self.device != "cpu"


class Field:
    """The contestants of ``race`` beside the candidate, each in a worker of its own. Use as a
    context manager. On a GPU, where each takes seconds to start, they are made ready at once.

    Args:
        payload: arguments, seed and weights to construct with.
        secret: what the seeds of the timed inputs come from.
        ahead: gives their workers.
    """

    @span("start the others")
    def __init__(
        self, race: Race, payload: tuple[Any, Any, int, Any], secret: int, ahead: Ahead
    ) -> None:
        self.race = race
        self.payload = payload
        self._ahead = ahead
        self.fresh = Fresh(
            lambda seed: race.reference.drawn(race.case, seed), tensor_bytes, secret, race.cuda,
            packing.packed,
        )  # fmt: skip
        self._pool: ThreadPoolExecutor | None = None
        self.rivals: dict[str, TimedRival] = {}
        path = race.reference.problem.path
        self.baselines = {
            one.name: TimedModule(
                one.name, path, one.attr, race.device, payload, self.fresh, race.options,
                wrap=one.wrap, tf32=one.tf32, worker=ahead.worker,
            )
            for one in race.baselines
        }  # fmt: skip
        self.floor = _floor(race, self.fresh, ahead)
        if race.cuda and ahead.many:
            self.fresh.sets(0, self.fresh.most)
            own = [*self.baselines.values(), self.floor]
            self._pool = ThreadPoolExecutor(
                min(len(os.sched_getaffinity(0)), len(own) + len(race.rivals))
            )
            for one in own:
                one.start(self._pool)

    def __enter__(self) -> Field:
        return self

    @span("end the others")
    def __exit__(self, *_: object) -> None:
        own = [*self.baselines.values(), self.floor]
        everyone = [*own, *self.rivals.values()]
        for one in everyone:
            one.stop()
            # They hold inputs: not for each other until the collector comes.
            one.resting = None
        # At once: the end of a process with a context on a GPU takes half a second.
        with ThreadPoolExecutor(len(everyone)) as pool:
            ends = [pool.submit(rival.worker.close) for rival in self.rivals.values()]
            ends += [pool.submit(self._ahead.done, one.worker, one.compiles) for one in own]
        for end in ends:
            end.result()
        if self._pool is not None:
            self._pool.shutdown()

    def wait(self) -> None:
        """Until all are ready that were started in the background."""
        for one in (*self.baselines.values(), self.floor):
            one.wait()

    @property
    def eager(self) -> Timed | None:
        return self.baselines.get(EAGER)

    def entrants(self) -> list[Entrant]:
        """Baselines and rivals. The latter, which are candidates too, are loaded only now, or from
        now on where baselines were made ready at once."""
        for one in self.race.rivals:
            process = CandidateProcess(
                one.candidate, self.race.device, self.race.options, one.hides
            )
            timeout = self.race.options.call_timeout
            self.rivals[one.name] = TimedRival(
                process, self.fresh, timeout, Picks(tensor_bytes), self.payload
            )
            if self._pool is not None:
                self.rivals[one.name].start(self._pool)
        return [Entrant(name, one) for name, one in {**self.baselines, **self.rivals}.items()]


def _floor(race: Race, fresh: Fresh, ahead: Ahead) -> TimedModule:
    """The cheapest call there is; it takes the first tensor of the inputs."""
    import torch

    def first(inputs: list[Any]) -> list[Any]:
        return [next((x for x in inputs if isinstance(x, torch.Tensor)), torch.zeros(1))]

    name = "empty launch" if race.cuda else "empty call"
    nothing: Any = ([], {}, race.seed, {})
    return TimedModule(
        name, str(_FLOOR), "Model", race.device, nothing, fresh, race.options, only=first,
        worker=ahead.worker,
    )  # fmt: skip
