"""A process that calls a candidate on a GPU, for NVIDIA's tools to watch.

    compute-sanitizer python -m kernelproof.worker.watched REQUEST

REQUEST is a file of `inspect.watch.write_request`. The tools reach into the process that they
start, so this one has none of the limits of a worker; see docs/inspect.md.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path


def main(request: str) -> None:
    """Construct the candidate with the given weights, and call it once."""
    import torch

    from kernelproof.seeding import seed_all
    from kernelproof.worker.child import Host
    from kernelproof.worker.inputs import mapped

    candidate, language, payload = pickle.loads(Path(request).read_bytes())
    constructed, inputs, seed = payload
    host = Host()
    load = {
        "path": candidate, "kind": "candidate", "attr": "ModelNew", "device": "cuda",
        "language": language, "threads": torch.get_num_threads(),
    }  # fmt: skip
    host.load(load, constructed)
    given = [mapped(value, lambda t: t.cuda()) for value in inputs]
    seed_all(seed, True)
    with torch.no_grad():
        host.module(*given)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1])
