"""Inside a worker with a GPU: the kernels of a call, their launches and device times."""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from kernelproof.worker import profiling

_CALLS = 20


def kernel_times(module: Any, inputs: list[Any]) -> list[dict[str, Any]]:
    """One entry for each kernel and launch shape of a call: ``name`` (with its parameters),
    ``seconds`` of device time of one launch (median), ``count`` of launches in a call, ``grid``,
    ``block``, and ``shared`` bytes, static and dynamic, as torch's profiler (CUPTI) tells them."""
    with torch.no_grad():
        for _ in range(3):
            module(*inputs)
        torch.cuda.synchronize()
        with profiling.on_gpu() as profile:
            for _ in range(_CALLS):
                module(*inputs)
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return grouped(events, _CALLS)


def grouped(events: list[dict[str, Any]], calls: int) -> list[dict[str, Any]]:
    """`kernel_times` of the events of a trace of so many calls; times there are microseconds."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for event in events:
        if event.get("cat") != "kernel":
            continue
        facts = event.get("args", {})
        grid, block = facts.get("grid", [0, 0, 0]), facts.get("block", [0, 0, 0])
        key = (event["name"], *grid, *block, int(facts.get("shared memory", 0)))
        found.setdefault(key, []).append(float(event["dur"]) * 1e-6)
    return [
        {
            "name": key[0],
            "seconds": statistics.median(times),
            "count": max(1, round(len(times) / calls)),
            "grid": list(key[1:4]),
            "block": list(key[4:7]),
            "shared": key[7],
        }
        for key, times in found.items()
    ]
