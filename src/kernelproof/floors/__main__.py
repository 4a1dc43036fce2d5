"""``python -m kernelproof.floors DEVICE THREADS``: measure, and print the floors as JSON."""

from __future__ import annotations

import datetime
import sys
import time


def main() -> None:
    import torch

    from kernelproof.floors import cpu, gpu
    from kernelproof.floors.cache import names
    from kernelproof.types import Floors

    device, threads = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(threads)
    started = time.perf_counter()
    found = cpu.measure(threads) if device == "cpu" else gpu.measure(device)
    name, software = names(device)
    floors = Floors(
        device=name,
        software=software,
        threads=threads if device == "cpu" else 0,
        measured=datetime.datetime.now(datetime.timezone.utc),
        seconds=time.perf_counter() - started,
        **found,
    )
    print(floors.model_dump_json())


if __name__ == "__main__":
    main()
