"""Times by a GPU's own clock on contents that are new, and on the same contents again.

A kernel can keep its last inputs and results in the GPU's memory, and copy where nothing has
changed; no cache in Python needs to know of it, and where a call takes less than its launch no
clock of the host shows it.
"""

from __future__ import annotations

from typing import Any

import torch

from kernelproof.worker import nests
from kernelproof.worker.copying import copied
from kernelproof.worker.inputs import bytes_of
from kernelproof.worker.sampling import Sampler, room_for
from kernelproof.worker.streams import CYCLES, reset_persisting_l2

_IDLE_CALLS = 2
# The GPU is kept busy while Python prepares the launches: so many times what its calls take.
_AHEAD_SHARE, _LEAST_SECONDS, _MOST_SECONDS = 1.5, 200e-6, 20e-3

_spin: Any = getattr(torch.cuda, "_sleep", None)


def look(sampler: Sampler, clock: str, sets: list[bytes]) -> dict[str, Any]:
    """Seconds per call by events on ``sets``, which are ``new``, and on the same contents again
    (``seen``); and how many outputs are ``kept``, to be collected under ``clock``.

    Both times the inputs, and what calls on others read, were just read.

    Args:
        clock: "device", of the graph; or "unseen", of one call on each of the inputs.
    """
    sampler.fill(sets)
    calls = sampler.graph_calls if clock == "device" else len(sampler.slots)
    with torch.no_grad():
        for inputs in sampler.slots:
            if 2 * bytes_of(inputs) <= sampler.flushed.numel():  # they fit into L2
                nests.rebuilt(inputs, copied)
        new, seen = _seconds(sampler, clock), _seconds(sampler, clock)
    return {"new": new / calls, "seen": seen / calls, "kept": len(sampler.kept[clock])}


def _seconds(sampler: Sampler, clock: str) -> float:
    """Of a replay, or of a call on each of the inputs."""
    for _ in range(_IDLE_CALLS):
        sampler.module(*sampler.idle)
    sampler.synchronize()
    reset_persisting_l2()
    begin, end = sampler.event(enable_timing=True), sampler.event(enable_timing=True)
    ahead = max(_LEAST_SECONDS, _AHEAD_SHARE * sampler.seconds * len(sampler.slots))
    _spin(int(min(ahead, _MOST_SECONDS) * CYCLES))
    begin.record()
    if clock == "device":
        sampler.graph.replay()
        end.record()
    else:
        outputs = [sampler.module(*inputs) for inputs in sampler.slots]
        end.record()
        last = outputs[-room_for(sampler.size) :]
        sampler.kept[clock] = [nests.rebuilt(output, copied) for output in last]
    sampler.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3
