"""Run shipped operators' CUDA kernels once on each case of their problems, for compute-sanitizer to
watch.

    compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 \
        python benchmarks/sanitize.py

Cases whose reference needs more than a given number of multiply-adds are left out and named, since
the sanitizer slows a kernel down a hundredfold.
"""

from __future__ import annotations

import argparse
import sys

import torch

from kernelproof.importing import import_file
from kernelproof.problem import known_problems, load, shipped_operators


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-flops", type=float, default=2e8)
    parser.add_argument("operators", nargs="*")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("sanitize: torch sees no CUDA GPU here", file=sys.stderr)
        return 1
    for name, path in sorted(known_problems().items()):
        folder = path.parent
        if folder.name not in (given.operators or shipped_operators()):
            continue
        reference = load(name)
        module = import_file(folder / "cuda.py", "sanitize")
        for case in reference.problem.cases:
            flops = reference.count("FLOPS", case) or 0
            if flops > given.max_flops:
                print(f"{name} {case.name}: left out ({flops:.2g} operations)")
                continue
            args, kwargs = reference.init_args(case)
            torch.manual_seed(0)
            inputs = [
                x.cuda() if isinstance(x, torch.Tensor) else x for x in reference.inputs(case)
            ]
            with torch.no_grad():
                module.ModelNew(*args, **kwargs).cuda().eval()(*inputs)
            torch.cuda.synchronize()
            print(f"{name} {case.name}: ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
