"""Does a candidate gain anything by asking the GPU to keep its input in L2?

    python benchmarks/kept_in_l2.py -o FILE

Cold times (L2 flushed before each call) of a sum over 8 MiB, plain and with the window of the
fixture `cumsum__cuda_input_kept_in_l2`; each with persisting lines reset before a sample, as
kernelproof does it, and without that. Seconds, medians of 30.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pickle
import statistics
from pathlib import Path
from typing import Any

import torch

from kernelproof import environment
from kernelproof.importing import import_file
from kernelproof.worker import sampling

FIXTURE = Path(__file__).parents[1] / "tests/candidates/gpu/cumsum__cuda_input_kept_in_l2.py"
ELEMENTS = 2 << 20
CALLS = 30


class Sum(torch.nn.Module):
    def __init__(self, keep: Any) -> None:
        super().__init__()
        self.keep = keep
        self.kept: set[int] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.keep is not None and x.data_ptr() not in self.kept:
            self.kept.add(x.data_ptr())
            self.keep(x)
        return x.sum()


def cold(keep: Any) -> float:
    sets = [pickle.dumps((1, [torch.randn(ELEMENTS)]))]
    sampler = sampling.Sampler(Sum(keep), sets, "cuda")
    sampler.prepare(graph=False)
    return statistics.median(sampler._alone("cold", 1)[0] for _ in range(CALLS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    keep, reset = import_file(FIXTURE, "fixture").keep, sampling._reset_persisting_l2
    found: dict[str, dict[str, float]] = {}
    for name, asks in (("not kept", None), ("kept", keep)):
        for how, action in (("reset", reset), ("not reset", lambda: None)):
            sampling._reset_persisting_l2 = action
            found.setdefault(name, {})[how] = cold(asks)
            reset()
    body = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "environment": environment.capture().model_dump(),
        "seconds": found,
    }
    given.output.write_text(json.dumps(body, indent=1) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
